//! Items: what stands at the top of a file.

use nrl_base::Span;
use serde::{Deserialize, Serialize};

use super::{Bind, Block, Expr, Layout, Name, Path, Text, Type};

/// One `.nrl` file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct File {
    pub items: Vec<Item>,
    pub span: Span,
}

/// One item with the `##` lines above it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Item {
    /// The doc comment, `##` removed, lines joined by line breaks.
    pub doc: Option<String>,
    pub kind: ItemKind,
    pub span: Span,
}

/// What an item is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ItemKind {
    Use(Use),
    Fn(Fn),
    ExternFn(ExternFn),
    ExternEnv(ExternEnv),
    Model(Model),
    Record(Record),
    Enum(Enum),
    Plan(Plan),
    PlanFor(PlanFor),
    Mesh(Mesh),
    Pool(Pool),
    View(View),
    Recipe(Recipe),
    /// `rollout solve(p: Problem, gen: Generator) -> Sample { ... }`
    Rollout(Fn),
    Test(Test),
    Type(TypeDef),
    Unit(UnitDef),
    /// `x = e` outside everything.
    Const(Bind),
}

impl Item {
    /// The name the item declares, if it declares one.
    pub fn name(&self) -> Option<&Name> {
        match &self.kind {
            ItemKind::Fn(x) | ItemKind::Rollout(x) => Some(&x.name),
            ItemKind::ExternFn(x) => Some(&x.name),
            ItemKind::ExternEnv(x) => Some(&x.name),
            ItemKind::Model(x) => Some(&x.name),
            ItemKind::Record(x) => Some(&x.name),
            ItemKind::Enum(x) => Some(&x.name),
            ItemKind::Plan(x) => Some(&x.name),
            ItemKind::PlanFor(x) => Some(&x.name),
            ItemKind::Mesh(x) => Some(&x.name),
            ItemKind::View(x) => Some(&x.name),
            ItemKind::Recipe(x) => Some(&x.name),
            ItemKind::Const(x) => x.names.first(),
            ItemKind::Type(x) => Some(&x.name),
            ItemKind::Unit(x) => Some(&x.name),
            ItemKind::Use(_) | ItemKind::Pool(_) | ItemKind::Test(_) => None,
        }
    }
}

/// `use std.{a, b}`, `use std.models.{llama as l}`, `use "./local.nrl" as x`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Use {
    pub origin: UseOrigin,
    /// The names in braces; empty means the module itself is bound.
    pub names: Vec<UseName>,
    /// `as x` after the whole module.
    pub alias: Option<Name>,
}

/// Where the names of a `use` come from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum UseOrigin {
    Path(Path),
    File(Text),
}

/// One name in the braces of a `use`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UseName {
    pub name: Name,
    pub alias: Option<Name>,
}

/// `fn f(x: f32[tok], k = 2) -> f32[tok] { ... }`; a body `= e` is a block with only a value.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fn {
    pub name: Name,
    pub params: Vec<Param>,
    pub result: Option<Type>,
    pub body: Block,
}

/// One parameter of a function, model, plan or recipe.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Param {
    pub name: Name,
    pub ty: Option<Type>,
    pub default: Option<Expr>,
    pub span: Span,
}

/// `extern fn f(s: Sample) -> float in 0..1 from "python my.py" timeout 2 s`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExternFn {
    pub name: Name,
    pub params: Vec<Param>,
    pub result: Option<Type>,
    pub command: Text,
    pub options: Vec<ProcessOption>,
}

/// A setting of an external process: `timeout 2 s`, `deadline 20 s`, `32 workers`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProcessOption {
    /// `timeout`, `deadline`, `workers` or `retries`; `on_timeout` for `on timeout e`.
    pub name: Name,
    pub value: Expr,
    pub span: Span,
}

/// `extern env sandbox from "python sandbox.py", 32 workers { fn open(p: Problem) -> Box }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExternEnv {
    pub name: Name,
    pub command: Text,
    pub options: Vec<ProcessOption>,
    pub fns: Vec<Signature>,
}

/// A function without a body.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Signature {
    pub doc: Option<String>,
    pub name: Name,
    pub params: Vec<Param>,
    pub result: Option<Type>,
    pub span: Span,
}

/// `model llama(cfg: LlamaConfig) { ... }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Model {
    pub name: Name,
    pub params: Vec<Param>,
    pub members: Vec<Member>,
}

/// One member of a model or of a repeated block.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub doc: Option<String>,
    pub kind: MemberKind,
    pub span: Span,
}

/// What a member is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum MemberKind {
    /// `dim d = cfg.hidden_size, q = kv * group`
    Dims(Vec<DimDecl>),
    Param(Box<ParamDecl>),
    /// `layers: repeat n { ... }`
    Repeat {
        name: Name,
        count: Expr,
        members: Vec<Member>,
    },
    Fn(Fn),
    /// `let scale = e`
    Let(Bind),
}

