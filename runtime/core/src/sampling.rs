//! Draws one token from a row of logits.
//!
//! In: a whole row of f32 logits (tokens that may not be drawn are -inf) and the [`Stream`] of the sample. Out: the
//! token, its log-probability and the entropy, both under the distribution that was sampled from. Draws are
//! Gumbel-max (Maddison et al. 2014), so they depend on (seed, step, sample, position) only, never on batch or rank.
//!
//! Without truncation the draw goes through blocks of 256 ids: first a block, by the log-sum-exp of its logits plus the
//! block's noise, then a token of that block by the tokens' own noise. P(block) * P(token | block) is the softmax
//! exactly, and one draw needs V/256 + 256 noises in place of V. Ties go to the lowest id.

use thiserror::Error;

use crate::rng::{Stream, Use};

/// Ids per block of the two-level draw; a shard of the vocabulary that starts at a multiple of it sees the same blocks.
pub const BLOCK: usize = 256;

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps this many tokens.
    pub top_k: Option<usize>,
    /// Keeps the most likely tokens up to and including the one with which their probability reaches this.
    pub top_p: Option<f32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: None, top_p: None }
    }
}

/// A setting that has no meaning, or a row that cannot be drawn from.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SamplingError {
    /// Temperature below 0 or not a number.
    #[error("temperature is {0}, and must be 0 (greedy) or a positive number")]
    Temperature(f32),
    /// Top-k of 0.
    #[error("top_k is 0, and must be at least 1; leave it out to keep every token")]
    TopK,
    /// Top-p outside (0, 1].
    #[error("top_p is {0}, and must be above 0 and at most 1")]
    TopP(f32),
    /// A NaN or +inf among the logits.
    #[error(
        "logit of token {id} is {value}: the model's numbers have overflowed; lower the learning rate or look at the step before"
    )]
    NotFinite { id: u32, value: f32 },
    /// Every logit is -inf.
    #[error("no token may be drawn: all {0} logits are -inf")]
    Nothing(usize),
}

impl SamplingError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            SamplingError::NotFinite { .. } => "logits-not-finite",
            SamplingError::Nothing(_) => "no-token-allowed",
            _ => "bad-sampling",
        }
    }
}

/// A drawn token.
///
/// At temperature 0 the draw is certain; log-probability and entropy are then those of temperature 1 without truncation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    pub id: u32,
    pub logprob: f32,
    /// In nats.
    pub entropy: f32,
}

/// Buffers reused from draw to draw.
#[derive(Default)]
pub struct Scratch {
    sums: Vec<(f32, f32)>,
    kept: Vec<(f32, u32)>,
    noise: Vec<f64>,
}

impl Sampling {
    /// Refuses settings that mean nothing.
    pub fn check(&self) -> Result<(), SamplingError> {
        if self.temperature.is_nan() || self.temperature < 0.0 || self.temperature.is_infinite() {
            return Err(SamplingError::Temperature(self.temperature));
        }
        if self.top_k == Some(0) {
            return Err(SamplingError::TopK);
        }
        match self.top_p {
            Some(p) if !(p > 0.0 && p <= 1.0) => Err(SamplingError::TopP(p)),
            _ => Ok(()),
        }
    }

    /// Draws the token at `position` of the sample that `stream` belongs to.
    pub fn draw(
        &self,
        logits: &[f32],
        stream: &Stream,
        position: u64,
        scratch: &mut Scratch,
    ) -> Result<Draw, SamplingError> {
        self.check()?;
        let max = row_max(logits)?;
        if self.temperature == 0.0 {
            return Ok(greedy(logits, max, scratch));
        }
        let top_k = self.top_k.filter(|&k| k < logits.len());
        let top_p = self.top_p.filter(|&p| p < 1.0);
        if top_k.is_none() && top_p.is_none() {
            return Ok(draw_blocks(logits, max, self.temperature, stream, position, scratch));
        }
        self.keep(logits, max, top_k, top_p, scratch);
        Ok(draw_kept(stream, position, scratch))
    }

