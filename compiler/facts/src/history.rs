//! Whether a chat template keeps the earlier turns of a conversation.
//!
//! In: a template of a tokenizer with its options, or the name of a published model. Out: whether a
//! conversation, rendered, begins with the same conversation rendered before its last turn. A template that
//! cannot be rendered here is not judged. Nothing here reads a file.

use minijinja::value::{Kwargs, Value as Jinja};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Value, json};

/// What a template does with earlier turns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum History {
    /// Each rendering begins with the one before.
    Kept,
    /// It does not; how, to be read behind `the template`.
    Rewritten(String),
    /// Each does, since thinking is never written, not even that of the last turn.
    Unthinking,
}

/// Steps of the template engine for a conversation of three messages; real templates take some hundred.
const FUEL: u64 = 200_000;

/// What the thinking of a model stands between.
const THOUGHT: (&str, &str) = ("<think>", "</think>");

/// What `template` does; `None` if it cannot be rendered. `options` are those of `apply_chat_template`.
pub fn of_template(template: &str, options: &Value) -> Option<History> {
    let environment = environment(template)?;
    let (open, close) = THOUGHT;
    let turns = [
        json!({"role": "user", "content": "a"}),
        json!({"role": "assistant", "content": format!("{open}\nt\n{close}\n\nb")}),
        json!({"role": "user", "content": "c"}),
    ];
    let render = |count: usize| {
        let mut context = json!({
            "messages": turns[..count], "tools": null, "documents": null,
            "add_generation_prompt": false, "bos_token": "<s>", "eos_token": "</s>",
        });
        for (name, value) in options.as_object().into_iter().flatten() {
            context[name] = value.clone();
        }
        environment.get_template("chat").and_then(|t| t.render(&context)).ok()
    };
    let (two, three) = (render(2)?, render(3)?);
    // Some end a conversation with a line break that the next turn lacks.
    let thinks = |text: &str| text.contains(&format!("t\n{close}"));
    if three.starts_with(two.trim_end()) {
        return Some(if thinks(&three) { History::Kept } else { History::Unthinking });
    }
    Some(History::Rewritten(match thinks(&two) && !thinks(&three) {
        true => format!("drops earlier {open} blocks"),
        false => "changes earlier turns".to_string(),
    }))
}

/// What the template of a published model does, as far as it is known of its family.
///
/// Qwen3 and Qwen3.5 (not their `Instruct` releases of July 2025, which do not think), QwQ, DeepSeek-R1 with its
/// distillations, Nemotron Nano 2 and Nemotron 3 (unless `truncate_history_thinking` is false): their
/// `tokenizer_config.json` or `chat_template.jinja` on Hugging Face, read in 2025 and 2026.
pub fn of_model(name: &str, options: &Value) -> Option<History> {
    let base = name.rsplit('/').next()?;
    let dropped = Some(History::Rewritten(format!("drops earlier {} blocks", THOUGHT.0)));
    let family = |prefix: &str| base.starts_with(prefix);
    if family("Qwen3-") || family("Qwen3.5-") {
        let other = ["Instruct", "Coder", "VL", "Omni", "Embedding", "Nemotron", "Next"];
        return if other.iter().any(|o| base.contains(o)) { None } else { dropped };
    }
    if family("DeepSeek-R1") {
        return Some(History::Unthinking);
    }
    if family("QwQ-") || family("NVIDIA-Nemotron-Nano-") {
        return dropped;
    }
    if family("NVIDIA-Nemotron-3") && !base.contains("Base") {
        return match options["truncate_history_thinking"] == Value::Bool(false) {
            true => Some(History::Kept),
            false => dropped,
        };
    }
    let kept = family("Qwen2.5-") || family("SmolLM2-") && base.ends_with("Instruct");
    kept.then_some(History::Kept)
}

/// The template among the settings of a tokenizer: one, or the one called `default` of several.
pub fn template_of(tokenizer_config: &Value) -> Option<String> {
    match &tokenizer_config["chat_template"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(all) => {
            let named = all.iter().find(|t| t["name"] == "default")?;
            named["template"].as_str().map(str::to_string)
        }
        _ => None,
    }
}

/// Jinja as templates expect it.
fn environment(template: &str) -> Option<Environment<'static>> {
    let mut e = Environment::new();
    e.set_trim_blocks(true);
    e.set_lstrip_blocks(true);
    e.set_fuel(Some(FUEL));
    e.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    e.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    e.add_function("raise_exception", |text: String| -> Result<Jinja, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    e.add_function("strftime_now", |_: String| "26 Jul 2024");
    e.add_filter("tojson", |value: Jinja, _: Kwargs| value.to_string());
    // Tags for the tokens of the assistant, which write nothing.
    let source = template.replace("{% generation %}", "").replace("{% endgeneration %}", "");
    e.add_template_owned("chat", source).ok()?;
    Some(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

    /// As DeepSeek-R1 does it: only what stands behind the thinking is written.
    const BEHIND: &str = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}\
        {% else %}{{ m.content }}{% endif %}{% endfor %}";

    /// As Qwen3 does it: only turns behind the last question think.
    const LAST: &str = "{%- set ns = namespace(last=0) %}{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}\
        {% endif %}{% endfor %}{%- for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and loop.index0 < ns.last %}\
        {{- m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}{% endfor %}";

    #[test]
    fn a_template_that_writes_what_is_said_keeps_it() {
        assert_eq!(of_template(CHATML, &Value::Null), Some(History::Kept));
        assert_eq!(of_template(BEHIND, &Value::Null), Some(History::Unthinking));
    }

    #[test]
    fn a_template_that_forgets_thinking_rewrites() {
        let History::Rewritten(how) = of_template(LAST, &Value::Null).unwrap() else { panic!() };
        assert_eq!(how, "drops earlier <think> blocks");
        let counts =
            "{{ messages | length }} turns {% for m in messages %}{{ m.content }}{% endfor %}";
        let History::Rewritten(how) = of_template(counts, &Value::Null).unwrap() else { panic!() };
        assert_eq!(how, "changes earlier turns");
    }

    #[test]
    fn options_decide() {
        let source = LAST.replace("loop.index0 < ns.last", "loop.index0 < ns.last and cut");
        let with = |cut: bool| of_template(&source, &json!({"cut": cut}));
        assert_eq!(with(false), Some(History::Kept));
        assert!(matches!(with(true), Some(History::Rewritten(_))));
    }

    #[test]
    fn what_cannot_be_rendered_is_not_judged() {
        assert_eq!(of_template("{{ raise_exception('no') }}", &Value::Null), None);
        assert_eq!(of_template("{% for %}", &Value::Null), None);
        let endless =
            "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}";
        assert_eq!(of_template(endless, &Value::Null), None);
    }

    #[test]
    fn families() {
        let none = Value::Null;
        assert!(matches!(of_model("Qwen/Qwen3-8B", &none), Some(History::Rewritten(_))));
        assert_eq!(of_model("Qwen/Qwen3-30B-A3B-Instruct-2507", &none), None);
        assert_eq!(of_model("Qwen/Qwen2.5-7B-Instruct", &none), Some(History::Kept));
        let nano = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16";
        assert!(matches!(of_model(nano, &none), Some(History::Rewritten(_))));
        let off = json!({"truncate_history_thinking": false});
        assert_eq!(of_model(nano, &off), Some(History::Kept));
        assert_eq!(of_model("me/mine", &none), None);
    }
}
