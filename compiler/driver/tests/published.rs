//! Every published model that the library can say has the number of weights that its publisher states; what images and
//! sound go through first is not counted, since it is not read.

use nrl_base::SourceMap;
use nrl_driver::{Compiled, Options, compile};
use nrl_sim::kept_share;

/// Samples from a published model; it stands nowhere, so that memory does not matter.
fn sampled(name: &str, context: &str) -> Compiled {
    with_files(name, context, &[])
}

fn with_files(name: &str, context: &str, more: &[(&str, &str)]) -> Compiled {
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
    let mut files = std::collections::BTreeMap::from([("r.nrl".to_string(), text)]);
    files.extend(more.iter().map(|(path, text)| ((*path).to_string(), (*text).to_string())));
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

/// `config.json` of google/gemma-3-27b-it says no more than this of its text part; 27.009 G weights.
#[test]
fn keys_that_a_checkpoint_leaves_out_are_those_of_its_class() {
    let config = r#"{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "text_config": {"head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
          "model_type": "gemma3_text", "num_attention_heads": 32, "num_hidden_layers": 62,
          "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
          "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
        "vision_config": {"hidden_size": 1152}}"#;
    let c = with_files("model", "", &[("model/config.json", config)]);
    assert!((weights(&c) / 1e9 - 27.009).abs() < 0.001, "{}", weights(&c));
    let facts = nrl_facts::ModelFacts::from_config("x", config).expect("facts");
    assert_eq!((facts.vocab, facts.max_positions, facts.multimodal), (262_208, 131_072, true));
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
