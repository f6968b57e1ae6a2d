//! The facts that the lines of a recipe say.
//!
//! In: the tree of a file, as parsed. Out: facts by name, the settings block, and the lines that
//! NeMo RL has no form for. Numbers may be names of parameters and constants, or arithmetic on
//! them. Calls are found by what they call, wherever they stand in a line. This file has names, machines
//! and periods; `setup` the bindings before the step, `step` its lines, `loss` what is minimised.

pub(super) mod calls;
mod setup;
mod step;

use std::collections::HashMap;

use nrl_base::Span;
use nrl_rules::settings::Value;
use nrl_syntax::ast::{self, BinaryOp, Expr, ExprKind, StmtKind};

use calls::{Call, calls, name_of, text_of, unit_of};

use crate::import::ENVIRONMENT;
use crate::native::{Algorithm, Beside, Facts};

/// Rewards that stand for the grading of mathematics.
const GRADERS: &[&str] = &["rewards.boxed_answer", "rewards.math_answer"];

/// A line that NeMo RL cannot say.
#[derive(Clone, PartialEq, Debug)]
pub struct Lost {
    pub span: Span,
    pub what: String,
}

/// What a recipe says.
pub(crate) struct Said<'a> {
    pub facts: Facts,
    pub algorithm: Option<Algorithm>,
    pub block: Option<&'a ast::Settings>,
    pub lost: Vec<Lost>,
}

/// Reads a recipe of a file.
pub(crate) fn read<'a>(file: &'a ast::File, recipe: &'a ast::Recipe) -> Said<'a> {
    let mut reader = Reader::new(file, recipe);
    for stmt in &recipe.body.stmts {
        reader.stmt(stmt);
    }
    for item in &file.items {
        reader.item(item);
    }
    reader.judged(recipe);
    reader.placed_apart();
    for beside in std::mem::take(&mut reader.together) {
        beside.as_policy(&mut reader.facts);
    }
    let algorithm = reader.algorithm();
    let Reader { facts, block, lost, .. } = reader;
    Said { facts, algorithm, block, lost }
}

/// Where names stand for parts of a run.
#[derive(Default)]
struct Roles<'a> {
    train: Option<&'a str>,
    roll: Option<&'a str>,
    /// The mesh of a model beside the policy, which model it is, and where it is placed.
    beside: Option<(&'a str, &'static Beside, Span)>,
    policy: Option<&'a str>,
    /// The model that adapters of the policy are put on.
    adapted: Option<&'a str>,
    opt: Option<&'a str>,
    critic_opt: Option<&'a str>,
    data: Option<&'a str>,
    held: Option<&'a str>,
    reward: Option<&'a str>,
}

pub(super) struct Reader<'a> {
    pub facts: Facts,
    consts: HashMap<&'a str, &'a Expr>,
    roles: Roles<'a>,
    pools: Vec<&'a ast::Pool>,
    meshes: Vec<&'a ast::Mesh>,
    nodes: Option<i64>,
    /// Rewards that environments of NeMo RL give, by the name of the function.
    environments: HashMap<&'a str, &'a str>,
    /// Models that are laid out as the policy is.
    together: Vec<&'static Beside>,
    block: Option<&'a ast::Settings>,
    pub lost: Vec<Lost>,
    pub found: Option<Algorithm>,
}

/// Does a call of `plans.offloaded` mean the optimizer?
fn is_optimizer(call: &Call<'_>) -> bool {
    let what = call.named("what").or(call.args.first().map(|arg| &arg.value));
    what.is_none_or(|e| name_of(e) == Some("optimizer"))
}

