use super::*;

/// Ten bytes of weights at a thousand a second: a step takes 10 ms, whatever the batch.
fn shard() -> Shard {
    Shard { weight_bytes: 10.0, layers: 1.0, tp: 1, ..Shard::default() }
}

fn speed() -> Speed {
    Speed {
        weights: 1e3,
        experts: 1e3,
        kv: 1e3,
        flops: 1e3,
        expert_flops: 1e3,
        reduction: (0.0, 1e3),
        layer: 0.0,
        expert_layer: 0.0,
        step: 0.0,
        sequence: 0.0,
    }
}

fn serving(pool: f64, sequences: usize) -> Serving {
    Serving { pool, sequences, chunk: 8192.0, pace: 1.0, computed: 1.0, shared_prompts: false }
}

fn load(lengths: &[u32], replicas: usize) -> Load<'_> {
    Load { lengths, group: 1, prompt: 10.0, replicas, whole_prompts: true }
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() < 1e-9 * want.abs().max(1.0), "{got}, not {want}");
}

#[test]
fn equal_samples_take_steps_times_step_time() {
    let g = generate(&shard(), &speed(), &serving(1e6, 64), &load(&[100; 4], 1)).unwrap();
    near(g.seconds, 1.0);
    near(g.tokens_per_second, 400.0);
    near(g.mean_batch, 4.0);
    assert_eq!(g.preemptions, 0);
    assert_eq!(g.done, [g.seconds; 3]);
}

#[test]
fn half_of_the_sequences_at_once_take_two_waves() {
    let g = generate(&shard(), &speed(), &serving(1e6, 2), &load(&[100; 4], 1)).unwrap();
    near(g.seconds, 2.0);
    near(g.done[0], 1.0);
}

/// Four samples hold 18 tokens each and grow by one a step: 240 tokens are full after 42 steps, with three
/// left after 62; two end after 100. The third has 38 steps to go then, the fourth 58.
#[test]
fn a_full_pool_pushes_out_what_came_last() {
    let g = generate(&shard(), &speed(), &serving(240.0, 64), &load(&[100; 4], 1)).unwrap();
    assert_eq!(g.preemptions, 2);
    near(g.steps, 158.0);
    near(g.seconds, 1.58);
    near(g.kv_peak, 240.0);
}

/// Two sequences read 20, 22 and 24 tokens: 66 bytes at a thousand a second, beside three reads of the weights.
#[test]
fn keys_and_values_are_read_up_to_where_the_sequence_is() {
    let shard = Shard { kv_bytes: 1.0, ..shard() };
    let g = generate(&shard, &speed(), &serving(1e6, 64), &load(&[3; 2], 1)).unwrap();
    near(g.seconds, 0.066 + 0.03);
}

/// Ten prompt tokens of two FLOPs at a thousand a second are 20 ms per sample, of which reading the weights hides 10.
#[test]
fn prompts_are_computed_once_where_they_are_shared() {
    let shard = Shard { flops: 2.0, ..shard() };
    let mut s = serving(1e6, 64);
    let of = |s: &Serving| {
        let l = Load { group: 4, ..load(&[1; 4], 1) };
        let g = generate(&shard, &speed(), s, &l).unwrap();
        g.shares[0] * g.seconds
    };
    near(of(&s), 0.07);
    s.shared_prompts = true;
    near(of(&s), 0.01);
}

/// With 2 of 4 experts a token, one token reads a half, two read three quarters.
#[test]
fn a_batch_reads_the_experts_that_it_visits() {
    let shard =
        Shard { expert_bytes: 8.0, experts: Some((4.0, 2.0)), weight_bytes: 0.0, ..shard() };
    let s = serving(1e6, 64);
    near(shard.step(&speed(), &s, 1.0), 0.004);
    near(shard.step(&speed(), &s, 2.0), 0.006);
}

/// A ring over four ranks sends 2 * 3 / 4 of the bytes (Patarasuk and Yuan 2009).
#[test]
fn reductions_cost_latency_and_bytes() {
    let shard =
        Shard { reductions: 2.0, reduction_bytes: 4.0, tp: 4, weight_bytes: 0.0, ..shard() };
    let speed = Speed { reduction: (0.001, 1e3), ..speed() };
    near(shard.step(&speed, &serving(1e6, 64), 1.0), 2.0 * (0.001 + 0.006));
}

