//! Facts as lines of the language: `places` has machines and layouts, this file the rest.

mod places;

use nrl_rules::settings::Value;

use super::values::{literal, quoted};
use crate::native::{
    Algorithm, BETA1, BETA2, Beside, EPS, Facts, dtype_word, int, on, percent, text,
};

/// What stands for a loss that no line says.
pub const UNSAID_LOSS: &str = "settings.loss(policy, s)";

/// `1 step`, `2 steps`.
fn count(n: &str, unit: &str) -> String {
    format!("{n} {unit}{}", if n == "1" { "" } else { "s" })
}

/// The lines of a recipe, without its settings block, each with its indent.
pub(crate) fn lines(
    facts: &Facts,
    algorithm: Algorithm,
    notes: &[(&'static str, String)],
) -> Vec<String> {
    let mut writer = Writer { facts, algorithm, notes, out: vec![] };
    writer.run();
    if !facts.contains_key("model") {
        writer.line("# The model is left open, so the rest stands in the settings.");
        return writer.out;
    }
    writer.layout();
    writer.models();
    if !writer.steps() {
        return writer.out;
    }
    writer.rows();
    match algorithm {
        Algorithm::Grpo => writer.grpo(),
        Algorithm::Ppo => writer.ppo(),
        Algorithm::Dpo => writer.dpo(),
        Algorithm::Sft => writer.sft(),
        Algorithm::Distillation => writer.distillation(),
        Algorithm::Rm => writer.rm(),
    }
    writer.periods();
    writer.out
}

struct Writer<'f> {
    facts: &'f Facts,
    algorithm: Algorithm,
    notes: &'f [(&'static str, String)],
    out: Vec<String>,
}

