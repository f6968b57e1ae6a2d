//! The facts that the lines of a recipe say.
//!
//! In: the tree of a file, as parsed. Out: facts by name, the settings block, and the lines that
//! NeMo RL has no form for. Numbers may be names of parameters and constants, or arithmetic on
//! them. Calls are found by what they call, wherever they stand in a line.

use std::collections::HashMap;

use nrl_base::Span;
use nrl_rules::settings::Value;
use nrl_syntax::ast::{self, Arg, BinaryOp, Expr, ExprKind, StmtKind};

use super::loss;
use crate::import::ENVIRONMENT;
use crate::native::{Algorithm, Facts};

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
    let algorithm = reader.algorithm();
    let Reader { facts, block, lost, .. } = reader;
    Said { facts, algorithm, block, lost }
}

/// Where names stand for parts of a run.
#[derive(Default)]
struct Roles<'a> {
    train: Option<&'a str>,
    roll: Option<&'a str>,
    policy: Option<&'a str>,
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
    nodes: Option<i64>,
    /// Rewards that environments of NeMo RL give, by the name of the function.
    environments: HashMap<&'a str, &'a str>,
    block: Option<&'a ast::Settings>,
    pub lost: Vec<Lost>,
    pub found: Option<Algorithm>,
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
            nodes: None,
            environments,
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
                StmtKind::Place(place) => {
                    let models: Vec<_> = place.models.iter().filter_map(name_of).collect();
                    if models.contains(&"policy") || self.roles.train.is_none() {
                        self.roles.train = name_of(&place.mesh);
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
        if !rolls && self.roles.train.is_some() && self.roles.train != name {
            return self.lose(mesh.name.span, "a third mesh has no form");
        }
        let names: &[(&str, &'static str)] = match rolls {
            true => &[("rtp", "rtp"), ("tp", "rtp"), ("pp", "rpp"), ("ep", "rep")],
            false => &[("tp", "tp"), ("cp", "cp"), ("pp", "pp"), ("ep", "ep"), ("etp", "etp")],
        };
        self.mark(if rolls { "roll" } else { "mesh" });
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
        if rolls {
            self.pool(mesh);
        }
    }

    /// The part of the cluster that generates, if it is one of its own.
    fn pool(&mut self, mesh: &'a ast::Mesh) {
        let cluster = name_of(&mesh.cluster);
        let of = |pool: &&&ast::Pool| pool.names.iter().any(|n| Some(n.text.as_str()) == cluster);
        let Some(pool) = self.pools.iter().find(of).copied() else {
            return self.mark("colocated");
        };
        let at = pool.names.iter().position(|n| Some(n.text.as_str()) == cluster).unwrap_or(0);
        let Some(part) = pool.parts.get(at) else { return };
        let others = pool.parts.iter().filter(|p| !matches!(p.kind, ExprKind::Rest));
        let taken: i64 = others.filter_map(|p| self.whole(p)).sum();
        let unit = pool.parts.iter().find_map(unit_of).unwrap_or("nodes");
        let size = match self.whole(part) {
            Some(size) => Some(size),
            None if unit.starts_with("node") => self.nodes.map(|nodes| nodes - taken),
            None => None,
        };
        let fact = if unit.starts_with("node") { "pool_nodes" } else { "pool_gpus" };
        self.say(fact, size.map(Value::Int));
    }

    fn place(&mut self, place: &'a ast::Place) {
        let Some(plan) = &place.plan else { return };
        let models: Vec<_> = place.models.iter().filter_map(name_of).collect();
        if !models.is_empty() && !models.iter().any(|m| Some(*m) == self.roles.policy) {
            return;
        }
        for call in calls(plan) {
            match call.callee.as_str() {
                "plans.megatron" => {
                    self.mark("plan");
                    self.facts.insert("plan", Value::Text("megatron".into()));
                    let sp = call.named("sp").map(|e| matches!(e.kind, ExprKind::Bool(true)));
                    self.say("sp", sp.map(Value::Bool));
                    let recompute = call.named("recompute").and_then(name_of);
                    self.say("recompute", recompute.map(|_| Value::Bool(true)));
                }
                "plans.fsdp" => {
                    self.facts.insert("plan", Value::Text("fsdp".into()));
                }
                "plans.tensor_parallel" => {}
                other => self.lose(plan.span, format!("the plan `{other}` has no form")),
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

    fn setup(&mut self, name: &str, call: &Call<'a>) {
        match call.callee.as_str() {
            callee if callee.starts_with("clusters.") => {
                for arg in ["nodes", "gpus"] {
                    let value = call.named(arg).and_then(|e| self.number(e));
                    let fact = if arg == "nodes" { "nodes" } else { "gpus" };
                    self.say(fact, value);
                }
                self.nodes = crate::native::int(&self.facts, "nodes");
            }
            "models.load" => self.model(name, call),
            "optim.adamw" if self.roles.critic_opt == Some(name) => {
                let lr = call.named("lr").and_then(|e| self.number(e));
                self.say("critic_lr", lr);
            }
            "optim.adamw" if self.roles.opt.is_none_or(|opt| opt == name) => self.optimizer(call),
            "optim.sgd" => self.lose(call.span, "this optimizer is set in the settings block"),
            "generator" => {
                self.mark("sampler");
                for fact in ["temperature", "top_p", "top_k", "memory"] {
                    let value = call.named(fact).and_then(|e| self.number(e));
                    self.say(fact, value);
                }
            }
            "data.jsonl" | "data.hub" => self.data(name, call),
            callee if callee.ends_with(".held_out") => {
                let share = call.args.first().and_then(|arg| self.number(&arg.value));
                self.say("held_share", share);
            }
            _ => {}
        }
    }

    fn model(&mut self, name: &str, call: &Call<'a>) {
        let path = call.args.first().and_then(|arg| text_of(&arg.value)).map(Value::Text);
        if call.named("head").is_some() {
            return self.say("critic", path);
        }
        if self.roles.policy.is_some_and(|policy| policy != name) {
            return self.say("teacher", path);
        }
        self.say("model", path);
        let dtype = call.named("dtype").and_then(name_of).and_then(|word| {
            let known = [("bf16", "bfloat16"), ("f32", "float32"), ("f16", "float16")];
            known.into_iter().find(|(ours, _)| *ours == word)
        });
        self.say("dtype", dtype.map(|(_, theirs)| Value::Text(theirs.into())));
        let context = call.named("context").and_then(|e| self.number(e));
        self.say("context", context);
    }

    fn optimizer(&mut self, call: &Call<'a>) {
        self.mark("opt");
        for fact in ["beta1", "beta2", "eps", "weight_decay", "clip_norm"] {
            let value = call.named(fact).and_then(|e| self.number(e));
            self.say(fact, value);
        }
        let Some(lr) = call.named("lr") else { return };
        if let Some(number) = self.number(lr) {
            return self.say("lr", Some(number));
        }
        let Some(schedule) = calls(lr).into_iter().next() else { return };
        let peak = schedule.args.first().and_then(|arg| self.number(&arg.value));
        match schedule.callee.as_str() {
            "optim.warmup" | "warmup" => {
                let over = schedule.args.get(1).and_then(|arg| self.number(&arg.value));
                self.say("warmup", over);
            }
            "optim.constant" | "constant" => {}
            other => self.lose(schedule.span, format!("the schedule `{other}` has no form yet")),
        }
        self.say("lr", peak);
    }

    fn data(&mut self, name: &str, call: &Call<'a>) {
        let value = call.args.first().and_then(|arg| text_of(&arg.value)).map(Value::Text);
        let held = self.roles.held == Some(name) || name == "held_out";
        let file = call.callee == "data.jsonl";
        match (held, file) {
            (true, true) => self.say("held_file", value),
            (true, false) => self.say("held_name", value),
            (false, _) if self.roles.data.is_some_and(|data| data != name) => {
                self.lose(call.span, format!("`{name}` is a second data set"));
            }
            (false, true) => {
                self.say("data_file", value);
                for (fact, arg) in [("prompt_key", "prompt"), ("answer_key", "answer")] {
                    self.say(fact, call.named(arg).and_then(text_of).map(Value::Text));
                }
            }
            (false, false) => self.say("data_name", value),
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

    fn step(&mut self, body: &'a ast::Block) {
        for stmt in &body.stmts {
            match &stmt.kind {
                StmtKind::Bind(bind) => self.step_bind(bind),
                StmtKind::Update(update) => self.update(update),
                StmtKind::From(timed) => {
                    self.lose(stmt.span, "`from step` is set in the settings block");
                    self.step(&timed.body);
                }
                _ => self.lose(stmt.span, "this line of the step has no form"),
            }
        }
    }

    fn step_bind(&mut self, bind: &'a ast::Bind) {
        let name = bind.names.first().map(|name| name.text.as_str());
        if name.is_some() && name == self.roles.reward {
            let known = |call: &Call| {
                let callee = call.callee.as_str();
                GRADERS.contains(&callee) || self.environments.contains_key(callee)
            };
            let alone = matches!(bind.value.kind, ExprKind::Call { .. });
            if !calls(&bind.value).first().is_some_and(|call| alone && known(call)) {
                return self.lose(bind.value.span, "a reward of your own has no form");
            }
        }
        for call in calls(&bind.value) {
            let callee = call.callee.as_str();
            match callee {
                _ if callee.ends_with(".generate") => self.generate(&bind.value, &call),
                _ if callee.ends_with(".take") => {
                    let unit = call.args.first().and_then(|arg| unit_of(&arg.value));
                    let count = call.args.first().and_then(|arg| self.number(&arg.value));
                    match unit.unwrap_or("") {
                        "prompt" | "prompts" => self.say("prompts", count),
                        "pair" | "pairs" => {
                            self.found = Some(Algorithm::Dpo);
                            self.say("batch", count);
                        }
                        _ => {
                            self.found = self.found.or(Some(Algorithm::Sft));
                            self.say("batch", count);
                        }
                    }
                }
                _ if GRADERS.contains(&callee) => {
                    self.say("reward", Some(Value::Text("math".into())));
                }
                _ if self.environments.contains_key(callee) => {
                    let name = self.environments[callee].to_string();
                    self.say("reward", Some(Value::Text(name)));
                }
                "gdpo.part" => self.compared(&call),
                _ if callee.ends_with(".advantages") => self.advantages(&bind.value, &call),
                "tis" | "icepop" | "seq_mask_tis" | "weight" => self.correction(&call),
                "ppo.gae" | "gae" => {
                    self.found = Some(Algorithm::Ppo);
                    self.mark("gae");
                    for fact in ["gamma", "lambda"] {
                        let value = call.named(fact).and_then(|e| self.number(e));
                        self.say(fact, value);
                    }
                }
                "topk" => {
                    self.found = Some(Algorithm::Distillation);
                    let k = call.args.get(1).and_then(|arg| self.number(&arg.value));
                    self.say("topk", k);
                }
                _ => {}
            }
        }
    }

    fn generate(&mut self, value: &'a Expr, call: &Call<'a>) {
        self.found = self.found.or(Some(Algorithm::Grpo));
        let group = call.args.get(1).and_then(|arg| self.number(&arg.value));
        self.say("group", group);
        if let Some(new) = call.named("max_new") {
            let rest = matches!(new.kind, ExprKind::Of { .. } | ExprKind::Rest);
            let new = if rest { Some(Value::Text("rest".into())) } else { self.number(new) };
            self.say("max_new", new);
        }
        let ExprKind::With { args, .. } = &value.kind else { return };
        for arg in args {
            match (&arg.name, &arg.value.kind) {
                (None, ExprKind::Binary { op: BinaryOp::Le, lhs, rhs, .. })
                    if name_of(lhs) == Some("staleness") =>
                {
                    let age = self.number(rhs);
                    self.say("staleness", age);
                }
                (Some(name), _) if name.text == "swap" => {
                    let swap = name_of(&arg.value) == Some("in_flight");
                    self.say("in_flight", Some(Value::Bool(swap)));
                }
                _ => self.lose(arg.span, "this part of `with` has no form"),
            }
        }
    }

    fn advantages(&mut self, value: &'a Expr, call: &Call<'a>) {
        self.mark("advantages");
        let module = call.callee.trim_end_matches(".advantages");
        self.say("estimator", Some(Value::Text(module.into())));
        match module {
            "grpo" => self.compared(call),
            "gdpo" if calls(value).iter().filter(|c| c.callee == "gdpo.part").count() > 1 => {
                self.lose(call.span, "several rewards come from one environment");
            }
            "reinforce_plus_plus" => match call.named("baseline").and_then(name_of) {
                Some("mean") => self.say("minus_baseline", Some(Value::Bool(true))),
                Some("zero") => self.say("minus_baseline", Some(Value::Bool(false))),
                Some(other) => self.lose(call.span, format!("the baseline `{other}` has no form")),
                None => {}
            },
            _ => {}
        }
    }

    /// What a reward is compared with, and what the difference is divided by.
    fn compared(&mut self, call: &Call<'a>) {
        match call.named("baseline").and_then(name_of) {
            Some("leave_one_out") => self.say("leave_one_out", Some(Value::Bool(true))),
            Some("mean") => self.say("leave_one_out", Some(Value::Bool(false))),
            Some(other) => self.lose(call.span, format!("the baseline `{other}` has no form")),
            None => {}
        }
        match call.named("scale").and_then(name_of) {
            Some("std") => self.say("scaled", Some(Value::Bool(true))),
            Some("unscaled") => self.say("scaled", Some(Value::Bool(false))),
            Some(other) => self.lose(call.span, format!("the scale `{other}` has no form")),
            None => {}
        }
    }

    fn correction(&mut self, call: &Call<'a>) {
        self.say("correction", Some(Value::Text(call.callee.clone())));
        let max = call.named("max").and_then(|e| self.number(e));
        self.say("correction_max", max);
        if let Some(ExprKind::Range { start: Some(low), end: Some(high), .. }) =
            call.args.get(2).map(|arg| &arg.value.kind)
        {
            let (low, high) = (self.number(low), self.number(high));
            self.say("correction_min", low);
            self.say("correction_max", high);
        }
    }

    fn update(&mut self, update: &'a ast::Update) {
        let critic = name_of(&update.model) == Some("critic");
        if let Some(epochs) = &update.epochs {
            let epochs = self.number(epochs);
            self.say("epochs", epochs);
        }
        if !critic {
            self.mark("update");
            let updates = update.updates.as_ref().and_then(|e| self.number(e));
            self.say("updates", updates);
            if let Some(size) = &update.microbatch {
                match units_of(size).first().copied() {
                    Some("token" | "tokens") => {
                        let size = self.number(size);
                        self.say("microbatch", size);
                    }
                    _ => self.lose(size.span, "micro-batches are measured in tokens"),
                }
            }
        }
        loss::read(self, &update.loss, critic);
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

/// A call with what it calls written out: `grpo.clip`, `rows.take`.
pub(super) struct Call<'a> {
    pub callee: String,
    pub args: &'a [Arg],
    pub span: Span,
    target: &'a Expr,
}

impl<'a> Call<'a> {
    /// An argument by name.
    pub fn named(&self, name: &str) -> Option<&'a Expr> {
        let is = |arg: &&'a Arg| arg.name.as_ref().is_some_and(|n| n.text == name);
        self.args.iter().find(is).map(|arg| &arg.value)
    }

    /// The name before the dot.
    fn base(&self) -> Option<&'a str> {
        match &self.target.kind {
            ExprKind::Field { base, .. } => name_of(base),
            _ => None,
        }
    }
}

/// All calls of an expression, outer ones first.
pub(super) fn calls(e: &Expr) -> Vec<Call<'_>> {
    let mut found = vec![];
    collect(e, &mut found, 64);
    found
}

fn collect<'a>(e: &'a Expr, found: &mut Vec<Call<'a>>, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    let inside = |e: &'a Expr, found: &mut Vec<Call<'a>>| collect(e, found, depth);
    match &e.kind {
        ExprKind::Call { callee, args } => {
            if let Some(path) = path_of(callee) {
                found.push(Call { callee: path, args, span: e.span, target: callee });
            }
            inside(callee, found);
            args.iter().for_each(|arg| inside(&arg.value, found));
        }
        ExprKind::With { base, args } => {
            inside(base, found);
            args.iter().for_each(|arg| inside(&arg.value, found));
        }
        ExprKind::Field { base, .. } => inside(base, found),
        ExprKind::Unary { operand, .. } => inside(operand, found),
        ExprKind::Binary { lhs, rhs, .. } => {
            inside(lhs, found);
            inside(rhs, found);
        }
        ExprKind::Pipe { input, stage } => {
            inside(input, found);
            inside(stage, found);
        }
        ExprKind::From { base, .. } => inside(base, found),
        ExprKind::List(items) | ExprKind::Tuple(items) => {
            items.iter().for_each(|item| inside(item, found));
        }
        ExprKind::Of { part, whole } => {
            inside(part, found);
            inside(whole, found);
        }
        _ => {}
    }
}

/// A dotted name.
pub(super) fn path_of(e: &Expr) -> Option<String> {
    match &e.kind {
        ExprKind::Name(name) => Some(name.clone()),
        ExprKind::Field { base, name } => Some(format!("{}.{}", path_of(base)?, name.text)),
        _ => None,
    }
}

/// A plain name.
pub(super) fn name_of(e: &Expr) -> Option<&str> {
    match &e.kind {
        ExprKind::Name(name) => Some(name),
        _ => None,
    }
}

fn text_of(e: &Expr) -> Option<String> {
    match &e.kind {
        ExprKind::Text(text) => Some(text.clone()),
        _ => None,
    }
}

fn units_of(e: &Expr) -> Vec<&str> {
    match &e.kind {
        ExprKind::Quantity(q) => q.unit.iter().map(|u| u.name.text.as_str()).collect(),
        _ => vec![],
    }
}

fn unit_of(e: &Expr) -> Option<&str> {
    units_of(e).first().copied()
}
