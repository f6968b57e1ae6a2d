//! Every published model that the library can say has the number of weights that its publisher states; what images and
//! sound go through first is not counted, since it is not read.

use nrl_base::SourceMap;
use nrl_driver::{Compiled, Options, compile};
use nrl_sim::kept_share;

/// Samples from a published model; it stands nowhere, so that memory does not matter.
fn sampled(name: &str, context: &str) -> Compiled {
    let text = format!(
        r#"use std.{{data, models}}

recipe r {{
  run 1 step
  policy  = models.load("{name}"{context})
  sampler = generator(policy)
  rows    = data.made(100 rows, i -> {{prompt: "1+1=", answer: "2"}})
  step {{
    s = sampler.generate(rows.take(8 prompts), 4 samples/prompt)
  }}
}}
"#
    );
    let files = std::collections::BTreeMap::from([("r.nrl".to_string(), text)]);
    let mut sources = SourceMap::new();
    let (made, found) = compile(&files, &mut sources, "r.nrl", &Options::default());
    made.unwrap_or_else(|| panic!("{name}: {found:?}"))
}

fn weights(c: &Compiled) -> f64 {
    let m = &c.program.models[0];
    let of = |p: &nrl_ir::ParamDecl| {
        let each: f64 = p.dims.iter().map(|d| m.dims.bound(*d) as f64).product();
        each * p.repeat.as_ref().map_or(1.0, |(_, layers)| *layers as f64)
    };
    m.params.iter().map(of).sum()
}

#[test]
fn published_models_have_as_many_weights_as_they_are_said_to_have() {
    let mut seen = 0;
    for m in nrl_facts::models().iter().filter(|m| m.config_json().is_some()) {
        let (Some((all, active)), billions) = (m.params_b, weights(&sampled(&m.name, "")) / 1e9)
        else {
            panic!("{} has no number of weights", m.name)
        };
        // Of a dense model that reads images too, all of the text part is active.
        let stated = if m.multimodal && !m.is_moe() { active } else { all };
        let most = if m.multimodal && m.is_moe() { 0.05 } else { 0.01 };
        assert!((billions / stated - 1.0).abs() < most, "{}: {billions} {stated}", m.name);
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

/// Gemma 3 27B keeps 2 * 16 * 128 numbers of a token in each of 62 layers; of 16,384 tokens, 52 layers keep 1,024.
#[test]
fn layers_with_a_window_keep_no_more_than_it() {
    let c = sampled("google/gemma-3-27b-it", ", context: 16384 tokens");
    let plan = &c.plans[c.program.generators[0].graph];
    let each = 2.0 * 2.0 * 16.0 * 128.0;
    assert_eq!(nrl_sim::per_token(plan, 2.0, 512), 62.0 * each);
    let mean = 10.0 + 52.0 / 16.0;
    assert!((nrl_sim::per_token(plan, 2.0, 16384) / each - mean).abs() < 1e-9);
    assert_eq!(kept_share(&[Some(1024), None], 4096.0), 0.625);
    assert_eq!(kept_share(&[], 4096.0), 1.0);
}
