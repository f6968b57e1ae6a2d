//! `nrlc check`: proves what can be proved before a run.

use std::process::ExitCode;
use std::time::Instant;

use nrl_base::SourceMap;
use nrl_driver::{Compiled, Options, compile};

use crate::disk::Disk;
use crate::report;

/// Checks recipes without running anything
#[derive(clap::Args, Debug)]
pub struct CheckArgs {
    /// Recipe files
    #[arg(required = true, value_name = "RECIPE")]
    pub files: Vec<String>,
    /// Overrides a value, such as `lr=1e-6`, `policy.path=DIR` or `m.tp=2`
    #[arg(long = "set", value_name = "PATH=EXPR")]
    pub sets: Vec<String>,
    /// Number of ranks instead of the recipe's
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Recipe to check, if a file has several
    #[arg(long, value_name = "NAME")]
    pub recipe: Option<String>,
}

/// Runs the command; 0 if no file has an error, else 1.
pub fn run(args: &CheckArgs) -> ExitCode {
    let mut failed = false;
    for file in &args.files {
        let start = Instant::now();
        let mut sources = SourceMap::new();
        let options = Options {
            sets: args.sets.clone(),
            ranks: args.ranks,
            recipe: args.recipe.clone(),
            ..Options::default()
        };
        let (compiled, found) = compile(&Disk, &mut sources, file, &options);
        report::print(&found, &sources);
        match compiled {
            Some(c) => println!(
                "{file}: ok in {:.0} ms: {}",
                start.elapsed().as_secs_f64() * 1e3,
                summary(&c)
            ),
            None => failed = true,
        }
    }
    if failed { ExitCode::from(1) } else { ExitCode::SUCCESS }
}

/// `2 phases, 130 steps; policy 0.31 M parameters; 2 ranks`.
fn summary(c: &Compiled) -> String {
    let p = &c.program;
    let steps: usize = p.phases.iter().map(|x| x.steps).sum();
    let phases = if p.phases.len() == 1 {
        "1 phase".to_string()
    } else {
        format!("{} phases", p.phases.len())
    };
    let models: Vec<String> = p
        .models
        .iter()
        .map(|m| format!("{} {} parameters", m.name, millions(parameters(m))))
        .collect();
    let ranks = p.models.iter().map(|m| p.meshes[m.mesh].1.ranks()).max().unwrap_or(1);
    // Optimizers run over flat weights, whatever their length: their bound says nothing.
    let models_only = c.plans.iter().filter(|p| !p.params.is_empty());
    let peak = models_only.map(|p| p.peak_bytes).fold(0.0, f64::max);
    format!(
        "{phases}, {steps} steps; {}; {ranks} rank{}; largest activations {:.0} MiB",
        models.join(", "),
        if ranks == 1 { "" } else { "s" },
        peak / 1_048_576.0
    )
}

/// Number of weights of a model.
pub fn parameters(m: &nrl_ir::program::Model) -> usize {
    m.params
        .iter()
        .map(|p| {
            p.repeat.as_ref().map_or(1, |(_, n)| *n)
                * p.dims.iter().map(|d| m.dims.bound(*d)).product::<usize>()
        })
        .sum()
}

/// `0.31 M`, `134.5 M`, `8.03 G`.
pub fn millions(n: usize) -> String {
    let x = n as f64;
    if x >= 1e9 {
        format!("{:.2} G", x / 1e9)
    } else if x >= 1e7 {
        format!("{:.1} M", x / 1e6)
    } else {
        format!("{:.2} M", x / 1e6)
    }
}
