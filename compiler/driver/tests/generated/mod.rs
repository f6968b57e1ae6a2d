//! Long recipes, made for tests and benchmarks.

use std::fmt::Write as _;

/// A recipe of about `lines` lines: functions, bindings that use each other, lines of a step.
pub fn generated(lines: usize) -> String {
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
