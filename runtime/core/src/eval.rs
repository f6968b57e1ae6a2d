//! Numbers of an evaluation.
//!
//! In: scored samples, `copies` of each prompt. Out: accuracy (share of correct samples at the evaluation's own
//! sampling), pass@k, mean reward, length, shares of truncated and failed samples. pass@k is the unbiased estimate
//! 1 - C(n-c, k) / C(n, k) of Chen et al. 2021. Failed rewards are left out and counted.

use std::collections::BTreeMap;

use crate::reward::Scored;
use crate::rollout::batch::Batch;

/// Chance that at least one of `k` samples is correct, estimated from `c` correct ones of `n`.
pub fn pass_at_k(n: usize, c: usize, k: usize) -> f64 {
    if k > n {
        return f64::NAN;
    }
    if n - c < k {
        return 1.0;
    }
    1.0 - (n - c + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
}

/// The report of an evaluation; a sample is correct when its reward is at least `correct`.
pub fn report(
    batch: &Batch,
    scored: &Scored,
    copies: usize,
    correct: f64,
) -> BTreeMap<String, f64> {
    let (values, valid) = (&scored.values.data, &scored.valid.data);
    let scored_ok: Vec<usize> = (0..batch.samples.len()).filter(|i| valid[*i] > 0.0).collect();
    let is_correct = |i: usize| f64::from(values[i]) >= correct - 1e-6;
    let mean = |x: &dyn Fn(usize) -> f64, of: &[usize]| {
        of.iter().map(|i| x(*i)).fold(0.0, |a, b| a + b) / of.len().max(1) as f64
    };
    let all: Vec<usize> = (0..batch.samples.len()).collect();
    let mut out = BTreeMap::new();
    let mut put = |name: &str, x: f64| out.insert(name.to_owned(), x);
    put("accuracy", mean(&|i| f64::from(is_correct(i)), &scored_ok));
    put("reward", mean(&|i| f64::from(values[i]), &scored_ok));
    put("length", mean(&|i| batch.samples[i].ids.len() as f64, &all));
    put("truncated", mean(&|i| f64::from(!batch.samples[i].finished), &all));
    put("failed", mean(&|i| f64::from(valid[i] == 0.0), &all));
    put("samples", all.len() as f64);
    let groups: Vec<(usize, usize)> = batch
        .groups()
        .into_iter()
        .map(|g| {
            let ok: Vec<usize> = g.filter(|i| valid[*i] > 0.0).collect();
            (ok.len(), ok.iter().filter(|i| is_correct(**i)).count())
        })
        .collect();
    let at = |k: usize| {
        let enough: Vec<f64> =
            groups.iter().filter(|g| g.0 >= k).map(|(n, c)| pass_at_k(*n, *c, k)).collect();
        enough.iter().fold(0.0, |a, b| a + b) / enough.len().max(1) as f64
    };
    put("pass_at_k", at(copies));
    for k in (1..).map(|i| 1usize << i).take_while(|k| *k < copies) {
        put(&format!("pass_at_{k}"), at(k));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::value::tests::batch;
    use crate::run::value::{Level, Tensor};

    /// Trap 27.
    #[test]
    fn pass_at_k_is_unbiased() {
        // 1 - C(7, 2) / C(10, 2) = 1 - 21/45; 1 - C(5, 3) / C(6, 3) = 1 - 10/20.
        assert!((pass_at_k(10, 3, 2) - (1.0 - 21.0 / 45.0)).abs() < 1e-12);
        assert!((pass_at_k(6, 1, 3) - 0.5).abs() < 1e-12);
        assert_eq!(pass_at_k(4, 0, 4), 0.0);
        assert_eq!(pass_at_k(4, 1, 4), 1.0);
        assert!(pass_at_k(2, 1, 3).is_nan());
    }

    #[test]
    fn failed_samples_are_left_out_and_counted() {
        let mut b = batch(&[(1, &[2, 4]), (1, &[1, 1])]);
        b.samples[0].finished = true;
        let t = |x: Vec<f32>| Tensor::new(Level::Sample, x);
        let scored = Scored {
            values: t(vec![1.0, 0.5, 0.0, 0.0]),
            valid: t(vec![1.0, 1.0, 1.0, 0.0]),
            failed: 1,
            abstained: 0,
            reason: None,
        };
        let r = report(&b, &scored, 2, 1.0);
        assert!((r["accuracy"] - 1.0 / 3.0).abs() < 1e-12);
        assert!((r["reward"] - 0.5).abs() < 1e-12);
        assert_eq!((r["length"], r["truncated"], r["failed"]), (2.0, 0.75, 0.25));
        // The second prompt has one sample only, so it says nothing about two.
        assert_eq!(r["pass_at_k"], 1.0);
    }
}
