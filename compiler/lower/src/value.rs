//! Values of elaboration: what an expression of a recipe is at check time.
//!
//! Elaboration evaluates what it can. What only the run knows becomes a node of one of three
//! programs: a host expression, a value of the tensor graph being built, or a binding of the step.

use std::collections::BTreeMap;
use std::rc::Rc;

use indexmap::IndexMap;
use nrl_base::Span;
use nrl_ir::host::{self, HostType, Value};
use nrl_ir::program::{BindingId, Sampling};
use nrl_ir::{DimId, ParamId, ValueId};
use nrl_syntax::ast;

use crate::intrinsic::Intrinsic;
use crate::intrinsic::scores::Dist;
use crate::modules::ModuleId;
use crate::origin::Origin;
use crate::units::Unit;

/// One value. `'a` is the life of the loaded modules.
#[derive(Clone, Debug)]
pub enum Val<'a> {
    /// Known now. Numbers may have a unit.
    Const(Value, Unit),
    /// Known when the host runs it.
    Host(host::Expr, HostType),
    /// A value of the tensor graph being built.
    Tensor(Tensor),
    /// A tensor that an earlier line of the step makes.
    Step(StepTensor),
    /// A scalar tensor that may be minimised.
    Loss(ValueId),
    List(Vec<Val<'a>>),
    Tuple(Vec<Val<'a>>),
    Record(IndexMap<String, Val<'a>>),
    /// `leave_one_out` of an enum.
    Variant {
        of: &'a ast::Item,
        name: String,
        /// What it holds, of the types that the enum declares.
        vals: Vec<Val<'a>>,
    },
    Range(f64, f64),
    Closure(Rc<Closure<'a>>),
    /// A function, model, record, enum or plan by its definition.
    Item(ModuleId, &'a ast::Item),
    Module(ModuleId),
    Intrinsic(&'static Intrinsic),
    /// `x.f`: the intrinsic `f` with its first argument.
    Method(Box<Val<'a>>, &'static Intrinsic),
    Dim(DimId),
    /// A parameter of the model being elaborated.
    Param(ParamId),
    /// A function of the model being elaborated.
    Member(Rc<Member<'a>>),
    /// The `repeat` of a model, and one of its iterations.
    Layers(Rc<Layers<'a>>),
    Layer(Rc<Layer<'a>>),
    /// By index of the facts.
    Cluster(usize),
    Mesh(usize),
    /// Axes of a mesh under other names, by index of the facts.
    View(usize),
    Plan(PlanRules),
    Data(usize),
    Prompts {
        binding: BindingId,
    },
    /// Rows with a chosen and a rejected answer.
    Pairs {
        binding: BindingId,
    },
    /// What a sampler recorded of each token.
    Recorded {
        what: String,
        samples: BindingId,
    },
    Dist(Rc<Dist>),
    Samples(Samples),
    Model(usize),
    Optimizer(usize),
    Generator(usize, Drawing),
    /// What `evaluate` reports, by binding name.
    Report(String),
    /// A number the report holds: `test.accuracy`.
    Metric(String),
    /// `rest`, or `rest of context`.
    Rest,
    /// What stands after an error; using it is not another error.
    Poison,
}

/// A value of the graph being built.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub id: ValueId,
    /// `[seq]` mask of rewards that did not fail, for values made from rewards.
    pub valid: Option<ValueId>,
    /// Where log-probabilities come from; lost by arithmetic.
    pub origin: Option<Rc<Origin>>,
}

/// Dims of a value that flows along the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepShape {
    Act,
    Seq,
    Group,
    Scalar,
}

/// A tensor bound in the step.
#[derive(Clone, Debug)]
pub struct StepTensor {
    pub binding: BindingId,
    pub field: Option<String>,
    pub shape: StepShape,
    pub valid: Validity,
    /// The samples it is about, when it has their dims.
    pub samples: Option<BindingId>,
    /// Only one side of pairs counts.
    pub side: Option<Side>,
    pub origin: Option<Rc<Origin>>,
}

/// Where the mask of valid samples comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Validity {
    All,
    /// Field `valid` of the reward.
    Field,
    /// Another binding.
    Binding(BindingId),
}

/// A batch of samples.
#[derive(Clone, Debug)]
pub struct Samples {
    pub binding: BindingId,
    /// How they were drawn; none for supervised data.
    pub drawing: Option<Drawing>,
    /// One side of pairs.
    pub side: Option<Side>,
    /// The reward that a rollout gives with them.
    pub reward: Option<usize>,
}

/// Which answer of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Chosen,
    Rejected,
}

/// How a generator draws.
#[derive(Clone, Debug)]
pub struct Drawing {
    pub model: usize,
    pub sampling: Sampling,
    /// Where the temperature and the kept tokens were set.
    pub temperature_at: Option<Span>,
    pub support_at: Option<Span>,
    /// What it records of each token.
    pub records: Vec<String>,
    pub stale: Option<Stale>,
}

/// Samples that may be of earlier weights.
#[derive(Clone, Debug)]
pub struct Stale {
    pub steps: usize,
    /// By just so many steps; otherwise by at most that.
    pub exact: bool,
    pub span: Span,
}

/// The layers of a `repeat`, in the order in which they run.
#[derive(Debug)]
pub struct Layers<'a> {
    pub count: usize,
    pub runs: Vec<Run<'a>>,
}

/// Equal turns of a few layers, one after the other.
#[derive(Debug)]
pub struct Run<'a> {
    /// Its group in the graph.
    pub group: String,
    pub turns: usize,
    /// The layers of one turn.
    pub layers: Vec<Rc<Layer<'a>>>,
}

/// One layer of a turn, and its parameters.
#[derive(Debug)]
pub struct Layer<'a> {
    /// Name of the `repeat`.
    pub name: String,
    /// The item of the list that the `repeat` is over.
    pub it: Option<Val<'a>>,
    pub params: IndexMap<String, Option<ParamId>>,
}

/// A function of a model and the names it sees.
#[derive(Debug)]
pub struct Member<'a> {
    pub module: ModuleId,
    pub function: &'a ast::Fn,
    pub env: Env<'a>,
}

