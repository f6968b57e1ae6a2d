//! Tables of measured runs: reading, what cannot be said, and errors on the published rows where they are at hand.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

use nrl_planner::rows::{Row, Table, Verdict, calibrate, fit, read};
use nrl_sim::tables::Tables;

const HEADER: &str = "source,task,model,layers,hidden,heads,kv_heads,head_dim,ffn,vocab,experts,topk,moe_ffn,gpu,gpus,tp,pp,vpp,cp,ep,dp,fsdp,sp,recompute,offload,mbs,gbs,seq,precision,framework,metric,value,unit,note";

fn table(rows: &[&str]) -> Vec<Row> {
    read(&format!("{HEADER}\n{}\n", rows.join("\n"))).expect("a table")
}

fn verdict(rows: Vec<Row>) -> Verdict {
    Verdict::of(&Table::new(rows), Tables::shipped())
}

/// A dense model on one node, for `metric`.
fn dense(metric: &str, value: f64) -> String {
    format!(
        "own,pretrain,gpt-x,24,2048,16,16,128,8192,51200,,,,A100,8,2,2,1,1,1,2,,,full,,2,32,1024,fp16,Megatron-DeepSpeed,{metric},{value},,"
    )
}

#[test]
fn rows_that_cannot_be_said_tell_why() {
    let rows = table(&[
        &dense("iter_time", 1.0),
        &dense("happiness", 1.0),
        "own,pretrain,llama-x,32,4096,32,8,128,14336,128256,,,,Abacus,8,1,1,1,1,1,8,,,none,,1,8,4096,bf16,Megatron-LM,iter_time,1,s,",
        "own,pretrain,mystery,,,,,,,,,,,H100-80GB,8,1,1,1,1,1,8,,,none,,1,8,4096,bf16,Megatron-LM,iter_time,1,s,",
        "own,pretrain,llama-x,32,4096,32,8,128,14336,128256,,,,H100-80GB,8,3,1,1,1,1,,,,none,,1,8,4096,bf16,Megatron-LM,iter_time,1,s,",
    ]);
    let v = verdict(rows);
    let why: Vec<&str> = v.lines.iter().filter_map(|l| l.why.as_deref()).collect();
    assert_eq!(
        why,
        [
            "nothing predicts `happiness`",
            "no cluster of `Abacus`",
            "no number of layers",
            "8 GPUs are not a multiple of tp 3 x pp 1 x cp 1",
        ]
    );
    assert_eq!((v.said, v.not_said), (1, 4));
}

#[test]
fn a_table_without_a_column_is_refused() {
    assert_eq!(
        read("model,gpu,metric\nx,A100,mfu\n"),
        Err("the table has no column `value`".into())
    );
}

/// Tools that write tables turn whole numbers into `8.0`; a cell that is no number leaves the others alone.
#[test]
fn a_cell_that_is_no_number_is_told_of_its_row() {
    let as_is = dense("iter_time", 0.5);
    let floats = as_is.replace(",24,2048,", ",24.0,\"2,048\",").replace(",A100,8,", ",A100,8.0,");
    let bad = as_is.replace(",A100,8,", ",A100,8x,");
    let v = verdict(table(&[
        &as_is,
        &floats,
        &bad,
        &dense("iter_time", f64::NAN),
        &dense("iter_time", -1.0),
    ]));
    assert_eq!(v.lines[0].predicted, v.lines[1].predicted);
    let why: Vec<&str> = v.lines.iter().filter_map(|l| l.why.as_deref()).collect();
    assert_eq!(
        why,
        ["`gpus` is `8x`, not a whole number", "no value", "`value` is `-1`, not a number above 0"]
    );
}

/// The twins of one run, seconds and rate, are in the same half, and say the same.
#[test]
fn metrics_of_one_run_agree() {
    let rows = table(&[&dense("iter_time", 0.5), &dense("tokens_per_s_per_gpu", 8192.0)]);
    assert_eq!(fit::half(&rows[0]), fit::half(&rows[1]));
    let v = verdict(rows);
    let says = |i: usize| v.lines[i].predicted.expect("a prediction");
    // 32 samples of 1024 tokens on 8 devices.
    let rate = 32.0 * 1024.0 / 8.0 / says(0);
    assert!((says(1) / rate - 1.0).abs() < 1e-9, "{} and {rate}", says(1));
}

