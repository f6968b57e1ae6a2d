//! Optimizers and schedules.

use crate::recipe::{Backend, Recipe, Role, Worker};
use crate::rule::{Findings, Rule, error, warning};
use crate::settings::Value;

const CODE: &str = "optimizer-options";

/// Rules of optimizers.
pub const RULES: &[Rule] = &[
    error("BACK-27", CODE, "a part of a schedule without a name", |r, f| {
        for w in r.workers.iter().filter(|w| w.is_torch()) {
            let path = w.at("scheduler");
            let parts = r.node(&path).map_or(0, |n| n.items().len());
            for i in 0..parts {
                let part = format!("{path}.{i}");
                if !r.has(&format!("{part}.name")) && !r.has(&format!("{part}.milestones")) {
                    f.at("a part of a schedule has a name, or milestones", &[&part])
                        .help("`name: torch.optim.lr_scheduler.LinearLR`");
                }
            }
        }
    }),
    error("BACK-28", CODE, "an optimizer that cannot be imported", |r, f| {
        for w in r.workers.iter().filter(|w| w.is_torch() && w.role != Role::Reward) {
            let path = w.at("optimizer.name");
            importable(f, r, &path);
            let parts = r.node(&w.at("scheduler")).map_or(0, |n| n.items().len());
            for i in 0..parts {
                importable(f, r, &w.at(&format!("scheduler.{i}.name")));
            }
        }
    }),
    warning("BACK-30", "setting-has-no-effect", "clipping that Megatron does not read", |r, f| {
        for w in megatron(r) {
            let (own, read) = (w.at("max_grad_norm"), w.cfg("optimizer.clip_grad"));
            let (a, b) = (r.num(&own), r.num(&read));
            if let (Some(a), Some(b)) = (a, b)
                && a.value != b.value
            {
                f.found(format!("Megatron clips at {}, not at {}", b.value, a.value), &[&a, &b])
                    .help(format!("`{read}: ${{{own}}}`"));
            }
        }
    }),
    error("BACK-41", CODE, "an optimizer on the CPU", |r, f| {
        for w in megatron(r) {
            let at = |name: &str| w.cfg(&format!("optimizer.{name}"));
            if !r.on(&at("optimizer_cpu_offload")) {
                continue;
            }
            if let Some(x) = r
                .num(&at("optimizer_offload_fraction"))
                .filter(|x| !(x.value > 0.0 && x.value <= 1.0))
            {
                f.found(
                    format!("a part of {} of the optimizer cannot be on the CPU", x.value),
                    &[&x],
                )
                .help(format!("`{}: 1.0`", x.name));
            }
            if r.off(&at("use_distributed_optimizer")) {
                f.at(
                    "an optimizer on the CPU is a distributed one",
                    &[&at("use_distributed_optimizer"), &at("optimizer_cpu_offload")],
                )
                .help(format!("`{}: true`", at("use_distributed_optimizer")));
            }
            let name = r.text(&at("optimizer"));
            if let Some(name) = name.filter(|n| n.value != "adam" && n.value != "sgd") {
                f.found(format!("{} cannot be on the CPU", name.value), &[&name])
                    .help(format!("`{}: adam`", name.name));
            }
        }
    }),
    error("BACK-42", CODE, "copies that overlap with nothing", |r, f| {
        for w in megatron(r) {
            let (path, on) = (
                w.cfg("optimizer.overlap_cpu_optimizer_d2h_h2d"),
                w.cfg("optimizer.optimizer_cpu_offload"),
            );
            if r.on(&path) && !r.on(&on) {
                f.at(
                    "copies to and from the CPU overlap only if the optimizer is there",
                    &[&path, &on],
                )
                .help(format!("`{path}: false`"));
            }
        }
    }),
    error("BACK-43", CODE, "Muon with options of Adam", |r, f| {
        for w in megatron(r).filter(|w| {
            r.text(&w.cfg("optimizer.optimizer")).is_some_and(|o| o.value.contains("muon"))
        }) {
            for path in [
                w.cfg("optimizer.use_precision_aware_optimizer"),
                w.cfg("optimizer.use_distributed_optimizer"),
                w.cfg("distributed_data_parallel_config.overlap_param_gather"),
            ] {
                if r.on(&path) {
                    f.at(
                        format!("Muon does not go with `{path}`"),
                        &[&path, &w.cfg("optimizer.optimizer")],
                    )
                    .help(format!("`{path}: false`"));
                }
            }
        }
    }),
    error("BACK-48", CODE, "a schedule that contradicts itself", schedule),
    error("PREC-13", CODE, "an optimizer of another precision", |r, f| {
        for w in megatron(r).filter(|w| r.on(&w.cfg("optimizer.use_precision_aware_optimizer"))) {
            let Some(precision) = &w.precision else { continue };
            // Both at once are another mistake.
            if r.on(&w.cfg("optimizer.bf16")) && r.on(&w.cfg("optimizer.fp16")) {
                continue;
            }
            for (flag, name) in [("bf16", "bfloat16"), ("fp16", "float16")] {
                let path = w.cfg(&format!("optimizer.{flag}"));
                let wanted = precision.value == name;
                if let Some(given) = r.flag(&path).filter(|g| g.value != wanted) {
                    f.found(
                        format!(
                            "the model is {} and the optimizer says {flag} = {}",
                            precision.value, given.value
                        ),
                        &[&given, precision],
                    )
                    .help(format!("`{path}: {wanted}`"));
                }
            }
        }
    }),
    error("PREC-14", "options-exclude-each-other", "two half precisions", |r, f| {
        for w in megatron(r) {
            let (a, b) = (w.cfg("optimizer.bf16"), w.cfg("optimizer.fp16"));
            if r.on(&a) && r.on(&b) {
                f.at("an optimizer is of bf16 or of fp16", &[&b, &a]).help(format!("`{b}: false`"));
            }
        }
    }),
    error("LOAD-14", "wrong-type", "a learning rate that is a text", |r, f| {
        for w in &r.workers {
            for section in [w.at("optimizer.kwargs"), w.at("megatron_cfg.optimizer")] {
                for name in [
                    "lr",
                    "min_lr",
                    "weight_decay",
                    "eps",
                    "momentum",
                    "adam_eps",
                    "adam_beta1",
                    "adam_beta2",
                    "clip_grad",
                ] {
                    let path = format!("{section}.{name}");
                    let text = r.node(&path).is_some_and(|n| matches!(n.value, Value::Text(_)));
                    if let Some(number) = r.num(&path).filter(|_| text) {
                        f.found(
                            format!("`{path}` is a text, and the optimizer needs a number"),
                            &[&number],
                        )
                        .help(format!("`{path}: {}` without quotes", number.value));
                    }
                }
                let rate = r.num(&format!("{section}.lr")).filter(|x| x.value < 0.0);
                if let Some(rate) = rate {
                    f.found(format!("a learning rate of {} would go uphill", rate.value), &[&rate])
                        .help("a number above 0");
                }
            }
        }
    }),
];