/// A lambda and the names it sees.
#[derive(Debug)]
pub struct Closure<'a> {
    pub params: &'a [ast::Name],
    pub body: &'a ast::Expr,
    pub env: Env<'a>,
}

/// Layout rules of a plan, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanRules {
    pub dims: Vec<DimRule>,
    pub paths: Vec<PathRule>,
    pub state: Option<(StateMode, Vec<String>, Span)>,
    pub recompute: Option<(String, Span)>,
    /// What stays on hosts between uses: `optimizer`, `activations`.
    pub offload: Vec<(String, Span)>,
    pub stages: Option<Stages>,
    /// Tensor-parallel styles by names of a checkpoint; rules of parameters once the model is known.
    pub styles: Vec<Style>,
    /// What of it cannot run yet.
    pub later: Vec<Waits>,
}

/// `"layers.*.self_attn.q_proj": "colwise"` of a Hugging Face model.
#[derive(Clone, Debug, PartialEq)]
pub struct Style {
    pub path: String,
    /// Rows of the stored matrix, which are the outputs; else its columns.
    pub outputs: bool,
    pub span: Span,
}

/// `layers: stages over pp, virtual 2, split [8, 7], paired true`.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    pub axis: String,
    /// Stages of each rank.
    pub chunks: usize,
    /// Layers of each stage; equal if not given.
    pub split: Option<Vec<usize>>,
    /// The forward of one micro-batch runs beside the backward of another.
    pub paired: bool,
    pub span: Span,
}

/// A rule that cannot run yet on a mesh where one of `axes` splits; on any if there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Waits {
    pub axes: Vec<String>,
    pub what: String,
    pub span: Span,
}

/// `q, kv: @tp`.
#[derive(Clone, Debug, PartialEq)]
pub struct DimRule {
    pub dim: String,
    pub axes: Vec<String>,
    pub span: Span,
    /// Written by the user, not by the library: matching nothing is an error.
    pub own: bool,
}

/// `layers[*].wo: [d, q@tp, hd]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PathRule {
    pub param: String,
    pub dims: Vec<(String, Vec<String>)>,
    pub span: Span,
}

/// What of the optimizer's work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateMode {
    Zero1,
    Zero2,
    Zero3,
}

/// Names in scope. Sharing tails: the last few are a list, those before lie in maps of growing size,
/// so that a name is found in few steps however many lines a recipe has.
#[derive(Clone, Debug)]
pub struct Env<'a> {
    pub module: ModuleId,
    recent: Option<Rc<Bound<'a>>>,
    older: Option<Rc<Older<'a>>>,
}

#[derive(Debug)]
struct Bound<'a> {
    name: String,
    val: Val<'a>,
    /// Length of the list from here.
    depth: usize,
    next: Option<Rc<Bound<'a>>>,
}

#[derive(Debug)]
struct Older<'a> {
    names: BTreeMap<String, Val<'a>>,
    next: Option<Rc<Older<'a>>>,
}

/// Names that are kept as a list.
const RECENT: usize = 16;

impl<'a> Env<'a> {
    pub fn new(module: ModuleId) -> Env<'a> {
        Env { module, recent: None, older: None }
    }

    /// Binds `name`, hiding an earlier one.
    pub fn bind(&mut self, name: &str, val: Val<'a>) {
        let next = self.recent.take();
        let depth = next.as_ref().map_or(1, |n| n.depth + 1);
        self.recent = Some(Rc::new(Bound { name: name.into(), val, depth, next }));
        if depth == RECENT {
            self.settle();
        }
    }

    /// Moves the list into a map, and with it the maps that are no larger.
    fn settle(&mut self) {
        let mut names = BTreeMap::new();
        for (name, val) in self.list() {
            names.entry(name.to_string()).or_insert_with(|| val.clone());
        }
        while let Some(older) = self.older.clone().filter(|o| o.names.len() <= names.len()) {
            for (name, val) in &older.names {
                names.entry(name.clone()).or_insert_with(|| val.clone());
            }
            self.older.clone_from(&older.next);
        }
        self.older = Some(Rc::new(Older { names, next: self.older.take() }));
        self.recent = None;
    }

    pub fn get(&self, name: &str) -> Option<&Val<'a>> {
        let listed = self.list().find(|(n, _)| *n == name).map(|(_, v)| v);
        listed.or_else(|| self.maps().find_map(|o| o.names.get(name)))
    }

    fn list(&self) -> impl Iterator<Item = (&str, &Val<'a>)> {
        std::iter::successors(self.recent.as_deref(), |b| b.next.as_deref())
            .map(|b| (b.name.as_str(), &b.val))
    }

    fn maps(&self) -> impl Iterator<Item = &Older<'a>> {
        std::iter::successors(self.older.as_deref(), |o| o.next.as_deref())
    }

    /// Names and values, the innermost of one name first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Val<'a>)> {
        let maps = self.maps().flat_map(|o| o.names.iter().map(|(n, v)| (n.as_str(), v)));
        self.list().chain(maps)
    }
}

