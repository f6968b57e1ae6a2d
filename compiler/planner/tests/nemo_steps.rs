//! Recipes of NeMo RL as users have them against the rows of published steps that they made: the same plan, the same seconds.

use std::path::{Path, PathBuf};

use nrl_base::Files;
use nrl_planner::input::{Input, Request};
use nrl_planner::steps::{Case, Table};
use nrl_sim::rl_stack::RlStacks;

struct Disk;

impl Files for Disk {
    #[allow(clippy::disallowed_methods)]
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|e| e.to_string())
    }
}

fn shared() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/nemo")
}

/// Seconds of a step of the recipe at `path`, with the lengths and the version of a row.
fn planned(path: &Path, case: &Case) -> Result<f64, String> {
    // A table does not say how much of a device samplers take.
    let share = if case.row.colocated { 0.6 } else { 0.8 };
    let mut overrides = vec![format!("policy.generation.vllm_cfg.gpu_memory_utilization={share}")];
    // The checkpoint of these recipes is one that users convert themselves.
    if case.row.model.starts_with("DeepSeek-V3") {
        overrides.push("policy.model_name=deepseek-ai/DeepSeek-V3".into());
    }
    let path = path.display().to_string();
    let mut request = Request { path, overrides, ..Request::default() };
    request.assume.stack = case.assume().stack.clone();
    request.assume.lengths = case.assume().lengths;
    request.options.assume = request.assume.clone();
    let (input, found) = Input::open(&Disk, &request);
    let input = input.ok_or_else(|| format!("{:?}", found.found))?;
    let (planned, found) = input.plan();
    let errors = || found.found.iter().filter(|d| d.is_error()).collect::<Vec<_>>();
    let planned = planned.ok_or_else(|| format!("{:?}", errors()))?;
    let step = planned.forecast.ok_or("no forecast")?.steps.remove(0);
    Ok(step.seconds.value)
}

/// Rows of 0.7, whose recipes are at hand, take what their recipes take.
#[test]
fn a_recipe_takes_what_its_row_takes() {
    #[allow(clippy::disallowed_methods)]
    let Ok(text) = std::fs::read_to_string(shared().join("perf_open.csv")) else {
        return;
    };
    let table = Table::new(&text).unwrap();
    let mut compared = 0;
    for case in &table.cases {
        let recipe = shared().join("recipes").join(&case.row.recipe);
        if case.row.recipe.is_empty() || case.row.version != "v0.7" || !recipe.exists() {
            continue;
        }
        let row = case.step(RlStacks::shipped()).unwrap().seconds.value;
        let name = &case.row.recipe;
        let user = planned(&recipe, case).unwrap_or_else(|why| panic!("{name}: {why}"));
        let off = user / row - 1.0;
        assert!(off.abs() <= 0.01, "{name}: {user:.1} s, its row {row:.1} s");
        compared += 1;
    }
    assert!(compared >= 8, "{compared} recipes are at hand");
}
