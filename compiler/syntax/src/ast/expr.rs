//! Expressions, patterns and types.

use nrl_base::Span;
use serde::{Deserialize, Serialize};

use super::{Block, Name, Path, Text};

/// One expression.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Expr {
    pub kind: ExprKind,
    pub span: Span,
}

/// What an expression is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ExprKind {
    Int(i64),
    Float(f64),
    /// `8192 tokens`, `95 %`
    Quantity(Quantity),
    Text(String),
    Bool(bool),
    /// `none`
    None,
    Name(String),
    /// `some x`
    Some(Box<Expr>),
    /// `[a, b]`
    List(Vec<Expr>),
    /// `(a, b)`
    Tuple(Vec<Expr>),
    /// `{a: 1, b: 2}`
    Record(Vec<RecordValue>),
    /// `f(x, k: v)`
    Call {
        callee: Box<Expr>,
        args: Vec<Arg>,
    },
    /// `a.b`
    Field {
        base: Box<Expr>,
        name: Name,
    },
    /// `w[ids]`, `layers[*]`, `layers[0..4]`, `x[d -> e]`
    Index {
        base: Box<Expr>,
        items: Vec<IndexItem>,
    },
    Unary {
        op: UnaryOp,
        operand: Box<Expr>,
    },
    Binary {
        op: BinaryOp,
        op_span: Span,
        lhs: Box<Expr>,
        rhs: Box<Expr>,
    },
    /// `0.2..0.28`, `1..=6`, `2..`
    Range {
        start: Option<Box<Expr>>,
        end: Option<Box<Expr>>,
        inclusive: bool,
    },
    /// `if c then a else b`, `if c { a } else { b }`
    If {
        cond: Box<Expr>,
        then: Box<Expr>,
        otherwise: Option<Box<Expr>>,
    },
    Match {
        value: Box<Expr>,
        arms: Vec<Arm>,
    },
    /// `data | chat(policy)`
    Pipe {
        input: Box<Expr>,
        stage: Box<Expr>,
    },
    /// `problems from "test.jsonl"`
    From {
        base: Box<Expr>,
        source: Box<Expr>,
    },
    /// `sampler with (temperature: 0)`; `delay 2` is the argument `delay: 2`
    With {
        base: Box<Expr>,
        args: Vec<Arg>,
    },
    For(Box<For>),
    Scan(Box<Scan>),
    /// `x -> e`, `(a, b) -> e`
    Lambda {
        params: Vec<Name>,
        body: Box<Expr>,
    },
    Block(Box<Block>),
    /// `rest`
    Rest,
    /// `60 % of device`, `rest of context`
    Of {
        part: Box<Expr>,
        whole: Box<Expr>,
    },
    Collect(Box<Collect>),
}

/// A number with a unit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Quantity {
    pub value: f64,
    /// The number as written.
    pub text: String,
    /// Whether the number was written without point and exponent.
    pub whole: bool,
    /// `tokens/microbatch` is `[tokens^1, microbatch^-1]`; `%` is one factor.
    pub unit: Vec<UnitFactor>,
}

/// One factor of a unit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UnitFactor {
    pub name: Name,
    pub power: i32,
}

/// One argument of a call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Arg {
    pub name: Option<Name>,
    pub value: Expr,
    pub span: Span,
}

/// One field of a record value.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecordValue {
    pub name: Name,
    pub value: Expr,
    pub span: Span,
}

/// One item between the brackets of an index.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum IndexItem {
    /// `ids`, `0..4`
    Expr(Expr),
    /// `*`
    All(Span),
    /// `d -> e`
    Rename { from: Name, to: Name, span: Span },
}

/// Operators before an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UnaryOp {
    Neg,
    Not,
}

/// Operators between two operands, weakest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BinaryOp {
    /// `0..1 to -1..1`
    To,
    /// `dist(m, s) on t`
    On,
    Or,
    And,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// `a in b`
    In,
    Add,
    Sub,
    Mul,
    Div,
    /// `//`
    FloorDiv,
    Rem,
    /// `a @ b`
    Contract,
    /// `^`
    Pow,
}