impl<'a> Reader<'a> {
    fn new(file: &'a ast::File, recipe: &'a ast::Recipe) -> Self {
        let mut consts = HashMap::new();
        let mut environments = HashMap::new();
        for item in &file.items {
            if let ast::ItemKind::ExternFn(f) = &item.kind
                && let Some(name) = f.command.value.strip_prefix(ENVIRONMENT)
            {
                environments.insert(f.name.text.as_str(), name);
            }
            if let ast::ItemKind::Const(bind) = &item.kind
                && let [name] = &bind.names[..]
            {
                consts.insert(name.text.as_str(), &bind.value);
            }
        }
        for param in &recipe.params {
            if let Some(default) = &param.default {
                consts.insert(param.name.text.as_str(), default);
            }
        }
        let mut reader = Reader {
            facts: Facts::new(),
            consts,
            roles: Roles::default(),
            pools: vec![],
            meshes: vec![],
            nodes: None,
            environments,
            together: vec![],
            block: None,
            lost: vec![],
            found: None,
        };
        reader.roles(&recipe.body);
        reader
    }

    /// Finds out which mesh trains, which model is the policy and so on.
    fn roles(&mut self, block: &'a ast::Block) {
        for stmt in &block.stmts {
            match &stmt.kind {
                StmtKind::Bind(bind) => {
                    if let [name] = &bind.names[..] {
                        self.consts.entry(&name.text).or_insert(&bind.value);
                    }
                    if let ExprKind::Collect(collect) = &bind.value.kind {
                        self.roles(&collect.body);
                    }
                    for call in calls(&bind.value) {
                        let callee = call.callee.as_str();
                        let first = call.args.first().and_then(|arg| name_of(&arg.value));
                        match callee {
                            "generator" => {
                                self.roles.policy = self.roles.policy.or(first);
                                self.roles.roll = call.named("on").and_then(name_of);
                            }
                            "evaluate" => {
                                let second = call.args.get(1).and_then(|a| name_of(&a.value));
                                self.roles.held = self.roles.held.or(second);
                            }
                            _ if callee.ends_with(".take") => {
                                self.roles.data = self.roles.data.or(call.base());
                            }
                            "lora" => self.roles.adapted = first,
                            "gdpo.part" => self.roles.reward = first,
                            _ if callee.ends_with(".advantages") => self.roles.reward = first,
                            "ppo.at_last_token" | "at_last_token" => self.roles.reward = first,
                            _ => {}
                        }
                    }
                }
                StmtKind::Step(body) => self.roles(body),
                StmtKind::Every(timed) | StmtKind::From(timed) => self.roles(&timed.body),
                StmtKind::Phase(phase) => self.roles(&phase.body),
                StmtKind::Update(update) => {
                    let model = name_of(&update.model);
                    if model != Some("critic") {
                        self.roles.policy = model.or(self.roles.policy);
                        self.roles.opt = name_of(&update.optimizer);
                    } else {
                        self.roles.critic_opt = name_of(&update.optimizer);
                    }
                }
                StmtKind::Pool(pool) => self.pools.push(pool),
                StmtKind::Mesh(mesh) => self.meshes.push(mesh),
                StmtKind::Place(place) => {
                    let models: Vec<_> = place.models.iter().filter_map(name_of).collect();
                    let beside = Beside::ALL.iter().find(|b| models.contains(&b.model));
                    if models.contains(&"policy") || self.roles.train.is_none() && beside.is_none()
                    {
                        self.roles.train = name_of(&place.mesh);
                    } else if let (Some(beside), Some(mesh)) = (beside, name_of(&place.mesh)) {
                        self.roles.beside = Some((mesh, beside, stmt.span));
                    }
                }
                _ => {}
            }
        }
        if let Some(value) = &block.value {
            for call in calls(value) {
                if call.callee.ends_with(".take") {
                    self.roles.data = self.roles.data.or(call.base());
                }
            }
        }
    }

    /// Teachers are of sections that no line speaks of: the settings name them.
    fn judged(&mut self, recipe: &ast::Recipe) {
        let section = |line: &ast::Setting| {
            line.path.first().is_some_and(|name| name.text == "on_policy_distillation")
        };
        let named = self.block.is_some_and(|block| block.lines.iter().any(section));
        if crate::native::text(&self.facts, "estimator") == Some("opd") && !named {
            self.lose(
                recipe.name.span,
                "teachers are named by `on_policy_distillation` in settings",
            );
        }
    }

