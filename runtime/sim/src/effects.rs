//! Rates as a sum of effects: what a generation of devices, a kind of stack, a kernel, a family change.
//!
//! In: the labels of a stack on a device and the effects that were fitted (logarithms, by rate and label). Out: [`Rates`]. A label
//! without a fitted effect has the one that is known beforehand, or none, so a stack that was never measured gets
//! the rates of what it resembles.

use std::collections::BTreeMap;

use crate::rates::{HOST_ADAM, Rates};
use crate::style::{Label, Style, generation};

/// Effects by [`key`].
pub type Effects = BTreeMap<String, f64>;

/// A rate that effects move: its name, how to reach it, between what it stays.
pub struct Knob {
    pub name: &'static str,
    pub at: fn(&mut Rates) -> &mut f64,
    pub low: f64,
    pub high: f64,
}

const fn knob(name: &'static str, at: fn(&mut Rates) -> &mut f64, low: f64, high: f64) -> Knob {
    Knob { name, at, low, high }
}

/// All rates that effects move.
pub const KNOBS: &[Knob] = &[
    knob("product", |r| &mut r.product, 0.1, 1.0),
    knob("half", |r| &mut r.half, 2.0, 2000.0),
    knob("low", |r| &mut r.low, 0.05, 1.0),
    knob("attention", |r| &mut r.attention, 0.02, 1.0),
    knob("ring", |r| &mut r.ring, 0.2, 1.2),
    knob("scores", |r| &mut r.scores, 0.5, 80.0),
    knob("memory", |r| &mut r.memory, 0.03, 1.2),
    knob("launch", |r| &mut r.launch, 1e-7, 2e-4),
    knob("routing", |r| &mut r.routing, 1e-6, 0.1),
    knob("each", |r| &mut r.each, 1e-3, 10.0),
    knob("logits", |r| &mut r.logits, 1.0, 200.0),
    knob("link", |r| &mut r.link, 0.02, 1.0),
    knob("network", |r| &mut r.network, 0.02, 1.2),
    knob("ports", |r| &mut r.ports, 0.05, 1.0),
    knob("link_latency", |r| &mut r.link_latency, 1e-6, 1e-3),
    knob("network_latency", |r| &mut r.network_latency, 1e-6, 1e-3),
    knob("overlap", |r| &mut r.overlap, 0.01, 0.99),
    knob("handover", |r| &mut r.handover, 1e-6, 1e-2),
    knob("update", |r| &mut r.update, 0.1, 20.0),
    knob("offload", |r| &mut r.offload, 1e-10, 1e-8),
    knob("fixed", |r| &mut r.fixed, 1e-4, 3.0),
    knob("factor", |r| &mut r.factor, 0.1, 10.0),
];

/// Which rates a label of a class moves, and by how much one expects it to (standard deviation of the logarithm).
const MOVES: &[(&str, &[(&str, f64)])] = &[
    (
        "all",
        &[
            ("product", 0.15),
            ("half", 0.5),
            ("low", 0.3),
            ("attention", 0.3),
            ("scores", 0.5),
            ("memory", 0.35),
            ("launch", 0.6),
            ("routing", 1.0),
            ("link", 0.2),
            ("network", 0.3),
            ("ports", 0.3),
            ("link_latency", 0.7),
            ("network_latency", 0.7),
            ("overlap", 0.6),
            ("handover", 1.0),
            ("update", 0.6),
            ("fixed", 1.0),
        ],
    ),
    (
        "generation",
        &[
            ("product", 0.06),
            ("half", 0.2),
            ("memory", 0.14),
            ("link", 0.08),
            ("network", 0.12),
            ("low", 0.12),
        ],
    ),
    (
        "kind",
        &[
            ("memory", 0.25),
            ("launch", 0.42),
            ("overlap", 0.42),
            ("update", 0.42),
            ("fixed", 0.7),
            ("routing", 0.7),
            ("ring", 0.2),
        ],
    ),
    ("attention", &[("attention", 0.3)]),
    ("host", &[("launch", 0.5)]),
    ("device", &[("product", 0.08)]),
    (
        "family",
        &[
            ("factor", 0.2),
            ("product", 0.1),
            ("memory", 0.3),
            ("launch", 0.4),
            ("overlap", 0.5),
            ("fixed", 0.7),
            ("attention", 0.15),
            ("half", 0.4),
            ("link", 0.15),
            ("network", 0.2),
            ("update", 0.4),
            ("handover", 0.7),
            ("routing", 0.5),
            ("ports", 0.2),
            ("link_latency", 0.5),
            ("network_latency", 0.5),
            ("scores", 0.3),
            ("low", 0.15),
        ],
    ),
    (
        "family on device",
        &[
            ("product", 0.06),
            ("memory", 0.15),
            ("attention", 0.12),
            ("link", 0.1),
            ("network", 0.15),
            ("launch", 0.2),
            ("overlap", 0.2),
            ("half", 0.2),
        ],
    ),
];