    /// The ids that truncation keeps, in rising order; all that are not -inf when nothing truncates.
    pub fn support(
        &self,
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Result<Vec<u32>, SamplingError> {
        self.check()?;
        let max = row_max(logits)?;
        let (k, p) = (self.top_k.filter(|&k| k < logits.len()), self.top_p.filter(|&p| p < 1.0));
        self.keep(logits, max, k, p, scratch);
        let mut ids: Vec<u32> = scratch.kept.iter().map(|&(_, id)| id).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Fills `scratch.kept` with (logit minus max, over temperature; id) of the kept tokens.
    fn keep(
        &self,
        logits: &[f32],
        max: f32,
        top_k: Option<usize>,
        top_p: Option<f32>,
        scratch: &mut Scratch,
    ) {
        let t = if self.temperature == 0.0 { 1.0 } else { self.temperature };
        let kept = &mut scratch.kept;
        kept.clear();
        let scaled = logits.iter().map(|&l| (l - max) / t);
        match (top_k, top_p) {
            (None, Some(p)) => {
                // Tokens below (1 - p) / V of the total hold less than 1 - p together, so the kept set lies above.
                block_sums(logits, max, t, &mut scratch.sums);
                let total: f64 = scratch.sums.iter().map(|s| f64::from(s.0)).sum();
                let floor = (total * (1.0 - f64::from(p)) / logits.len() as f64).ln() as f32 - 1e-3;
                kept.extend(scaled.zip(0..).filter(|&(x, _)| x > f32::NEG_INFINITY && x >= floor));
                nucleus(kept, total, p);
            }
            _ => {
                kept.extend(scaled.zip(0..).filter(|&(x, _)| x > f32::NEG_INFINITY));
                if let Some(k) = top_k.filter(|&k| k < kept.len()) {
                    kept.select_nth_unstable_by(k - 1, best_first);
                    kept.truncate(k);
                }
                if let Some(p) = top_p {
                    let total = kept.iter().map(|&(x, _)| f64::from(x).exp()).sum();
                    nucleus(kept, total, p);
                }
            }
        }
    }
}

fn best_first(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Cuts `kept` after the token with which the probability reaches `p`; `total` is the sum of exp over all tokens.
fn nucleus(kept: &mut Vec<(f32, u32)>, total: f64, p: f32) {
    kept.sort_unstable_by(best_first);
    let goal = f64::from(p) * total;
    let mut sum = 0.0;
    let mut n = 0;
    while n < kept.len() && sum < goal {
        sum += f64::from(kept[n].0).exp();
        n += 1;
    }
    kept.truncate(n.max(1));
}

/// Largest logit; refuses NaN, +inf and rows of -inf.
fn row_max(logits: &[f32]) -> Result<f32, SamplingError> {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut odd = [0u32; 16];
    let chunks = logits.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..16 {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
            odd[i] |= u32::from(chunk[i].is_nan());
        }
    }
    let max = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    let nan = odd.iter().any(|&o| o != 0) || rest.iter().any(|x| x.is_nan());
    if nan || max == f32::INFINITY {
        let bad = |x: f32| x.is_nan() || x == f32::INFINITY;
        let id = logits.iter().position(|&x| bad(x)).unwrap_or(0);
        return Err(SamplingError::NotFinite { id: id as u32, value: logits[id] });
    }
    if max == f32::NEG_INFINITY { Err(SamplingError::Nothing(logits.len())) } else { Ok(max) }
}

fn greedy(logits: &[f32], max: f32, scratch: &mut Scratch) -> Draw {
    let id = logits.iter().position(|&l| l == max).unwrap_or(0);
    block_sums(logits, max, 1.0, &mut scratch.sums);
    let (total, weighted) = totals(&scratch.sums);
    finish(id as u32, 0.0, total, weighted)
}

fn draw_blocks(
    logits: &[f32],
    max: f32,
    t: f32,
    stream: &Stream,
    position: u64,
    scratch: &mut Scratch,
) -> Draw {
    block_sums(logits, max, t, &mut scratch.sums);
    let (total, weighted) = totals(&scratch.sums);
    let block = if scratch.sums.len() == 1 {
        0
    } else {
        let noise = &mut scratch.noise;
        noise.resize(scratch.sums.len(), 0.0);
        stream.fill_gumbel(Use::Block, position, 0, noise);
        let scores = scratch.sums.iter().zip(&*noise).map(|(s, g)| f64::from(s.0).ln() + g);
        best(scores)
    };
    let first = block * BLOCK;
    let row = &logits[first..logits.len().min(first + BLOCK)];
    scratch.noise.resize(row.len(), 0.0);
    stream.fill_gumbel(Use::Token, position, first as u32, &mut scratch.noise);
    // Exactly the tokens that count in the block's sum may win inside the block.
    let scores = row.iter().zip(&scratch.noise).map(|(&l, g)| {
        let x = (l - max) / t;
        if x < LOWEST { f64::NEG_INFINITY } else { f64::from(x) + g }
    });
    let id = first + best(scores);
    finish(id as u32, (logits[id] - max) / t, total, weighted)
}

fn draw_kept(stream: &Stream, position: u64, scratch: &Scratch) -> Draw {
    let (mut total, mut weighted) = (0.0, 0.0);
    let mut winner = (f64::NEG_INFINITY, 0.0, u32::MAX);
    for &(x, id) in &scratch.kept {
        let e = f64::from(x).exp();
        total += e;
        weighted += if e > 0.0 { e * f64::from(x) } else { 0.0 };
        let score = f64::from(x) + stream.gumbel(Use::Token, position, id);
        if score > winner.0 || (score == winner.0 && id < winner.2) {
            winner = (score, x, id);
        }
    }
    finish(winner.2, winner.1, total, weighted)
}

fn finish(id: u32, x: f32, total: f64, weighted: f64) -> Draw {
    let lse = total.ln();
    Draw {
        id,
        logprob: (f64::from(x) - lse) as f32,
        entropy: (lse - weighted / total).max(0.0) as f32,
    }
}

/// Index of the largest score, lowest index on ties.
fn best(scores: impl Iterator<Item = f64>) -> usize {
    let mut winner = (f64::NEG_INFINITY, 0);
    for (i, score) in scores.enumerate() {
        if score > winner.0 {
            winner = (score, i);
        }
    }
    winner.1
}

fn totals(sums: &[(f32, f32)]) -> (f64, f64) {
    sums.iter().fold((0.0, 0.0), |(a, b), s| (a + f64::from(s.0), b + f64::from(s.1)))
}

/// Scaled logits below this count as probability 0: e^-87 is next to the smallest normal f32.
const LOWEST: f32 = -87.0;

/// For each block of ids: the sum of exp(x) and of x * exp(x), where x = (logit - max) / t.
fn block_sums(logits: &[f32], max: f32, t: f32, sums: &mut Vec<(f32, f32)>) {
    sums.clear();
    if t == 1.0 {
        sum_blocks::<true>(logits, max, t, sums)
    } else {
        sum_blocks::<false>(logits, max, t, sums)
    }
}

/// The work of `block_sums`; `PLAIN` stands for t = 1.
fn sum_blocks<const PLAIN: bool>(logits: &[f32], max: f32, t: f32, sums: &mut Vec<(f32, f32)>) {
    for block in logits.chunks(BLOCK) {
        let (mut plain, mut weighted) = ([0.0f32; 16], [0.0f32; 16]);
        let chunks = block.chunks_exact(16);
        let rest = chunks.remainder();
        let mut tail = [f32::NEG_INFINITY; 16];
        tail[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(&tail[..]);
        for chunk in chunks.chain(last) {
            for i in 0..16 {
                // Dividing by 1 changes no bit, so it is left out.
                let x = if PLAIN { chunk[i] - max } else { (chunk[i] - max) / t };
                let inside = if x > LOWEST { x } else { LOWEST };
                let e = exp_below(inside);
                let e = if x < LOWEST { 0.0 } else { e };
                plain[i] += e;
                weighted[i] += e * inside;
            }
        }
        sums.push((plain.iter().sum(), weighted.iter().sum()));
    }
}

/// e^x for -87 <= x <= 0 within 2e-7 of its value, in operations that vectorise.
#[inline(always)]
fn exp_below(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts, the first exact when multiplied by n.
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let mut poly = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = poly * r + c;
    }
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    poly * f32::from_bits(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEG: f32 = f32::NEG_INFINITY;

    fn draw(s: Sampling, logits: &[f32], sample: u64) -> Draw {
        s.draw(logits, &Stream::sample(11, 1, sample), 3, &mut Scratch::default()).unwrap()
    }

    fn softmax(logits: &[f32], t: f64) -> Vec<f64> {
        let max = logits.iter().fold(NEG, |m, &x| m.max(x));
        let e: Vec<f64> = logits.iter().map(|&l| (f64::from(l - max) / t).exp()).collect();
        let z: f64 = e.iter().sum();
        e.iter().map(|x| x / z).collect()
    }

    /// Pearson's statistic of `n` draws against `p`, and its degrees of freedom; cells below 5 expected are pooled.
    fn chi_square(p: &[f64], n: u64, mut one: impl FnMut(u64) -> u32) -> (f64, f64) {
        let mut counts = vec![0u64; p.len()];
        for i in 0..n {
            counts[one(i) as usize] += 1;
        }
        let (mut stat, mut cells, mut rest) = (0.0, 0.0, (0.0, 0.0));
        for (&c, &p) in counts.iter().zip(p) {
            let expected = p * n as f64;
            if expected == 0.0 {
                assert_eq!(c, 0, "a token of probability 0 was drawn");
            } else if expected < 5.0 {
                rest = (rest.0 + c as f64, rest.1 + expected);
            } else {
                stat += (c as f64 - expected).powi(2) / expected;
                cells += 1.0;
            }
        }
        if rest.1 > 0.0 {
            stat += (rest.0 - rest.1).powi(2) / rest.1;
            cells += 1.0;
        }
        (stat, cells - 1.0)
    }

    /// Four standard deviations above the mean of the chi-square distribution (normal approximation).
    fn assert_chi_square((stat, df): (f64, f64)) {
        assert!(
            stat < df + 4.0 * (2.0 * df).sqrt() + 4.0,
            "chi-square {stat} at {df} degrees of freedom"
        );
    }

    #[test]
    fn trap_3_log_probs_carry_the_temperature() {
        let logits = [2.0, 0.0, -1.0];
        let expected = [(1.0, [-0.1698, -2.1698, -3.1698]), (0.6, [-0.0415, -3.3749, -5.0415])];
        for (t, by_id) in expected {
            let mut seen = [false; 3];
            for sample in 0..2000 {
                let d = draw(Sampling { temperature: t, ..Sampling::default() }, &logits, sample);
                assert!((d.logprob - by_id[d.id as usize]).abs() < 6e-5, "{d:?}");
                seen[d.id as usize] = true;
            }
            assert_eq!(seen, [true; 3]);
        }
    }

    #[test]
    fn trap_3_greedy_takes_the_lowest_id_of_a_tie() {
        let s = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(draw(s, &[1.0, 3.0, 3.0, 2.0], 0).id, 1);
        assert!((draw(s, &[2.0, 0.0, -1.0], 0).logprob + 0.1698).abs() < 6e-5);
    }

    #[test]
    fn trap_3_top_p_keeps_the_token_that_crosses() {
        // Probabilities 0.5, 0.3, 0.15, 0.05.
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
        let kept = |p| {
            Sampling { top_p: Some(p), ..Sampling::default() }
                .support(&logits, &mut Scratch::default())
                .unwrap()
        };
        assert_eq!(kept(0.4), [0]);
        assert_eq!(kept(0.6), [0, 1]);
        assert_eq!(kept(0.81), [0, 1, 2]);
        assert_eq!(kept(1.0), [0, 1, 2, 3]);
        let d = draw(Sampling { top_p: Some(0.4), ..Sampling::default() }, &logits, 5);
        assert_eq!((d.id, d.logprob, d.entropy), (0, 0.0, 0.0));
    }

    #[test]
    fn truncation_breaks_ties_by_lowest_id_and_composes() {
        let s = |k, p| Sampling { temperature: 1.0, top_k: k, top_p: p };
        let support = |s: Sampling, l: &[f32]| s.support(l, &mut Scratch::default()).unwrap();
        assert_eq!(support(s(Some(2), None), &[1.0, 2.0, 1.0, 1.0]), [0, 1]);
        assert_eq!(support(s(None, Some(0.5)), &[0.0; 4]), [0, 1]);
        assert_eq!(support(s(Some(9), None), &[0.0, NEG, 0.0]), [0, 2]);
        // Top-p applies to what top-k left, renormalised: 0.5, 0.3 -> 0.625, 0.375.
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
        assert_eq!(support(s(Some(2), Some(0.6)), &logits), [0]);
        assert_eq!(support(s(None, Some(0.6)), &logits), [0, 1]);
    }

    #[test]
    fn a_truncated_draw_reports_the_renormalised_distribution() {
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
        for sample in 0..200 {
            let d = draw(Sampling { top_k: Some(2), ..Sampling::default() }, &logits, sample);
            let p: f32 = [0.625, 0.375][d.id as usize];
            assert!((d.logprob - p.ln()).abs() < 1e-6);
            assert!((d.entropy - 0.661_563_2).abs() < 1e-6, "{}", d.entropy);
        }
    }

    #[test]
    fn trap_5_draws_follow_the_softmax_within_one_block() {
        let logits = [2.0, 0.0, NEG, -1.0, 0.5, NEG, -3.0];
        for t in [1.0, 0.6] {
            let s = Sampling { temperature: t, ..Sampling::default() };
            assert_chi_square(chi_square(&softmax(&logits, f64::from(t)), 100_000, |i| {
                draw(s, &logits, i).id
            }));
        }
    }

    #[test]
    fn trap_5_draws_follow_the_softmax_across_blocks_and_positions() {
        // 1,000 tokens in four blocks, the third nearly all masked, peaked and flat parts.
        let logits: Vec<f32> = (0..1000)
            .map(|i| match i {
                512..768 if i != 600 => NEG,
                _ => ((i * 37 % 101) as f32) / 25.0 + if i % 97 == 0 { 3.0 } else { 0.0 },
            })
            .collect();
        let p = softmax(&logits, 1.0);
        let (stream, s) = (Stream::sample(5, 0, 0), Sampling::default());
        let mut scratch = Scratch::default();
        let draws =
            chi_square(&p, 100_000, |i| s.draw(&logits, &stream, i, &mut scratch).unwrap().id);
        assert_chi_square(draws);
    }

    #[test]
    fn trap_5_truncated_draws_follow_their_distribution() {
        let logits: Vec<f32> = (0..600).map(|i| (i * 7 % 31) as f32 / 6.0).collect();
        let s = Sampling { temperature: 0.8, top_k: Some(40), top_p: Some(0.9) };
        let support = s.support(&logits, &mut Scratch::default()).unwrap();
        let inside: Vec<f32> = (0..600u32)
            .map(|i| if support.contains(&i) { logits[i as usize] } else { NEG })
            .collect();
        assert_chi_square(chi_square(&softmax(&inside, 0.8), 100_000, |i| draw(s, &logits, i).id));
    }

    #[test]
    fn top_p_on_a_long_row_equals_a_full_sort() {
        let noise = Stream::new(3);
        let logits: Vec<f32> =
            (0..20_000).map(|i| 2.0 * noise.gumbel(Use::Host, 0, i) as f32).collect();
        for top_p in [0.1, 0.5, 0.9, 0.999] {
            let p = softmax(&logits, 1.0);
            let mut order: Vec<usize> = (0..p.len()).collect();
            order.sort_by(|&a, &b| p[b].total_cmp(&p[a]).then(a.cmp(&b)));
            let mut sum = 0.0;
            let mut n = 0;
            while sum < f64::from(top_p) {
                sum += p[order[n]];
                n += 1;
            }
            let s = Sampling { top_p: Some(top_p), ..Sampling::default() };
            let got = s.support(&logits, &mut Scratch::default()).unwrap().len();
            assert!(got.abs_diff(n) <= 1, "top_p {top_p}: kept {got}, a full sort keeps {n}");
        }
    }

    #[test]
    fn log_probs_and_entropy_of_a_long_row_are_accurate() {
        let noise = Stream::new(4);
        let logits: Vec<f32> =
            (0..49_152).map(|i| 3.0 * noise.gumbel(Use::Host, 0, i) as f32).collect();
        let p = softmax(&logits, 1.0);
        let entropy: f64 = -p.iter().map(|p| if *p > 0.0 { p * p.ln() } else { 0.0 }).sum::<f64>();
        for sample in 0..50 {
            let d = draw(Sampling::default(), &logits, sample);
            assert!((f64::from(d.logprob) - p[d.id as usize].ln()).abs() < 2e-6);
            assert!((f64::from(d.entropy) - entropy).abs() < 1e-5);
        }
    }

    #[test]
    fn the_fast_exponential_is_accurate() {
        for i in 0..=87_000 {
            let x = -(i as f32) / 1000.0;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp_below(x)) - exact).abs() <= 2e-7 * exact, "{x}");
        }
    }

