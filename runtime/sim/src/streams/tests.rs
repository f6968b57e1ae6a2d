//! Laws of streams, and the closed form where it holds.

use super::*;

fn compute(seconds: f64) -> Stretch {
    Stretch { seconds, what: "computation", ..Stretch::EMPTY }
}

fn on(seconds: f64, link: Class) -> Stretch {
    Stretch { link, what: "all-reduce", ..compute(seconds) }
}

fn pass(stretches: Vec<Stretch>, gathers: [f64; 2], scatters: [f64; 2]) -> Pass {
    let mut own = Seconds::default();
    for s in &stretches {
        match s.link {
            Class::None => own.product += s.seconds,
            Class::Node => own.node += s.seconds,
            Class::Network => own.network += s.seconds,
        }
    }
    Pass { stretches, gathers, scatters, own }
}

/// What is left of traffic T beside work S where a share `o` can be hidden.
fn left(t: f64, s: f64, o: f64) -> f64 {
    f64::max(t - o * s, (1.0 - o) * t)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-9)
}

/// Numbers that look drawn, the same every time.
fn drawn(n: usize) -> Vec<f64> {
    let mut x = 12345u64;
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 11) as f64 / (1u64 << 53) as f64
        })
        .collect()
}

#[test]
fn a_layer_beside_the_next_one_s_weights_is_as_the_closed_form_says() {
    for (t, s) in [(1.0, 3.0), (3.0, 1.0), (2.0, 2.0), (0.1, 5.0), (7.0, 0.5)] {
        for o in [0.0, 0.2, 0.5, 0.9, 1.0] {
            let p = pass(vec![compute(s)], [t, 0.0], [0.0; 2]);
            let (n, more) = (seconds(&[(&p, 40)], o).sum(), seconds(&[(&p, 41)], o).sum());
            assert!(near(more - n, s + left(t, s, o)), "t {t} s {s} o {o}: {}", more - n);
            // The first layer's weights have nothing to hide behind, the last layer has none to hide.
            assert!(near(n, t + 39.0 * (s + left(t, s, o)) + s), "t {t} s {s} o {o}: {n}");
        }
    }
}

#[test]
fn gradients_behind_and_weights_ahead_add_up() {
    for (g, r, s, o) in [(1.0, 1.0, 5.0, 0.3), (2.0, 1.0, 1.0, 0.7), (0.5, 3.0, 3.0, 0.5)] {
        let p = pass(vec![compute(s)], [0.0, g], [0.0, r]);
        let more = seconds(&[(&p, 41)], o).sum() - seconds(&[(&p, 40)], o).sum();
        assert!(near(more, s + left(g + r, s, o)), "g {g} r {r} s {s} o {o}: {more}");
    }
}

#[test]
fn nothing_hidden_is_one_after_the_other_and_all_hidden_is_the_longer() {
    for x in drawn(300).chunks(3) {
        let (s, t, r) = (x[0] + 0.01, 2.0 * x[1], x[2]);
        let p = pass(vec![compute(s)], [0.0, t], [r, 0.0]);
        let n = 30.0;
        assert!(near(seconds(&[(&p, 30)], 0.0).sum(), n * (s + t + r)));
        let more = seconds(&[(&p, 31)], 1.0).sum() - seconds(&[(&p, 30)], 1.0).sum();
        assert!(near(more, s.max(t + r)), "{s} {t} {r}: {more}");
        assert!(near(behind([t, 0.0], &p.own, 0.0), t));
        assert!(near(behind([t, 0.0], &p.own, 1.0), (t - s).max(0.0)));
    }
}

#[test]
fn layers_that_are_left_out_take_what_those_like_them_take() {
    let mut exact = 0;
    for x in drawn(400).chunks(8) {
        let stretches = vec![
            Stretch { launch: 0.5 * x[0], ..compute(x[1]) },
            Stretch { launch: 0.1, reads: 0.3 * x[7], ..on(x[2], Class::Node) },
            Stretch { launch: x[3], ..compute(x[4]) },
        ];
        let a = pass(stretches, [x[5], x[6]], [0.0, x[7]]);
        let b = pass(vec![Stretch { launch: 0.2, ..compute(x[6]) }], [x[1], 0.0], [x[2], x[3]]);
        let short = seconds(&[(&b, 1), (&a, 25), (&b, 13)], 0.4);
        let mut each = vec![(&b, 1)];
        each.extend(std::iter::repeat_n((&a, 1), 25));
        each.extend(std::iter::repeat_n((&b, 1), 13));
        let long = seconds(&each, 0.4);
        // A layer may take turns with more than one other in being held up.
        assert!((short.sum() / long.sum() - 1.0).abs() < 0.02, "{short:?} {long:?}");
        exact += usize::from(near(short.sum(), long.sum()) && near(short.network, long.network));
    }
    assert!(exact >= 45, "{exact} of 50");
}

