//! Text to ops and kernels.

use super::lex::Tok;
use super::parse::{ParseError, Parser};
use crate::cycle::Cycle;
use crate::graph::ValueId;
use crate::kernel::{Access, Instr, Kernel, Output, RowIndex};
use crate::op::{Attention, BinaryOp, Conv, Groups, Op, ReduceOp, Ring, Ssm, UnaryOp};

type Parsed<T> = Result<T, ParseError>;

fn unary(name: &str) -> Option<UnaryOp> {
    UnaryOp::ALL.into_iter().find(|op| op.name() == name)
}

fn binary(name: &str) -> Option<BinaryOp> {
    BinaryOp::ALL.into_iter().find(|op| op.name() == name)
}

impl Parser {
    /// The op called `name`, its operands and attributes.
    pub fn op(&mut self, name: &str) -> Parsed<(Op, Vec<ValueId>)> {
        let args = self.values()?;
        if let Some(op) = unary(name) {
            return Ok((Op::Unary { op }, args));
        }
        if let Some(op) = binary(name) {
            return Ok((Op::Binary { op }, args));
        }
        Ok((self.attributes(name, &args)?, args))
    }

    fn attributes(&mut self, name: &str, args: &[ValueId]) -> Parsed<Op> {
        let reason = String::new();
        Ok(match name {
            "input" => {
                let input = self.name()?;
                let at = self.g.inputs.iter().position(|i| i.name == input);
                Op::Input { index: at.ok_or_else(|| self.fail(format!("no input `{input}`")))? }
            }
            "use" => Op::Use { param: self.param()? },
            "accumulate" => Op::Accumulate { param: self.param()? },
            "const" => Op::Const { value: self.float()? },
            "select" => Op::Select,
            "stop_grad" => Op::StopGrad,
            "cast" => {
                self.word("to")?;
                Op::Cast { to: self.dtype()? }
            }
            "broadcast" => {
                self.word("to")?;
                Op::Broadcast { dims: self.dims()? }
            }
            "sum" | "max_over" | "contract" => {
                self.word("over")?;
                let over = self.dims()?;
                match name {
                    "sum" => Op::Reduce { op: ReduceOp::Sum, over },
                    "max_over" => Op::Reduce { op: ReduceOp::Max, over },
                    _ => Op::Contract { over },
                }
            }
            "index" => {
                self.word("over")?;
                Op::Index { dim: self.dim()? }
            }
            "scatter_add" => {
                self.word("over")?;
                let dim = self.dim()?;
                self.word("into")?;
                Op::ScatterAdd { dim, dims: self.dims()? }
            }
            "rope" => self.rope()?,
            "attention" => Op::Attention { attn: self.attention()? },
            "attention_grad" => Op::AttentionGrad { attn: self.attention()? },
            "attention_cached" => Op::AttentionCached { attn: self.attention()? },
            "conv" => Op::Conv { conv: self.conv()? },
            "conv_grad" => Op::ConvGrad { conv: self.conv()? },
            "ssm" => Op::Ssm { ssm: self.ssm()? },
            "ssm_grad" => Op::SsmGrad { ssm: self.ssm()? },
            "log_prob" | "log_prob_grad" | "log_prob_head" | "log_prob_head_grad" => {
                self.log_prob(name)?
            }
            "all_reduce" => {
                let op = self.reduce()?;
                self.word("over")?;
                Op::AllReduce { op, axes: self.axes()?, reason }
            }
            "all_gather" | "reduce_scatter" | "all_to_all" => {
                let dim = self.dim()?;
                self.word("to")?;
                let to = self.dim()?;
                self.word("over")?;
                let axes = self.axes()?;
                match name {
                    "all_gather" => Op::AllGather { dim, full: to, axes, reason },
                    "all_to_all" => Op::AllToAll { dim, to, axes, reason },
                    _ => Op::ReduceScatter { dim, part: to, axes, reason },
                }
            }
            "gather_param" | "scatter_grad" => {
                let param = self.param()?;
                self.word("over")?;
                let axes = self.axes()?;
                match name {
                    "gather_param" => Op::GatherParam { param, axes, reason },
                    _ => Op::ScatterGrad { param, axes, reason },
                }
            }
            "top_k" => {
                self.word("over")?;
                let dim = self.dim()?;
                self.word("keep")?;
                let k = self.size()?;
                let groups = if self.take_word("among") { Some(self.groups()?) } else { None };
                Op::TopK { dim, k, groups }
            }
            "fit" => {
                let from = self.dim()?;
                self.word("to")?;
                let to = self.dim()?;
                self.word("at")?;
                Op::Fit { from, to, at: self.size()? }
            }
            "position" => {
                self.word("over")?;
                let tok = self.dim()?;
                self.word("in")?;
                Op::Position { tok, dim: self.dim()? }
            }
            "next" => {
                self.word("over")?;
                let dim = self.dim()?;
                self.word("fill")?;
                Op::Next { dim, fill: self.float()? }
            }
            "recur" => {
                self.word("over")?;
                Op::Recur { dim: self.dim()?, back: self.take_word("back") }
            }
            "fused" => Op::Fused { kernel: Box::new(self.kernel(args.len())?) },
            _ => return Err(self.fail(format!("no op `{name}`"))),
        })
    }

