//! Reverse-mode gradients.
//!
//! Takes a graph with a scalar output and appends the backward pass: nodes that end in one
//! `accumulate` sink per use of a trained parameter. A scan gains saved stacks and a reverse scan
//! that reads them; [`Recompute`] chooses only what is stacked. A cotangent has its primal's dims
//! in its primal's order. Where a `select`, `min` or `max` made a cotangent zero, products with it
//! are guarded, so that an infinite factor on the side not taken cannot turn zero into NaN.
//! Reverse accumulation: Griewank and Walther, "Evaluating Derivatives" (2008).

mod needs;
mod rules;
mod scan;

use std::collections::{BTreeMap, BTreeSet};

use nrl_ir::{BinaryOp, Graph, Node, Op, ValueId};

use crate::emit::Emit;
use crate::report::Problem;

/// What a loop keeps for its backward pass; the rest is computed again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Keeps what the backward pass reads, except what pointwise ops make again of the rest.
    #[default]
    None,
    /// Keeps the carries alone.
    Full,
    /// Keeps the carries, and the results of the ops with these names.
    Selective(Vec<String>),
}

/// Cotangents by primal value.
type Cotangents = BTreeMap<ValueId, ValueId>;

/// `graph` followed by its backward pass from the output called `loss`.
///
/// Errors: an op without a gradient between a trained parameter and the loss (`not-differentiable`);
/// a loss that is no number, or that no trained parameter reaches (`nothing-to-train`).
pub fn grad(graph: &Graph, loss: &str, recompute: &Recompute) -> Result<Graph, Problem> {
    let mut g = graph.clone();
    let position = g.outputs.iter().position(|o| o == loss);
    let position =
        position.ok_or_else(|| Problem::internal(format!("no output `{loss}`"), None))?;
    let loss_value = g.body.results[position];
    if !g.dims_of(loss_value).is_empty() {
        return Err(Problem::internal(format!("the loss `{loss}` is not one number"), None));
    }
    let needs = needs::needs(&g);
    if !needs.contains(&loss_value) {
        let text = format!("the loss `{loss}` does not depend on any trained parameter");
        let made = g.body.nodes.iter().find(|n| n.outs.contains(&loss_value));
        return Err(Problem::new("nothing-to-train", text, made.and_then(|n| n.origin))
            .help("compute it from the log-probabilities of the model that is updated"));
    }
    let mut body = std::mem::take(&mut g.body);
    let mut ctx = Ctx { g, needs, masked: BTreeSet::new(), recompute };
    let mut emit = Emit::default();
    let one = emit.constant(&mut ctx.g, 1.0)?;
    let mut cotangents = Cotangents::from([(loss_value, one)]);
    ctx.backward(&mut body.nodes, &mut cotangents, &mut emit)?;
    body.nodes.extend(emit.nodes);
    ctx.g.body = body;
    Ok(ctx.g)
}

struct Ctx<'a> {
    g: Graph,
    /// Values that depend on a trained parameter.
    needs: BTreeSet<ValueId>,
    /// Cotangents that may be zero because a side was not taken.
    masked: BTreeSet<ValueId>,
    recompute: &'a Recompute,
}

impl Ctx<'_> {
    /// Appends the backward nodes of `nodes`, last first. Scans among them gain saved stacks.
    fn backward(
        &mut self,
        nodes: &mut [Node],
        cots: &mut Cotangents,
        e: &mut Emit,
    ) -> Result<(), Problem> {
        for node in nodes.iter_mut().rev() {
            let of_outs: Vec<Option<ValueId>> =
                node.outs.iter().map(|v| cots.get(v).copied()).collect();
            if of_outs.iter().all(Option::is_none) {
                continue;
            }
            e.origin = node.origin;
            let of_args = match &node.op {
                Op::Scan { .. } => self.scan(node, &of_outs, e)?,
                _ => self.rule(node, &of_outs, e)?,
            };
            for (arg, cot) in of_args {
                self.add(cots, arg, cot, e)?;
            }
        }
        Ok(())
    }

    /// Adds `cot`, summed or repeated to the dims of `primal`, to the cotangent of `primal`.
    fn add(
        &mut self,
        cots: &mut Cotangents,
        primal: ValueId,
        cot: ValueId,
        e: &mut Emit,
    ) -> Result<(), Problem> {
        if !self.needs.contains(&primal) {
            return Ok(());
        }
        let dims = self.g.dims_of(primal).to_vec();
        let fitted = e.sum_to(&mut self.g, cot, &dims)?;
        let masked = self.masked.contains(&cot);
        let Some(earlier) = cots.get(&primal).copied() else {
            self.mark(fitted, masked);
            cots.insert(primal, fitted);
            return Ok(());
        };
        if self.g.ty(primal).stack.is_some() {
            return Err(Problem::internal("a saved stack has two gradients", e.origin));
        }
        let sum = e.binary(&mut self.g, BinaryOp::Add, earlier, fitted)?;
        let both = masked && self.masked.contains(&earlier);
        self.mark(sum, both);
        cots.insert(primal, sum);
        Ok(())
    }

    fn mark(&mut self, cot: ValueId, masked: bool) {
        if masked {
            self.masked.insert(cot);
        }
    }
}
