//! Text to graph.

use std::fmt;

use super::lex::{Tok, tokens};
use crate::dim::{Dim, DimId, Extent, Routed, Shard};
use crate::graph::{Block, Graph, Input, Node, ParamDecl, ParamId, ValueId};
use crate::op::{Op, Scan};
use crate::types::{DType, Type};

/// Where a text is not a graph, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Counted from one.
    pub line: usize,
    pub text: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for ParseError {}

type Parsed<T> = Result<T, ParseError>;

/// The graph that `text` describes. Run [`crate::verify::verify`] on it before trusting it.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    let mut p = Parser { toks: tokens(text)?, at: 0, g: Graph::default() };
    p.word("graph")?;
    p.g.name = p.name()?;
    p.mark('{')?;
    while p.is_word("dim") {
        p.dim_decl()?;
    }
    while p.is_word("param") {
        p.param_decl()?;
    }
    while p.is_word("input") {
        p.input_decl()?;
    }
    let mut body = Block::default();
    while !p.is_word("return") {
        let node = p.node()?;
        body.nodes.push(node);
    }
    p.word("return")?;
    while !p.is_mark('}') {
        let name = p.name()?;
        p.mark('=')?;
        body.results.push(p.value()?);
        p.g.outputs.push(name);
        p.comma();
    }
    p.mark('}')?;
    p.g.body = body;
    match p.peek() {
        Tok::End => Ok(p.g),
        _ => Err(p.error("nothing after the graph")),
    }
}

pub(super) struct Parser {
    toks: Vec<(Tok, usize)>,
    at: usize,
    pub g: Graph,
}

impl Parser {
    pub fn peek(&self) -> &Tok {
        &self.toks[self.at].0
    }

    pub fn next(&mut self) -> Tok {
        let tok = self.toks[self.at].0.clone();
        self.at = (self.at + 1).min(self.toks.len() - 1);
        tok
    }

    pub fn error(&self, want: &str) -> ParseError {
        let found = match self.peek() {
            Tok::Value(n) => format!("%{n}"),
            Tok::Word(w) | Tok::Number(w) => format!("`{w}`"),
            Tok::Text(t) => format!("{t:?}"),
            Tok::Mark(c) => format!("`{c}`"),
            Tok::Note(_) => "a comment".into(),
            Tok::End => "the end".into(),
        };
        ParseError { line: self.toks[self.at].1, text: format!("expected {want}, found {found}") }
    }

    /// An error about what was just read.
    pub fn fail(&self, text: String) -> ParseError {
        ParseError { line: self.toks[self.at.saturating_sub(1)].1, text }
    }

    pub fn is_word(&self, w: &str) -> bool {
        matches!(self.peek(), Tok::Word(x) if x == w)
    }

    pub fn is_mark(&self, c: char) -> bool {
        *self.peek() == Tok::Mark(c)
    }

    /// Takes the word if it is there.
    pub fn take_word(&mut self, w: &str) -> bool {
        let found = self.is_word(w);
        if found {
            self.next();
        }
        found
    }

    pub fn word(&mut self, w: &str) -> Parsed<()> {
        if self.take_word(w) { Ok(()) } else { Err(self.error(&format!("`{w}`"))) }
    }

    pub fn mark(&mut self, c: char) -> Parsed<()> {
        if !self.is_mark(c) {
            return Err(self.error(&format!("`{c}`")));
        }
        self.next();
        Ok(())
    }

    pub fn comma(&mut self) {
        if self.is_mark(',') {
            self.next();
        }
    }

    pub fn name(&mut self) -> Parsed<String> {
        match self.peek().clone() {
            Tok::Word(w) => {
                self.next();
                Ok(w)
            }
            Tok::Text(t) => {
                self.next();
                Ok(t)
            }
            _ => Err(self.error("a name")),
        }
    }

    pub fn size(&mut self) -> Parsed<usize> {
        let Tok::Number(n) = self.peek().clone() else { return Err(self.error("a whole number")) };
        let n = n.parse().map_err(|_| self.error("a whole number"))?;
        self.next();
        Ok(n)
    }

