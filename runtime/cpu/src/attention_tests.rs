use super::*;

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// The textbook formula in f64: outputs, log-sums, and the gradients for `d_o`.
struct Textbook {
    o: Vec<f64>,
    lse: Vec<f64>,
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
}

fn textbook(h: Heads, offsets: &[u32], q: &[f32], k: &[f32], v: &[f32], d_o: &[f32]) -> Textbook {
    let zeros = |x: &[f32]| vec![0.0; x.len()];
    let mut t = Textbook {
        o: zeros(q),
        lse: vec![0.0; q.len() / h.hd],
        dq: zeros(q),
        dk: zeros(k),
        dv: zeros(v),
    };
    let dot = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>()
    };
    let hd = h.hd;
    for w in offsets.windows(2) {
        let (from, to) = (w[0] as usize, w[1] as usize);
        for i in from..to {
            for head in 0..h.q {
                let qi = (i * h.q + head) * hd;
                let row = |j: usize| (j * h.kv + head / (h.q / h.kv)) * hd;
                let first = h.window.map_or(from, |w| (i + 1).saturating_sub(w).max(from));
                let scores: Vec<f64> = (first..=i)
                    .map(|j| f64::from(h.scale) * dot(&q[qi..qi + hd], &k[row(j)..row(j) + hd]))
                    .collect();
                let top = scores.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                t.lse[i * h.q + head] = top + sum.ln();
                let p: Vec<f64> = scores.iter().map(|s| (s - top).exp() / sum).collect();
                let dp: Vec<f64> =
                    (first..=i).map(|j| dot(&d_o[qi..qi + hd], &v[row(j)..row(j) + hd])).collect();
                let mean: f64 = p.iter().zip(&dp).map(|(a, b)| a * b).sum();
                for (x, j) in (first..=i).enumerate() {
                    let ds = p[x] * (dp[x] - mean) * f64::from(h.scale);
                    for c in 0..hd {
                        t.o[qi + c] += p[x] * f64::from(v[row(j) + c]);
                        t.dv[row(j) + c] += p[x] * f64::from(d_o[qi + c]);
                        t.dq[qi + c] += ds * f64::from(k[row(j) + c]);
                        t.dk[row(j) + c] += ds * f64::from(q[qi + c]);
                    }
                }
            }
        }
    }
    t
}

fn close(got: &[f32], want: &[f64], what: &str) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() < 2e-5 * (1.0 + w.abs()), "{what}[{i}]: {g} for {w}");
    }
}

const CASES: [(Heads, &[u32]); 5] = [
    (Heads { q: 4, kv: 4, hd: 24, scale: 0.2, window: None }, &[0, 12, 12, 24, 25, 60]),
    (Heads { q: 9, kv: 3, hd: 64, scale: 0.125, window: None }, &[0, 300, 310]),
    (Heads { q: 2, kv: 1, hd: 10, scale: 0.3, window: Some(5) }, &[0, 40, 41]),
    (Heads { q: 2, kv: 2, hd: 16, scale: 0.25, window: Some(130) }, &[0, 530]),
    (Heads { q: 1, kv: 1, hd: 3, scale: 1.0, window: Some(1) }, &[0, 7]),
];

#[test]
fn forward_and_backward_agree_with_the_textbook() {
    for (h, offsets) in CASES {
        let n = *offsets.last().unwrap() as usize;
        let (q, d_o) = (numbers(1, n * h.q * h.hd), numbers(2, n * h.q * h.hd));
        let (k, v) = (numbers(3, n * h.kv * h.hd), numbers(4, n * h.kv * h.hd));
        let want = textbook(h, offsets, &q, &k, &v, &d_o);
        let mut bits = vec![];
        for threads in [Threads::new(1), Threads::new(2)] {
            let nan = |x: &[f32]| vec![f32::NAN; x.len()];
            let (mut o, mut lse) = (nan(&q), vec![f32::NAN; n * h.q]);
            forward(&threads, h, offsets, [&q, &k, &v], None, &mut o, &mut lse);
            close(&o, &want.o, "o");
            close(&lse, &want.lse, "lse");
            let (mut dq, mut dk, mut dv) = (nan(&q), nan(&k), nan(&v));
            let saved = Saved { q: &q, k: &k, v: &v, o: &o, lse: &lse, d_o: &d_o };
            backward(&threads, h, offsets, &saved, &mut dq, &mut dk, &mut dv);
            close(&dq, &want.dq, "dq");
            close(&dk, &want.dk, "dk");
            close(&dv, &want.dv, "dv");
            bits.push([o, lse, dq, dk, dv]);
        }
        assert_eq!(bits[0], bits[1]);
    }
}

#[test]
fn packing_and_decoding_give_the_bits_of_one_sequence() {
    for ((h, offsets), sunk) in CASES.into_iter().flat_map(|c| [(c, false), (c, true)]) {
        let sinks = numbers(8, h.q);
        let sink = sunk.then_some(&sinks[..]);
        let n = offsets
            .iter()
            .copied()
            .zip(&offsets[1..])
            .map(|(a, b)| (b - a) as usize)
            .max()
            .unwrap();
        let threads = Threads::new(1);
        let q = numbers(5, n * h.q * h.hd);
        let (k, v) = (numbers(6, n * h.kv * h.hd), numbers(7, n * h.kv * h.hd));
        let whole = [0, n as u32];
        let (mut o, mut lse) = (vec![0.0; q.len()], vec![0.0; n * h.q]);
        forward(&threads, h, &whole, [&q, &k, &v], sink, &mut o, &mut lse);

        // Twice the sequence, packed.
        let twice = |x: &[f32]| [x, x].concat();
        let (mut o2, mut lse2) = (vec![0.0; 2 * q.len()], vec![0.0; 2 * n * h.q]);
        forward(
            &threads,
            h,
            &[0, n as u32, 2 * n as u32],
            [&twice(&q), &twice(&k), &twice(&v)],
            sink,
            &mut o2,
            &mut lse2,
        );
        assert_eq!(o2, twice(&o));

        // Prefill of a third, a chunk, then token by token, in slot 1 of 3.
        let (rq, rk) = (h.q * h.hd, h.kv * h.hd);
        let (mut keys, mut values) =
            (vec![f32::MAX; 3 * (n + 2) * rk], vec![f32::MAX; 3 * (n + 2) * rk]);
        let mut got = vec![0.0; q.len()];
        let (third, chunk) = (n / 3, n / 2);
        let mut steps = vec![(0, third), (third, chunk)];
        steps.extend((chunk..n).map(|i| (i, i + 1)));
        for (a, b) in steps {
            let c = Cached {
                offsets: &[0, (b - a) as u32],
                bases: &[a as u32],
                slots: &[1],
                context: n + 2,
            };
            let step = [&q[a * rq..b * rq], &k[a * rk..b * rk], &v[a * rk..b * rk]];
            cached(&threads, h, &c, step, sink, &mut keys, &mut values, &mut got[a * rq..b * rq]);
        }
        assert_eq!(got, o);
    }
}