impl BinaryOp {
    /// The operator as it is written.
    pub fn text(self) -> &'static str {
        match self {
            BinaryOp::To => "to",
            BinaryOp::On => "on",
            BinaryOp::Or => "or",
            BinaryOp::And => "and",
            BinaryOp::Eq => "==",
            BinaryOp::Ne => "!=",
            BinaryOp::Lt => "<",
            BinaryOp::Le => "<=",
            BinaryOp::Gt => ">",
            BinaryOp::Ge => ">=",
            BinaryOp::In => "in",
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::FloorDiv => "//",
            BinaryOp::Rem => "%",
            BinaryOp::Contract => "@",
            BinaryOp::Pow => "^",
        }
    }
}

/// One arm of a `match`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Arm {
    pub pattern: Pattern,
    pub value: Expr,
    pub span: Span,
}

/// The left side of an arm.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pattern {
    pub kind: PatternKind,
    pub span: Span,
}

/// What a pattern matches.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum PatternKind {
    /// `_`
    Any,
    /// A new name or a variant; the resolver decides.
    Name(String),
    /// A number, text, bool or range.
    Value(Expr),
    /// `none`
    None,
    /// `some p`
    Some(Box<Pattern>),
    /// `(p, q)`
    Tuple(Vec<Pattern>),
    /// `selective(ops)`
    Variant { path: Path, args: Vec<Pattern> },
}

/// `for l in layers carrying x, k = 0 until done { ... }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct For {
    pub var: Name,
    pub over: Expr,
    pub carrying: Vec<Carry>,
    pub until: Option<Expr>,
    pub body: Block,
}

/// A value handed from turn to turn; without `= e` it starts from the name's value outside.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Carry {
    pub name: Name,
    pub start: Option<Expr>,
}

/// `scan back delta carrying a = 0 { ... }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scan {
    pub back: bool,
    /// Names of values over `tok`; inside the body each is one element.
    pub inputs: Vec<Name>,
    pub carrying: Vec<Carry>,
    pub body: Block,
}

/// `collect 64 groups where c within 10 rounds { ... }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Collect {
    pub count: Expr,
    pub cond: Option<Expr>,
    pub within: Option<Expr>,
    pub body: Block,
}

/// One type as written.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Type {
    pub kind: TypeKind,
    pub span: Span,
}

/// What a type is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum TypeKind {
    /// `int`, `Sample`, `std.data.Pairs`
    Name(Path),
    /// `id(vocab)`
    Id(Box<Expr>),
    /// `samples/prompt`
    Unit(Vec<UnitFactor>),
    /// `list(text)`
    Apply { name: Name, args: Vec<Type> },
    /// `f32[tok, vocab]`, `id(vocab)[tok]`
    Tensor { element: Box<Type>, dims: Vec<Layout> },
    /// `T?`
    Optional(Box<Type>),
    /// `(A, B)`
    Tuple(Vec<Type>),
    /// `fn(A, B) -> C`
    Fn { params: Vec<Type>, result: Box<Type> },
    /// `float in 0..1`
    Within { base: Box<Type>, range: Box<Expr> },
    /// `text at most 1024 tokens`
    AtMost { base: Box<Type>, limit: Box<Expr> },
    /// `int where it % 2 == 0`
    Where { base: Box<Type>, cond: Box<Expr> },
    /// `f32[d] pending sum(tp)`; the value type may be left out
    Pending { base: Option<Box<Type>>, kind: Name, axes: Vec<Name> },
}

/// One dim of a tensor with the axes that split it: `tok@dp`, `2 * half`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Layout {
    pub dim: Expr,
    pub axes: Vec<Name>,
    pub span: Span,
}

impl Expr {
    /// The name, if the expression is only a name.
    pub fn as_name(&self) -> Option<&str> {
        match &self.kind {
            ExprKind::Name(name) => Some(name),
            _ => None,
        }
    }

    /// The literal, if the expression is only a text.
    pub fn as_text(&self) -> Option<Text> {
        match &self.kind {
            ExprKind::Text(value) => Some(Text { value: value.clone(), span: self.span }),
            _ => None,
        }
    }
}
