//! Statements: the lines of functions, recipes, phases and steps.

use nrl_base::Span;
use serde::{Deserialize, Serialize};

use super::{Arg, Expr, Mesh, Name, PlanFor, Pool, Text, Type, View};

/// Statements in braces. `value` is the last line if that line is an expression.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Block {
    pub stmts: Vec<Stmt>,
    pub value: Option<Box<Expr>>,
    pub span: Span,
}

/// One statement with the `##` lines above it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Stmt {
    pub doc: Option<String>,
    pub kind: StmtKind,
    pub span: Span,
}

/// What a statement says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum StmtKind {
    Bind(Bind),
    /// An expression that is not the last line, such as `s.check()`.
    Expr(Expr),
    Mesh(Mesh),
    Pool(Pool),
    View(View),
    PlanFor(PlanFor),
    Run(Run),
    /// `seed 3`
    Seed(Expr),
    /// `place policy, ref on train by plans.fsdp()`
    Place(Place),
    /// `freeze policy.layers[*].router`
    Freeze(Vec<Expr>),
    Phase(Phase),
    Step(Block),
    /// `every 10 steps { ... }`
    Every(Timed),
    /// `from step 20 { ... }`
    From(Timed),
    /// `halt when c for 5 steps`
    Halt(Halt),
    /// `require peak_memory <= 92 % of device, step_time < 90 s`
    Require(Vec<Expr>),
    /// `expect step_time < 90 s`: a warning where it does not hold.
    Expect(Vec<Expr>),
    /// `assert f(x) == 0.5 within 1e-6`, in a test
    Assert(Assert),
    /// `fails out-of-range { f(2) }`, in a test
    Fails(Fails),
    Assume(Assume),
    Checkpoint(Checkpoint),
    Update(Box<Update>),
    /// `publish policy` or `publish sampler every 2 steps`
    Publish {
        what: Vec<Expr>,
        every: Option<Expr>,
    },
    /// `set step.s.max_new = 512 tokens`
    Set {
        path: Expr,
        value: Expr,
    },
    /// `append path = e`
    Append {
        path: Expr,
        value: Expr,
    },
    /// `remove path`
    Remove {
        path: Expr,
    },
    /// `settings nemo_rl over "grpo.yaml" { logger.wandb.name = "a" }`
    Settings(Settings),
}

/// What another system is told beside what the recipe says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// `nemo_rl`
    pub system: Name,
    /// The file that the settings change.
    pub over: Option<Text>,
    pub lines: Vec<Setting>,
}

/// `a.b = 1`, or `remove a.b` without a value. Values are numbers, texts, flags, `none`, lists and
/// records of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Setting {
    pub path: Vec<Name>,
    pub value: Option<Expr>,
    pub span: Span,
}

/// `x = e`, `let x: int = e`, `a, b = e`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bind {
    pub names: Vec<Name>,
    pub ty: Option<Type>,
    pub value: Expr,
}

/// `run 500 steps within 13 h, seed 42`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    pub length: Expr,
    pub within: Option<Expr>,
    pub seed: Option<Expr>,
}

/// Models, the mesh they live on and the plan that lays them out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Place {
    pub models: Vec<Expr>,
    pub mesh: Expr,
    pub plan: Option<Expr>,
}

/// `phase sft for 300 steps { ... }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Phase {
    pub name: Name,
    pub length: Option<Expr>,
    pub body: Block,
}

/// A block with a time: the period of `every`, the first step of `from step`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Timed {
    pub time: Expr,
    pub body: Block,
}

/// `halt when cond for 5 steps`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Halt {
    pub cond: Expr,
    pub lasting: Option<Expr>,
}

/// What a test says of a value.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Assert {
    pub cond: Expr,
    /// How far the two sides of `==` may be apart.
    pub within: Option<Expr>,
}

/// Lines that must raise an error.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fails {
    pub code: Name,
    pub body: Block,
}

/// `assume lengths = lognormal(mean: 700 tokens)` or `assume lengths from "rollouts.jsonl"`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Assume {
    pub name: Name,
    pub value: Expr,
    /// Whether the value is the path after `from`.
    pub from_file: bool,
}

/// `checkpoint keep 3 by test.accuracy, and the latest`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    pub keep: Option<Expr>,
    pub by: Option<Expr>,
    pub latest: bool,
}

/// `update policy by opt in 2 updates, 4 epochs, 8192 tokens/microbatch, minimising { loss }`
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Update {
    pub model: Expr,
    pub optimizer: Expr,
    /// `2 updates`
    pub updates: Option<Expr>,
    /// `4 epochs`
    pub epochs: Option<Expr>,
    /// `8192 tokens/microbatch`
    pub microbatch: Option<Expr>,
    /// Further `name: value` settings.
    pub settings: Vec<Arg>,
    pub loss: Block,
}
