//! Checking takes time in proportion to the text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use nrl_base::SourceMap;
use nrl_driver::{Options, check};

/// A recipe of about `lines` lines: functions, bindings that use each other, lines of a step.
fn generated(lines: usize) -> String {
    let n = lines / 3;
    let mut text = String::from("use std.{clusters, data, grpo, models, optim, rewards}\n\n");
    for i in 0..n {
        let _ = writeln!(
            text,
            "fn f{i}(x: float, y: float = 1.0) -> float = max(x, y) * {i}.5 + min(x, 2.0)"
        );
    }
    text += "\nrecipe long(group = 4 samples/prompt) {\n  run 10 steps\n  v0 = 1.0\n";
    for i in 1..n {
        let _ = writeln!(
            text,
            "  v{i} = if v{} > 3.0 {{ v{} / 2.0 }} else {{ f{i}(v0) }}",
            i - 1,
            i / 2
        );
    }
    let _ = writeln!(
        text,
        "  require v{} > 0.0\n  policy = models.llama(\n    {{hidden_size: 8, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2}},\n    \
         tokens: characters(\"0123456789+=$_\", end: \"$\", pad: \"_\"), context: 16 tokens)\n  \
         sampler = generator(policy)\n  rows = data.made(1000 rows, i -> {{prompt: \"1+1=\", answer: \"2\"}})\n  \
         opt = optim.adamw(lr: 1e-3)\n  step {{\n    s  = sampler.generate(rows.take(8 prompts), group, max_new: 4 tokens)\n    \
         r0 = rewards.exact(s)",
        n - 1
    );
    for i in 1..n {
        let _ = writeln!(text, "    r{i} = 0.5 * r{} + v{i} * r0", i - 1);
    }
    let _ = writeln!(
        text,
        "    update policy by opt in 1 update, minimising {{\n      \
         mean(-grpo.advantages(r{}) * logprob(policy, s), over: tokens)\n    }}\n  }}\n}}",
        n - 1
    );
    text
}

fn time(text: &str) -> Duration {
    let files = BTreeMap::from([("a.nrl".to_string(), text.to_string())]);
    let once = || {
        let start = Instant::now();
        let (compiled, found) = check(&files, &mut SourceMap::new(), "a.nrl", &Options::default());
        let took = start.elapsed();
        assert!(found.is_empty(), "{found:#?}");
        assert!(compiled.is_some());
        took
    };
    (0..3).map(|_| once()).min().unwrap_or_default()
}

#[test]
fn time_grows_with_the_text_and_no_faster() {
    let (short, long) = (generated(750), generated(3000));
    let (a, b) = (time(&short), time(&long));
    eprintln!("{} lines {a:?}, {} lines {b:?}", short.lines().count(), long.lines().count());
    // Four times the text in at most six times the time; 5 ms for what does not grow.
    assert!(b < 6 * a + Duration::from_millis(5), "{a:?} became {b:?}");
}
