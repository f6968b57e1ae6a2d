//! A recipe of NeMo RL as a file of the language.
//!
//! In: a recipe and overrides. Out: a file a person can read: lines for what the language says, and
//! one block for the rest. The file is read back before it is given out: a line that would not come
//! back as what the settings said is left out, and its settings go to the block. So export of the
//! result gives the same settings, whatever the recipe holds.

mod lines;
pub(crate) mod values;

pub use lines::UNSAID_LOSS;

use nrl_base::{Diagnostic, SourceId, SourceMap};
use nrl_rules::settings::{Node, Value};
use nrl_syntax::ast::ItemKind;

use crate::export::source;
use crate::layers::{Layers, Line, differences};
use crate::loader::Loader;
use crate::native::{Algorithm, Facts, own_bound, same, take};

/// The longest value on one line of the block.
const WIDE: usize = 72;

/// The text of a `.nrl` file that means what the recipe means. Findings of loading come along; with
/// an error among them there is no text.
pub fn import(
    loader: &mut Loader,
    sources: &mut SourceMap,
    path: &str,
    overrides: &[String],
) -> (Option<String>, Vec<Diagnostic>) {
    let (settings, found) = loader.load(sources, path, overrides);
    let Some(settings) = settings else { return (None, found) };
    let chain = loader.chain(path);
    let over =
        chain.first().filter(|first| chain.len() > 1 || first.contains("examples/")).cloned();
    let base = match &over {
        Some(over) => loader.tree(sources, over),
        None => None,
    };
    let nothing = Node { value: Value::Map(Default::default()), origin: settings.root.origin };
    let base = base.unwrap_or(nothing);
    let layers = Layers { base: &base, environment: loader.variables() };
    let work = Work { layers, root: &settings.root, path, over: over.as_deref() };
    match work.write() {
        Some(text) => (Some(text), found),
        None => {
            let said =
                format!("{path} cannot be written in the language: a value has no form there");
            let mut found = found;
            found.push(Diagnostic::error("import-failed", said));
            (None, found)
        }
    }
}

struct Work<'w> {
    layers: Layers<'w>,
    root: &'w Node,
    path: &'w str,
    over: Option<&'w str>,
}