impl<'a> Val<'a> {
    pub fn num(x: f64) -> Val<'a> {
        Val::Const(Value::Num(x), Unit::none())
    }

    pub fn none() -> Val<'a> {
        Val::Const(Value::None, Unit::none())
    }

    pub fn bool(b: bool) -> Val<'a> {
        Val::Const(Value::Bool(b), Unit::none())
    }

    pub fn text(s: &str) -> Val<'a> {
        Val::Const(Value::text(s), Unit::none())
    }

    pub fn constant(v: Value) -> Val<'a> {
        Val::Const(v, Unit::none())
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Val::Const(Value::None, _))
    }

    /// Kind of value, in user words.
    pub fn kind(&self) -> String {
        match self {
            Val::Const(Value::Num(_), u) if !u.is_none() => format!("a quantity in {u}"),
            Val::Const(v, _) => match v {
                Value::None => "none".into(),
                v => format!("a {}", v.kind()),
            },
            Val::Host(_, t) => format!("a {} known at run time", t.describe()),
            Val::Tensor(_) | Val::Step(_) | Val::Param(_) => "a tensor".into(),
            Val::Loss(_) => "a loss".into(),
            Val::List(_) => "a list".into(),
            Val::Tuple(_) => "a tuple".into(),
            Val::Record(_) => "a record".into(),
            Val::Variant { of, .. } => {
                format!("a {}", of.name().map_or("variant", |n| n.text.as_str()))
            }
            Val::Range(..) => "a range".into(),
            Val::Closure(_) | Val::Member(_) => "a function".into(),
            Val::Item(_, i) => match &i.kind {
                ast::ItemKind::Fn(_) | ast::ItemKind::ExternFn(_) => "a function".into(),
                ast::ItemKind::Model(_) => "a model definition".into(),
                ast::ItemKind::Record(_) => "a record type".into(),
                ast::ItemKind::Enum(_) => "an enum".into(),
                ast::ItemKind::Unit(_) => "a unit".into(),
                ast::ItemKind::Plan(_) | ast::ItemKind::PlanFor(_) => "a plan".into(),
                _ => "a definition".into(),
            },
            Val::Module(_) => "a module".into(),
            Val::Intrinsic(_) | Val::Method(..) => "a function".into(),
            Val::Dim(_) => "a dim".into(),
            Val::Layers(_) | Val::Layer(_) => "layers of a model".into(),
            Val::Cluster(_) => "a cluster".into(),
            Val::View(_) => "a view of a mesh".into(),
            Val::Mesh(_) => "a mesh".into(),
            Val::Plan(_) => "a plan".into(),
            Val::Data(_) => "a data set".into(),
            Val::Prompts { .. } => "a batch of prompts".into(),
            Val::Pairs { .. } => "a batch of pairs".into(),
            Val::Recorded { what, .. } => format!("the {what} of samples"),
            Val::Dist(_) => "a distribution over the vocabulary".into(),
            Val::Samples(_) => "a batch of samples".into(),
            Val::Model(_) => "a model".into(),
            Val::Optimizer(_) => "an optimizer".into(),
            Val::Generator(..) => "a generator".into(),
            Val::Report(_) => "a report".into(),
            Val::Metric(_) => "a metric".into(),
            Val::Rest => "`rest`".into(),
            Val::Poison => "nothing".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_of_a_name_is_found() {
        let mut env = Env::new(ModuleId(0));
        let number = |e: &Env<'_>, n: &str| match e.get(n) {
            Some(Val::Const(Value::Num(x), _)) => Some(*x),
            _ => None,
        };
        for i in 0..1000 {
            env.bind(&format!("x{}", i % 300), Val::num(f64::from(i)));
            let inner = env.clone();
            env.bind("last", Val::num(f64::from(i)));
            // A copy does not see what is bound later.
            assert_eq!(number(&inner, "last"), (i > 0).then(|| f64::from(i - 1)));
        }
        assert_eq!(number(&env, "x0"), Some(900.0));
        assert_eq!(number(&env, "x299"), Some(899.0));
        assert_eq!(number(&env, "last"), Some(999.0));
        assert_eq!(number(&env, "x300"), None);
        assert!(env.maps().count() < 12);
    }
}
