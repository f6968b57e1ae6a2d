//! What runs did, counted node by node as they went: tests hold what a plan says against it.
//!
//! In: the nodes that a run dispatches, with the buffers that they read and wrote. Out: FLOPs of the products that were
//! called, FLOPs of attention by the pairs of its offsets, bytes of operands and results of all other nodes, bytes handed
//! to collectives. Nothing is counted unless an engine was made to count.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use nrl_ir::op::Attention;
use nrl_ir::{Node, Op, ValueId};
use nrl_runtime::engine::EngineError;

use super::code::Step;
use super::run::Run;
use super::value::{Value, failed};

/// Totals over all runs of all devices of an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// FLOPs of matrix products, a multiplication and an addition counted as two.
    pub products: f64,
    /// FLOPs of attention.
    pub attention: f64,
    /// Bytes read and written by nodes that are neither.
    pub moved: f64,
    /// Bytes handed to collectives, by the name of the op.
    pub sent: BTreeMap<&'static str, f64>,
}

/// Totals that several ranks add to.
pub type Counter = Arc<Mutex<Counted>>;

impl Run<'_> {
    /// Numbers that each operand holds.
    pub(super) fn operands(&self, node: &Node) -> Vec<usize> {
        node.args.iter().map(|v| self.held(*v)).collect()
    }

    /// Numbers in a value; 0 where there is none.
    fn held(&self, v: ValueId) -> usize {
        fn of(run: &Run<'_>, value: &Value) -> usize {
            match value {
                Value::Numbers(b) => b.len(),
                Value::Ids(x) => x.len(),
                Value::Input(i) => run.values.inputs.get(*i).map_or(0, |x| x.len()),
                Value::Weight(slot) => run.values.weights.get(*slot).map_or(0, Vec::len),
                Value::Stack(all) => all.iter().flatten().map(|x| of(run, x)).sum(),
            }
        }
        self.values.get(v).map_or(0, |x| of(self, x))
    }

    /// Adds what `node` did; `read` are the numbers that its operands held.
    pub(super) fn count(
        &mut self,
        counter: &Counter,
        node: &Node,
        step: &Step,
        read: &[usize],
    ) -> Result<(), EngineError> {
        let multiplied = std::mem::take(&mut self.tools.multiplied);
        let wrote = |o: usize| match step.into {
            Some((into, param)) if into == o => {
                self.slot(param).map(|slot| self.grads.get(slot).map_or(0, Vec::len))
            }
            _ => Ok(self.held(node.outs[o])),
        };
        let mut moved: usize = read.iter().sum();
        for o in 0..node.outs.len() {
            moved += wrote(o)?;
        }
        let Ok(mut total) = counter.lock() else { return failed("a rank failed while it counted") };
        let mut sent = |name: &'static str, numbers: usize| {
            *total.sent.entry(name).or_default() += 4.0 * numbers as f64;
        };
        match &node.op {
            Op::Input { .. } | Op::Use { .. } | Op::Const { .. } | Op::StopGrad => {}
            Op::Position { .. } | Op::Scan { .. } | Op::Accumulate { .. } => {}
            Op::Contract { .. } => total.products += 2.0 * multiplied as f64,
            Op::Attention { attn } => total.attention += 2.0 * self.pairs(attn)?,
            Op::AttentionGrad { attn } => total.attention += 5.0 * self.pairs(attn)?,
            Op::AttentionCached { attn } => total.attention += 2.0 * self.pairs(attn)?,
            // Rows of labels by the table; the logits once, and gradients of both operands.
            Op::LogProbHead { d, axes, .. } => {
                let rows = wrote(0)?;
                if !axes.is_empty() {
                    // A maximum and three sums.
                    sent("log_prob", 4 * rows);
                }
                total.products += 2.0 * (rows * read[1]) as f64;
                total.moved += 4.0 * (rows * read[1] / self.space.size(*d)?.max(1)) as f64;
            }
            Op::LogProbHeadGrad { d, .. } => {
                total.products += 6.0 * (read[2] * read[1]) as f64;
                total.moved += 4.0 * (read[2] * read[1] / self.space.size(*d)?.max(1)) as f64;
            }
            // Only the rows that are looked up are read, and only those are added to.
            Op::Index { .. } => total.moved += 8.0 * wrote(0)? as f64,
            Op::ScatterAdd { .. } => total.moved += 12.0 * read[1].min(wrote(0)?) as f64,
            Op::AllReduce { .. } => sent("all_reduce", read[0]),
            Op::AllGather { .. } => sent("all_gather", read[0]),
            Op::ReduceScatter { .. } => sent("reduce_scatter", read[0]),
            Op::GatherParam { .. } => sent("gather_param", wrote(0)?),
            Op::ScatterGrad { .. } => sent("scatter_grad", read[0]),
            _ => total.moved += 4.0 * moved as f64,
        }
        Ok(())
    }

    /// Multiplications and additions of one product per pair of a query and a key that it sees, over all heads.
    fn pairs(&self, attn: &Attention) -> Result<f64, EngineError> {
        let window = attn.window.at(self.layer()).unwrap_or(usize::MAX);
        let mut pairs = 0;
        for (s, w) in self.space.offsets(attn.tok)?.windows(2).enumerate() {
            let base = self.space.bases.get(s).map_or(0, |b| *b as usize);
            pairs += (0..(w[1] - w[0]) as usize).map(|i| (base + i + 1).min(window)).sum::<usize>();
        }
        Ok(2.0 * (pairs * self.space.size(attn.q)? * self.space.size(attn.hd)?) as f64)
    }
}