#[test]
fn no_stream_does_two_things_at_once_and_parts_sum_to_the_whole() {
    for x in drawn(300).chunks(6) {
        let stretches = vec![
            Stretch { launch: 0.3 * x[5], ..compute(x[0]) },
            Stretch { reads: 0.2, exchange: true, ..on(x[1], Class::Network) },
            compute(x[2]),
        ];
        let p = pass(stretches, [x[3], 0.0], [0.0, x[4]]);
        let rows = Rows::of(&[(&p, 4)]);
        let mut all = vec![];
        let took = rows.run(x[5], &mut |r| all.push(r));
        let end = all.iter().map(|r| r.end).fold(0.0, f64::max);
        assert!(near(took.sum(), end), "{took:?} {end}");
        assert!(near(took.product, 4.0 * (x[0] + x[2])));
        assert!(took.network >= 4.0 * x[1] - 1e-9 && took.launch >= 0.0);
        for stream in [Stream::Compute, Stream::Exchange, Stream::Weights, Stream::Host] {
            let mut own: Vec<_> = all.iter().filter(|r| r.stream == stream).collect();
            own.sort_by(|a, b| a.start.total_cmp(&b.start));
            assert!(own.windows(2).all(|w| w[0].end <= w[1].start + 1e-9), "{stream:?}: {own:?}");
        }
    }
}

#[test]
fn faster_links_never_make_it_slower() {
    for x in drawn(700).chunks(7) {
        let of = |wire: f64| {
            let stretches = vec![
                Stretch { launch: 0.2 * x[5], ..compute(x[0]) },
                Stretch { reads: 0.1 * x[6], ..on(x[1] * wire, Class::Network) },
                Stretch { launch: x[6], ..compute(x[2]) },
            ];
            let p = pass(stretches, [0.0, x[3] * wire], [0.0, x[4] * wire]);
            seconds(&[(&p, 20)], x[5]).sum()
        };
        let mut last = f64::INFINITY;
        for wire in [2.0, 1.5, 1.0, 0.7, 0.5, 0.2, 0.01] {
            let now = of(wire);
            assert!(now <= last * (1.0 + 1e-9), "{x:?} at {wire}: {now} after {last}");
            last = now;
        }
    }
}

#[test]
fn collectives_over_the_same_links_share_them() {
    // An all-to-all of 2 s beside weights of 2 s: over one network 4 s, over two kinds of links, all hidden, 2 s.
    let hidden = |link| {
        let p = pass(vec![on(2.0, Class::Network)], [0.0; 2], [0.0; 2]);
        let sent = if link == Class::Node { [2.0, 0.0] } else { [0.0, 2.0] };
        behind(sent, &p.own, 1.0)
    };
    assert!(near(hidden(Class::Network), 2.0) && near(hidden(Class::Node), 0.0));
    // With as much computation around it, half of the traffic travels beside that: 2 s of all-to-all share with what is left.
    let p = pass(vec![compute(2.0), on(2.0, Class::Network)], [0.0; 2], [0.0; 2]);
    let some = behind([0.0, 2.0], &p.own, 1.0);
    assert!(some > 0.0 && some < 2.0, "{some}");
}

#[test]
fn the_host_runs_ahead_and_waits_where_sizes_are_read() {
    // Launches of 1 s for 2 s of computation are hidden; of 3 s they set the pace.
    let of = |launch| pass(vec![Stretch { launch, ..compute(2.0) }], [0.0; 2], [0.0; 2]);
    assert!(near(seconds(&[(&of(1.0), 10)], 0.5).sum(), 20.0));
    assert!(near(seconds(&[(&of(3.0), 10)], 0.5).sum(), 30.0));
    // 1 s of reading after 2 s of computation, then 2 s more whose launches take 0.5 s: 5 s a layer.
    let read = Stretch { reads: 1.0, launch: 0.5, ..compute(2.0) };
    let p = pass(vec![Stretch { launch: 0.5, ..compute(2.0) }, read], [0.0; 2], [0.0; 2]);
    let took = seconds(&[(&p, 10)], 0.5);
    assert!(near(took.sum(), 50.0) && near(took.launch, 10.0), "{took:?}");
}

#[test]
fn micro_batches_compute_in_turn_while_the_other_exchanges() {
    let of = |c: f64, x: f64| {
        let exchange = Stretch { exchange: true, ..on(x, Class::Network) };
        pass(vec![compute(c), exchange], [0.0; 2], [0.0; 2])
    };
    // 2 s and 4 s of computation hide 1 s and 2 s of exchange; where 20 of 132 multiprocessors send, they take that much longer.
    let took = paired(&of(2.0, 1.0), &of(4.0, 2.0), 1.0);
    assert!(near(took.sum(), 6.0) && near(took.product, 6.0), "{took:?}");
    let sum = paired(&of(2.0, 1.0), &of(4.0, 2.0), 0.0).sum();
    assert!(near(sum, 6.0 + 3.0 * 20.0 / 132.0), "{sum}");
    // More to exchange than to compute: the network sets the pace.
    let took = paired(&of(1.0, 3.0), &of(1.0, 3.0), 1.0);
    assert!(near(took.sum(), 6.0) && near(took.network, 4.0), "{took:?}");
}

#[test]
fn on_a_machine_without_a_rate_nothing_waits_for_ever() {
    for never in [f64::INFINITY, f64::NAN] {
        let p = pass(vec![compute(1.0), on(never, Class::Network)], [0.0, never], [0.0; 2]);
        assert!(!seconds(&[(&p, 10)], 0.5).sum().is_finite(), "{never}");
        assert!(!paired(&p, &p, 0.5).sum().is_finite(), "{never}");
        assert!(!behind([0.0, never], &p.own, 0.5).is_finite(), "{never}");
    }
}
