//! The examples go through the whole pipeline, on every layout they allow.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use nrl_base::SourceMap;
use nrl_driver::{Files, Options, compile};

struct Disk;

impl Files for Disk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|e| e.to_string())
    }
}

fn quickstart(sets: &[&str], ranks: usize) -> Result<nrl_driver::Compiled, Vec<String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/quickstart.nrl");
    let mut sources = SourceMap::new();
    let options = Options {
        sets: sets.iter().map(|s| (*s).to_string()).collect(),
        ranks: Some(ranks),
        ..Options::default()
    };
    let (compiled, found) = compile(&Disk, &mut sources, path, &options);
    compiled.ok_or_else(|| {
        found.iter().map(|d| format!("{}: {} {:?}", d.code, d.message, d.help)).collect()
    })
}

#[test]
fn the_quickstart_compiles_on_every_layout() {
    for (sets, ranks) in [(vec![], 1), (vec![], 2), (vec!["tp=2"], 2), (vec!["tp=2"], 4)] {
        let c = quickstart(&sets, ranks).unwrap_or_else(|e| panic!("{sets:?} on {ranks}: {e:#?}"));
        assert_eq!(c.plans.len(), c.program.graphs.len());
        let collectives: usize = c.plans.iter().map(|p| p.collectives.len()).sum();
        assert_eq!(collectives > 0, ranks > 1, "{sets:?} on {ranks}");
    }
}

#[test]
fn heads_that_tp_does_not_divide_are_an_error() {
    let errors = quickstart(&["tp=3"], 3).expect_err("4 heads over 3");
    assert!(errors.iter().any(|e| e.starts_with("heads-not-divisible")), "{errors:#?}");
}

#[test]
fn the_real_model_example_compiles_for_a_checkpoint() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut sources = SourceMap::new();
    let set = format!("policy.path=\"{root}/tests/fixtures/models/llama-9-heads\"");
    for ranks in [1, 2] {
        let options = Options { sets: vec![set.clone()], ranks: Some(ranks), ..Options::default() };
        let (compiled, found) =
            compile(&Disk, &mut sources, &format!("{root}/examples/smollm2_grpo.nrl"), &options);
        let shown: Vec<_> = found
            .iter()
            .map(|d| {
                format!(
                    "{}: {} {:?}",
                    d.code,
                    d.message,
                    d.labels.iter().map(|l| (sources.text(l.span), &l.text)).collect::<Vec<_>>()
                )
            })
            .collect();
        assert!(compiled.is_some(), "{shown:#?}");
    }
}
