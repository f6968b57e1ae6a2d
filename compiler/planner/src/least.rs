//! Damped least squares in logarithms: positive numbers fitted to what was measured.
//!
//! In: a function from logarithms of the numbers to `log(predicted / measured)` of each goal, weights, where the search
//! starts, what holds the numbers. Out: the logarithms with the smallest error. Goals that are far off count in proportion
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

/// The same where each number moves some of many goals, and is held in a place of its own.
pub struct Sparse<'a> {
    /// `log(predicted / measured)` of a goal.
    pub off: &'a (dyn Fn(&[f64], usize) -> f64 + Sync),
    pub weights: &'a [f64],
    /// Goals that a number moves; the others need not be looked at.
    pub touches: &'a [Vec<usize>],
    pub start: Vec<f64>,
    /// Where each number is held, and how (as [`Problem::stay`]).
    pub held: &'a [f64],
    pub stay: &'a [f64],
    pub rounds: usize,
    pub enough: f64,
}

impl Problem<'_> {
    /// The logarithms with the smallest error.
    pub fn solve(&self) -> Vec<f64> {
        let n = self.start.len();
        let fixed = |k: usize| (self.start[k], self.start[k]);
        let free = |k: usize| (self.bounds[k].0.ln(), self.bounds[k].1.ln());
        let bounds: Vec<(f64, f64)> =
            (0..n).map(|k| if self.moves[k] { free(k) } else { fixed(k) }).collect();
        let offs = |at: &[f64]| (self.off)(at).iter().map(|x| x / USUAL).collect::<Vec<_>>();
        let slopes = |at: &[f64], off: &[f64]| {
            let mut slopes: Slopes = vec![vec![]; off.len()];
            for k in (0..n).filter(|k| self.moves[*k]) {
                let mut moved = at.to_vec();
                moved[k] += STEP;
                for (row, (a, b)) in slopes.iter_mut().zip(offs(&moved).iter().zip(off)) {
                    row.push((k, (a - b) / STEP));
                }
            }
            slopes
        };
        let search = Search {
            offs: &offs,
            slopes: &slopes,
            weights: self.weights,
            bounds: &bounds,
            held: &self.start,
            stay: &vec![self.stay; n],
        };
        search.solve(self.start.clone(), self.rounds, self.enough)
    }
}

impl Sparse<'_> {
    /// The logarithms with the smallest error; slopes are found on all cores.
    pub fn solve(&self) -> Vec<f64> {
        let numbers: Vec<usize> = (0..self.start.len()).collect();
        let offs = |at: &[f64]| -> Vec<f64> {
            (0..self.weights.len()).map(|i| (self.off)(at, i) / USUAL).collect()
        };
        let slopes = |at: &[f64], off: &[f64]| {
            let one = |k: &usize| -> Vec<f64> {
                let mut moved = at.to_vec();
                moved[*k] += STEP;
                let change = |i: &usize| ((self.off)(&moved, *i) / USUAL - off[*i]) / STEP;
                self.touches[*k].iter().map(change).collect()
            };
            let mut slopes: Slopes = vec![vec![]; off.len()];
            for (k, column) in nrl_driver::each(&numbers, &one).into_iter().enumerate() {
                for (i, slope) in self.touches[k].iter().zip(column) {
                    if slope != 0.0 {
                        slopes[*i].push((k, slope));
                    }
                }
            }
            slopes
        };
        let search = Search {
            offs: &offs,
            slopes: &slopes,
            weights: self.weights,
            bounds: &vec![(f64::NEG_INFINITY, f64::INFINITY); numbers.len()],
            held: self.held,
            stay: self.stay,
        };
        search.solve(self.start.clone(), self.rounds, self.enough)
    }
}

/// By goal: numbers that move it, with its change per change of each.
type Slopes = Vec<Vec<(usize, f64)>>;

/// Change of a logarithm that slopes are found with.
const STEP: f64 = 1e-3;

/// Errors and their slopes in multiples of [`USUAL`], and what holds the numbers.
struct Search<'a> {
    offs: &'a dyn Fn(&[f64]) -> Vec<f64>,
    slopes: &'a dyn Fn(&[f64], &[f64]) -> Slopes,
    weights: &'a [f64],
    bounds: &'a [(f64, f64)],
    held: &'a [f64],
    stay: &'a [f64],
}

impl Search<'_> {
    fn solve(&self, mut at: Vec<f64>, rounds: usize, enough: f64) -> Vec<f64> {
        if self.weights.is_empty() {
            return at;
        }
        let mut damping = 1e-2;
        let mut off = (self.offs)(&at);
        let mut least = self.cost(&off, &at);
        for _ in 0..rounds {
            let slopes = (self.slopes)(&at, &off);
            let before = least;
            while damping < 1e6 {
                let tried = self.clamped(&at, &self.step(&slopes, &off, &at, damping));
                let now = (self.offs)(&tried);
                let c = self.cost(&now, &tried);
                if c < least {
                    (at, off, least) = (tried, now, c);
                    damping = (damping * 0.3).max(1e-6);
                    break;
                }
                damping *= 4.0;
            }
            if before - least < enough * before {
                break;
            }
        }
        at
    }

    /// Squares near zero, in proportion far from it.
    fn cost(&self, off: &[f64], at: &[f64]) -> f64 {
        let goals = self.weights.iter().zip(off);
        let goals = goals.map(|(w, e)| w * 2.0 * ((1.0 + e * e).sqrt() - 1.0));
        let held = at.iter().zip(self.held).zip(self.stay);
        let moved = held.map(|((x, from), stay)| (stay * (x - from)).powi(2));
        goals.sum::<f64>() + moved.sum::<f64>()
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
