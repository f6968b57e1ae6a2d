//! Graph to text.

use std::fmt::Write;

use super::is_word;
use crate::dim::{DimId, Extent};
use crate::graph::{Block, Graph, Node, ParamDecl, ValueId};
use crate::kernel::{Instr, Kernel, Output, RowIndex};
use crate::op::{Attention, Op, ReduceOp, Ring, Scan};
use crate::types::{DType, Type};

/// The text form of `g`.
pub fn print(g: &Graph) -> String {
    let mut p = Printer { g, out: String::new(), indent: 1 };
    let _ = writeln!(p.out, "graph {} {{", name(&g.name));
    p.dims();
    for decl in &g.params {
        p.param(decl);
    }
    for input in &g.inputs {
        let line = format!("input {} : {}", name(&input.name), p.ty(&input.ty));
        p.line(&line);
    }
    p.nodes(&g.body);
    let outs: Vec<String> = g
        .outputs
        .iter()
        .zip(&g.body.results)
        .map(|(n, v)| format!("{} = {}", name(n), value(v)))
        .collect();
    let line = format!("return {}", outs.join(", "));
    p.line(&line);
    p.out.push_str("}\n");
    p.out
}

struct Printer<'a> {
    g: &'a Graph,
    out: String,
    indent: usize,
}

/// A name, in quotes if it is not a word.
fn name(n: &str) -> String {
    if is_word(n) { n.into() } else { format!("{n:?}") }
}

fn value(v: &ValueId) -> String {
    format!("%{}", v.0)
}

fn values(vs: &[ValueId]) -> String {
    vs.iter().map(value).collect::<Vec<_>>().join(", ")
}

fn axes(axes: &[String]) -> String {
    format!("({})", axes.iter().map(|a| name(a)).collect::<Vec<_>>().join(", "))
}

/// What stands behind the dims of an op along tokens.
fn kept(cached: bool, ring: Option<&Ring>) -> String {
    let ring = ring.map_or(String::new(), |r| format!(" ring {} of {}", axes(&r.axes), r.ranks));
    format!("{}{ring}", if cached { " cached" } else { "" })
}

fn reduce(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "sum",
        ReduceOp::Max => "max",
    }
}