impl Work<'_> {
    fn write(&self) -> Option<String> {
        let Some(algorithm) = Algorithm::of(self.root) else {
            return self.told(vec![], &Facts::new(), None);
        };
        let mut facts = take(self.root, algorithm);
        for _ in 0..12 {
            let body = lines::lines(&facts, algorithm, &self.notes(&facts));
            let said = self.said(&body, &facts);
            let block = self.block(&said, Some(algorithm))?;
            let meaning = self.layers.meaning(&block, &said, Some(algorithm))?;
            let wrong: Vec<&str> = meaning
                .edits
                .iter()
                .filter(|e| !self.root.get(&e.path).is_some_and(|n| same(&n.value, &e.value)))
                .map(|e| e.fact)
                .collect();
            if wrong.is_empty() && differences(&meaning.root, self.root).is_empty() {
                return self.told(body, &said, Some(algorithm));
            }
            if wrong.is_empty() {
                break;
            }
            facts.retain(|fact, _| !wrong.contains(fact));
        }
        self.told(vec![], &Facts::new(), None)
    }

    /// The facts that lines say when they are read.
    fn said(&self, body: &[String], facts: &Facts) -> Facts {
        let body = body.join("\n");
        let after = environment(facts, &body).unwrap_or_default();
        let text = format!("recipe r {{\n{body}\n}}\n{after}\n");
        let (file, _) = nrl_syntax::parse(SourceId::default(), &text);
        let recipe = file.items.iter().find_map(|item| match &item.kind {
            ItemKind::Recipe(recipe) => Some(recipe),
            _ => None,
        });
        recipe.map_or_else(Facts::new, |recipe| source::read(&file, recipe).facts)
    }

    /// What the lines do not say. What the shipped recipe derives is left to it, unless it derives
    /// from something that is gone.
    fn block(&self, facts: &Facts, algorithm: Option<Algorithm>) -> Option<Vec<Line>> {
        let meaning = self.layers.meaning(&[], facts, algorithm)?;
        let all = differences(&meaning.root, self.root);
        let own = all.iter().filter(|line| !self.layers.derives(&line.path));
        let mut block: Vec<Line> = own.cloned().collect();
        if let Some((path, tokens)) = own_bound(self.root) {
            let path: Vec<String> = path.split('.').map(str::to_string).collect();
            if self.layers.derives(&path) {
                block.push(Line { path, value: Some(tokens) });
            }
        }
        for _ in 0..8 {
            let Some(meaning) = self.layers.meaning(&block, facts, algorithm) else {
                block.clone_from(&all);
                continue;
            };
            let missing = differences(&meaning.root, self.root);
            if missing.is_empty() {
                break;
            }
            for line in missing {
                match block.iter_mut().find(|old| old.path == line.path) {
                    Some(old) => *old = line,
                    None => block.push(line),
                }
            }
        }
        block.sort_by_cached_key(|line| self.place(&line.path));
        Some(block)
    }

    /// Where a path stands in the settings.
    fn place(&self, path: &[String]) -> Vec<usize> {
        let mut node = Some(self.root);
        let at = |name: &String| {
            let found = node.and_then(|n| n.entries().position(|(key, _)| key == name));
            node = node.and_then(|n| n.child(name));
            found.unwrap_or(usize::MAX)
        };
        path.iter().map(at).collect()
    }

    /// What is to be known beside a line.
    fn notes(&self, facts: &Facts) -> Vec<(&'static str, String)> {
        let get = |path: &str| self.root.get(path).map(|n| &n.value);
        let number = |value: &Value| values::literal(value).unwrap_or_default();
        let mut notes = vec![];
        let megatron = crate::native::trains_with_megatron(self.root);
        let from = match megatron {
            true => get("policy.megatron_cfg.scheduler.lr_warmup_init")
                .map(|v| format!("NeMo RL rises from {}", number(v))),
            false => get("policy.scheduler.0.kwargs.start_factor")
                .map(|v| format!("NeMo RL rises from {} of it", number(v))),
        };
        let from = match crate::native::text(facts, "schedule") {
            Some("settings") => Some("its course is named below".into()),
            Some("constant") => None,
            _ => from.filter(|_| facts.contains_key("warmup")),
        };
        notes.extend(from.map(|said| ("opt", said)));
        if !megatron && get("policy.dtensor_cfg._v2") == Some(&Value::Bool(true)) {
            notes.push(("plan", "Automodel".into()));
        }
        if get("data.default.env_name") == Some(&Value::Text("math".into())) {
            notes.push(("reward", "NeMo RL grades with math-verify".into()));
        }
        match get("grpo.adv_estimator.name") {
            Some(Value::Text(name)) if name == "gdpo" => {
                notes.push(("advantages", "the environment gives several rewards".into()));
            }
            Some(Value::Text(name)) if name == "opd" => {
                notes.push(("reward", "reported, not trained on".into()));
                let teachers = "on_policy_distillation.teacher_model_by_agent_name";
                if self.root.get(teachers).is_some_and(|n| n.entries().count() > 1) {
                    notes.push(("advantages", "more teachers are named below".into()));
                }
            }
            _ => {}
        }
        if get("grpo.use_dynamic_sampling") == Some(&Value::Bool(true)) {
            notes.push(("advantages", "groups without spread are sampled again, see below".into()));
        }
        if Algorithm::of(self.root) == Some(Algorithm::Rm) {
            notes.push(("update", "NeMo RL reads a score one token later".into()));
        }
        if get("loss_fn.force_on_policy_ratio") == Some(&Value::Bool(true)) {
            notes.push(("update", "the ratio is held at 1, see below".into()));
        }
        notes
    }

    fn told(
        &self,
        body: Vec<String>,
        facts: &Facts,
        algorithm: Option<Algorithm>,
    ) -> Option<String> {
        let block = self.block(facts, algorithm)?;
        let mut out = vec![format!("## Imported from {}.", shown(self.path))];
        out.push(format!("recipe {} {{", name(self.path)));
        let body_text = body.join("\n");
        out.extend(body.into_iter().map(|line| match line.is_empty() {
            true => line,
            false => format!("  {line}"),
        }));
        let over = self
            .over
            .map_or(String::new(), |over| format!(" over {}", values::quoted(shown(over))));
        if out.len() > 2 {
            out.push(String::new());
        }
        out.push(format!("  settings nemo_rl{over} {{"));
        for line in &block {
            told_line(&line.path, line.value.as_ref(), &mut out)?;
        }
        out.push("  }".into());
        out.push("}".into());
        let modules = [
            "clusters",
            "data",
            "dpo",
            "gdpo",
            "grpo",
            "models",
            "opd",
            "optim",
            "plans",
            "ppo",
            "reinforce_plus_plus",
            "rewards",
            "sft",
        ];
        let used: Vec<_> = modules.into_iter().filter(|m| names(&body_text, m)).collect();
        if !used.is_empty() {
            out.insert(0, format!("use std.{{{}}}\n", used.join(", ")));
        }
        out.extend(environment(facts, &body_text));
        out.extend(body_text.contains("score(").then(|| SCORE.to_string()));
        let text = out.join("\n") + "\n";
        Some(nrl_syntax::print::format(&text).unwrap_or(text))
    }
}