    pub fn float(&mut self) -> Parsed<f64> {
        let (Tok::Number(n) | Tok::Word(n)) = self.peek().clone() else {
            return Err(self.error("a number"));
        };
        let x = n.parse().map_err(|_| self.error("a number"))?;
        self.next();
        Ok(x)
    }

    pub fn value(&mut self) -> Parsed<ValueId> {
        let Tok::Value(n) = *self.peek() else { return Err(self.error("a value")) };
        self.next();
        Ok(ValueId(n))
    }

    /// Values separated by commas, maybe none.
    pub fn values(&mut self) -> Parsed<Vec<ValueId>> {
        let mut out = vec![];
        while let Tok::Value(_) = self.peek() {
            out.push(self.value()?);
            self.comma();
        }
        Ok(out)
    }

    /// The comment here, if there is one.
    pub fn note(&mut self) -> String {
        match self.peek().clone() {
            Tok::Note(n) => {
                self.next();
                n
            }
            _ => String::new(),
        }
    }

    /// `open a, b, c close`.
    pub fn list<T>(
        &mut self,
        open: char,
        close: char,
        item: impl Fn(&mut Parser) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        self.mark(open)?;
        let mut out = vec![];
        while !self.is_mark(close) {
            out.push(item(self)?);
            self.comma();
        }
        self.mark(close)?;
        Ok(out)
    }

    pub fn axes(&mut self) -> Parsed<Vec<String>> {
        self.list('(', ')', Parser::name)
    }

    pub fn dim(&mut self) -> Parsed<DimId> {
        let line = self.toks[self.at].1;
        let name = self.name()?;
        if self.is_mark('#') {
            self.next();
            return Ok(DimId(self.size()? as u32));
        }
        self.g.dims.find(&name).ok_or_else(|| ParseError { line, text: format!("no dim `{name}`") })
    }

    pub fn dims(&mut self) -> Parsed<Vec<DimId>> {
        self.list('[', ']', Parser::dim)
    }

    pub fn param(&mut self) -> Parsed<ParamId> {
        let line = self.toks[self.at].1;
        let name = self.name()?;
        let at = self.g.params.iter().position(|p| p.name == name);
        at.map(|i| ParamId(i as u32))
            .ok_or_else(|| ParseError { line, text: format!("no parameter `{name}`") })
    }

    /// Owners and factors may come later than the dims that name them, so they are read as ids of
    /// dims already there, or as `name#id`.
    fn dim_decl(&mut self) -> Parsed<()> {
        self.word("dim")?;
        let name = self.name()?;
        if self.is_mark('#') {
            self.next();
            self.size()?;
        }
        self.mark('=')?;
        let extent = if self.take_word("ragged") {
            let mut owner = None;
            if self.is_mark('(') {
                owner = self.list('(', ')', Parser::dim)?.pop();
            }
            self.mark('<')?;
            self.mark('=')?;
            Extent::Ragged { owner, bound: self.size()? }
        } else {
            Extent::Static(self.size()?)
        };
        let mut factors = vec![];
        while self.is_mark('=') || self.is_mark('*') {
            self.next();
            factors.push(self.dim()?);
        }
        let mut shard = None;
        if self.take_word("part") {
            self.word("of")?;
            let global = self.size()?;
            self.word("over")?;
            shard = Some(Shard { axes: self.axes()?, global });
        }
        let mut routed = None;
        if self.take_word("routed") {
            let chosen = self.size()?;
            self.word("by")?;
            let copies = self.size()?;
            self.word("over")?;
            routed = Some(Routed { chosen, copies, over: self.size()? });
        }
        self.g.dims.add(Dim { name, extent, factors, shard, routed });
        Ok(())
    }

    fn param_decl(&mut self) -> Parsed<()> {
        self.word("param")?;
        let name = self.name()?;
        self.mark(':')?;
        let dims = self.dims()?;
        let repeat =
            if self.take_word("repeat") { Some((self.name()?, self.size()?)) } else { None };
        let trained = self.take_word("trained");
        self.word("from")?;
        let checkpoint = self.name()?;
        let checkpoint_dims = self.list('[', ']', Parser::dims)?;
        self.g.params.push(ParamDecl { name, dims, repeat, checkpoint, checkpoint_dims, trained });
        Ok(())
    }