#[test]
fn layouts_are_put_in_order() {
    let with = |tp: usize, seconds: f64| {
        format!(
            "own,pretrain,gpt-x,24,2048,16,16,128,8192,51200,,,,A100,8,{tp},1,1,1,1,{},,,full,,2,32,1024,fp16,Megatron-DeepSpeed,iter_time,{seconds},s,",
            8 / tp
        )
    };
    // Measured the wrong way around on purpose: tensor parallel size 8 is slower on so small a model.
    let v = verdict(table(&[&with(1, 2.0), &with(8, 1.0)]));
    assert_eq!(v.summaries[0].ranking, Some((0.0, 1)));
    let v = verdict(table(&[&with(1, 1.0), &with(8, 2.0)]));
    assert_eq!(v.summaries[0].ranking, Some((1.0, 1)));
}

/// What no rate explains of a layout, a made law here, is learned from runs near it; what was not measured keeps the rates.
#[test]
fn runs_near_a_layout_say_what_rates_do_not() {
    let row = |layers: usize, tp: usize, micro: usize, seconds: f64| {
        format!(
            "own,pretrain,gpt-x,{layers},2048,16,16,128,8192,51200,,,,A100,8,{tp},1,1,1,1,{},,,full,,{micro},64,1024,fp16,Megatron-DeepSpeed,iter_time,{seconds},s,",
            8 / tp
        )
    };
    let mut all = vec![];
    for layers in [16, 20, 24, 28] {
        for tp in [1, 2, 4] {
            all.extend([1, 2, 4, 8].map(|micro| (layers, tp, micro)));
        }
    }
    let texts: Vec<String> = all.iter().map(|(l, tp, m)| row(*l, *tp, *m, 1.0)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let law = |tp: usize, micro: usize| match (tp, micro) {
        (2, 1 | 2) => 1.3,
        (4, 4 | 8) => 0.8,
        _ => 1.0,
    };
    let rows: Vec<String> = all
        .iter()
        .zip(&verdict(table(&texts)).lines)
        .map(|((l, tp, m), line)| row(*l, *tp, *m, line.predicted.unwrap() * law(*tp, *m)))
        .collect();
    let rows = table(&rows.iter().map(String::as_str).collect::<Vec<_>>());
    let kept: Vec<Row> = rows.iter().filter(|r| r.layers == Some(20)).cloned().collect();
    let known = Table::new(rows);
    let mut tables = calibrate::tables(&known, "own", &|r| r.layers != Some(20));
    let kept = Table::new(kept);
    let worst = |tables: &Tables| {
        let lines = Verdict::of(&kept, tables).lines;
        lines.iter().filter_map(|l| l.error).map(f64::abs).fold(0.0, f64::max)
    };
    let with = worst(&tables);
    tables.runs.clear();
    let without = worst(&tables);
    assert!(with < 0.05 && without > 0.15, "{with} {without}");
}

/// Frozen weights have no gradient of their own: two thirds of their products are left, beside attention, head and adapters.
#[test]
fn adapters_leave_out_the_gradients_of_frozen_weights() {
    let of = |task: &str| {
        format!(
            "own,{task},llama-x,32,4096,32,8,128,14336,128256,,,,H100-80GB,8,1,1,1,1,1,8,,,none,,1,64,8192,bf16,Megatron-Bridge 26.04,iter_time,1,s,"
        )
    };
    let v = verdict(table(&[&of("pretrain"), &of("lora")]));
    let says = |i: usize| v.lines[i].predicted.expect("a prediction");
    let share = says(1) / says(0);
    assert!((0.66..0.9).contains(&share), "{share}");
}

/// One small model in every way that a table may name its device, its framework and its metric.
fn small(
    gpu: &str,
    framework: &str,
    precision: &str,
    metric: &str,
    value: f64,
    unit: &str,
) -> String {
    format!(
        "own,pretrain,OPT-350M,24,1024,16,16,64,4096,50272,,,,{gpu},4,1,1,1,1,1,4,,,,,4,64,2048,{precision},{framework},{metric},{value},{unit},"
    )
}

fn predicted(rows: &[String]) -> Vec<f64> {
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let v = verdict(table(&rows));
    assert_eq!(v.not_said, 0, "{}", v.text(true));
    v.lines.iter().filter_map(|l| l.predicted).collect()
}

#[test]
fn devices_have_many_names() {
    let on = |gpu: &str| small(gpu, "Megatron-DeepSpeed", "fp16", "iter_time", 1.0, "s");
    // By TFLOP/s of their data sheets, each a different one.
    let names = [
        "RTX-2080",
        "RTX 2080 Ti",
        "A10G",
        "RTX-3090",
        "V100-SXM2-32GB",
        "A100-PCIE-80GB",
        "H100 PCIe",
        "GH200-96GB",
        "B300",
    ];
    let seconds = predicted(&names.map(on));
    let order = ["RTX-2080", "RTX-3090", "V100-SXM2-32GB", "A100-PCIE-80GB", "GH200-96GB"];
    let of = |n: &str| seconds[names.iter().position(|x| *x == n).expect("a name")];
    assert!(order.windows(2).all(|w| of(w[0]) > of(w[1])), "{names:?} {seconds:?}");
    // Of two kinds the slower sets the pace.
    let same = predicted(&["Titan-RTX + RTX 2080", "RTX-2080"].map(on));
    assert_eq!(same[0], same[1]);
    let others =
        ["L40S", "L4", "TITAN RTX", "H20-96GB", "H800", "A800-80GB", "H100-NVL", "RTX4090"];
    assert_eq!(predicted(&others.map(on)).len(), others.len());
}

#[test]
fn frameworks_that_nobody_measured_take_after_their_kind() {
    let with = |f: &str| small("H100-80GB", f, "bf16", "iter_time", 1.0, "s");
    let all = ["some new trainer", "nanotron", "NeMo Automodel", "InternEvo", "", "Levanter (JAX)"];
    let seconds = predicted(&all.map(with));
    let (least, most) = seconds.iter().fold((f64::MAX, 0.0f64), |(l, m), s| (l.min(*s), m.max(*s)));
    assert!(most < 2.0 * least, "{seconds:?}");
    // Names that say nothing take after nothing that was measured.
    assert_eq!(seconds[0], seconds[4]);
}

#[test]
fn metrics_have_many_names() {
    let says = |metric: &str, value: f64, unit: &str| {
        let row = small("H100-80GB", "torchtitan", "bf16", metric, value, unit);
        predicted(&[row])[0]
    };
    let seconds = says("iter_time", 1.0, "s");
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    near(says("step_time", 1.0, "s"), seconds);
    near(says("iter_time", 1000.0, "ms"), seconds);
    near(says("samples_per_s", 1.0, ""), 64.0 / seconds);
    near(says("tokens_per_s", 1.0, ""), 64.0 * 2048.0 / seconds);
    near(says("tokens_per_s_per_gpu", 1.0, ""), 16.0 * 2048.0 / seconds);
    near(100.0 * says("mfu", 0.25, ""), says("mfu", 25.0, "%"));
    // 302 million weights of layers and those of the embedding in 2 bytes, three quarters there and back over 450 GB/s.
    let least = 2.0 * 0.75 * 2.0 * (302e6 + 51e6) / 450e9;
    let whole = small("H100-80GB", "Megatron-DeepSpeed", "bf16", "grad_allreduce_time", 1.0, "s");
    let sums = predicted(&[whole])[0];
    assert!((least..3.0 * least).contains(&sums), "{sums} {least}");
}

/// Adapters of experts are as many as the experts: with them a step takes about what full training takes (prime-rl: 7.92 and 8.17 s).
#[test]
fn adapters_of_experts_cost_little() {
    let of = |task: &str| {
        format!(
            "own,{task},qwen3-30b-a3b,48,2048,32,4,128,6144,151936,128,8,768,H100-80GB,8,1,1,1,1,1,1,8,,full,,1,16,16384,bf16,prime-rl 2026-01 flash_attention_3,iter_time,1,s,"
        )
    };
    let s = predicted(&[of("rl-trainer-full"), of("rl-trainer-lora16")]);
    assert!((0.75..1.2).contains(&(s[1] / s[0])), "{s:?}");
}

/// Published rows, if they are beside the project.
fn published() -> Option<Vec<Row>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/planner/validation_open.csv");
    let text = std::fs::read_to_string(path).ok()?;
    Some(read(&text).expect("a table"))
}

