//! `nrlc plan`: what a recipe will compute, and the text of every phase of the compiler.

use std::process::ExitCode;

use nrl_base::SourceMap;
use nrl_driver::{Compiled, Options, Phase, compile};
use nrl_ir::plan::Plan;

use crate::check::{millions, parameters};
use crate::disk::Disk;
use crate::report;

/// Shows the plan of a recipe, or its program after a phase of the compiler
#[derive(clap::Args, Debug)]
pub struct PlanArgs {
    /// Recipe file
    #[arg(value_name = "RECIPE")]
    pub file: String,
    /// Prints the program after this phase instead: lower, simplify, grad, shard, fuse or schedule
    #[arg(long, value_name = "PHASE", value_parser = phase)]
    pub emit: Option<Phase>,
    /// Overrides a value, such as `lr=1e-6`, `policy.path=DIR` or `m.tp=2`
    #[arg(long = "set", value_name = "PATH=EXPR")]
    pub sets: Vec<String>,
    /// Number of ranks instead of the recipe's
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Prints the plans as JSON
    #[arg(long)]
    pub json: bool,
    /// Prints how long each phase of the compiler took
    #[arg(short, long)]
    pub verbose: bool,
}

fn phase(s: &str) -> Result<Phase, String> {
    Phase::find(s).ok_or_else(|| format!("phases are {}", Phase::ALL.map(Phase::name).join(", ")))
}

/// Runs the command.
pub fn run(args: &PlanArgs) -> ExitCode {
    let mut sources = SourceMap::new();
    let options = Options {
        sets: args.sets.clone(),
        ranks: args.ranks,
        emit: args.emit,
        ..Options::default()
    };
    let (compiled, found) = compile(&Disk, &mut sources, &args.file, &options);
    report::print(&found, &sources);
    let Some(c) = compiled else { return ExitCode::from(1) };
    if args.emit.is_some() {
        for text in &c.emitted {
            println!("{text}");
        }
    } else if args.json {
        match serde_json::to_string_pretty(&c.plans) {
            Ok(s) => println!("{s}"),
            Err(e) => {
                eprintln!("error: {e}");
                return ExitCode::from(1);
            }
        }
    } else {
        print!("{}", screen(&c));
    }
    if args.verbose {
        for (name, t) in &c.timings {
            println!("{name:>10} {:8.2} ms", t.as_secs_f64() * 1e3);
        }
    }
    ExitCode::SUCCESS
}

/// One screen: models, layouts, and per graph the work, memory and collectives at its bounds.
fn screen(c: &Compiled) -> String {
    use std::fmt::Write;
    let p = &c.program;
    let mut out = String::new();
    let steps: usize = p.phases.iter().map(|x| x.steps).sum();
    let _ = writeln!(
        out,
        "plan {}   {} phases, {steps} steps, seed {}",
        p.name,
        p.phases.len(),
        p.seed
    );
    for m in &p.models {
        let (name, mesh) = &p.meshes[m.mesh];
        let axes: Vec<String> =
            mesh.axes.iter().map(|a| format!("{} {}", a.name, a.size)).collect();
        let _ = writeln!(
            out,
            "  {:<10} {} {} parameters   on {name} ({})   context {}",
            m.name,
            m.family,
            millions(parameters(m)),
            axes.join(", "),
            m.context
        );
    }
    out += &memory(c);
    out += &time(c);
    let _ = writeln!(out, "\nper run of each graph, per rank, at its bounds");
    for (plan, graph) in c.plans.iter().zip(&p.graphs) {
        let bounds = bounds(graph);
        let _ = writeln!(
            out,
            "  {:<10} {:>9} FLOP  {:>9} moved  {:>9} live   {bounds}",
            plan.name,
            si(plan.cost.flops),
            bytes(plan.cost.bytes),
            bytes(plan.peak_bytes)
        );
        for x in collectives(plan) {
            let _ = writeln!(out, "      {x}");
        }
    }
    out
}

/// A line per stage on devices, the fullest marked; nothing where ranks are threads.
fn memory(c: &Compiled) -> String {
    use std::fmt::Write;
    let gib = |x: f64| x / 1_073_741_824.0;
    let all = nrl_driver::memory(c);
    let least = all.iter().map(nrl_sim::Memory::margin).fold(f64::INFINITY, f64::min);
    let mut out = String::new();
    for (i, m) in all.iter().enumerate() {
        if i == 0 {
            let (name, total) = (&m.device.name, gib(m.device.memory));
            let _ = writeln!(out, "\nmemory, GiB per rank; {name} has {total:.1}");
        }
        let terms: Vec<String> =
            m.terms.iter().map(|t| format!("{} {:.1}", t.name, gib(t.bytes))).collect();
        let mark = if m.margin() == least { "   <- tightest" } else { "" };
        let share = 100.0 * m.sum() / m.device.memory;
        let (sum, left) = (gib(m.sum()), gib(m.margin()));
        let _ = writeln!(
            out,
            "  {:<18} {sum:>7.1}  {share:>4.0} %  margin {left:>6.1}   {}{mark}",
            m.stage,
            terms.join(" + ")
        );
    }
    out
}

/// A line per phase of a step, on the machines that the recipe names.
fn time(c: &Compiled) -> String {
    use std::fmt::Write;
    let Some(f) = nrl_driver::forecast(c, &nrl_driver::Assume::default()) else {
        return String::new();
    };
    let mut out = String::new();
    for step in &f.steps {
        let s = &step.seconds;
        let _ = writeln!(out, "\nstep {:.1} s ({:.1} .. {:.1})", s.value, s.low, s.high);
        for p in &step.phases {
            let share = 100.0 * p.seconds.value / s.value;
            let mfu = p.mfu.map_or(String::new(), |m| format!("MFU {:.0} %", 100.0 * m));
            let parts: Vec<String> =
                p.parts.iter().map(|x| format!("{} {:.2}", x.name, x.seconds)).collect();
            let source = p.seconds.source.name();
            let _ = writeln!(
                out,
                "  {:<18} {:>7.2} s {share:>4.0} %  {mfu:<9} {}   {source}",
                p.name,
                p.seconds.value,
                parts.join(", ")
            );
        }
    }
    out
}

fn bounds(g: &nrl_ir::Graph) -> String {
    let of: Vec<String> = g
        .dims
        .iter()
        .filter(|(id, _)| g.dims.is_ragged(*id))
        .map(|(id, d)| format!("{} <= {}", d.name, g.dims.bound(id)))
        .collect();
    of.join(", ")
}

fn collectives(plan: &Plan) -> Vec<String> {
    plan.collectives
        .iter()
        .map(|c| {
            format!(
                "{} over {} x{}  {} each  because {}",
                c.kind,
                c.axes.join(", "),
                c.count,
                bytes(c.bytes),
                c.reason
            )
        })
        .collect()
}

fn si(x: f64) -> String {
    for (unit, scale) in [("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)] {
        if x >= scale {
            return format!("{:.2} {unit}", x / scale);
        }
    }
    format!("{x:.0} ")
}

/// `1.25 GiB`.
fn bytes(x: f64) -> String {
    for (unit, scale) in [("GiB", 1_073_741_824.0), ("MiB", 1_048_576.0), ("KiB", 1024.0)] {
        if x >= scale {
            return format!("{:.2} {unit}", x / scale);
        }
    }
    format!("{x:.0} B")
}
