//! How a run of NeMo RL is started: its script, and how many nodes it needs.

use nrl_rules::settings::{Node, Value};

use crate::native::Algorithm;

/// The command lines that start a run of a configuration file.
pub(super) fn launch(root: &Node, config: &str) -> String {
    let command = format!("uv run python {} --config {config}", script(root));
    let whole = |path: &str| match root.get(path).map(|n| &n.value) {
        Some(Value::Int(n)) => *n,
        _ => 0,
    };
    let (nodes, judges) = (whole("cluster.num_nodes").max(1), whole("env.nemo_gym.num_gpu_nodes"));
    let gpus = whole("cluster.gpus_per_node").max(1);
    if nodes + judges == 1 {
        return format!("{command}\n");
    }
    let note = match judges {
        0 => String::new(),
        n => format!("# {nodes} nodes of `cluster` and {n} for the judges of NeMo Gym\n"),
    };
    format!(
        "{note}COMMAND=\"{command}\" \\\n  sbatch --nodes={} --gres=gpu:{gpus} --account=ACCOUNT \
         --partition=PARTITION --time=TIME ray.sub\n",
        nodes + judges
    )
}

/// The script of NeMo RL that runs a configuration.
fn script(root: &Node) -> &'static str {
    let on = |path: &str| root.get(path).is_some_and(|n| n.value == Value::Bool(true));
    let is_map = |path: &str| matches!(root.get(path).map(|n| &n.value), Some(Value::Map(_)));
    let gym = on("env.should_use_nemo_gym");
    let images = match root.get("data.default.processor").map(|n| &n.value) {
        Some(Value::Text(name)) => name.starts_with("vlm"),
        _ => on("policy.tokenizer.use_processor"),
    };
    match Algorithm::of(root) {
        Some(Algorithm::Grpo) if is_map("async_rl") => "examples/run_grpo_single_controller.py",
        Some(Algorithm::Grpo) if gym => "examples/nemo_gym/run_grpo_nemo_gym.py",
        Some(Algorithm::Grpo) if images => "examples/run_vlm_grpo.py",
        Some(Algorithm::Grpo) if is_map("env.sliding_puzzle_game") => {
            "examples/run_grpo_sliding_puzzle.py"
        }
        Some(Algorithm::Grpo) => "examples/run_grpo.py",
        Some(Algorithm::Ppo) => "examples/run_ppo.py",
        Some(Algorithm::Dpo) => "examples/run_dpo.py",
        Some(Algorithm::Sft) if images => "examples/run_vlm_sft.py",
        Some(Algorithm::Sft) => "examples/run_sft.py",
        Some(Algorithm::Rm) => "examples/run_rm.py",
        Some(Algorithm::Distillation) if root.child("teachers").is_some() => {
            "examples/run_xtoken_off_policy_distillation.py"
        }
        Some(Algorithm::Distillation) => "examples/run_distillation.py",
        None => "examples/run_eval.py",
    }
}