/// Published figures of runs that no table was fitted to, with their sources.
const ELSEWHERE: &str = include_str!("fixtures/published.csv");

/// Published runs that are far off, and why.
const FAR: &[(&str, &str)] = &[
    ("nanotron", "its stages wait for each other to say what shape comes"),
    ("AutoModel", "how often its adapted modules compute layers again is not stated"),
];

#[test]
fn runs_that_were_never_fitted() {
    let v = verdict(read(ELSEWHERE).expect("a table"));
    assert_eq!(v.not_said, 0, "{}", v.text(true));
    let mut errors: Vec<f64> = v.lines.iter().filter_map(|l| l.error).map(f64::abs).collect();
    errors.sort_by(f64::total_cmp);
    let at = |q: f64| errors[((errors.len() as f64 - 1.0) * q) as usize];
    // What the README says of them.
    assert_eq!(errors.len(), 68);
    assert!(at(0.5) <= 0.125 && at(0.9) <= 0.255, "{}", v.text(true));
    let far = v.lines.iter().filter(|l| l.error.is_some_and(|e| e.abs() > 0.45));
    for l in far {
        assert!(FAR.iter().any(|(s, _)| l.source.contains(s)), "{}", v.text(true));
    }
}

/// Where the rows of a publisher are left out, what they are predicted from does not know them.
#[test]
fn a_publisher_that_is_left_out_is_not_fitted() {
    let of = |source: &str, gpus: usize, seconds: f64| {
        format!(
            "{source} table {gpus},pretrain,gpt-x,24,2048,16,16,128,8192,51200,,,,A100,{gpus},1,1,1,1,1,{gpus},,,full,,2,{},1024,fp16,Megatron-DeepSpeed,iter_time,{seconds},s,",
            4 * gpus
        )
    };
    let rows = |odd: f64| {
        table(&[&of("one", 8, 1.0), &of("one", 16, 1.05), &of("two", 8, odd), &of("two", 16, odd)])
    };
    let says = |odd: f64| -> Vec<f64> {
        let v = Verdict::left_out(&Table::new(rows(odd)));
        v.lines.iter().filter_map(|l| l.predicted).collect()
    };
    let (a, b) = (says(1.0), says(3.0));
    // `two` is told by `one` alone, `one` by what `two` took.
    assert_eq!(a[2..], b[2..]);
    assert!(b[0] > 1.02 * a[0], "{a:?} {b:?}");
}

