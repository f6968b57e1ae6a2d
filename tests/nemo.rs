//! `nrlc import` and `nrlc export nemo-rl` from outside.

use crate::support::Bench;

const SHIPPED: &str = "\
sft: {max_num_steps: 60, val_period: 10, seed: 42}
policy:
  model_name: Qwen/Qwen2.5-1.5B
  tokenizer: {name: \"${policy.model_name}\"}
  train_global_batch_size: 128
  train_micro_batch_size: 1
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg: {enabled: true, _v2: true, tensor_parallel_size: 1}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 5.0e-6, weight_decay: 0.1}}
  max_grad_norm: 1.0
data:
  train: {dataset_name: tulu3_sft_mixture}
  validation: null
cluster: {num_nodes: 1, gpus_per_node: 1}
";

#[test]
fn a_recipe_goes_to_the_language_and_back() {
    let b = Bench::new();
    std::fs::create_dir_all(b.path("rl/examples/configs")).expect("folders");
    b.write("rl/examples/configs/sft.yaml", SHIPPED);
    b.write(
        "rl/examples/configs/mine.yaml",
        "defaults: sft.yaml\npolicy: {optimizer: {kwargs: {lr: 2.0e-5}}, odd: {a-b: [1, x]}}\n",
    );
    let file = "rl/examples/configs/mine.yaml";
    b.run(&["import", file, "cluster.num_nodes=2", "-o", "mine.nrl"]).succeeds();
    let text = std::fs::read_to_string(b.path("mine.nrl")).expect("the recipe");
    assert!(text.contains("lr: 2e-05"), "{text}");
    assert!(text.contains("clusters.h100(nodes: 2, gpus: 1)"), "{text}");
    b.run(&["fmt", "--check", "mine.nrl"]).succeeds();

    b.write("mine.nrl", text.replace("2e-05", "1e-05"));
    let out = b.run(&["export", "nemo-rl", "mine.nrl", "--nemo-rl", "rl", "-o", "out"]);
    out.succeeds();
    let yaml = std::fs::read_to_string(b.path("out/mine.yaml")).expect("the YAML");
    assert!(yaml.contains("\ndefaults: ../rl/examples/configs/sft.yaml\n"), "{yaml}");
    assert!(yaml.contains("lr: 1e-05"), "{yaml}");
    assert!(yaml.contains("a-b: [1, x]"), "{yaml}");
    let launch = std::fs::read_to_string(b.path("out/mine.sh")).expect("the launch line");
    assert!(launch.contains("sbatch --nodes=2") && launch.contains("run_sft.py"), "{launch}");

    let missing = b.run(&["export", "nemo-rl", "mine.nrl", "--nemo-rl", "nowhere"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.err.contains("--nemo-rl DIR"), "{}", missing.err);
    let broken = b.run(&["import", file, "no.such.key=1"]);
    assert_eq!(broken.code, Some(1));
    assert!(broken.err.contains("++no.such.key=1"), "{}", broken.err);
}
