//! `nrlc eval`: the evaluations of a recipe on the weights of a checkpoint.

use std::process::ExitCode;

use nrl_runtime::run;
use serde_json::{Map, json};

use crate::args::EvalArgs;
use crate::load;

/// Runs the command.
pub fn run(args: &EvalArgs) -> ExitCode {
    let compiled = match load::recipe(&args.recipe, false) {
        Ok(compiled) => compiled,
        Err(code) => return code,
    };
    match run::evaluate(compiled, &load::engine(), args.checkpoint.as_deref()) {
        Err(e) => load::fail(&e),
        Ok(results) if args.json => {
            let all: Map<_, _> =
                results.into_iter().map(|(name, numbers)| (name, json!(numbers))).collect();
            println!("{}", serde_json::Value::Object(all));
            ExitCode::SUCCESS
        }
        Ok(results) => {
            for (name, numbers) in results {
                println!("{name}");
                let width = numbers.keys().map(String::len).max().unwrap_or(0);
                for (key, x) in numbers {
                    println!("  {key:width$}  {x:.4}");
                }
            }
            ExitCode::SUCCESS
        }
    }
}