    /// A model beside the policy has settings of its own in some algorithms alone, and a pool of its own in one.
    fn placed_apart(&mut self) {
        let opd = crate::native::text(&self.facts, "estimator") == Some("opd");
        if !opd
            && self.facts.shift_remove("judges").is_some()
            && let Some((_, beside, span)) = self.roles.beside
        {
            self.lose(span, format!("nodes of its own for `{}` have no form here", beside.model));
        }
        if let Some((_, beside, span)) = self.roles.beside
            && self.found.is_none_or(|found| {
                Beside::placed(found, &self.facts).is_none_or(|own| own.model != beside.model)
            })
        {
            self.lose(span, format!("a place of its own for `{}` has no form here", beside.model));
        }
    }

    pub fn lose(&mut self, span: Span, what: impl Into<String>) {
        self.lost.push(Lost { span, what: what.into() });
    }

    pub fn say(&mut self, fact: &'static str, value: Option<Value>) {
        if let Some(value) = value {
            self.facts.insert(fact, value);
        }
    }

    fn mark(&mut self, line: &'static str) {
        self.facts.insert(line, Value::Bool(true));
    }

    fn algorithm(&self) -> Option<Algorithm> {
        self.found
    }

    fn item(&mut self, item: &'a ast::Item) {
        let what = match &item.kind {
            ast::ItemKind::ExternFn(f) if self.environments.contains_key(f.name.text.as_str()) => {
                return;
            }
            ast::ItemKind::ExternFn(f) => format!("`{}` is a process of your own", f.name.text),
            ast::ItemKind::ExternEnv(e) => {
                format!("`{}` is an environment of your own", e.name.text)
            }
            ast::ItemKind::Rollout(f) => format!("`{}` is a rollout of your own", f.name.text),
            ast::ItemKind::Model(m) => format!("`{}` is a model of your own", m.name.text),
            ast::ItemKind::Plan(p) => format!("`{}` is a plan of your own", p.name.text),
            _ => return,
        };
        self.lose(item.span, what);
    }

    fn stmt(&mut self, stmt: &'a ast::Stmt) {
        match &stmt.kind {
            StmtKind::Run(run) => self.run(run),
            StmtKind::Seed(seed) => {
                let seed = self.number(seed);
                self.say("seed", seed);
            }
            StmtKind::Mesh(mesh) => self.mesh(mesh),
            StmtKind::Pool(_) => {}
            StmtKind::Place(place) => self.place(place),
            StmtKind::Bind(bind) => self.bind(bind),
            StmtKind::Step(body) => self.step(body),
            StmtKind::Every(timed) => self.every(timed),
            StmtKind::Settings(block) => self.block = Some(block),
            StmtKind::Halt(_) => self.lose(stmt.span, "`halt when` has no form"),
            StmtKind::Require(_) => self.lose(stmt.span, "`require` has no form"),
            StmtKind::Expect(_) => self.lose(stmt.span, "`expect` has no form"),
            StmtKind::Assume(_) => self.lose(stmt.span, "`assume` has no form"),
            StmtKind::Freeze(_) => self.lose(stmt.span, "`freeze` has no general form"),
            StmtKind::Phase(phase) => {
                let said =
                    format!("phases are runs of their own: `{}` has no form", phase.name.text);
                self.lose(stmt.span, said);
            }
            StmtKind::View(_) | StmtKind::PlanFor(_) => {
                self.lose(stmt.span, "a plan or view of your own has no form");
            }
            _ => self.lose(stmt.span, "this line has no form"),
        }
    }

    fn run(&mut self, run: &'a ast::Run) {
        match unit_of(&run.length) {
            Some("step" | "steps") => {
                let steps = self.number(&run.length);
                self.say("steps", steps);
            }
            _ => self.lose(run.length.span, "a run is measured in steps"),
        }
        if let Some(within) = &run.within {
            let seconds = self.seconds(within);
            self.say("within", seconds.map(|s| Value::Int(s.round() as i64)));
        }
        if let Some(seed) = &run.seed {
            let seed = self.number(seed);
            self.say("seed", seed);
        }
    }