/// What a reward model gives an answer.
const SCORE: &str = "
## The score of an answer: what the head gives at its last token.
fn score(m: Model, b: Samples) -> f32[pair] {
  let all  = value(m, b)
  let last = next(ones(all), else: 0.0) == 0.0
  sum(all * last, over: tokens)
}";

/// The command of a reward that an environment of NeMo RL gives.
pub(crate) const ENVIRONMENT: &str = "nemo_rl environment ";

/// The reward that an environment gives, if the lines name one.
fn environment(facts: &Facts, body: &str) -> Option<String> {
    let used =
        ["environment(", ", environment)", ", environment,"].iter().any(|u| body.contains(u));
    let name = crate::native::text(facts, "reward").filter(|_| used)?;
    let command = values::quoted(&format!("{ENVIRONMENT}{name}"));
    Some(format!("\nextern fn environment(s: Sample) -> float from {command}"))
}

/// A line of the block; long mappings become several.
fn told_line(path: &[String], value: Option<&Value>, out: &mut Vec<String>) -> Option<()> {
    let written: Vec<String> = path.iter().map(|name| values::key(name)).collect();
    let written = written.join(".");
    let Some(value) = value else {
        out.push(format!("    remove {written}"));
        return Some(());
    };
    let literal = values::literal(value)?;
    if let Value::Map(map) = value
        && literal.len() > WIDE
    {
        for (name, node) in map {
            let path: Vec<String> = path.iter().cloned().chain([name.clone()]).collect();
            told_line(&path, Some(&node.value), out)?;
        }
        return Some(());
    }
    out.push(format!("    {written} = {literal}"));
    Some(())
}

/// Whether `module.` stands in a text, and not as the end of another word.
fn names(text: &str, module: &str) -> bool {
    let within = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let dotted = format!("{module}.");
    text.match_indices(&dotted).any(|(at, _)| !text[..at].ends_with(within))
}

/// A path from the folder `examples` of NeMo RL on, if it lies there.
pub(crate) fn shown(path: &str) -> &str {
    let at = path.find("/examples/").map(|at| at + 1);
    at.and_then(|at| path.get(at..)).unwrap_or(path)
}

/// A name for the recipe of a file.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    let mut name = String::new();
    for c in stem.chars() {
        match c.is_ascii_alphanumeric() {
            true => name.push(c.to_ascii_lowercase()),
            false if !name.ends_with('_') => name.push('_'),
            false => {}
        }
    }
    let name = name.trim_matches('_');
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name.into()
    } else {
        format!("r_{name}")
    }
}