impl Writer<'_> {
    fn line(&mut self, text: impl Into<String>) {
        self.out.push(text.into());
    }

    /// A line with what is to be known beside it.
    fn noted(&mut self, about: &str, text: String) {
        let note = self.notes.iter().find(|(name, _)| *name == about);
        self.out.push(match note {
            Some((_, note)) => format!("{text}  # {note}"),
            None => text,
        });
    }

    fn gap(&mut self) {
        if self.out.last().is_some_and(|line| !line.is_empty()) {
            self.out.push(String::new());
        }
    }

    fn has(&self, fact: &str) -> bool {
        self.facts.contains_key(fact)
    }

    /// A fact as it is written, if it is said.
    fn value(&self, fact: &str) -> Option<String> {
        self.facts.get(fact).and_then(literal)
    }

    /// `name: value` of the facts that are said.
    fn args(&self, names: &[(&str, &str)]) -> Vec<String> {
        let arg = |(fact, name): &(&str, &str)| Some(format!("{name}: {}", self.value(fact)?));
        names.iter().filter_map(arg).collect()
    }

    fn run(&mut self) {
        let seed = self.value("seed").map(|n| format!("seed {n}"));
        let within = int(self.facts, "within").map(|seconds| match seconds {
            s if s % 3600 == 0 => format!(" within {} h", s / 3600),
            s if s % 60 == 0 => format!(" within {} min", s / 60),
            s => format!(" within {s} s"),
        });
        match (self.value("steps"), seed) {
            (Some(steps), seed) => {
                let seed = seed.map_or(String::new(), |seed| format!(", {seed}"));
                self.line(format!(
                    "run {}{}{seed}",
                    count(&steps, "step"),
                    within.unwrap_or_default()
                ));
            }
            (None, Some(seed)) => self.line(seed),
            (None, None) => {}
        }
        self.gap();
    }

    fn load(&self, name: &str) -> String {
        let mut args = vec![text(self.facts, name).map_or("\"\"".into(), quoted)];
        let (dtype, context) = match name {
            "teacher" => ("teacher_dtype", "teacher_context"),
            "critic" => ("critic_dtype", "critic_context"),
            _ => ("dtype", "context"),
        };
        if let Some(word) = text(self.facts, dtype).and_then(dtype_word) {
            args.push(format!("dtype: {word}"));
        }
        if let Some(context) = self.value(context) {
            args.push(format!("context: {context} tokens"));
        }
        if name == "model" {
            args.extend(self.args(&[("config", "config")]));
        }
        if name == "critic" || name == "model" && self.has("scored") {
            args.push("head: scalar".into());
        }
        format!("models.load({})", args.join(", "))
    }

    fn refers(&self) -> bool {
        self.algorithm == Algorithm::Dpo
            || self.facts.get("kl").is_some_and(|kl| {
                !matches!(kl, Value::Int(0)) && !matches!(kl, Value::Float(x) if *x == 0.0)
            })
    }

    /// The learning rate over updates.
    fn schedule(&self) -> String {
        let lr = self.value("lr").unwrap_or_default();
        let updates = |fact: &str| self.value(fact).map(|n| count(&n, "update"));
        let kind = match (text(self.facts, "schedule"), updates("warmup"), updates("over")) {
            (Some("warmup"), Some(over), _) => return format!("optim.warmup({lr}, {over})"),
            (Some(kind @ ("linear" | "cosine")), warmup, Some(over)) => {
                let mut args = vec![lr, over];
                args.extend(warmup);
                args.extend(self.args(&[("floor", "floor")]));
                return format!("optim.{kind}({})", args.join(", "));
            }
            (kind, ..) => kind,
        };
        match kind {
            Some("constant") => lr,
            _ => format!("optim.from_settings({lr})"),
        }
    }

    /// Whether the language has a step for what runs.
    fn steps(&self) -> bool {
        match self.algorithm {
            Algorithm::Rm => self.has("scored"),
            Algorithm::Distillation => self.has("teacher"),
            _ => true,
        }
    }

    /// `lora(base, ..)`, if adapters are trained.
    fn adapters(&self) -> Option<String> {
        let (rank, Some(Value::List(on))) = (self.value("lora_rank")?, self.facts.get("lora_on"))
        else {
            return None;
        };
        let word = |node: &nrl_rules::settings::Node| match &node.value {
            Value::Text(word) => Some(word.clone()),
            _ => None,
        };
        let on = on.iter().map(word).collect::<Option<Vec<_>>>()?.join(", ");
        let alpha = self.value("lora_alpha")?;
        Some(format!("lora(base, rank: {rank}, alpha: {alpha}, on: [{on}])"))
    }

    fn models(&mut self) {
        let adapters = self.adapters();
        if self.has("model") {
            let name = if adapters.is_some() { "base" } else { "policy" };
            self.line(format!("{name} = {}", self.load("model")));
        }
        if let Some(adapters) = adapters {
            self.line(format!("policy = {adapters}"));
        }
        if self.refers() {
            self.line("ref = frozen(policy)");
        }
        if self.has("teacher") {
            self.line(format!("teacher = {}", self.load("teacher")));
        }
        if self.has("critic") {
            self.line(format!("critic = {}", self.load("critic")));
        }
        if self.has("opt") && self.has("lr") && self.steps() {
            let mut args = vec![format!("lr: {}", self.schedule())];
            for (name, usual) in [("beta1", BETA1), ("beta2", BETA2), ("eps", EPS)] {
                if self.facts.get(name) != Some(&Value::Float(usual)) {
                    args.extend(self.args(&[(name, name)]));
                }
            }
            args.extend(self.args(&["weight_decay", "clip_norm"].map(|name| (name, name))));
            self.noted("opt", format!("opt = optim.adamw({})", args.join(", ")));
        }
        if let Some(lr) = self.value("critic_lr") {
            self.line(format!("opt_v = optim.adamw(lr: {lr})"));
        } else if let Some(lr) = self.value("lr").filter(|_| self.has("value_loss")) {
            let text = format!("opt_v = optim.adamw(lr: optim.from_settings({lr}))");
            self.line(format!("{text}  # settings name no rate: this is the policy's"));
        }
        self.places();
        if self.has("sampler") && self.steps() {
            let mut args = vec![String::from("policy")];
            if self.has("roll") {
                args.push("on: roll".into());
            }
            args.extend(self.args(&[("temperature", "temperature")]));
            for name in ["top_p", "top_k"] {
                if self.keeps(name) {
                    args.extend(self.args(&[(name, name)]));
                }
            }
            if self.keeps_some() && self.algorithm != Algorithm::Distillation {
                args.push("record: [support]".into());
            }
            if let Some(Value::Float(share)) = self.facts.get("memory")
                && let Some(percent) = percent(*share)
            {
                args.push(format!("memory: {percent} % of device"));
            }
            self.line(format!("sampler = generator({})", args.join(", ")));
        }
        self.gap();
    }

    /// Whether the sampler keeps a part of the vocabulary by this bound.
    fn keeps(&self, bound: &str) -> bool {
        match self.facts.get(bound) {
            None | Some(Value::Null) => false,
            Some(Value::Int(n)) if bound == "top_k" => *n > 0,
            Some(Value::Int(n)) => *n != 1,
            Some(Value::Float(x)) => *x != 1.0 || bound != "top_p",
            Some(_) => true,
        }
    }

    fn keeps_some(&self) -> bool {
        ["top_p", "top_k"].iter().any(|bound| self.keeps(bound))
    }

    /// The log-probability of samples that the loss reads. NeMo RL trains over the tokens that its sampler keeps.
    fn score(&self) -> &'static str {
        match self.keeps_some() {
            true => "logprob(policy, s, on: s.support)",
            false => "logprob(policy, s)",
        }
    }

    fn source(&self, file: &str, name: &str) -> Option<String> {
        if let Some(path) = text(self.facts, file) {
            let mut args = vec![quoted(path)];
            if file == "data_file" {
                args.extend(self.args(&[("prompt_key", "prompt"), ("answer_key", "answer")]));
            }
            return Some(format!("data.jsonl({})", args.join(", ")));
        }
        let pairs = matches!(self.algorithm, Algorithm::Dpo | Algorithm::Rm);
        let columns = match self.algorithm {
            _ if pairs => ", chosen: \"chosen\", rejected: \"rejected\"",
            Algorithm::Sft => ", answer: \"answer\"",
            _ => "",
        };
        text(self.facts, name).map(|name| format!("data.hub({}{columns})", quoted(name)))
    }

    fn rows(&mut self) {
        let source = self.source("data_file", "data_name");
        let rows = self.rows_name();
        match source {
            Some(source) => self.line(format!("{rows} = {source}")),
            None => {
                self.line(format!("{rows} = data.settings()  # what the settings below name"));
            }
        }
        if !self.has("eval_period") || !self.has("period") {
            return self.gap();
        }
        let held = match text(self.facts, "held_file") {
            Some(path) => Some(format!("{rows} from {}", quoted(path))),
            None => self.source("held_file", "held_name"),
        };
        if let Some(held) = held {
            self.line(format!("held_out = {held}"));
        } else if let Some(Value::Float(share)) = self.facts.get("held_share")
            && let Some(percent) = percent(*share)
        {
            self.line(format!("held_out = {rows}.held_out({percent} %)"));
        } else {
            self.line("held_out = data.settings()");
        }
        self.gap();
    }

    fn rows_name(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Dpo | Algorithm::Rm => "pairs",
            Algorithm::Sft => "chats",
            _ => "problems",
        }
    }

    /// `s = sampler.generate(..)` of the algorithms that sample.
    fn generate(&mut self) {
        match self.value("prompts").and_then(|prompts| self.samples(&prompts)) {
            Some(samples) => self.line(format!("  s = {samples}")),
            None => self.line("  # prompts and samples are set below"),
        }
    }

    /// `sampler.generate(..)` from so many prompts.
    fn samples(&self, prompts: &str) -> Option<String> {
        let group = self.value("group")?;
        let new = match self.facts.get("max_new") {
            Some(Value::Int(n)) => format!(", max_new: {n} tokens"),
            Some(_) => ", max_new: rest of context".into(),
            None => String::new(),
        };
        let (prompts, group) = (count(prompts, "prompt"), count(&group, "sample") + "/prompt");
        let late = match self.value("staleness") {
            Some(age) => {
                let swap = if on(self.facts, "in_flight") { ", swap: in_flight" } else { "" };
                format!(" with staleness <= {}{swap}", count(&age, "step"))
            }
            None => String::new(),
        };
        Some(format!("sampler.generate(problems.take({prompts}), {group}{new}){late}"))
    }

    /// The reward of samples, without what is taken off for length.
    fn reward(&self, samples: &str) -> Option<String> {
        match text(self.facts, "reward")? {
            "math" => Some(format!("rewards.boxed_answer({samples})")),
            _ => Some(format!("environment({samples})")),
        }
    }

    /// ` + rewards.overlong(..)` where long answers cost something.
    fn overlong(&self, samples: &str) -> String {
        let said = ["overlong_limit", "overlong_buffer", "overlong_penalty"];
        match said.map(|fact| self.value(fact)) {
            [Some(limit), Some(buffer), Some(penalty)] => format!(
                " + rewards.overlong({samples}, limit: {limit} tokens, buffer: {buffer} tokens, \
                 penalty: {penalty})"
            ),
            _ => String::new(),
        }
    }

    /// Samples and rewards of groups that differ in themselves, if others are sampled again.
    fn collected(&self) -> Option<Vec<String>> {
        let [prompts, rounds, tried] = ["prompts", "rounds", "tried"].map(|f| self.value(f));
        let samples = self.samples(&tried?)?;
        let (groups, rounds) = (count(&prompts?, "group"), count(&rounds?, "round"));
        Some(vec![
            format!("  s, r = collect {groups} where std(reward) > 0 within {rounds} {{"),
            format!("    tried = {samples}"),
            format!("    reward = {}", self.reward("tried")?),
            format!("    (tried, reward{})", self.overlong("tried")),
            "  }".into(),
        ])
    }

    fn update(&self, model: &str, opt: &str, epochs: bool) -> String {
        let mut parts = vec![];
        if let Some(updates) = int(self.facts, "updates") {
            parts.push(count(&updates.to_string(), "update"));
        } else if !self.algorithm.generates() {
            parts.push("1 update".into());
        }
        if epochs && let Some(n) = int(self.facts, "epochs") {
            parts.push(count(&n.to_string(), "epoch"));
        }
        if model == "policy"
            && let Some(tokens) = self.value("microbatch")
        {
            parts.push(format!("{tokens} tokens/microbatch"));
        }
        let parts = match parts.split_first() {
            Some((first, rest)) if first.contains("update") || first.contains("epoch") => {
                let rest = rest.iter().map(|part| format!(", {part}"));
                format!(" in {first}{}", rest.collect::<String>())
            }
            _ => parts.iter().map(|part| format!(", {part}")).collect(),
        };
        format!("update {model} by {opt}{parts}, minimising {{")
    }

    fn clip(&self) -> Option<String> {
        let score = self.score();
        let ratio = match on(self.facts, "sequence_ratio") {
            true => format!("sequence_ratio({score}, old)"),
            false => format!("ratio({score}, old)"),
        };
        let weight = if self.has("correction") { "w * " } else { "" };
        if on(self.facts, "no_ratio") {
            return Some(format!("-adv * {weight}{score}"));
        }
        let (low, high) = (self.value("clip_low")?, self.value("clip_high")?);
        if on(self.facts, "cispo") {
            if self.per_token() {
                return None;
            }
            return Some(format!("{weight}grpo.cispo({ratio}, adv, {score}, {low}..{high})"));
        }
        let dual = match self.facts.get("dual") {
            None | Some(Value::Null) => String::new(),
            Some(dual) => format!(", dual: {}", literal(dual)?),
        };
        let module = if self.per_token() { "ppo" } else { "grpo" };
        Some(format!("{weight}{module}.clip({ratio}, adv, {low}..{high}{dual})"))
    }

    /// The loss of GRPO and PPO.
    fn surrogate(&mut self, indent: &str) {
        let over = match self.facts.get("over_tokens") {
            Some(Value::Bool(false)) => "samples",
            _ => "tokens",
        };
        match self.clip().filter(|_| self.has("loss")) {
            Some(clip) => self.line(format!("{indent}mean({clip}, over: {over})")),
            None => {
                self.line(format!("{indent}{UNSAID_LOSS}  # the one named below"));
                return;
            }
        }
        if !self.refers() {
            return;
        }
        if let (Some(kl), Some(kind)) = (self.value("kl"), text(self.facts, "kl_kind")) {
            let estimate = match on(self.facts, "on_policy_kl") {
                true => format!(
                    "grpo.kl_on_policy(logprob(policy, s), logprob(ref, s), s.logprob, kind: {kind})"
                ),
                false => format!("grpo.kl(logprob(policy, s), logprob(ref, s), kind: {kind})"),
            };
            self.line(format!("{indent}  + {kl} * mean({estimate}, over: {over})"));
        }
    }

    fn old(&mut self) {
        self.line(format!("  old = {}", self.score()));
        let (max, min) = (self.value("correction_max"), self.value("correction_min"));
        let weight = match (text(self.facts, "correction"), max, min) {
            (Some("tis"), Some(max), None) => format!("tis(old, s.logprob, max: {max})"),
            (Some("tis"), Some(max), Some(min)) => {
                format!("clamp(weight(old, s.logprob), {min}, {max})")
            }
            (Some(kind @ ("icepop" | "seq_mask_tis")), Some(max), Some(min)) => {
                format!("{kind}(old, s.logprob, {min}..{max})")
            }
            (Some("weight"), ..) => "weight(old, s.logprob)".into(),
            _ => return,
        };
        self.line(format!("  w = {weight}"));
    }

    fn grpo(&mut self) {
        self.line("step {");
        let collected = self.collected();
        let again = collected.is_some();
        match collected {
            Some(lines) => self.out.extend(lines),
            None => {
                self.generate();
                if let Some(reward) = self.reward("s") {
                    let overlong = self.overlong("s");
                    self.noted("reward", format!("  r = {reward}{overlong}"));
                }
            }
        }
        let advantages = format!("  adv = {}", self.advantages());
        let per_token = self.per_token();
        if per_token {
            self.old();
        }
        // The note tells of the sampling that the lines above write out.
        match again {
            true => self.line(advantages),
            false => self.noted("advantages", advantages),
        }
        if !per_token {
            self.old();
        }
        let update = self.update("policy", "opt", false);
        self.noted("update", format!("  {update}"));
        self.surrogate("    ");
        self.line("  }");
        self.line("}");
    }

    /// Whether advantages are one per token.
    fn per_token(&self) -> bool {
        self.algorithm == Algorithm::Ppo
            || matches!(text(self.facts, "estimator"), Some("reinforce_plus_plus" | "opd"))
    }

    fn advantages(&self) -> String {
        let flag = |fact: &str, name: &str, yes: &str, no: &str| match self.facts.get(fact) {
            Some(Value::Bool(said)) => format!(", {name}: {}", if *said { yes } else { no }),
            _ => String::new(),
        };
        let baseline = flag("leave_one_out", "baseline", "leave_one_out", "mean");
        let scale = flag("scaled", "scale", "std", "unscaled");
        match text(self.facts, "estimator") {
            Some("gdpo") => format!("gdpo.advantages(gdpo.part(r{baseline}{scale}), valid(r))"),
            Some("reinforce_plus_plus") => {
                let baseline = flag("minus_baseline", "baseline", "mean", "zero");
                format!("reinforce_plus_plus.advantages(r, old{baseline})")
            }
            Some("opd") => "opd.advantages(logprob(teacher, s), old)".into(),
            None | Some("grpo") => format!("grpo.advantages(r{baseline}{scale})"),
            Some(name) => format!("{name}.advantages(r)"),
        }
    }

    fn ppo(&mut self) {
        self.line("step {");
        self.generate();
        if let Some(reward) = self.reward("s") {
            self.noted("reward", format!("  r = {reward}"));
        }
        self.old();
        self.line("  v0 = value(critic, s)");
        let args = self.args(&[("gamma", "gamma"), ("lambda", "lambda")]);
        let args = args.iter().map(|arg| format!(", {arg}")).collect::<String>();
        self.line(format!("  adv, ret = ppo.gae(ppo.at_last_token(r, v0), v0{args})"));
        if self.has("value_loss") {
            let update = self.update("critic", "opt_v", true);
            self.line(format!("  {update}"));
            let error = match self.facts.get("value_clip") {
                None | Some(Value::Null) => String::from("(value(critic, s) - ret) ^ 2"),
                Some(clip) => {
                    let clip = literal(clip).unwrap_or_default();
                    format!("ppo.value_loss(value(critic, s), ret, v0, clip: {clip})")
                }
            };
            let scale = self.value("value_scale").unwrap_or("1.0".into());
            self.line(format!("    {scale} * mean({error}, over: tokens)"));
            self.line("  }");
        }
        let update = self.update("policy", "opt", true);
        self.line(format!("  {update}"));
        self.surrogate("    ");
        self.line("  }");
        self.line("}");
    }

    fn dpo(&mut self) {
        self.line("step {");
        if let Some(batch) = self.value("batch") {
            self.line(format!("  b = pairs.take({})", count(&batch, "pair")));
        }
        self.line("  base = dpo.margin(ref, b)");
        let update = self.update("policy", "opt", false);
        self.line(format!("  {update}"));
        if let Some(beta) = self.value("beta") {
            let loss =
                format!("mean(dpo.preference(dpo.margin(policy, b), base, {beta}), over: pairs)");
            let weight = match self.facts.get("preference") {
                None | Some(Value::Int(1)) => String::new(),
                Some(Value::Float(x)) if *x == 1.0 => String::new(),
                Some(weight) => format!("{} * ", literal(weight).unwrap_or_default()),
            };
            self.line(format!("    {weight}{loss}"));
        }
        match self.facts.get("nll") {
            None | Some(Value::Int(0)) => {}
            Some(Value::Float(x)) if *x == 0.0 => {}
            Some(weight) => {
                let weight = literal(weight).unwrap_or_default();
                self.line(format!(
                    "      + {weight} * mean(-sum(logprob(policy, b.chosen), over: tokens), over: pairs)"
                ));
            }
        }
        self.line("  }");
        self.line("}");
    }

    fn rm(&mut self) {
        self.line("step {");
        if let Some(batch) = self.value("batch") {
            self.line(format!("  b = pairs.take({})", count(&batch, "pair")));
        }
        let update = self.update("policy", "opt", false);
        self.noted("update", format!("  {update}"));
        self.line("    mean(-log_sigmoid(score(policy, b.chosen) - score(policy, b.rejected)), over: pairs)");
        self.line("  }");
        self.line("}");
    }

    fn sft(&mut self) {
        self.line("step {");
        if let Some(batch) = self.value("batch") {
            self.line(format!("  b = chats.take({})", count(&batch, "sample")));
        }
        let update = self.update("policy", "opt", false);
        self.line(format!("  {update}"));
        self.line("    sft.nll(policy, b)");
        self.line("  }");
        self.line("}");
    }

    fn distillation(&mut self) {
        self.line("step {");
        self.generate();
        let k = self.value("topk").map_or(String::new(), |k| format!(", {k}"));
        self.line(format!("  t = topk(dist(teacher, s){k})"));
        let update = self.update("policy", "opt", false);
        self.line(format!("  {update}"));
        let (forward, reverse) = ("kl(t, dist(policy, s) on t)", "kl(dist(policy, s) on t, t)");
        let loss = match text(self.facts, "kl_direction") {
            Some("reverse") => reverse.to_string(),
            Some("mixed") => {
                let mix = self.value("mix").unwrap_or("0.5".into());
                format!("{mix} * {forward} + (1 - {mix}) * {reverse}")
            }
            _ => forward.to_string(),
        };
        self.line(format!("    mean({loss}, over: tokens)"));
        self.line("  }");
        self.line("}");
    }

    fn periods(&mut self) {
        if !self.has("period") {
            return;
        }
        let evaluation = self.value("eval_period").map(|period| {
            let line = match self.algorithm {
                Algorithm::Dpo | Algorithm::Sft | Algorithm::Rm => {
                    String::from("  test = validate(step, held_out)")
                }
                _ => {
                    let reward = match text(self.facts, "reward") {
                        Some("math") | None => "rewards.boxed_answer",
                        Some(_) => "environment",
                    };
                    let limit = self.value("eval_limit");
                    let limit = limit.map_or(String::new(), |n| format!(", limit: {n}"));
                    format!("  test = evaluate(sampler, held_out, {reward}{limit})")
                }
            };
            (period, line)
        });
        let save =
            self.value("save_period").zip(self.value("keep")).filter(|_| on(self.facts, "save"));
        let save = save.map(|(period, keep)| {
            let by = match (text(self.facts, "metric"), &evaluation) {
                (Some(metric), Some(_)) => format!(" by test.{metric}"),
                _ => String::new(),
            };
            (period, format!("  checkpoint keep {keep}{by}, and the latest"))
        });
        match (evaluation, save) {
            (Some((a, test)), Some((b, save))) if a == b => {
                self.every(&a, &[test, save]);
            }
            (evaluation, save) => {
                if let Some((period, test)) = evaluation {
                    self.every(&period, &[test]);
                }
                if let Some((period, save)) = save {
                    self.every(&period, &[save]);
                }
            }
        }
    }

    fn every(&mut self, period: &str, lines: &[String]) {
        self.line(format!("every {} {{", count(period, "step")));
        self.out.extend_from_slice(lines);
        self.line("}");
    }
}