#[test]
fn replicas_share_the_samples_and_wait_for_the_slowest() {
    let g = generate(&shard(), &speed(), &serving(1e6, 64), &load(&[50, 50, 100, 100], 2)).unwrap();
    near(g.seconds, 1.0);
    near(g.shares[2], 0.25);
    // Dealt one by one, each has a short and a long one.
    let l = Load { whole_prompts: false, ..load(&[50, 50, 100, 100], 2) };
    let g = generate(&shard(), &speed(), &serving(1e6, 64), &l).unwrap();
    near(g.shares[2], 0.0);
    near(g.mean_batch, 1.5);
}

#[test]
fn guessed_tokens_make_fewer_steps() {
    let s = Serving { pace: 2.0, computed: 2.0, ..serving(1e6, 64) };
    near(generate(&shard(), &speed(), &s, &load(&[100; 4], 1)).unwrap().seconds, 0.5);
}

#[test]
fn nothing_takes_no_time() {
    let g = generate(&shard(), &speed(), &serving(1e6, 64), &load(&[], 4)).unwrap();
    assert_eq!(g, Generated::default());
}

#[test]
fn a_sample_above_the_pool_is_refused() {
    let got = generate(&shard(), &speed(), &serving(100.0, 64), &load(&[50, 90], 1));
    assert_eq!(got, Err(Refused::TooLong { tokens: 108.0, pool: 100.0 }));
    let why = "a sample of 108 tokens, a replica keeps keys and values of 100";
    assert_eq!(got.unwrap_err().to_string(), why);
    assert_eq!(
        generate(&shard(), &speed(), &serving(1e6, 64), &load(&[50], 0)),
        Err(Refused::NoReplicas)
    );
}

fn beside(seconds: f64, delay: usize) -> Steady {
    let trainer = Trainer { seconds, hand_over: 0.1, delay, drain: false };
    steady(&shard(), &speed(), &serving(1e6, 64), &load(&[100; 4], 1), &trainer).unwrap()
}

/// A batch takes 1 s to generate.
#[test]
fn beside_each_other_the_slower_side_sets_the_pace() {
    near(beside(2.0, 0).period, 1.0 + 2.0 + 0.1);
    near(beside(2.0, 1).period, 2.0 + 0.1);
    near(beside(2.0, 1).trainer_waits, 0.0);
    let fast = beside(0.2, 1);
    // An update falls into a decode step of 10 ms, which ends first.
    assert!(
        (fast.period - 1.1).abs() < 0.01 && (fast.trainer_waits - 0.8).abs() < 0.01,
        "{fast:?}"
    );
}

/// Two batches at once share every step, so two are done each second.
#[test]
fn more_delay_fills_the_batch() {
    let two = beside(0.2, 2);
    near(two.mean_batch.round(), 8.0);
    assert!(two.period < 0.66, "{two:?}");
}

/// Alone at 10 ms a step the longest sample takes 3 s; the next batch begins beside it.
#[test]
fn a_long_sample_does_not_hold_up_the_next_batch() {
    let mut lengths = vec![100; 15];
    lengths.push(300);
    let of = |delay| {
        let trainer = Trainer { seconds: 0.5, hand_over: 0.0, delay, drain: false };
        let l = load(&lengths, 1);
        steady(&shard(), &speed(), &serving(1e6, 64), &l, &trainer).unwrap().period
    };
    near(of(0), 3.5);
    assert!(of(1) < 3.0, "{}", of(1));
}

#[test]
fn thousands_of_long_samples_take_milliseconds() {
    let lengths = crate::lengths::Lengths::Capped { mean: 5000.0, sigma: 0.8, endless: 0.0 }
        .draw(64, 32, 30_000, 0.2);
    let shard = Shard { kv_bytes: 1e-3, ..shard() };
    let l = Load { group: 32, ..load(&lengths, 16) };
    let best = (0..5).map(|_| {
        let start = std::time::Instant::now();
        let g = generate(&shard, &speed(), &serving(300_000.0, 1024), &l).unwrap();
        assert!(g.preemptions > 0 && g.seconds > 0.0);
        start.elapsed().as_secs_f64()
    });
    let best = best.fold(f64::INFINITY, f64::min);
    assert!(best < 0.02, "{best} s");
}
