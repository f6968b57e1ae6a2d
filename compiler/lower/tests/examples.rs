//! The examples elaborate without a finding.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use nrl_base::SourceMap;
use nrl_lower::{Files, Options, lower};

struct Disk;

impl Files for Disk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|e| e.to_string())
    }
}

#[test]
fn the_quickstart_has_no_findings() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/quickstart.nrl");
    let mut sources = SourceMap::new();
    let (lowered, problems) = lower(&Disk, &mut sources, path, &Options::default());
    let shown: Vec<String> = problems
        .into_sorted()
        .iter()
        .map(|d| {
            format!(
                "{} {} {:?}",
                d.code,
                d.message,
                d.labels.iter().map(|l| (sources.text(l.span), &l.text)).collect::<Vec<_>>()
            )
        })
        .collect();
    assert!(shown.is_empty(), "{shown:#?}");
    let names: Vec<&str> = lowered.program.phases.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["sft", "rl"]);
    let rl: Vec<&str> = lowered.program.phases[1].step.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(rl, ["%0", "s", "%2", "%3", "r", "r.valid", "adv", "adv.valid", "update", "halt.9"]);
}
