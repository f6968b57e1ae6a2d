//! How long samples are, before any of them exists.
//!
//! In: a law of lengths, in tokens. Out: one length per sample, the same ones at every call: samples stand
//! on the quantiles of the law and are dealt in a fixed shuffled order, so a prediction never changes with a
//! seed. Samples of one prompt are alike, since hard prompts have long answers; that decides which replica
//! is the slowest.

use serde::Serialize;

/// How lengths are distributed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Lengths {
    /// All the same.
    Fixed(f64),
    /// Lognormal before the cap, as `assume lengths = lognormal(mean: .., p99: ..)` states it.
    Lognormal { mean: f64, p99: f64 },
    /// Lognormal with this mean after the cap: what a log of a run reports. `sigma` is that of the logarithm. A
    /// share of samples are `endless`: they repeat themselves up to the cap.
    Capped { mean: f64, sigma: f64, endless: f64 },
    /// Anything between, equally likely.
    Uniform { low: f64, high: f64 },
    /// As earlier samples were.
    Measured(Vec<u32>),
}

/// Share of the variance of log lengths that samples of one prompt have in common, where nothing else is
/// known. Fitted on generation times of NeMo RL's published runs, whose replicas get whole prompts.
pub const ALIKE: f64 = 0.2;

impl Lengths {
    /// Lengths of `prompts` times `group` samples, those of a prompt next to each other; none above `cap`,
    /// none below one token. Samples of a prompt share `alike` of the variance of the logarithm.
    pub fn draw(&self, prompts: usize, group: usize, cap: u32, alike: f64) -> Vec<u32> {
        let n = prompts * group;
        if n == 0 {
            return vec![];
        }
        let top = f64::from(cap.max(1));
        let whole = |x: f64| x.round().clamp(1.0, top) as u32;
        match self {
            Lengths::Fixed(x) => vec![whole(*x); n],
            Lengths::Lognormal { mean, p99 } => {
                let sigma = sigma(*mean, *p99);
                let scale = mean * (-sigma * sigma / 2.0).exp();
                scores(prompts, group, alike)
                    .iter()
                    .map(|z| whole(scale * (sigma * z).exp()))
                    .collect()
            }
            Lengths::Capped { mean, sigma, endless } => {
                let mut raw: Vec<f64> =
                    scores(prompts, group, alike).iter().map(|z| (sigma * z).exp()).collect();
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by(|a, b| raw[*b].total_cmp(&raw[*a]));
                let loops = (endless.clamp(0.0, 1.0) * n as f64).round() as usize;
                order[..loops.min(n - 1)].iter().for_each(|i| raw[*i] = 1e9);
                let scale = scale_to(&raw, mean.min(top), top);
                raw.iter().map(|x| whole(scale * x)).collect()
            }
            Lengths::Uniform { low, high } => {
                let of = |z: &f64| low + (high - low) * cumulative(*z);
                scores(prompts, group, alike).iter().map(|z| whole(of(z))).collect()
            }
            Lengths::Measured(all) => {
                let mut sorted = all.clone();
                sorted.sort_unstable();
                let at = |z: &f64| {
                    let i = (cumulative(*z) * sorted.len() as f64) as usize;
                    sorted.get(i.min(sorted.len().saturating_sub(1))).copied().unwrap_or(1)
                };
                scores(prompts, group, alike).iter().map(|z| at(z).clamp(1, cap.max(1))).collect()
            }
        }
    }
}

/// Standard deviation of the logarithm of a lognormal with this mean and 99th percentile. A law
/// whose tail is heavier than any lognormal's gets the heaviest.
pub fn sigma(mean: f64, p99: f64) -> f64 {
    // mean = exp(mu + s^2 / 2) and p99 = exp(mu + z s) give s^2 / 2 - z s + ln(p99 / mean) = 0.
    let z = 2.326_347_874;
    z - (z * z - 2.0 * (p99 / mean).max(1.0).ln()).max(0.0).sqrt()
}

/// The factor that gives `raw` the mean `want` once values above `top` are cut to it.
fn scale_to(raw: &[f64], want: f64, top: f64) -> f64 {
    let mut sorted = raw.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut below = vec![0.0];
    for x in &sorted {
        below.push(below[below.len() - 1] + x);
    }
    let n = sorted.len() as f64;
    let mean = |s: f64| {
        let k = sorted.partition_point(|x| s * x < top);
        (s * below[k] + (n - k as f64) * top) / n
    };
    let (mut low, mut high) = (0.0, top / sorted[0]);
    for _ in 0..60 {
        let mid = (low + high) / 2.0;
        if mean(mid) < want { low = mid } else { high = mid }
    }
    (low + high) / 2.0
}