#[test]
fn published_rows() {
    let Some(rows) = published() else {
        println!("skipped: the published rows are not beside the project");
        return;
    };
    let v = verdict(rows);
    assert!(v.not_said * 12 < v.said, "{} predicted, {} not", v.said, v.not_said);
    let bytes = |m: &str| m.starts_with("peak") || m.starts_with("activation");
    let mut errors: Vec<f64> =
        v.lines.iter().filter(|l| bytes(&l.metric)).filter_map(|l| l.error).map(f64::abs).collect();
    errors.sort_by(f64::total_cmp);
    let at = |q: f64| errors[((errors.len() as f64 - 1.0) * q) as usize];
    assert!(at(0.5) <= 0.05 && at(0.9) <= 0.12, "memory: {:.3} and {:.3}", at(0.5), at(0.9));
    let hybrid = v.lines.iter().filter(|l| l.model.starts_with("nemotron-3"));
    let mut hybrids: Vec<f64> = hybrid.filter_map(|l| l.error).map(f64::abs).collect();
    hybrids.sort_by(f64::total_cmp);
    assert!(hybrids.len() >= 64, "{} rows of Nemotron 3 are said", hybrids.len());
    assert!(hybrids[hybrids.len() / 2] <= 0.16, "hybrids: {:?}", hybrids[hybrids.len() / 2]);
    for s in v.summaries.iter().filter(|s| s.rows >= 20 && s.is_time()) {
        assert!(s.median <= 0.08 && s.p90 <= 0.22, "{} {}: {s:?}", s.source, s.metric);
    }
    for (source, least) in [("ground_truth_multi", 0.85), ("ground_truth_single", 0.85)] {
        let s = v.summaries.iter().find(|s| s.source.contains(source)).expect("the source");
        assert!(s.ranking.is_some_and(|(share, _)| share >= least), "{s:?}");
    }
}

