use nrl_sim::rl_stack::RlStacks;

use super::*;

const HEADER: &str = "version,algorithm,model,gpu,precision,policy,backend,max_seq,avg_seq,gpus,gen_gbs,train_gbs,\
gen_tp,train_tp,train_cp,train_ep,train_pp,step_s,train_s,refit_s,gen_s,logprob_s,note,source";

fn table(rows: &[&str]) -> String {
    format!("{HEADER}\n{}\n", rows.join("\n"))
}

/// Rows of NVIDIA's blog on NeMo RL v0.3.
const BLOG: &[&str] = &[
    "v0.3,GRPO,Llama-3.1-8B-Instruct,H100,BF16,on-policy,megatron,4096,795,8,2048,512,1,1,1,1,1,112,28,5,58,18,,blog",
    "v0.3,GRPO,Llama-3.1-8B-Instruct,H100,BF16,on-policy,dtensor,4096,777,8,2048,512,1,1,1,1,1,122,38,4,57,19,,blog",
    "v0.3,GRPO,Llama-3.1-70B-Base,H100,BF16,on-policy,megatron,4096,398,64,2048,512,4,4,1,1,4,147,28,14,84,18,,blog",
    "v0.3,GRPO,Llama-3.1-70B-Base,H100,BF16,on-policy,dtensor,4096,395,64,2048,512,4,8,1,1,1,230,97,15,82,28,,blog",
    "v0.3,GRPO,Qwen3-32B,H100,BF16,on-policy,megatron,4096,3283,64,2048,512,4,4,1,1,2,213,68,7,96,40,,blog",
    "v0.3,GRPO,Qwen3-30B-A3B,H100,BF16,on-policy,megatron,4096,3251,64,2048,512,4,2,1,8,1,167,50,12,78,23,,blog",
    "v0.3,GRPO,Llama-3.3-70B-Instruct,H100,BF16,on-policy,megatron,16384,749,128,2048,512,4,4,4,1,4,445,64,17,287,75,,blog",
];

fn judged(rows: &[&str]) -> Report {
    validate(&table(rows), RlStacks::shipped()).unwrap()
}

#[test]
fn phases_of_the_blog_are_within_a_fifth() {
    let report = judged(BLOG);
    assert_eq!(report.judged.len(), BLOG.len());
    for j in &report.judged {
        assert_eq!(j.compared.len(), 5);
        for c in &j.compared {
            // A second is as near as whole seconds can be told apart.
            let off = (c.predicted - c.measured).abs();
            assert!(
                off <= (0.2 * c.measured).max(1.0),
                "{} {:?} {}: {:.1} s, measured {}",
                j.row.model,
                j.row.backend,
                c.phase,
                c.predicted,
                c.measured
            );
        }
    }
}

/// 122 / 112 and 230 / 147.
#[test]
fn one_backend_is_faster_than_the_other_by_as_much_as_measured() {
    let report = judged(BLOG);
    let total = |i: usize| report.judged[i].step.seconds.value;
    for (megatron, dtensor, measured) in [(0, 1, 122.0 / 112.0), (2, 3, 230.0 / 147.0)] {
        let ratio = total(dtensor) / total(megatron);
        assert!(ratio > 1.02 && (ratio / measured - 1.0).abs() < 0.12, "{ratio}, not {measured}");
    }
}

#[test]
fn rows_that_say_too_little_are_left_out_with_the_reason() {
    let row = |from: &str, to: &str| BLOG[0].replace(from, to);
    for (text, why) in [
        (row("Llama-3.1-8B-Instruct", "Parrot-2B"), "nothing is known of the model `Parrot-2B`"),
        (row("H100", "TPU"), "no rates for the device `TPU`"),
        (row("megatron", "torchrun"), "no rates for the backend `torchrun`"),
        (row("v0.3", "v0.3-superseded"), "withdrawn by its source: another row corrects it"),
        (row("1,1,1,1,1,112", "1,3,1,1,1,112"), "8 GPUs are no multiple of tp 3 x cp 1 x pp 1"),
        (row("1,1,1,1,1,112", "16,1,1,1,1,112"), "8 GPUs hold no sampler of 16"),
        (row(",795,", ",many,"), "`avg_seq` is many, not a number"),
        (row(",795,", ",1e12,"), "`avg_seq` is 1e12"),
        (
            row("1,1,1,1,1,112", "1,1e8,1e8,1e8,1e8,112"),
            "8 GPUs are no multiple of tp 100000000 x cp 100000000 x pp 100000000",
        ),
        (row("on-policy", "off-policy"), "`off-policy` states no number of steps"),
    ] {
        let report = judged(&[&text]);
        assert_eq!(report.left_out, [(2, why.to_string())], "{text}");
    }
    let gone = validate("version,model\n", RlStacks::shipped());
    assert_eq!(gone.unwrap_err(), "the table has no column `gpu`");
}

/// 70B in 16 bits on one GPU of 80 GB leaves no room for keys and values.
#[test]
fn a_sampler_that_does_not_fit_is_told() {
    let text = BLOG[2].replace("2048,512,4,4,1,1,4", "2048,512,1,4,1,1,4");
    let report = judged(&[&text]);
    let why = &report.left_out[0].1;
    assert!(why.contains("keys and values"), "{why}");
}

#[test]
fn samplers_on_their_own_devices_hide_behind_the_trainer() {
    let text = BLOG[0].replace("on-policy", "1-step-off").replace("v0.3", "v0.5");
    let report = judged(&[&text.replace(",795,8,", ",795,16,")]);
    let j = &report.judged[0];
    assert!(!j.row.colocated && j.row.delay == 1 && j.row.gen_gpus == 8);
    let all: f64 = j.step.phases.iter().map(|p| p.seconds.value).sum();
    let sampled = j.step.phases.iter().find(|p| p.kind == Kind::Sample).unwrap().seconds.value;
    assert!(j.step.seconds.value < all - 0.5 * sampled, "{:?} of {all}", j.step.seconds);
}

/// The published rows, where the file is at hand.
#[test]
fn published_steps_are_predicted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/nemo/perf_open.csv");
    #[allow(clippy::disallowed_methods)]
    let Ok(text) = std::fs::read_to_string(path) else {
        return;
    };
    let report = validate(&text, RlStacks::shipped()).unwrap();
    assert!(report.left_out.len() <= 2, "{:?}", report.left_out);
    let errors = report.errors("step");
    let (median, p90) = (errors[errors.len() / 2], errors[errors.len() * 9 / 10]);
    assert!(median <= 0.08 && p90 <= 0.25, "median {median:.3}, p90 {p90:.3}");
    let sampled = report.errors("sample");
    assert!(sampled.iter().all(|e| *e < 0.2), "{sampled:?}");
}
