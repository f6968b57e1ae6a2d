//! Generation from the graph of a model: attention over a cache of keys and values, convolutions and
//! state-space models from the state of each sequence.
//!
//! Takes a forward graph, gives one whose tokens follow those in the cache: prefill and decode are
//! this graph with other counts. Everything over the dim of the input `ids`, or one that attention
//! runs over, must be pointwise over it or causal; `index` may select its tokens for what follows.

use nrl_ir::{Block, DimId, Graph, Node, Op};

use crate::report::Problem;

/// `graph` with attention over the cache. Problems: `not-causal`.
pub fn incremental(graph: &Graph) -> Result<Graph, Problem> {
    let ids = graph.inputs.iter().filter(|i| i.name == "ids");
    let mut toks: Vec<DimId> = ids.flat_map(|i| i.ty.dims.clone()).collect();
    graph.body.walk(&mut |n| {
        let tok = match &n.op {
            Op::Attention { attn } => attn.tok,
            Op::Conv { conv } => conv.tok,
            Op::Ssm { ssm } => ssm.tok,
            _ => return,
        };
        if !toks.contains(&tok) {
            toks.push(tok);
        }
    });
    let mut g = graph.clone();
    let mut problem = None;
    graph.body.walk(&mut |n| {
        if problem.is_none() {
            problem = not_causal(graph, n, &toks);
        }
    });
    match problem {
        Some(p) => Err(p),
        None => {
            cache(&mut g.body);
            crate::rename::compact(&mut g);
            Ok(g)
        }
    }
}

fn cache(block: &mut Block) {
    for node in &mut block.nodes {
        match &mut node.op {
            Op::Scan { scan } => cache(&mut scan.body),
            Op::Attention { attn } => {
                node.op = Op::AttentionCached { attn: attn.clone() };
                node.outs.truncate(1);
            }
            Op::Conv { conv } => conv.cached = true,
            Op::Ssm { ssm } => ssm.cached = true,
            _ => {}
        }
    }
}

/// Why `n` cannot run token by token.
fn not_causal(g: &Graph, n: &Node, toks: &[DimId]) -> Option<Problem> {
    let over_tok = |dims: &[DimId]| dims.iter().find(|d| toks.contains(d)).copied();
    let mixed = match &n.op {
        Op::Reduce { over, .. } | Op::Contract { over } => over_tok(over),
        Op::ScatterAdd { dims, .. } => over_tok(dims),
        Op::Index { dim } if toks.contains(dim) => {
            // Selected rows must not come back as tokens.
            over_tok(g.dims_of(n.args[1]))
        }
        Op::AttentionGrad { attn } => Some(attn.tok),
        Op::ConvGrad { conv } => Some(conv.tok),
        Op::SsmGrad { ssm } => Some(ssm.tok),
        Op::Next { dim, .. } | Op::Recur { dim, .. } => toks.contains(dim).then_some(*dim),
        Op::LogProbGrad { .. }
        | Op::LogProbHeadGrad { .. }
        | Op::Accumulate { .. }
        | Op::ScatterGrad { .. } => {
            return Some(Problem::new("not-causal", "a backward pass cannot generate", n.origin));
        }
        Op::Input { .. }
        | Op::Use { .. }
        | Op::Const { .. }
        | Op::Unary { .. }
        | Op::Binary { .. }
        | Op::Select
        | Op::StopGrad
        | Op::Cast { .. }
        | Op::Broadcast { .. }
        | Op::Index { .. }
        | Op::TopK { .. }
        | Op::Fit { .. }
        | Op::Position { .. }
        | Op::Rope { .. }
        | Op::Attention { .. }
        | Op::AttentionCached { .. }
        | Op::Conv { .. }
        | Op::Ssm { .. }
        | Op::LogProb { .. }
        | Op::LogProbHead { .. }
        | Op::Scan { .. }
        | Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. }
        | Op::GatherParam { .. }
        | Op::Fused { .. } => None,
    };
    let tok = g.dims.name(mixed?);
    let text = format!(
        "`{}` mixes all tokens of `{tok}`, so the model cannot generate token by token",
        n.op.name()
    );
    Some(
        Problem::new("not-causal", text, n.origin)
            .help(format!("over `{tok}`, use attention or operations on each token alone")),
    )
}