/// Normal scores of every sample: one part that the samples of a prompt share, one of its own.
fn scores(prompts: usize, group: usize, alike: f64) -> Vec<f64> {
    let shared = if group > 1 && prompts > 1 { alike.clamp(0.0, 1.0) } else { 0.0 };
    let own = 1.0 - shared;
    if shared == 0.0 {
        let n = prompts * group;
        return shuffled(n, 0).into_iter().map(|i| score(i, n)).collect();
    }
    let hard = shuffled(prompts, 0);
    let mut all = Vec::with_capacity(prompts * group);
    for (p, h) in hard.iter().enumerate() {
        let base = shared.sqrt() * score(*h, prompts);
        for i in shuffled(group, p as u64 + 1) {
            all.push(base + own.sqrt() * score(i, group));
        }
    }
    all
}

fn score(i: usize, n: usize) -> f64 {
    quantile((i as f64 + 0.5) / n as f64)
}

/// 0..n in an order that depends on n and `key` alone (SplitMix64, Fisher and Yates).
pub(crate) fn shuffled(n: usize, key: u64) -> Vec<usize> {
    let mut state = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n as u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, (next() % (i as u64 + 1)) as usize);
    }
    order
}

/// Share of a standard normal below `z` (Abramowitz and Stegun 26.2.17, error below 1e-7).
fn cumulative(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly;
    if z >= 0.0 { 1.0 - tail } else { tail }
}

/// Where a standard normal has the share `p` below (Abramowitz and Stegun 26.2.23, then one
/// Newton step on [`cumulative`]).
fn quantile(p: f64) -> f64 {
    let q = p.min(1.0 - p);
    let t = (-2.0 * q.ln()).sqrt();
    let z = t
        - (2.515_517 + t * (0.802_853 + t * 0.010_328))
            / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)));
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let z = z + (1.0 - cumulative(z) - q) / density;
    if p < 0.5 { -z } else { z }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of the normal distribution.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (p, z) in [(0.5, 0.0), (0.975, 1.959_964), (0.99, 2.326_348), (0.001, -3.090_232)] {
            assert!((quantile(p) - z).abs() < 1e-4, "{p}: {}", quantile(p));
        }
    }

    /// p99 / mean = exp(2.3263 s - s^2 / 2); s = 1 gives 6.211.
    #[test]
    fn sigma_follows_from_mean_and_p99() {
        assert!((sigma(100.0, 621.1) - 1.0).abs() < 1e-3);
        assert_eq!(sigma(100.0, 100.0), 0.0);
    }

    #[test]
    fn a_law_keeps_its_mean_and_its_tail() {
        let all = Lengths::Lognormal { mean: 700.0, p99: 2400.0 }.draw(64, 32, 100_000, ALIKE);
        let mean = all.iter().map(|l| f64::from(*l)).sum::<f64>() / 2048.0;
        assert!((mean / 700.0 - 1.0).abs() < 0.03, "{mean}");
        let long = all.iter().filter(|l| **l > 2400).count();
        assert!((10..=32).contains(&long), "{long} of 2048 above p99");
        let capped =
            Lengths::Capped { mean: 3200.0, sigma: 0.6, endless: 0.01 }.draw(64, 32, 3986, ALIKE);
        let mean = capped.iter().map(|l| f64::from(*l)).sum::<f64>() / 2048.0;
        assert!((mean - 3200.0).abs() < 1.0, "{mean}");
        assert_eq!(capped.iter().max(), Some(&3986));
        let endless = Lengths::Capped { mean: 700.0, sigma: 0.2, endless: 0.01 };
        let all = endless.draw(64, 32, 30_000, ALIKE);
        assert_eq!(all.iter().filter(|l| **l == 30_000).count(), 20);
        let mean = all.iter().map(|l| f64::from(*l)).sum::<f64>() / 2048.0;
        assert!((mean - 700.0).abs() < 1.0, "{mean}");
    }

    #[test]
    fn measured_lengths_come_back() {
        let all = Lengths::Measured(vec![10, 20, 30, 40]).draw(1, 400, 35, ALIKE);
        for (length, want) in [(10, 100), (20, 100), (30, 100), (35, 100)] {
            let found = all.iter().filter(|l| **l == length).count();
            assert!(usize::abs_diff(found, want) <= 1, "{found} of length {length}");
        }
    }

    #[test]
    fn no_samples_have_no_lengths() {
        assert!(Lengths::Fixed(5.0).draw(0, 8, 10, ALIKE).is_empty());
        assert_eq!(Lengths::Fixed(50.0).draw(1, 2, 10, ALIKE), [10, 10]);
    }
}