/// What one half of the runs of each source says of the other half, which nothing was fitted to.
#[test]
fn half_of_the_published_runs_says_the_other_half() {
    let Some(rows) = published() else {
        println!("skipped: the published rows are not beside the project");
        return;
    };
    let all = Table::new(rows.clone());
    let tables = calibrate::tables(&all, "half", &fit::half);
    let rest = Table::new(rows.into_iter().filter(|r| !fit::half(r)).collect());
    let v = Verdict::of(&rest, &tables);
    // Two runs of models that only the newest release has, and benchmarks of milliseconds.
    let apart = |source: &str| source.contains("summary.md") || source.contains("functional_tests");
    for s in v.summaries.iter().filter(|s| s.is_time() && !apart(&s.source)) {
        assert!(s.median <= 0.09 && s.p90 <= 0.2, "{} {}: {s:?}", s.source, s.metric);
    }
    let multi = v.summaries.iter().find(|s| s.source.contains("ground_truth_multi"));
    let ranking = multi.and_then(|s| s.ranking).expect("pairs of layouts");
    assert!(ranking.0 >= 0.87 && ranking.1 > 100, "{ranking:?}");
    // Of nine in ten the interval tells the truth.
    let within = v.lines.iter().filter_map(|l| Some(l.error?.abs() <= l.spread?));
    let within: Vec<bool> = within.collect();
    let share = within.iter().filter(|w| **w).count() as f64 / within.len() as f64;
    assert!(share >= 0.9, "{share} of {}", within.len());
}

/// A layer of experts alone: three products of the rows that even routing gives a rank, and no faster than the device.
#[test]
fn a_layer_of_experts_alone_takes_its_products_at_least() {
    let row = |case: &str, metric: &str, value: f64| {
        format!(
            "own,microbench,moe-layer:{case},,,,,,,,,,,H100,,1,,,,8,,,,,,,,,bf16,Megatron-Core MoE layer,{metric},{value},ms,"
        )
    };
    let v = verdict(table(&[
        &row("mixtral_a2a_tp1ep8_bf16", "layer_fwd_time", 4.3),
        &row("mixtral_a2a_tp1ep8_bf16", "layer_bwd_time", 7.7),
        &row("deepseek_a2a_tp1ep8_bf16", "layer_fwd_time", 7.1),
        &row("unheard_of", "layer_fwd_time", 1.0),
    ]));
    let says: Vec<Option<f64>> = v.lines.iter().map(|l| l.predicted).collect();
    // Rows of a rank: 4,096 tokens to two of eight experts; to eight of 32, and to the shared one.
    let floor = |rows: f64, d: f64, f: f64| 3.0 * 2.0 * rows * d * f / 989e12 * 1e3;
    let mixtral = floor(8192.0, 4096.0, 14336.0);
    let deepseek = floor(32768.0 + 4096.0, 7168.0, 2048.0);
    let near = |x: Option<f64>, floor: f64| x.is_some_and(|x| x > floor && x < 3.0 * floor);
    assert!(near(says[0], mixtral) && near(says[1], 2.0 * mixtral), "{says:?}, {mixtral}");
    assert!(near(says[2], deepseek), "{says:?}, {deepseek}");
    assert_eq!(says[3], None);
}