impl Printer<'_> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{:1$}{text}", "", 2 * self.indent);
    }

    fn dims(&mut self) {
        for (id, dim) in self.g.dims.iter() {
            let extent = match &dim.extent {
                Extent::Static(n) => n.to_string(),
                Extent::Ragged { owner: None, bound } => format!("ragged <= {bound}"),
                Extent::Ragged { owner: Some(o), bound } => {
                    format!("ragged({}) <= {bound}", self.dim(*o))
                }
            };
            let factors: Vec<String> = dim.factors.iter().map(|f| self.dim(*f)).collect();
            let factors = if factors.is_empty() {
                String::new()
            } else {
                format!(" = {}", factors.join(" * "))
            };
            let shard = dim
                .shard
                .as_ref()
                .map_or(String::new(), |s| format!(" part of {} over {}", s.global, axes(&s.axes)));
            let routed = dim.routed.map_or(String::new(), |r| {
                format!(" routed {} by {} over {}", r.chosen, r.copies, r.over)
            });
            let line = format!("dim {} = {extent}{factors}{shard}{routed}", self.dim(id));
            self.line(&line);
        }
    }

    /// A dim by name, with its id if another one before it has that name.
    fn dim(&self, d: DimId) -> String {
        let n = self.g.dims.name(d);
        if self.g.dims.find(n) == Some(d) { name(n) } else { format!("{}#{}", name(n), d.0) }
    }

    fn dim_list(&self, dims: &[DimId]) -> String {
        format!("[{}]", dims.iter().map(|d| self.dim(*d)).collect::<Vec<_>>().join(", "))
    }

    fn ty(&self, ty: &Type) -> String {
        let stack = ty.stack.map_or(String::new(), |n| format!("{n} x "));
        let dims = if ty.dims.is_empty() { String::new() } else { self.dim_list(&ty.dims) };
        format!("{stack}{}{dims}", self.dtype(ty.dtype))
    }

    fn dtype(&self, t: DType) -> String {
        match t {
            DType::F32 => "f32".into(),
            DType::Bf16 => "bf16".into(),
            DType::Id(d) => format!("id({})", self.dim(d)),
        }
    }

    fn param(&mut self, p: &ParamDecl) {
        let repeat =
            p.repeat.as_ref().map_or(String::new(), |(g, n)| format!(" repeat {} {n}", name(g)));
        let shape: Vec<String> = p.checkpoint_dims.iter().map(|d| self.dim_list(d)).collect();
        let line = format!(
            "param {} : {}{repeat}{} from {:?} [{}]",
            name(&p.name),
            self.dim_list(&p.dims),
            if p.trained { " trained" } else { "" },
            p.checkpoint,
            shape.join(", ")
        );
        self.line(&line);
    }

    fn nodes(&mut self, b: &Block) {
        for node in &b.nodes {
            self.node(node);
        }
    }

    fn node(&mut self, node: &Node) {
        let outs =
            if node.outs.is_empty() { String::new() } else { format!("{} = ", values(&node.outs)) };
        let types: Vec<String> = node.outs.iter().map(|v| self.ty(self.g.ty(*v))).collect();
        let mut tail =
            if types.is_empty() { String::new() } else { format!(" : {}", types.join(", ")) };
        if let Some((source, start, end)) = node.origin {
            let _ = write!(tail, " @{source}:{start}-{end}");
        }
        match &node.op {
            Op::Scan { scan } => return self.scan(scan, node, &outs, &tail),
            Op::Fused { kernel } => return self.fused(kernel, node, &outs, &tail),
            Op::AllReduce { reason, .. }
            | Op::AllGather { reason, .. }
            | Op::ReduceScatter { reason, .. }
            | Op::AllToAll { reason, .. }
            | Op::GatherParam { reason, .. }
            | Op::ScatterGrad { reason, .. } => {
                let _ = write!(tail, "  // {reason}");
            }
            _ => {}
        }
        let mut head = node.op.name().to_string();
        if !node.args.is_empty() {
            let _ = write!(head, " {}", values(&node.args));
        }
        let line = format!("{outs}{head}{}{tail}", self.attributes(&node.op));
        self.line(&line);
    }

    /// What stands between operands and types.
    fn attributes(&self, op: &Op) -> String {
        let param = |p: &crate::graph::ParamId| name(&self.g.param(*p).name);
        match op {
            Op::Input { index } => format!(" {}", name(&self.g.inputs[*index].name)),
            Op::Use { param: p } | Op::Accumulate { param: p } => format!(" {}", param(p)),
            Op::Const { value } => format!(" {value:?}"),
            Op::Unary { .. } | Op::Binary { .. } | Op::Select | Op::StopGrad => String::new(),
            Op::Cast { to } => format!(" to {}", self.dtype(*to)),
            Op::Broadcast { dims } => format!(" to {}", self.dim_list(dims)),
            Op::Reduce { over, .. } | Op::Contract { over } => {
                format!(" over {}", self.dim_list(over))
            }
            Op::Index { dim } => format!(" over {}", self.dim(*dim)),
            Op::ScatterAdd { dim, dims } => {
                format!(" over {} into {}", self.dim(*dim), self.dim_list(dims))
            }
            Op::TopK { dim, k, groups } => {
                let among = groups.map_or(String::new(), |x| {
                    format!(" among {} of {} groups by {}", x.keep, x.count, x.by)
                });
                format!(" over {} keep {k}{among}", self.dim(*dim))
            }
            Op::Fit { from, to, at } => {
                format!(" {} to {} at {at}", self.dim(*from), self.dim(*to))
            }
            Op::Position { tok, dim } => format!(" over {} in {}", self.dim(*tok), self.dim(*dim)),
            Op::Next { dim, fill } => format!(" over {} fill {fill:?}", self.dim(*dim)),
            Op::Recur { dim, back } => {
                format!(" over {}{}", self.dim(*dim), if *back { " back" } else { "" })
            }
            Op::Rope { tok, hd, inv_freq, scale, inverse } => format!(
                " on {}, {} scale {scale:?} freqs{}{}",
                self.dim(*tok),
                self.dim(*hd),
                inv_freq.items().iter().map(|f| format!(" {f:?}")).collect::<String>(),
                if *inverse { " inverse" } else { "" }
            ),
            Op::Attention { attn } | Op::AttentionGrad { attn } | Op::AttentionCached { attn } => {
                self.attention(attn)
            }
            Op::Conv { conv } | Op::ConvGrad { conv } => {
                let dims = [conv.tok, conv.taps].map(|d| self.dim(d));
                format!(" on {}{}", dims.join(", "), kept(conv.cached, conv.ring.as_ref()))
            }
            Op::Ssm { ssm } | Op::SsmGrad { ssm } => {
                let dims = [ssm.tok, ssm.g, ssm.r, ssm.p, ssm.n].map(|d| self.dim(d));
                format!(" on {}{}", dims.join(", "), kept(ssm.cached, ssm.ring.as_ref()))
            }
            Op::LogProb { vocab, valid, axes: a } | Op::LogProbGrad { vocab, valid, axes: a } => {
                format!(" over {} valid {valid} axes {}", self.dim(*vocab), axes(a))
            }
            Op::LogProbHead { vocab, d, valid, axes: a }
            | Op::LogProbHeadGrad { vocab, d, valid, axes: a } => {
                format!(
                    " over {}, {} valid {valid} axes {}",
                    self.dim(*vocab),
                    self.dim(*d),
                    axes(a)
                )
            }
            Op::AllReduce { op, axes: a, .. } => format!(" {} over {}", reduce(*op), axes(a)),
            Op::AllGather { dim, full: to, axes: a, .. }
            | Op::AllToAll { dim, to, axes: a, .. }
            | Op::ReduceScatter { dim, part: to, axes: a, .. } => {
                format!(" {} to {} over {}", self.dim(*dim), self.dim(*to), axes(a))
            }
            Op::GatherParam { param: p, axes: a, .. }
            | Op::ScatterGrad { param: p, axes: a, .. } => {
                format!(" {} over {}", param(p), axes(a))
            }
            Op::Scan { .. } | Op::Fused { .. } => String::new(),
        }
    }

    fn attention(&self, a: &Attention) -> String {
        let mut rest = String::new();
        if a.window != None.into() {
            rest += " window";
            for w in a.window.items() {
                rest += &w.map_or(" all".into(), |w| format!(" {w}"));
            }
        }
        if a.vd != a.hd {
            rest += &format!(" values {}", self.dim(a.vd));
        }
        if let Some(ring) = &a.ring {
            rest += &format!(" ring {} of {}", axes(&ring.axes), ring.ranks);
        }
        let dims: Vec<String> = [a.tok, a.q, a.kv, a.hd].iter().map(|d| self.dim(*d)).collect();
        format!(" on {} scale {:?}{rest}", dims.join(", "), a.scale)
    }

    fn scan(&mut self, s: &Scan, node: &Node, outs: &str, tail: &str) {
        let pairs: Vec<String> = s
            .body
            .params
            .iter()
            .zip(&node.args)
            .map(|(p, a)| format!("{} = {}", value(p), value(a)))
            .collect();
        let reverse = if s.reverse { " reverse" } else { "" };
        let line = format!(
            "{outs}scan {} {}..{}{reverse} carries {} ({}) {{",
            name(&s.group),
            s.first,
            s.first + s.count,
            s.carries,
            pairs.join(", ")
        );
        self.line(&line);
        self.indent += 1;
        self.nodes(&s.body);
        let line = format!("yield {}", values(&s.body.results));
        self.line(line.trim_end());
        self.indent -= 1;
        let line = format!("}}{tail}");
        self.line(&line);
    }

    fn fused(&mut self, k: &Kernel, node: &Node, outs: &str, tail: &str) {
        let args =
            if node.args.is_empty() { String::new() } else { format!(" {}", values(&node.args)) };
        let line = format!(
            "{outs}fused{args} rows {} lanes {} {{  // {}",
            self.dim_list(&k.rows),
            self.dim_list(&k.lanes),
            k.reason
        );
        self.line(&line);
        self.indent += 1;
        for (i, instr) in k.code.iter().enumerate() {
            let line = format!("{i} = {}", self.instr(k, instr));
            self.line(&line);
        }
        for (id, output) in &k.outputs {
            let how = match output {
                Output::Store => "store".to_string(),
                Output::SumRows => "sum rows".to_string(),
                Output::SumSegments { of, owner } => {
                    format!("sum segments {} to {}", self.dim(*of), self.dim(*owner))
                }
            };
            let line = format!("out {id} {how}");
            self.line(&line);
        }
        self.indent -= 1;
        let line = format!("}}{tail}");
        self.line(&line);
    }

    fn instr(&self, k: &Kernel, instr: &Instr) -> String {
        match instr {
            Instr::Load { input } => {
                let access = &k.inputs[*input];
                let row = match &access.row {
                    RowIndex::None => "once".to_string(),
                    RowIndex::Row { div, modulo } => format!("row / {div} % {modulo}"),
                    RowIndex::Segment { div, of, owner } => {
                        format!("segment / {div} {} to {}", self.dim(*of), self.dim(*owner))
                    }
                };
                format!("load {input} {row}{}", if access.lanes { " lanes" } else { "" })
            }
            Instr::Const { value } => format!("const {value:?}"),
            Instr::Unary { op, x } => format!("{} {x}", op.name()),
            Instr::Binary { op, a, b } => format!("{} {a} {b}", op.name()),
            Instr::Select { cond, a, b } => format!("select {cond} {a} {b}"),
            Instr::RoundBf16 { x } => format!("round_bf16 {x}"),
            Instr::Lanes { op, x } => format!("lanes {} {x}", reduce(*op)),
        }
    }
}