    fn input_decl(&mut self) -> Parsed<()> {
        self.word("input")?;
        let name = self.name()?;
        self.mark(':')?;
        let ty = self.ty()?;
        self.g.inputs.push(Input { name, ty });
        Ok(())
    }

    pub fn dtype(&mut self) -> Parsed<DType> {
        if self.take_word("f32") {
            return Ok(DType::F32);
        }
        if self.take_word("bf16") {
            return Ok(DType::Bf16);
        }
        self.word("id")?;
        self.mark('(')?;
        let d = self.dim()?;
        self.mark(')')?;
        Ok(DType::Id(d))
    }

    fn ty(&mut self) -> Parsed<Type> {
        let mut stack = None;
        if let Tok::Number(_) = self.peek() {
            stack = Some(self.size()?);
            self.word("x")?;
        }
        let dtype = self.dtype()?;
        let dims = if self.is_mark('[') { self.dims()? } else { vec![] };
        Ok(Type { dtype, dims, stack })
    }

    /// Gives value `v` its type, making room for it.
    fn set_type(&mut self, v: ValueId, ty: Type) -> Parsed<()> {
        let i = v.0 as usize;
        if i > self.toks.len() {
            return Err(self.error("a value number that is not larger than the graph"));
        }
        while self.g.values.len() <= i {
            self.g.values.push(Type::f32([]));
        }
        self.g.values[i] = ty;
        Ok(())
    }

    pub fn node(&mut self) -> Parsed<Node> {
        let outs = self.values()?;
        if !outs.is_empty() {
            self.mark('=')?;
        }
        let name = self.name()?;
        let (mut op, args) = match name.as_str() {
            "scan" => self.scan()?,
            _ => self.op(&name)?,
        };
        for (i, v) in outs.iter().enumerate() {
            self.mark(if i == 0 { ':' } else { ',' })?;
            let ty = self.ty()?;
            self.set_type(*v, ty)?;
        }
        let mut origin = None;
        if self.is_mark('@') {
            self.next();
            let source = self.size()? as u32;
            self.mark(':')?;
            let start = self.size()? as u32;
            // `3-7` is read as `3` and `-7`.
            let end = self.float()?;
            origin = Some((source, start, end.abs() as u32));
        }
        if let Op::AllReduce { reason, .. }
        | Op::AllGather { reason, .. }
        | Op::ReduceScatter { reason, .. }
        | Op::GatherParam { reason, .. }
        | Op::ScatterGrad { reason, .. } = &mut op
        {
            *reason = self.note();
        }
        Ok(Node { op, args, outs, origin })
    }

    fn scan(&mut self) -> Parsed<(Op, Vec<ValueId>)> {
        let group = self.name()?;
        let first = self.size()?;
        self.mark('.')?;
        self.mark('.')?;
        let last = self.size()?;
        let reverse = self.take_word("reverse");
        self.word("carries")?;
        let carries = self.size()?;
        let pairs = self.list('(', ')', |p| {
            let param = p.value()?;
            p.mark('=')?;
            Ok((param, p.value()?))
        })?;
        for (param, arg) in &pairs {
            let ty = self.g.values.get(arg.0 as usize).cloned().unwrap_or_else(|| Type::f32([]));
            self.set_type(*param, Type { stack: None, ..ty })?;
        }
        self.mark('{')?;
        let mut body = Block { params: pairs.iter().map(|p| p.0).collect(), ..Block::default() };
        while !self.is_word("yield") {
            let node = self.node()?;
            body.nodes.push(node);
        }
        self.word("yield")?;
        body.results = self.values()?;
        self.mark('}')?;
        let count =
            last.checked_sub(first).ok_or_else(|| self.error("layers in ascending order"))?;
        let scan = Scan { group, first, count, reverse, carries, body };
        Ok((Op::Scan { scan: Box::new(scan) }, pairs.iter().map(|p| p.1).collect()))
    }
}