/// One dim of a `dim` line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DimDecl {
    pub name: Name,
    pub size: Expr,
    pub span: Span,
}

/// `param wk, wv: [kv, hd, d] init normal(0.02) from "layers.{i}.{k,v}.weight" or e if c if d`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ParamDecl {
    pub names: Vec<Name>,
    /// `f32` of `f32[d]`; none for `[d]`.
    pub dtype: Option<Name>,
    pub dims: Vec<Layout>,
    /// The checkpoint's name, one `{a,b}` group for several names, `{i}` for the layer.
    pub from: Option<Text>,
    /// `or embed if cfg.tie_word_embeddings`
    pub or: Option<Tie>,
    /// `init normal(0.02)`, for a start without a checkpoint.
    pub init: Option<Expr>,
    /// The last `if`: the parameter exists only then.
    pub cond: Option<Expr>,
}

/// Another parameter that stands in for this one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Tie {
    pub param: Expr,
    pub cond: Option<Expr>,
    pub span: Span,
}

/// `record LlamaConfig { hidden_size: int, eps: float = 1e-5 }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    pub name: Name,
    pub fields: Vec<RecordField>,
}

/// One field of a record.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecordField {
    pub doc: Option<String>,
    pub name: Name,
    pub ty: Type,
    pub default: Option<Expr>,
    pub span: Span,
}

/// `enum Recompute { none, full, selective(list(text)) }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Enum {
    pub name: Name,
    pub variants: Vec<Variant>,
}

/// `unit widgets`, or `unit dozens = 12 widgets`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UnitDef {
    pub name: Name,
    /// How much it is of another; none for a unit of its own.
    pub of: Option<Expr>,
}

/// One variant of an enum.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Variant {
    pub doc: Option<String>,
    pub name: Name,
    pub fields: Vec<Type>,
    pub span: Span,
}

/// `plan megatron(sp: bool) { ... }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub name: Name,
    pub params: Vec<Param>,
    pub rules: Vec<PlanRule>,
}

/// `plan mine for llama on m = megatron(sp: true) with { ... }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PlanFor {
    pub name: Name,
    pub model: Option<Path>,
    pub mesh: Option<Path>,
    pub base: Expr,
    pub rules: Vec<PlanRule>,
}

/// One rule of a plan, with its `if`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PlanRule {
    pub doc: Option<String>,
    pub kind: PlanRuleKind,
    pub cond: Option<Expr>,
    pub span: Span,
}

/// What a rule says. Targets are dims, `layers`, or paths such as `layers[*].wo`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum PlanRuleKind {
    /// `q, kv: @tp` or `expert: @ep on x`; no axes for `q: replicated`
    Split { targets: Vec<Expr>, axes: Vec<Name>, view: Option<Name> },
    /// `layers[*].wo: [d, q@tp, hd]`
    Layout { target: Expr, dims: Vec<Layout> },
    /// `layers: stages over pp, virtual 2, split [20, 19], paired true`
    Stages {
        target: Expr,
        axis: Name,
        chunks: Option<Expr>,
        split: Option<Expr>,
        paired: Option<Expr>,
    },
    /// `state: zero1 over dp, cp`
    State { mode: Name, axes: Vec<Name> },
    /// `recompute layers: full` or `layers[0..4]: recompute none`
    Recompute { target: Expr, mode: Expr },
    /// `offload: optimizer`
    Offload { what: Expr },
    /// `reduce tp: bf16`
    Reduce { axis: Name, dtype: Name },
}

/// `mesh m = gpus axes (dp: rest, tp: 2)`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mesh {
    pub name: Name,
    pub cluster: Expr,
    pub axes: Vec<Axis>,
}

/// One axis of a mesh; the size may be `rest`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Axis {
    pub name: Name,
    pub size: Expr,
    pub span: Span,
}

/// `pool a, b = gpus split (4 nodes, rest)`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pool {
    pub names: Vec<Name>,
    pub cluster: Expr,
    pub parts: Vec<Expr>,
}

/// `view x of m(dp, cp, tp) = (edp: rest, ep: 4)`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct View {
    pub name: Name,
    pub mesh: Path,
    pub folds: Vec<Name>,
    pub axes: Vec<Axis>,
}

/// `recipe r(lr = 1e-6) extends base { ... }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Recipe {
    pub name: Name,
    pub params: Vec<Param>,
    pub extends: Option<Path>,
    pub body: Block,
}

/// `type Share = float in 0..1`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TypeDef {
    pub name: Name,
    pub ty: Type,
}

/// `test "clips both sides" { ... }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Test {
    pub name: Text,
    pub body: Block,
}
