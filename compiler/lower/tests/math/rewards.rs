//! Rewards of `std.rewards` on samples written by hand, weird text included.

use nrl_ir::host::{self, EvalError, Func, Value};
use nrl_ir::program::RewardKind;

use crate::support::{problems, program};

/// The host function of a reward as a recipe writes it.
fn reward(call: &str) -> Func {
    let program = program("rewards", "", &format!("r = {call}"));
    match &program.rewards[0].kind {
        RewardKind::Host(f) => f.clone(),
        kind => panic!("{kind:?} is no host function"),
    }
}

struct Sample<'a> {
    completion: &'a str,
    answer: Option<&'a str>,
    tokens: f64,
}

fn score(f: &Func, s: Sample) -> Result<Value, EvalError> {
    let answer = s.answer.map_or(Value::None, Value::text);
    let fields = [
        ("prompt", Value::text("what?")),
        ("completion", Value::text(s.completion)),
        ("answer", answer),
        ("row", Value::record([])),
        ("tokens", Value::Num(s.tokens)),
        ("finished", Value::Bool(true)),
    ];
    host::call(f, &[Value::record(fields.map(|(k, v)| (k.to_string(), v)))])
}

/// Completion, answer and what the reward must be.
fn table(call: &str, rows: &[(&str, &str, f64)]) {
    let f = reward(call);
    for (completion, answer, want) in rows {
        let got = score(&f, Sample { completion, answer: Some(answer), tokens: 3.0 });
        assert_eq!(got, Ok(Value::Num(*want)), "{call} of {completion:?} for {answer:?}");
    }
}

#[test]
fn exact() {
    table(
        "rewards.exact(b)",
        &[
            ("01347", "01347", 1.0),
            (" 01347\n", "01347", 1.0),
            ("01347", " 01347 ", 1.0),
            ("1347", "01347", 0.0),
            ("", "01347", 0.0),
            ("", "", 1.0),
            ("été", "été", 1.0),
            // Composed and decomposed letters are different texts.
            ("e\u{301}te\u{301}", "été", 0.0),
            ("\u{a0}x\u{2003}", "x", 1.0),
        ],
    );
}

#[test]
fn numeric() {
    table(
        "rewards.numeric(b)",
        &[
            ("so 12 + 30 = 42", "42", 1.0),
            ("the answer is 42.", "42", 1.0),
            ("the answer is 42.0", "42", 1.0),
            ("42 or 43", "42", 0.0),
            ("1,024", "1024", 1.0),
            ("-7", "7", 0.0),
            ("minus -7", "-7", 1.0),
            ("1e3", "1000", 1.0),
            ("0.3333333333", "0.33333333", 1.0),
            ("0.3334", "0.3333", 0.0),
            ("1000000", "1000001", 1.0),
            ("1000000", "1000002", 0.0),
            ("no number", "42", 0.0),
            ("", "42", 0.0),
            ("42", "", 0.0),
            ("42", "forty-two", 0.0),
            ("#### 18", "Natalia sold 48/2 = 24 clips. #### 18", 1.0),
            ("0", "1e-9", 1.0),
            // No number is as large as this, so it equals none, itself included.
            ("1e999", "1e999", 0.0),
            ("1e999", "1", 0.0),
            ("٤٢", "42", 0.0),
        ],
    );
}

#[test]
fn boxed_answer() {
    table(
        "rewards.boxed_answer(b)",
        &[
            (r"so \boxed{42}", "42", 1.0),
            (r"so \boxed{ 42.0 }", "42", 1.0),
            (r"\boxed{41} no, \boxed{42}", "42", 1.0),
            (r"\boxed{42} no, \boxed{41}", "42", 0.0),
            (r"\boxed{1/2}", "0.5", 1.0),
            (r"\boxed{50\%}", "50 %", 0.0),
            (r"\boxed{50 %}", "0.5", 1.0),
            (r"\boxed{$7}", "7", 1.0),
            (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1.0),
            (r"\boxed{x + 1}", "x + 1", 1.0),
            (r"\boxed{x+1}", "x + 1", 0.0),
            ("42", "42", 0.0),
            (r"\boxed{", "42", 0.0),
            (r"\boxed{}", "", 0.0),
            (r"\boxed{42", "42", 0.0),
            (r"\boxed{ünï}", "ünï", 1.0),
            (r"\boxed{1/0}", "1/0", 1.0),
        ],
    );
}

