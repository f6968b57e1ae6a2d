//! Convolutions along tokens and state-space models: operands to the kernels, results set.

use nrl_ir::op::{Conv, Ring, Ssm};
use nrl_ir::{Node, ValueId};
use nrl_runtime::engine::EngineError;

use super::run::Run;
use super::value::failed;
use crate::ssm::{self, Operands, Sizes};

impl Run<'_> {
    pub(super) fn conv(&mut self, node: &Node, conv: &Conv) -> Result<(), EngineError> {
        self.only_whole(conv.cached, conv.ring.as_ref())?;
        let taps = self.space.size(conv.taps)?;
        let mut y = self.room(node.outs[0])?;
        let (x, w) = (self.values.numbers(node.args[0])?, self.values.numbers(node.args[1])?);
        ssm::conv(&self.tools.threads, taps, self.space.offsets(conv.tok)?, x, w, &mut y);
        self.set(node.outs[0], y);
        Ok(())
    }

    pub(super) fn conv_grad(&mut self, node: &Node, conv: &Conv) -> Result<(), EngineError> {
        self.only_whole(conv.cached, conv.ring.as_ref())?;
        let taps = self.space.size(conv.taps)?;
        let (mut dx, mut dw) = (self.room(node.outs[0])?, self.room(node.outs[1])?);
        let x = |i: usize| self.values.numbers(node.args[i]);
        let x = [x(0)?, x(1)?, x(2)?];
        let offsets = self.space.offsets(conv.tok)?;
        ssm::conv_grad(&self.tools.threads, taps, offsets, x, &mut dx, &mut dw);
        self.set(node.outs[0], dx);
        self.set(node.outs[1], dw);
        Ok(())
    }

    pub(super) fn ssm(&mut self, node: &Node, op: &Ssm) -> Result<(), EngineError> {
        self.only_whole(op.cached, op.ring.as_ref())?;
        let z = self.state_sizes(op)?;
        let mut y = self.room(node.outs[0])?;
        let x = self.state_operands(&node.args)?;
        ssm::forward(&self.tools.threads, z, self.space.offsets(op.tok)?, x, &mut y);
        self.set(node.outs[0], y);
        Ok(())
    }

    pub(super) fn ssm_grad(&mut self, node: &Node, op: &Ssm) -> Result<(), EngineError> {
        self.only_whole(op.cached, op.ring.as_ref())?;
        let z = self.state_sizes(op)?;
        let (mut du, mut da) = (self.room(node.outs[0])?, self.room(node.outs[1])?);
        let (mut db, mut dc) = (self.room(node.outs[2])?, self.room(node.outs[3])?);
        let (x, dy) = (self.state_operands(&node.args)?, self.values.numbers(node.args[4])?);
        let offsets = self.space.offsets(op.tok)?;
        let grads = [&mut du[..], &mut da[..], &mut db[..], &mut dc[..]];
        ssm::backward(&self.tools.threads, z, offsets, x, dy, grads);
        for (v, b) in node.outs.iter().zip([du, da, db, dc]) {
            self.set(*v, b);
        }
        Ok(())
    }

    /// Generation has states only of sequences that begin here, and a rank whole sequences.
    fn only_whole(&self, cached: bool, ring: Option<&Ring>) -> Result<(), EngineError> {
        if cached && self.space.bases.iter().any(|b| *b > 0) {
            return failed("generation from the state of a state-space model does not run yet");
        }
        match ring {
            Some(_) => failed("a state-space model over parts of sequences does not run yet"),
            None => Ok(()),
        }
    }

    fn state_sizes(&self, op: &Ssm) -> Result<Sizes, EngineError> {
        let size = |d| self.space.size(d);
        Ok(Sizes { g: size(op.g)?, r: size(op.r)?, p: size(op.p)?, n: size(op.n)? })
    }

    fn state_operands(&self, args: &[ValueId]) -> Result<Operands<'_>, EngineError> {
        let x = |i: usize| self.values.numbers(args[i]);
        Ok(Operands { u: x(0)?, a: x(1)?, b: x(2)?, c: x(3)? })
    }
}