    fn seconds(&self, e: &Expr) -> Option<f64> {
        let number = match self.number(e)? {
            Value::Int(n) => n as f64,
            Value::Float(x) => x,
            _ => return None,
        };
        let factor = match unit_of(e)? {
            "ms" => 1e-3,
            "s" => 1.0,
            "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return None,
        };
        Some(number * factor)
    }

    fn mesh(&mut self, mesh: &'a ast::Mesh) {
        let name = Some(mesh.name.text.as_str());
        let rolls = self.roles.roll == name && self.roles.train != name;
        if let Some((_, beside, _)) = self.roles.beside.filter(|(on, ..)| Some(*on) == name) {
            self.axes(mesh, &beside.axes);
            return self.apart(mesh);
        }
        if !rolls && self.roles.train.is_some() && self.roles.train != name {
            return self.lose(mesh.name.span, "a third mesh has no form");
        }
        let names: &[(&str, &'static str)] = match rolls {
            true => &[("rtp", "rtp"), ("tp", "rtp"), ("pp", "rpp"), ("ep", "rep")],
            false => &[("tp", "tp"), ("cp", "cp"), ("pp", "pp"), ("ep", "ep"), ("etp", "etp")],
        };
        self.mark(if rolls { "roll" } else { "mesh" });
        self.axes(mesh, names);
        if rolls {
            self.pool(mesh);
        }
    }

    /// Sizes of axes as the facts that `names` has for them.
    fn axes(&mut self, mesh: &'a ast::Mesh, names: &[(&str, &'static str)]) {
        for axis in &mesh.axes {
            let known = names.iter().find(|(written, _)| *written == axis.name.text);
            let rest = matches!(axis.size.kind, ExprKind::Rest);
            match known {
                Some((_, fact)) => {
                    let size = self.number(&axis.size);
                    self.say(fact, size);
                }
                None if rest || matches!(axis.name.text.as_str(), "dp" | "fsdp" | "rep") => {}
                None => self.lose(axis.span, format!("the axis `{}` has no form", axis.name.text)),
            }
        }
    }

    /// The part of the cluster that generates, if it is one of its own.
    fn pool(&mut self, mesh: &'a ast::Mesh) {
        match self.part(mesh).filter(|_| !self.trains_on(mesh)) {
            Some((size, nodes)) => {
                self.say(if nodes { "pool_nodes" } else { "pool_gpus" }, size.map(Value::Int));
            }
            None => self.mark("colocated"),
        }
    }

    /// The part of the cluster that a teacher has for itself.
    fn apart(&mut self, mesh: &'a ast::Mesh) {
        match self.part(mesh).filter(|_| !self.trains_on(mesh)) {
            Some((size, true)) => self.say("judges", size.map(Value::Int)),
            Some(_) => self.lose(mesh.name.span, "a teacher has whole nodes for itself"),
            None => {}
        }
    }

    /// Whether the mesh is on what trains.
    fn trains_on(&self, mesh: &ast::Mesh) -> bool {
        let train = self.meshes.iter().find(|m| Some(m.name.text.as_str()) == self.roles.train);
        train.is_some_and(|train| name_of(&train.cluster) == name_of(&mesh.cluster))
    }

    /// The size of the part that a mesh is on, and whether it is nodes.
    fn part(&self, mesh: &'a ast::Mesh) -> Option<(Option<i64>, bool)> {
        let cluster = name_of(&mesh.cluster);
        let of = |pool: &&&ast::Pool| pool.names.iter().any(|n| Some(n.text.as_str()) == cluster);
        let pool = self.pools.iter().find(of).copied()?;
        let at = pool.names.iter().position(|n| Some(n.text.as_str()) == cluster)?;
        let part = pool.parts.get(at)?;
        let others = pool.parts.iter().filter(|p| !matches!(p.kind, ExprKind::Rest));
        let taken: i64 = others.filter_map(|p| self.whole(p)).sum();
        let unit = unit_of(part).or(pool.parts.iter().find_map(unit_of)).unwrap_or("nodes");
        let nodes = unit.starts_with("node");
        let size = match self.whole(part) {
            Some(size) => Some(size),
            None if nodes => self.nodes.map(|nodes| nodes - taken),
            None => None,
        };
        Some((size, nodes))
    }

    fn place(&mut self, place: &'a ast::Place) {
        let Some(plan) = &place.plan else { return };
        let models: Vec<_> = place.models.iter().filter_map(name_of).collect();
        let beside = Beside::ALL.into_iter().find(|b| models.contains(&b.model));
        let policy = models.is_empty() || models.iter().any(|m| Some(*m) == self.roles.policy);
        match (policy, beside) {
            (true, beside) => {
                self.plan(plan, ["plan", "sp", "recompute"], Some("offload"));
                if let Some(beside) = beside {
                    self.together.push(beside);
                }
            }
            (false, Some(b)) => self.plan(plan, [b.plan, b.sp, b.recompute], b.offload),
            (false, None) => {}
        }
    }

    /// The plan of the policy, or of a model beside it: which backend, and what the others say of it.
    fn plan(
        &mut self,
        plan: &'a Expr,
        [backend, sp, recompute]: [&'static str; 3],
        offload: Option<&'static str>,
    ) {
        for call in calls(plan) {
            match call.callee.as_str() {
                "plans.megatron" => {
                    self.facts.insert(backend, Value::Text("megatron".into()));
                    let parts = call.named("sp").map(|e| matches!(e.kind, ExprKind::Bool(true)));
                    self.say(sp, parts.map(Value::Bool));
                    let again = call.named("recompute").and_then(name_of);
                    self.say(recompute, again.map(|_| Value::Bool(true)));
                    let split = call.named("split").map(super::plain);
                    match split.filter(|split| matches!(split, Value::List(_))) {
                        Some(split) if backend == "plan" => self.say("split", Some(split)),
                        Some(_) => self.lose(plan.span, "stages of this model have no form"),
                        None => {}
                    }
                    if call.named("chunks").is_some_and(|e| super::plain(e) != Value::Int(1)) {
                        let what = "`chunks` has no line there: write `policy.megatron_cfg.virtual_pipeline_model_parallel_size` into the settings";
                        self.lose(plan.span, what);
                    }
                    if call
                        .named("paired")
                        .is_some_and(|e| !matches!(e.kind, ExprKind::Bool(false)))
                    {
                        let what = "paired micro-batches have no form: NeMo RL has no key for them";
                        self.lose(plan.span, what);
                    }
                }
                "plans.fsdp" => {
                    self.facts.insert(backend, Value::Text("fsdp".into()));
                }
                "plans.tensor_parallel" | "plans.context_parallel" | "plans.expert_parallel" => {}
                "plans.sequence_parallel" => self.say(sp, Some(Value::Bool(true))),
                "plans.recomputed" => self.say(recompute, Some(Value::Bool(true))),
                "plans.offloaded" => {}
                other => self.lose(plan.span, format!("the plan `{other}` has no form")),
            }
        }
        for call in calls(plan).iter().filter(|call| call.callee == "plans.offloaded") {
            let on_megatron = self.facts.get(backend) == Some(&Value::Text("megatron".into()));
            match (is_optimizer(call), offload) {
                (false, _) => self.lose(
                    plan.span,
                    "activations on hosts have no form: NeMo RL names modules that go there",
                ),
                (true, Some(fact)) if on_megatron => self.mark(fact),
                (true, Some(_)) => self.lose(
                    plan.span,
                    "`plans.offloaded()` has no form on DTensor, whose `cpu_offload` keeps weights and gradients \
                     on hosts too; beside `plans.megatron()` it has",
                ),
                (true, None) => self.lose(
                    plan.span,
                    "`plans.offloaded()` has no form for a model that is not trained",
                ),
            }
        }
    }

    fn bind(&mut self, bind: &'a ast::Bind) {
        let name = bind.names.first().map_or("", |name| name.text.as_str());
        if let ExprKind::From { source, .. } = &bind.value.kind {
            if self.roles.held.is_none_or(|held| held == name) {
                self.say("held_file", text_of(source).map(Value::Text));
            }
            return;
        }
        for call in calls(&bind.value) {
            self.setup(name, &call);
        }
    }

    fn every(&mut self, timed: &'a ast::Timed) {
        self.mark("period");
        let period = self.number(&timed.time);
        for stmt in &timed.body.stmts {
            match &stmt.kind {
                StmtKind::Bind(bind) => {
                    for call in calls(&bind.value) {
                        match call.callee.as_str() {
                            "evaluate" => {
                                self.say("eval_period", period.clone());
                                let limit = call.named("limit").and_then(|e| self.number(e));
                                self.say("eval_limit", limit);
                                let reward = call.args.get(2).and_then(|a| name_of(&a.value));
                                let name = reward.and_then(|r| self.environments.get(r));
                                let name = name.map(|name| Value::Text(name.to_string()));
                                self.say("reward", name);
                            }
                            "validate" => self.say("eval_period", period.clone()),
                            _ => {}
                        }
                    }
                }
                StmtKind::Checkpoint(save) => {
                    self.mark("save");
                    self.say("save_period", period.clone());
                    let keep = save.keep.as_ref().and_then(|e| self.number(e));
                    self.say("keep", keep);
                    if let Some(ExprKind::Field { name, .. }) = save.by.as_ref().map(|e| &e.kind) {
                        self.say("metric", Some(Value::Text(name.text.clone())));
                    }
                }
                _ => self.lose(stmt.span, "this line of `every` has no form"),
            }
        }
    }

    /// A number, if it is one before the run.
    pub fn number(&self, e: &Expr) -> Option<Value> {
        self.number_within(e, 16)
    }

    fn whole(&self, e: &Expr) -> Option<i64> {
        match self.number(e) {
            Some(Value::Int(n)) => Some(n),
            _ => None,
        }
    }

    fn number_within(&self, e: &Expr, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        Some(match &e.kind {
            ExprKind::Int(n) => Value::Int(*n),
            ExprKind::Float(x) => Value::Float(*x),
            ExprKind::None => Value::Null,
            ExprKind::Quantity(q) if q.unit.first().is_some_and(|u| u.name.text == "%") => {
                Value::Float(q.value / 100.0)
            }
            ExprKind::Quantity(q) if q.whole => Value::Int(q.value as i64),
            ExprKind::Quantity(q) => Value::Float(q.value),
            ExprKind::Of { part, .. } => self.number_within(part, depth)?,
            ExprKind::Name(name) => self.number_within(self.consts.get(name.as_str())?, depth)?,
            ExprKind::Unary { op: ast::UnaryOp::Neg, operand } => {
                match self.number_within(operand, depth)? {
                    Value::Int(n) => Value::Int(n.checked_neg()?),
                    Value::Float(x) => Value::Float(-x),
                    _ => return None,
                }
            }
            ExprKind::Binary { op, lhs, rhs, .. } => {
                arithmetic(*op, self.number_within(lhs, depth)?, self.number_within(rhs, depth)?)?
            }
            _ => return None,
        })
    }
}

fn arithmetic(op: BinaryOp, a: Value, b: Value) -> Option<Value> {
    let float = |v: &Value| match v {
        Value::Int(n) => Some(*n as f64),
        Value::Float(x) => Some(*x),
        _ => None,
    };
    if let (Value::Int(a), Value::Int(b)) = (&a, &b) {
        let whole = match op {
            BinaryOp::Add => a.checked_add(*b),
            BinaryOp::Sub => a.checked_sub(*b),
            BinaryOp::Mul => a.checked_mul(*b),
            BinaryOp::FloorDiv => a.checked_div_euclid(*b),
            _ => None,
        };
        if whole.is_some() {
            return whole.map(Value::Int);
        }
    }
    let (a, b) = (float(&a)?, float(&b)?);
    Some(Value::Float(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div if b != 0.0 => a / b,
        _ => return None,
    }))
}