#[test]
fn format_is_a_regular_expression() {
    table(
        r#"rewards.format(b, "^<think>(?s:.*)</think>\\s*<answer>[^<]*</answer>$")"#,
        &[
            ("<think>a\nb</think> <answer>4</answer>", "", 1.0),
            ("<think></think><answer></answer>", "", 1.0),
            ("x<think></think><answer>4</answer>", "", 0.0),
            ("<answer>4</answer>", "", 0.0),
            ("", "", 0.0),
        ],
    );
}

#[test]
fn overlong_falls_over_the_buffer() {
    let f = reward("rewards.overlong(b, limit: 100 tokens, buffer: 20 tokens, penalty: 0.5)");
    let at = |tokens: f64| {
        let s = Sample { completion: "x", answer: None, tokens };
        match score(&f, s) {
            Ok(Value::Num(x)) => x,
            other => panic!("{other:?}"),
        }
    };
    let want =
        [(0.0, 0.0), (80.0, 0.0), (85.0, -0.125), (90.0, -0.25), (100.0, -0.5), (150.0, -0.5)];
    for (tokens, want) in want {
        assert!((at(tokens) - want).abs() < 1e-12, "{tokens} tokens: {}", at(tokens));
    }
    let f = reward("rewards.overlong(b, limit: 100 tokens, buffer: 0 tokens)");
    let at = |tokens: f64| score(&f, Sample { completion: "x", answer: None, tokens });
    assert_eq!([at(99.0), at(100.0), at(101.0)], [0.0, 0.0, -1.0].map(|x| Ok(Value::Num(x))));
}

#[test]
fn a_sample_without_an_answer_earns_nothing() {
    for call in ["rewards.exact(b)", "rewards.numeric(b)", "rewards.boxed_answer(b)"] {
        let f = reward(call);
        for completion in ["", "0", r"\boxed{}", r"\boxed{0}"] {
            let got = score(&f, Sample { completion, answer: None, tokens: 0.0 });
            assert_eq!(got, Ok(Value::Num(0.0)), "{call} of {completion:?}");
        }
    }
}

/// Text that breaks readers of text.
fn weird() -> Vec<String> {
    let long = 300_000;
    let mut out: Vec<String> = [
        "\0",
        "\u{feff}",
        "\u{202e}42",
        "🦀🦀",
        "𝟜𝟚",
        "e\u{301}",
        "--",
        "+-.eE",
        "1e",
        ".",
        ",,,",
        "$$$",
        "%",
        "/",
        "1//2",
        "1/2/3",
        "%%%",
        r"\boxed",
        r"\boxed{}}",
        "}{",
        "NaN",
        "inf",
        "-0",
        "\\",
        "\n\n\n",
    ]
    .map(String::from)
    .into();
    for part in
        ["9", "{", "}", r"\boxed{", "%", "/", "1/", "-", ",", "é", "🦀", " ", "1,000,", "e9", "."]
    {
        out.push(part.repeat(long / part.len()));
        out.push(format!(r"\boxed{{{}}}", part.repeat(long / part.len())));
    }
    out
}

#[test]
fn weird_text_never_panics() {
    let rewards = [
        "rewards.exact(b)",
        "rewards.numeric(b)",
        "rewards.boxed_answer(b)",
        r#"rewards.format(b, "(a*)*b|\\d+$")"#,
    ];
    for call in rewards {
        let f = reward(call);
        for s in weird() {
            for answer in [s.as_str(), "42", ""] {
                let got = score(&f, Sample { completion: &s, answer: Some(answer), tokens: 1e9 });
                let head: String = s.chars().take(20).collect();
                match got {
                    Ok(Value::Num(x)) => {
                        assert!((0.0..=1.0).contains(&x), "{call} of {head:?}: {x}")
                    }
                    other => panic!("{call} of {head:?}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn a_bad_pattern_is_found_before_the_run() {
    let found = problems("rewards", "", r#"r = rewards.format(b, "(")"#);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("wrong-type: bad regular expression `(`"), "{found:?}");
}
