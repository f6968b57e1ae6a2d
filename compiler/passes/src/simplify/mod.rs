//! Rewrites to a fixpoint: dead code, common subexpressions, constants, neutral elements, selected
//! rows, absorbed heads.
//!
//! Every round rebuilds the graph from its leaves, trying the named rows of [`rows`] on each node;
//! the numbers an engine computes for the outputs stay the same up to rounding. `Index` moves
//! towards the leaves, so that work behind a selection of tokens is done for those alone.

mod dead;
mod rows;

use nrl_ir::op::Scan;
use nrl_ir::{Block, Graph, Node, Op, ValueId};

use crate::emit::Emit;
use crate::rename::{self, Map, renamed};
use crate::report::{Problem, Report};
use crate::values::Values;
pub(crate) use dead::sweep;

/// Where in the pipeline a graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `grad` is still to come.
    BeforeGrad,
    /// No gradient is taken any more: `stop_grad` has done its work.
    Final,
}

/// Most rounds that a graph can take; each but the last makes it smaller or moves an `Index` down.
const ROUNDS: usize = 200;

/// Rewrites `graph` until nothing changes; says what was done, by row.
pub fn simplify(graph: &mut Graph, stage: Stage) -> Result<Report, Problem> {
    let mut report = Report::default();
    sweep(graph, &mut report);
    for _ in 0..ROUNDS {
        let before = fired(&report);
        let old = std::mem::take(&mut graph.body);
        let mut ctx = Ctx::new(graph, stage, &mut report, &old);
        let body = ctx.block(&old)?;
        graph.body = body;
        sweep(graph, &mut report);
        rename::compact(graph);
        if fired(&report) == before {
            break;
        }
    }
    Ok(report)
}

/// Rewrites so far. Dead code does not count: only a rewrite makes more of it.
fn fired(report: &Report) -> usize {
    report.lines.iter().filter(|(what, _)| !what.starts_with("dead")).map(|(_, n)| n).sum()
}

/// How a value is used in the old graph.
#[derive(Clone, Copy, Default)]
struct Uses {
    all: usize,
    /// As the operand of an `Index`, with the ids.
    indexed: usize,
}

struct Ctx<'a> {
    g: &'a mut Graph,
    stage: Stage,
    report: &'a mut Report,
    /// Old names to new.
    map: Map,
    /// Definitions and uses in the old graph.
    defs: Values<&'a Node>,
    uses: Values<Uses>,
    /// New values that hold one number everywhere.
    splats: Values<f64>,
    /// New values that repeat another one.
    repeats: Values<ValueId>,
}

impl<'a> Ctx<'a> {
    fn new(g: &'a mut Graph, stage: Stage, report: &'a mut Report, old: &'a Block) -> Ctx<'a> {
        let mut ctx = Ctx {
            g,
            stage,
            report,
            map: Map::new(),
            defs: Values::new(),
            uses: Values::new(),
            splats: Values::new(),
            repeats: Values::new(),
        };
        ctx.learn(old);
        ctx
    }

    fn learn(&mut self, block: &'a Block) {
        for node in &block.nodes {
            self.defs.extend(node.outs.iter().map(|v| (*v, node)));
            for (i, a) in node.args.iter().enumerate() {
                let uses = self.uses.of(*a);
                uses.all += 1;
                uses.indexed += usize::from(i == 0 && matches!(node.op, Op::Index { .. }));
            }
            if let Op::Scan { scan } = &node.op {
                self.learn(&scan.body);
            }
        }
        for r in &block.results {
            self.uses.of(*r).all += 1;
        }
    }

    fn block(&mut self, old: &Block) -> Result<Block, Problem> {
        let mut params = vec![];
        for p in &old.params {
            let ty = self.g.ty(*p).clone();
            let new = self.g.fresh(ty);
            self.map.insert(*p, new);
            params.push(new);
        }
        let mut e = Emit::default();
        for node in &old.nodes {
            e.origin = node.origin;
            let outs = self.node(node, &mut e)?;
            self.map.extend(node.outs.iter().copied().zip(outs));
        }
        if e.shared > 0 {
            (0..e.shared).for_each(|_| self.report.count("common subexpression"));
        }
        let results = old.results.iter().map(|v| renamed(&self.map, *v)).collect();
        Ok(Block { params, nodes: e.nodes, results })
    }

    fn node(&mut self, node: &Node, e: &mut Emit) -> Result<Vec<ValueId>, Problem> {
        let args: Vec<ValueId> = node.args.iter().map(|v| renamed(&self.map, *v)).collect();
        if let Op::Scan { scan } = &node.op {
            let body = self.block(&scan.body)?;
            let op = Op::Scan { scan: Box::new(Scan { body, ..(**scan).clone() }) };
            return e.all(self.g, op, &args);
        }
        let shared = e.shared;
        let fired = self.rewrite(node, &args, e)?;
        // A node that a row makes may well exist; that is the row's doing.
        e.shared = shared;
        if let Some((row, out)) = fired {
            self.report.count(row);
            let dims = self.g.dims_of(node.outs[0]).to_vec();
            let mut outs = out;
            outs[0] = e.arrange(self.g, outs[0], &dims)?;
            return Ok(outs);
        }
        let outs = e.all(self.g, node.op.clone(), &args)?;
        self.note(&node.op, &args, &outs);
        Ok(outs)
    }

    /// Remembers what is known about new values.
    fn note(&mut self, op: &Op, args: &[ValueId], outs: &[ValueId]) {
        match op {
            Op::Const { value } => {
                self.splats.insert(outs[0], *value);
            }
            Op::Broadcast { .. } => {
                self.repeats.insert(outs[0], args[0]);
                if let Some(c) = self.splats.get(&args[0]).copied() {
                    self.splats.insert(outs[0], c);
                }
            }
            _ => {}
        }
    }
}