/// What a mark moves.
const MARKS: &[(&str, &[(&str, f64)])] = &[
    ("rl", &[("logits", 0.7)]),
    ("loop", &[("each", 1.0)]),
    ("host", &[("offload", 0.3)]),
    ("500w", &[("product", 0.15), ("memory", 0.1), ("attention", 0.1)]),
    (
        "burst",
        &[
            ("factor", 0.3),
            ("product", 0.2),
            ("half", 0.4),
            ("memory", 0.3),
            ("routing", 0.7),
            ("attention", 0.2),
        ],
    ),
    ("fp32", &[("product", 0.3), ("attention", 0.3), ("memory", 0.1)]),
];

/// Effects that are known beforehand: causal attention by kernel (papers of FlashAttention 1 to 3: shares of 312, 989 and
/// 2250 TFLOP/s over long contexts, forward and backward), operations that eager modules do not fuse, hosts of Grace with few
/// launches under CUDA graphs, 2.4 TB/s of HBM2e, products in TF32. For the milliseconds of a benchmark of one layer
/// power limits no clock: an H100 runs at 1,980 MHz, where its 989 TFLOP/s are those of 1,755, and products reach 85 % of that for the usual 70.
/// Modules that pass keys and values around a ring compute a part at a time and merge what it gives. Devices on PCIe cards have fewer
/// watts per FLOP/s than those on boards of servers.
const KNOWN: &[(&str, &str, f64)] = &[
    ("product", "ampere", 0.03),
    ("product", "hopper", -0.05),
    ("product", "blackwell", -0.05),
    ("product", "500w", -0.2),
    ("attention", "500w", -0.2),
    ("memory", "500w", -0.33),
    ("product", "burst", 0.3),
    ("product", "fp32", -0.69),
    ("attention", "fp32", -0.69),
    ("memory", "fp32", -0.69),
    ("product", "A100-PCIe", -0.14),
    ("product", "H100-PCIe", -0.2),
    ("product", "H100-NVL", -0.2),
    ("product", "GH200", -0.05),
    ("product", "L40S", -0.14),
    ("product", "L4", -0.38),
    ("ring", "modules", -0.35),
    ("ring", "compiled", -0.35),
    ("ring", "eager", -0.35),
    ("memory", "eager", -0.8),
    ("memory", "compiled", -0.2),
    ("launch", "fused", 0.5),
    ("launch", "grace", -0.7),
    ("logits", "rl", 2.48),
    ("each", "loop", -0.51),
    ("attention", "scores on ampere", 0.105),
    ("attention", "scores on hopper", -0.2),
    ("attention", "blocks on volta", -0.59),
    ("attention", "fa2 on ada", 0.2),
    ("attention", "triton on ada", -0.223),
    ("attention", "triton on ampere", -0.223),
    ("attention", "triton on hopper", -0.716),
    ("attention", "fa2 on ampere", 0.288),
    ("attention", "fa2 on hopper", -0.196),
    ("attention", "fa2 on blackwell", -0.973),
    ("attention", "new on hopper", 0.254),
    ("attention", "new on blackwell", 0.0645),
];

/// Watts of devices whose rate their power limits (data sheets), beside those that their generation is judged by.
const WATTS: &[(&str, f64)] = &[
    ("A6000", 300.0),
    ("A100", 400.0),
    ("H100", 700.0),
    ("B200", 1000.0),
    ("B300", 1100.0),
    ("GB200", 1200.0),
    ("GB300", 1400.0),
];

/// `memory of eager`.
pub fn key(rate: &str, label: &str) -> String {
    format!("{rate} of {label}")
}

