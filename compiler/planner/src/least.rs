//! Damped least squares in logarithms: positive numbers fitted to what was measured.
//!
//! In: a function from logarithms of the numbers to `log(predicted / measured)` of each goal, weights, where the search
//! starts and between what it stays. Out: the logarithms with the smallest error. Goals that are far off count in proportion
//! and not by their square; a number that no goal tells stays where it was (Levenberg 1944, Marquardt 1963).

/// Errors beyond this share count in proportion, not by their square.
pub const USUAL: f64 = 0.05;

/// What is to be fitted.
pub struct Problem<'a> {
    /// `log(predicted / measured)` of every goal.
    pub off: &'a dyn Fn(&[f64]) -> Vec<f64>,
    /// How much each goal counts.
    pub weights: &'a [f64],
    /// Logarithms to start from, which of them may move, and the least and most of each number.
    pub start: Vec<f64>,
    pub moves: Vec<bool>,
    pub bounds: &'a [(f64, f64)],
    /// Moving a number by a factor of e costs as much as a goal that is off by this many times [`USUAL`].
    pub stay: f64,
    /// Rounds at most; a round that gains less than this share is the last.
    pub rounds: usize,
    pub enough: f64,
}

impl Problem<'_> {
    /// The logarithms with the smallest error.
    pub fn solve(&self) -> Vec<f64> {
        let (mut at, mut damping) = (self.start.clone(), 1e-2);
        if self.weights.is_empty() {
            return at;
        }
        let mut off = self.offs(&at);
        let mut least = self.cost(&off, &at);
        for _ in 0..self.rounds {
            let slopes = self.slopes(&at, &off);
            let before = least;
            while damping < 1e6 {
                let tried = self.clamped(&at, &self.step(&slopes, &off, &at, damping));
                let now = self.offs(&tried);
                let c = self.cost(&now, &tried);
                if c < least {
                    (at, off, least) = (tried, now, c);
                    damping = (damping * 0.3).max(1e-6);
                    break;
                }
                damping *= 4.0;
            }
            if before - least < self.enough * before {
                break;
            }
        }
        at
    }

    fn offs(&self, at: &[f64]) -> Vec<f64> {
        (self.off)(at).iter().map(|x| x / USUAL).collect()
    }

    /// Squares near zero, in proportion far from it.
    fn cost(&self, off: &[f64], at: &[f64]) -> f64 {
        let goals = self.weights.iter().zip(off);
        let goals = goals.map(|(w, e)| w * 2.0 * ((1.0 + e * e).sqrt() - 1.0));
        let moved = at.iter().zip(&self.start).map(|(x, s)| (self.stay * (x - s)).powi(2));
        goals.sum::<f64>() + moved.sum::<f64>()
    }

    /// Change of each goal's error with each number.
    fn slopes(&self, at: &[f64], off: &[f64]) -> Vec<Vec<f64>> {
        let d = 1e-3;
        let one = |k: usize| {
            if !self.moves[k] {
                return vec![0.0; off.len()];
            }
            let mut moved = at.to_vec();
            moved[k] += d;
            self.offs(&moved).iter().zip(off).map(|(a, b)| (a - b) / d).collect()
        };
        (0..at.len()).map(one).collect()
    }

    fn step(&self, slopes: &[Vec<f64>], off: &[f64], at: &[f64], damping: f64) -> Vec<f64> {
        let n = at.len();
        let weights: Vec<f64> =
            self.weights.iter().zip(off).map(|(w, e)| w / (1.0 + e * e).sqrt()).collect();
        let dot = |a: &[f64], b: &[f64]| -> f64 {
            a.iter().zip(b).zip(&weights).map(|((x, y), w)| x * y * w).sum()
        };
        let keep = self.stay * self.stay;
        let mut m = vec![vec![0.0; n + 1]; n];
        for i in 0..n {
            for j in 0..n {
                m[i][j] = dot(&slopes[i], &slopes[j]);
            }
            m[i][n] = -dot(&slopes[i], off) - keep * (at[i] - self.start[i]);
            m[i][i] = m[i][i] * (1.0 + damping) + keep + 1e-9;
        }
        solved(m)
    }

    fn clamped(&self, at: &[f64], step: &[f64]) -> Vec<f64> {
        let one = |k: usize| match (self.moves[k], self.bounds[k]) {
            (true, (low, high)) => (at[k] + step[k].clamp(-1.5, 1.5)).clamp(low.ln(), high.ln()),
            (false, _) => at[k],
        };
        (0..at.len()).map(one).collect()
    }
}

/// Solves linear equations, given as rows with the right side last, by elimination with pivots.
pub fn solved(mut m: Vec<Vec<f64>>) -> Vec<f64> {
    let n = m.len();
    for i in 0..n {
        let largest = (i..n).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()));
        m.swap(i, largest.unwrap_or(i));
        if m[i][i].abs() < 1e-300 {
            continue;
        }
        let (above, below) = m.split_at_mut(i + 1);
        let pivot = &above[i];
        for row in below {
            let f = row[i] / pivot[i];
            row.iter_mut().zip(pivot).skip(i).for_each(|(x, p)| *x -= f * p);
        }
    }
    let mut x = vec![0.0; n];
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|k| m[i][k] * x[k]).sum();
        x[i] = if m[i][i].abs() < 1e-300 { 0.0 } else { (m[i][n] - known) / m[i][i] };
    }
    x
}