fn megatron(r: &Recipe) -> impl Iterator<Item = &Worker> {
    r.workers.iter().filter(|w| w.is(Backend::Megatron) && w.role != Role::Scorer)
}

/// A dotted path to a class; names of torch are checked.
fn importable(f: &mut Findings<'_>, r: &Recipe, path: &str) {
    const KNOWN: &[&str] = &[
        "torch.optim.AdamW",
        "torch.optim.Adam",
        "torch.optim.SGD",
        "torch.optim.Adafactor",
        "torch.optim.RMSprop",
        "torch.optim.Muon",
        "torch.optim.Adagrad",
        "torch.optim.Adadelta",
        "torch.optim.NAdam",
        "torch.optim.RAdam",
        "torch.optim.Adamax",
        "torch.optim.LBFGS",
        "torch.optim.ASGD",
        "torch.optim.Rprop",
        "torch.optim.SparseAdam",
        "torch.optim.lr_scheduler.LinearLR",
        "torch.optim.lr_scheduler.ConstantLR",
        "torch.optim.lr_scheduler.CosineAnnealingLR",
        "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts",
        "torch.optim.lr_scheduler.ExponentialLR",
        "torch.optim.lr_scheduler.PolynomialLR",
        "torch.optim.lr_scheduler.StepLR",
        "torch.optim.lr_scheduler.MultiStepLR",
        "torch.optim.lr_scheduler.OneCycleLR",
        "torch.optim.lr_scheduler.LambdaLR",
        "torch.optim.lr_scheduler.CyclicLR",
        "torch.optim.lr_scheduler.ReduceLROnPlateau",
        "torch.optim.lr_scheduler.SequentialLR",
        "torch.optim.lr_scheduler.MultiplicativeLR",
    ];
    let Some(name) = r.text(path) else { return };
    let torch = name.value.starts_with("torch.optim.");
    if !name.value.contains('.') {
        f.found(format!("\"{}\" is no path to import a class from", name.value), &[&name])
            .help(format!("`{path}: torch.optim.AdamW`"));
    } else if torch && !KNOWN.contains(&name.value.as_str()) {
        let near = nrl_base::did_you_mean(&name.value, KNOWN.iter().copied());
        f.found(format!("torch has no `{}`", name.value), &[&name]).help_opt(near);
    }
}

fn schedule(r: &Recipe, f: &mut Findings<'_>) {
    for w in megatron(r) {
        let at = |name: &str| w.cfg(&format!("scheduler.{name}"));
        let (start, end) = (r.num(&at("start_weight_decay")), r.num(&at("end_weight_decay")));
        if let (Some(start), Some(end)) = (start, end)
            && end.value < start.value
        {
            f.found(
                format!("weight decay cannot fall from {} to {}", start.value, end.value),
                &[&end, &start],
            )
            .help(format!("`{}: {}` or more", end.name, start.value));
        }
        if r.has(&at("lr_warmup_fraction"))
            && r.int(&at("lr_warmup_iters")).is_some_and(|n| n.value > 0)
        {
            f.at(
                "a warm-up is given as a part and as a number",
                &[&at("lr_warmup_fraction"), &at("lr_warmup_iters")],
            )
            .help(format!("`{}: null`", at("lr_warmup_fraction")));
        }
        let iters = ["lr_decay_iters", "lr_warmup_iters", "lr_wsd_decay_iters"].map(&at);
        let samples = ["lr_decay_samples", "lr_warmup_samples", "lr_wsd_decay_samples"].map(&at);
        let one = iters.iter().find(|p| r.int(p).is_some_and(|n| n.value > 0));
        let two = samples.iter().find(|p| r.int(p).is_some_and(|n| n.value > 0));
        if let (Some(one), Some(two)) = (one, two) {
            f.at("a schedule counts iterations or samples, not both", &[two, one])
                .help(format!("`{two}: null`"));
        }
        let (warm, decay) = (r.int(&at("lr_warmup_iters")), r.int(&at("lr_decay_iters")));
        if let (Some(warm), Some(decay)) = (warm, decay)
            && warm.value >= decay.value
        {
            f.found(
                format!(
                    "a warm-up of {} iterations does not end before the decay of {}",
                    warm.value, decay.value
                ),
                &[&warm, &decay],
            )
            .help(format!("`{}` below {}", warm.name, decay.value));
        }
    }
}
