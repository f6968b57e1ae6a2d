//! Conversations of several turns: where a recipe has them, and what its chat template does to them.
//!
//! Rollouts keep the tokens as they were drawn: an environment's answers are appended to them, and the server that
//! NeMo Gym talks to puts them back in place of their rendering. Rows of supervised training and of pairs are rendered
//! once per turn, and a turn is what the next rendering has more.

use nrl_base::Files;
use nrl_facts::history::{self, History as Judged};
use nrl_rules::recipe::{Algorithm, Fact, History, Recipe};
use nrl_rules::settings::{Node, Value};
use serde_json::{Value as Json, json};

/// Rows of a data file that are looked at.
const ROWS: usize = 64;

/// What becomes of earlier turns, where there are any.
pub fn history(r: &Recipe, files: &dyn Files) -> Option<History> {
    let gym = r.flag("env.should_use_nemo_gym").filter(|on| on.value);
    let turns = r.section().and_then(|s| r.int(&format!("{s}.max_rollout_turns")));
    let drawn = match (gym, turns.filter(|n| n.value > 1)) {
        (Some(on), _) => Some(on.map(|on| on.to_string())),
        (None, Some(n)) => Some(n.map(|n| n.to_string())),
        _ => None,
    };
    let (turns, kept) = match drawn {
        Some(turns) => (turns, true),
        None => (rows(r, files)?, false),
    };
    let rewritten = judged(r, files, kept);
    Some(History { turns, rewritten, kept })
}

/// Local rows of several turns of which an earlier one thinks.
fn rows(r: &Recipe, files: &dyn Files) -> Option<Fact<String>> {
    if !(r.is(Algorithm::Sft) || r.is(Algorithm::Dpo) || r.is(Algorithm::Reward)) {
        return None;
    }
    let path = r.text("data.train.data_path").filter(|p| p.value.ends_with(".jsonl"))?;
    let bytes = files.read(&path.value).ok()?;
    let lines = bytes.split(|b| *b == b'\n').filter(|line| !line.trim_ascii().is_empty());
    let thinks = |line: &[u8]| {
        let Ok(row) = serde_json::from_slice::<Json>(line) else { return false };
        let said = row["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let own: Vec<_> = said.iter().filter(|m| m["role"] == "assistant").collect();
        let earlier = own.split_last().map_or(&[][..], |(_, earlier)| earlier);
        earlier.iter().any(|m| m["content"].as_str().is_some_and(|t| t.contains("</think>")))
    };
    lines.take(ROWS).any(thinks).then_some(path)
}

/// What the template does, if it is known and not nothing.
fn judged(r: &Recipe, files: &dyn Files, drawn: bool) -> Option<Fact<String>> {
    let served = "policy.generation.vllm_cfg.http_server_serving_chat_kwargs.chat_template";
    let own = "policy.tokenizer.chat_template";
    let given = [served, own].into_iter().find(|path| r.has(path));
    if given.is_none() && r.node(own).is_some_and(Node::is_null) {
        // Prompts are taken as they are.
        return None;
    }
    let options = options(r);
    let name = r.text("policy.tokenizer.name").or_else(|| r.text("policy.model_name"))?;
    let text = |path: &str| String::from_utf8(files.read(path).ok()?).ok();
    let written = given.and_then(|path| r.text(path)).filter(|t| t.value != "default");
    let (found, fact) = match written {
        Some(t) if t.value.contains('{') => (history::of_template(&t.value, &options), t),
        Some(t) => (history::of_template(&text(&t.value)?, &options), t),
        None => {
            let config = text(&format!("{}/tokenizer_config.json", name.value));
            let beside = text(&format!("{}/chat_template.jinja", name.value));
            let inside = || history::template_of(&serde_json::from_str(&config?).ok()?);
            match beside.or_else(inside) {
                Some(template) => (history::of_template(&template, &options), name),
                None => (history::of_model(&name.value, &options), name),
            }
        }
    };
    let how = match found? {
        Judged::Kept => return None,
        Judged::Rewritten(how) => how,
        Judged::Unthinking if drawn => "drops all <think> blocks".to_string(),
        Judged::Unthinking => return None,
    };
    Some(Fact::derived("the chat template", how, "asked for here".into(), &[&fact.map(|_| "..")]))
}

/// What the template is told: by the tokenizer's section, and by the models of NeMo Gym.
fn options(r: &Recipe) -> Json {
    let own = r.node("policy.tokenizer.chat_template_kwargs").map(as_json);
    let mut options = own.filter(Json::is_object).unwrap_or_else(|| json!({}));
    let kept = "truncate_history_thinking";
    if r.node("env.nemo_gym").is_some_and(|n| says(n, kept, 8)) {
        options[kept] = Json::Bool(false);
    }
    options
}

/// Whether a key is `false` somewhere below.
fn says(node: &Node, key: &str, depth: usize) -> bool {
    let below = |n: &Node| depth > 0 && says(n, key, depth - 1);
    node.entries().any(|(name, n)| name == key && n.value == Value::Bool(false) || below(n))
        || node.items().iter().any(below)
}

fn as_json(node: &Node) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Bool(b) => json!(b),
        Value::Int(n) => json!(n),
        Value::Float(x) => json!(x),
        Value::Text(t) => json!(t),
        Value::List(items) => items.iter().map(as_json).collect(),
        Value::Map(map) => Json::Object(map.iter().map(|(k, n)| (k.clone(), as_json(n))).collect()),
    }
}