/// The effect on a rate that is expected of a label before anything is fitted.
pub fn known(rate: &str, (class, label): &Label) -> f64 {
    if *class == "device" && rate == "product" {
        let watts = |d: &str| WATTS.iter().find(|(name, _)| *name == d).map(|(_, w)| *w);
        let usual = match generation(label) {
            "ampere" => 400.0,
            "hopper" => 700.0,
            _ => 1000.0,
        };
        if let Some(w) = watts(label) {
            return 0.5 * (w / usual).ln();
        }
    }
    KNOWN.iter().find(|(r, l, _)| *r == rate && l == label).map_or(0.0, |(.., x)| *x)
}

/// Rates that a label moves, as indices of [`KNOBS`], with the deviation that is expected.
pub fn moves((class, label): &Label) -> impl Iterator<Item = (usize, f64)> {
    let of = |table: &'static [(&'static str, &'static [(&'static str, f64)])], name: &str| {
        table.iter().find(|(n, _)| *n == name).map_or(&[][..], |(_, m)| *m)
    };
    let list = if *class == "mark" { of(MARKS, label) } else { of(MOVES, class) };
    list.iter().filter_map(|(rate, deviation)| {
        Some((KNOBS.iter().position(|k| k.name == *rate)?, *deviation))
    })
}

/// Rates before any effect; those that only some stacks have are none in the others.
pub fn base(style: &Style) -> Rates {
    let marked = |m: &str, x: f64| if style.marks.contains(&m) { x } else { 0.0 };
    Rates {
        product: 0.78,
        half: 120.0,
        low: 0.8,
        attention: 0.45,
        ring: 1.0,
        scores: if style.attention == "scores" { 8.0 } else { 0.0 },
        memory: 0.6,
        launch: 4e-5,
        routing: 4e-4,
        each: marked("loop", 1.0),
        logits: 1.0,
        link: 0.75,
        network: 0.7,
        ports: 0.75,
        link_latency: 1e-5,
        network_latency: 2e-5,
        overlap: 0.3,
        handover: 8e-5,
        update: 1.0,
        offload: marked("host", HOST_ADAM),
        fixed: 0.012,
        ..Rates::default()
    }
}

/// The rates of a stack on a device.
pub fn rates(style: &Style, effects: &Effects) -> Rates {
    let mut r = base(style);
    let mut sums = vec![0.0; KNOBS.len()];
    for label in style.labels() {
        for (k, _) in moves(&label) {
            let rate = KNOBS[k].name;
            let fitted = effects.get(&key(rate, &label.1)).copied();
            sums[k] += fitted.unwrap_or_else(|| known(rate, &label));
        }
    }
    moved(&mut r, &sums);
    r
}

/// Moves rates by logarithms, within their bounds; those that are none stay so.
pub fn moved(r: &mut Rates, by: &[f64]) {
    for (knob, x) in KNOBS.iter().zip(by) {
        let rate = (knob.at)(r);
        if *rate > 0.0 {
            *rate = (*rate * x.exp()).clamp(knob.low, knob.high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_was_never_measured_gets_what_it_resembles() {
        let of = |stack: &str, device: &str, e: &Effects| rates(&Style::of(stack, device), e);
        let none = Effects::new();
        let (eager, fused) = (of("verl", "H100", &none), of("nemo-rl", "H100", &none));
        assert!(eager.memory < 0.6 * fused.memory && eager.attention < fused.attention);
        let mut e = Effects::from([("memory of eager".to_string(), -1.0)]);
        let moved = of("verl", "H100", &e);
        assert!((moved.memory / (0.6 * (-1.0f64).exp()) - 1.0).abs() < 1e-9, "{moved:?}");
        assert_eq!(of("nemo-rl", "H100", &e), fused);
        e.insert("product of verl".to_string(), 9.0);
        assert_eq!(of("verl", "H100", &e).product, 1.0);
    }

    #[test]
    fn every_effect_names_a_rate() {
        let name = |n: &str| KNOBS.iter().any(|k| k.name == n);
        assert!(MOVES.iter().chain(MARKS).all(|(_, m)| m.iter().all(|(n, _)| name(n))));
        assert!(KNOWN.iter().all(|(n, ..)| name(n)));
    }
}