    fn rope(&mut self) -> Parsed<Op> {
        self.word("on")?;
        let tok = self.dim()?;
        self.comma();
        let hd = self.dim()?;
        self.word("scale")?;
        let scale = self.float()?;
        self.word("freqs")?;
        let mut tables = vec![];
        while self.is_mark('[') {
            tables.push(self.list('[', ']', Parser::float)?);
        }
        let inv_freq = Cycle::new(tables).ok_or_else(|| self.fail("rope without freqs".into()))?;
        Ok(Op::Rope { tok, hd, inv_freq, scale, inverse: self.take_word("inverse") })
    }

    fn groups(&mut self) -> Parsed<Groups> {
        let keep = self.size()?;
        self.word("of")?;
        let count = self.size()?;
        self.word("groups")?;
        self.word("by")?;
        Ok(Groups { count, keep, by: self.size()? })
    }

    fn attention(&mut self) -> Parsed<Attention> {
        self.word("on")?;
        let mut dims = [crate::dim::DimId(0); 4];
        for d in &mut dims {
            *d = self.dim()?;
            self.comma();
        }
        self.word("scale")?;
        let scale = self.float()?;
        let mut windows = vec![];
        if self.take_word("window") {
            loop {
                if self.take_word("all") {
                    windows.push(None);
                } else if matches!(self.peek(), Tok::Number(_)) {
                    windows.push(Some(self.size()?));
                } else {
                    break;
                }
            }
        }
        let window = Cycle::new(windows).unwrap_or(None.into());
        let [tok, q, kv, hd] = dims;
        let vd = if self.take_word("values") { self.dim()? } else { hd };
        let ring = self.ring()?;
        Ok(Attention { tok, q, kv, hd, vd, scale, window, ring })
    }

    fn ring(&mut self) -> Parsed<Option<Ring>> {
        if !self.take_word("ring") {
            return Ok(None);
        }
        let axes = self.axes()?;
        self.word("of")?;
        Ok(Some(Ring { axes, ranks: self.size()? }))
    }

    fn conv(&mut self) -> Parsed<Conv> {
        self.word("on")?;
        let tok = self.dim()?;
        self.comma();
        let taps = self.dim()?;
        Ok(Conv { tok, taps, cached: self.take_word("cached"), ring: self.ring()? })
    }

    fn ssm(&mut self) -> Parsed<Ssm> {
        self.word("on")?;
        let mut dims = [crate::dim::DimId(0); 5];
        for (i, d) in dims.iter_mut().enumerate() {
            if i > 0 {
                self.comma();
            }
            *d = self.dim()?;
        }
        let [tok, g, r, p, n] = dims;
        Ok(Ssm { tok, g, r, p, n, cached: self.take_word("cached"), ring: self.ring()? })
    }

