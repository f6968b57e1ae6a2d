//! What an update takes, by what it is spent on, from work that is written by hand.

use super::*;
use crate::machine::Machine;

fn item(kind: Kind) -> Item {
    Item { kind, count: 1.0 }
}

fn product() -> Item {
    item(Kind::Product { m: 4096.0, n: 4096.0, k: 4096.0, batch: 1.0 })
}

fn experts() -> Item {
    item(Kind::Product { m: 512.0, n: 2048.0, k: 4096.0, batch: 16.0 })
}

fn sent(kind: Collective, axis: &str, bytes: f64) -> Item {
    item(Kind::Collective { kind, axes: vec![axis.into()], bytes })
}

/// Layers with attention, experts behind an all-to-all, and weights that are gathered.
fn job(mesh: &[(&str, usize)], paired: bool) -> Job {
    let exchange = || sent(Collective::AllToAll, "ep", 3e8);
    let forward = vec![
        sent(Collective::GatherWeights, "fsdp", 4e8),
        product(),
        exchange(),
        experts(),
        exchange(),
        item(Kind::Memory { bytes: 1e8 }),
    ];
    let mut backward = forward.clone();
    backward.extend([product(), experts(), sent(Collective::ScatterGradients, "fsdp", 4e8)]);
    let ends = Region { forward: vec![product()], backward: vec![product(), product()] };
    let each = Region { forward, backward };
    let work = Work {
        before: ends.clone(),
        layers: vec![Layers { group: "layers".into(), count: 32, each }],
        after: ends,
        boundary: 1e7,
        paired,
    };
    let update = Update {
        sums: vec![Sum { axes: vec!["dp".into()], gradients: 2e9, weights: 1e9 }],
        state: 1e9,
        bytes: 16.0,
        on_host: 0.0,
    };
    let mesh = Mesh::new(mesh);
    Job { micro: 32, update: Some(update), ..Job::alone(work, mesh) }
}

fn machine() -> Machine {
    Machine {
        name: "H100".into(),
        flops: 989e12,
        bandwidth: 3.35e12,
        link: 450e9,
        network: 50e9,
        per_node: 8,
        ..Machine::default()
    }
}

fn took(job: &Job, machine: &Machine, rates: &Rates) -> Took {
    job.run(&Speed { machine, rates, compute: Compute::Bf16 })
}

const MESHES: &[&[(&str, usize)]] = &[
    &[("dp", 2), ("fsdp", 4), ("ep", 8)],
    &[("dp", 4), ("fsdp", 16), ("ep", 16)],
    &[("pp", 4), ("dp", 2), ("ep", 8)],
];

#[test]
fn parts_sum_to_the_whole() {
    for mesh in MESHES {
        for paired in [false, true] {
            let rates = Rates { routing: 1e-3, factor: 1.3, ..Rates::default() };
            let t = took(&job(mesh, paired), &machine(), &rates);
            let sum = t.forward.sum() + t.backward.sum() + t.bubble;
            let sum = sum + t.gradients + t.optimizer + t.fixed;
            assert!((sum / t.seconds - 1.0).abs() < 1e-9, "{mesh:?} {paired}: {sum} {t:?}");
            let all = [t.forward, t.backward]
                .map(|s| [s.product, s.attention, s.memory, s.launch, s.node, s.network]);
            assert!(all.iter().flatten().all(|x| *x >= 0.0), "{mesh:?} {paired}: {t:?}");
        }
    }
}

#[test]
fn more_bandwidth_never_makes_an_update_slower() {
    for mesh in MESHES {
        for paired in [false, true] {
            let of = |times: f64| {
                let slow = machine();
                let links = (slow.link * times, slow.network * times);
                let machine = Machine { link: links.0, network: links.1, ..slow };
                took(&job(mesh, paired), &machine, &Rates::default()).seconds
            };
            let all: Vec<f64> = [0.25, 0.5, 1.0, 2.0, 4.0].map(of).to_vec();
            assert!(all.windows(2).all(|w| w[1] <= w[0] * 1.0001), "{mesh:?} {paired}: {all:?}");
        }
    }
}

#[test]
fn micro_batches_side_by_side_hide_exchanges_behind_each_other() {
    let mesh = MESHES[2];
    let rates = Rates { overlap: 0.9, network_latency: 0.0, ..Rates::default() };
    let (alone, both) = (job(mesh, false), job(mesh, true));
    let (alone, both) = (took(&alone, &machine(), &rates), took(&both, &machine(), &rates));
    assert!(both.seconds < 0.9 * alone.seconds, "{both:?} {alone:?}");
    assert!((both.forward.product / alone.forward.product - 1.0).abs() < 1e-9);
    // Exchanges that send half as much are never slower.
    let half = Job { crossing: 0.5, ..job(&[("dp", 2), ("ep", 32)], false) };
    let whole = Job { crossing: 1.0, ..half.clone() };
    let (half, whole) = (took(&half, &machine(), &rates), took(&whole, &machine(), &rates));
    assert!((half.forward.network / whole.forward.network - 0.5).abs() < 0.02, "{half:?}");
}

#[test]
fn streams_of_a_layer_are_those_of_the_update() {
    let rates = Rates { factor: 1.2, ..Rates::default() };
    let machine = machine();
    let speed = Speed { machine: &machine, rates: &rates, compute: Compute::Bf16 };
    let job = job(MESHES[0], false);
    let layers = job.streams(&speed);
    assert_eq!(layers.iter().map(|l| l.backward).collect::<Vec<_>>(), [false, true]);
    for l in &layers {
        let end = l.tasks.iter().map(|t| t.end).fold(0.0, f64::max);
        assert!((end / l.seconds.sum() - 1.0).abs() < 1e-9, "{l:?}");
        assert!(l.tasks.iter().any(|t| t.what == "experts") && l.seconds.node > 0.0);
    }
    // 32 such layers are the update but for its ends.
    let t = job.run(&speed);
    let per_layer: f64 = layers.iter().map(|l| l.seconds.sum()).sum();
    let all = (t.forward.sum() + t.backward.sum()) / job.micro as f64;
    assert!(all > 31.5 * per_layer && all < 36.0 * per_layer, "{all} {per_layer}");
}
