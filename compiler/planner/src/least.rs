//! Damped least squares in logarithms: positive numbers fitted to what was measured.
//!
//! In: a function from logarithms of the numbers to `log(predicted / measured)` of each goal, weights, where the search
//! starts, where numbers are held and between what they stay. Out: the logarithms with the smallest error. Goals that are far off count in proportion
//! and not by their square; a number that no goal tells stays where it was (Levenberg 1944, Marquardt 1963).

/// Errors beyond this share count in proportion, not by their square.
pub const USUAL: f64 = 0.05;

/// What is to be fitted.
pub struct Problem<'a> {
    /// `log(predicted / measured)` of a goal.
    pub off: &'a (dyn Fn(&[f64], usize) -> f64 + Sync),
    /// How much each goal counts.
    pub weights: &'a [f64],
    /// Goals that a number moves; those of the others need not be looked at.
    pub touches: &'a [Vec<usize>],
    /// Logarithms to start from, and the least and most of each.
    pub start: Vec<f64>,
    pub bounds: &'a [(f64, f64)],
    /// Where each number is held, and how: moving it by a factor of e costs as much as a goal that is off by this many
    /// times [`USUAL`].
    pub held: &'a [f64],
    pub stay: &'a [f64],
    /// Rounds at most; a round that gains less than this share is the last.
    pub rounds: usize,
    pub enough: f64,
}

/// Numbers that move a goal, with its change per change of each.
type Slopes = Vec<Vec<(usize, f64)>>;

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
        (0..self.weights.len()).map(|i| (self.off)(at, i) / USUAL).collect()
    }

    /// Squares near zero, in proportion far from it.
    fn cost(&self, off: &[f64], at: &[f64]) -> f64 {
        let goals = self.weights.iter().zip(off);
        let goals = goals.map(|(w, e)| w * 2.0 * ((1.0 + e * e).sqrt() - 1.0));
        let held = at.iter().zip(self.held).zip(self.stay);
        let moved = held.map(|((x, from), stay)| (stay * (x - from)).powi(2));
        goals.sum::<f64>() + moved.sum::<f64>()
    }

    /// Change of each goal's error with each number, found on all cores.
    fn slopes(&self, at: &[f64], off: &[f64]) -> Slopes {
        let d = 1e-3;
        let numbers: Vec<usize> = (0..at.len()).collect();
        let one = |k: &usize| -> Vec<f64> {
            let mut moved = at.to_vec();
            moved[*k] += d;
            let change = |i: &usize| ((self.off)(&moved, *i) / USUAL - off[*i]) / d;
            self.touches[*k].iter().map(change).collect()
        };
        let columns = nrl_driver::each(&numbers, &one);
        let mut slopes: Slopes = vec![vec![]; off.len()];
        for (k, column) in columns.into_iter().enumerate() {
            for (i, slope) in self.touches[k].iter().zip(column) {
                if slope != 0.0 {
                    slopes[*i].push((k, slope));
                }
            }
        }
        slopes
    }

    fn step(&self, slopes: &Slopes, off: &[f64], at: &[f64], damping: f64) -> Vec<f64> {
        let n = at.len();
        let mut m = vec![vec![0.0; n + 1]; n];
        for ((row, e), weight) in slopes.iter().zip(off).zip(self.weights) {
            let w = weight / (1.0 + e * e).sqrt();
            for (i, x) in row {
                for (j, y) in row {
                    m[*i][*j] += w * x * y;
                }
                m[*i][n] -= w * x * e;
            }
        }
        for (i, row) in m.iter_mut().enumerate() {
            let keep = self.stay[i] * self.stay[i];
            row[n] -= keep * (at[i] - self.held[i]);
            row[i] = row[i] * (1.0 + damping) + keep + 1e-9;
        }
        solved(m)
    }

    fn clamped(&self, at: &[f64], step: &[f64]) -> Vec<f64> {
        let one = |((x, s), (low, high)): ((&f64, &f64), &(f64, f64))| {
            (x + s.clamp(-1.5, 1.5)).clamp(*low, *high)
        };
        at.iter().zip(step).zip(self.bounds).map(one).collect()
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