    fn log_prob(&mut self, name: &str) -> Parsed<Op> {
        self.word("over")?;
        let vocab = self.dim()?;
        let mut d = vocab;
        if self.is_mark(',') {
            self.comma();
            d = self.dim()?;
        }
        self.word("valid")?;
        let valid = self.size()?;
        self.word("axes")?;
        let axes = self.axes()?;
        Ok(match name {
            "log_prob" => Op::LogProb { vocab, valid, axes },
            "log_prob_grad" => Op::LogProbGrad { vocab, valid, axes },
            "log_prob_head" => Op::LogProbHead { vocab, d, valid, axes },
            _ => Op::LogProbHeadGrad { vocab, d, valid, axes },
        })
    }

    fn reduce(&mut self) -> Parsed<ReduceOp> {
        if self.take_word("sum") {
            return Ok(ReduceOp::Sum);
        }
        self.word("max")?;
        Ok(ReduceOp::Max)
    }

    fn kernel(&mut self, operands: usize) -> Parsed<Kernel> {
        self.word("rows")?;
        let rows = self.dims()?;
        self.word("lanes")?;
        let lanes = self.dims()?;
        self.mark('{')?;
        let reason = self.note();
        let none = Access { row: RowIndex::None, lanes: false };
        let mut k = Kernel {
            rows,
            lanes,
            inputs: vec![none; operands],
            code: vec![],
            outputs: vec![],
            reason,
        };
        while let Tok::Number(_) = self.peek() {
            self.size()?;
            self.mark('=')?;
            let instr = self.instr(&mut k)?;
            k.code.push(instr);
        }
        while self.take_word("out") {
            let id = self.size()?;
            let output = if self.take_word("store") {
                Output::Store
            } else {
                self.word("sum")?;
                if self.take_word("rows") {
                    Output::SumRows
                } else {
                    self.word("segments")?;
                    let of = self.dim()?;
                    self.word("to")?;
                    Output::SumSegments { of, owner: self.dim()? }
                }
            };
            k.outputs.push((id, output));
        }
        self.mark('}')?;
        Ok(k)
    }

    fn instr(&mut self, k: &mut Kernel) -> Parsed<Instr> {
        let name = self.name()?;
        if let Some(op) = unary(&name) {
            return Ok(Instr::Unary { op, x: self.size()? });
        }
        if let Some(op) = binary(&name) {
            return Ok(Instr::Binary { op, a: self.size()?, b: self.size()? });
        }
        Ok(match name.as_str() {
            "load" => {
                let input = self.size()?;
                let access = self.access()?;
                match k.inputs.get_mut(input) {
                    Some(i) => *i = access,
                    None => return Err(self.fail(format!("no operand {input}"))),
                }
                Instr::Load { input }
            }
            "const" => Instr::Const { value: self.float()? },
            "select" => Instr::Select { cond: self.size()?, a: self.size()?, b: self.size()? },
            "round_bf16" => Instr::RoundBf16 { x: self.size()? },
            "lanes" => Instr::Lanes { op: self.reduce()?, x: self.size()? },
            _ => return Err(self.fail(format!("no instruction `{name}`"))),
        })
    }

    fn access(&mut self) -> Parsed<Access> {
        let row = if self.take_word("once") {
            RowIndex::None
        } else if self.take_word("row") {
            self.mark('/')?;
            let div = self.size()?;
            self.mark('%')?;
            RowIndex::Row { div, modulo: self.size()? }
        } else {
            self.word("segment")?;
            self.mark('/')?;
            let div = self.size()?;
            let of = self.dim()?;
            self.word("to")?;
            RowIndex::Segment { div, of, owner: self.dim()? }
        };
        Ok(Access { row, lanes: self.take_word("lanes") })
    }
}