    #[test]
    fn masked_tokens_share_no_probability() {
        // Vocabulary of 16 rows, tokenizer of 13 (case c80).
        let logits: Vec<f32> = (0..16).map(|i| if i < 13 { 0.0 } else { NEG }).collect();
        for sample in 0..3000 {
            let d = draw(Sampling::default(), &logits, sample);
            assert!(d.id < 13 && (d.logprob.exp() - 0.0769).abs() < 1e-4);
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_an_error() {
        let s = Sampling::default();
        let go = |s: Sampling, l: &[f32]| {
            s.draw(l, &Stream::new(0), 0, &mut Scratch::default()).unwrap_err()
        };
        assert_eq!(go(s, &[NEG; 20]), SamplingError::Nothing(20));
        assert_eq!(go(s, &[0.0, f32::INFINITY]).code(), "logits-not-finite");
        let mut row = vec![0.0; 40];
        row[17] = f32::NAN;
        assert!(go(s, &row).to_string().starts_with("logit of token 17 is NaN"));
        assert_eq!(go(Sampling { temperature: -1.0, ..s }, &row), SamplingError::Temperature(-1.0));
        assert_eq!(go(Sampling { top_p: Some(0.0), ..s }, &row), SamplingError::TopP(0.0));
        assert_eq!(go(Sampling { top_k: Some(0), ..s }, &row), SamplingError::TopK);
    }
}
