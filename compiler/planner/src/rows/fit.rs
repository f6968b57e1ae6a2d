//! Effects fitted to measured rows.
//!
//! In: goals (a case and the seconds that were measured). Out: the effects of devices, kinds of stacks, kernels and families on
//! rates (`nrl_sim::effects`) with the smallest error, all at once, by damped least squares on `log(predicted / measured)` whose
//! weights fall for rows that are far off. Each effect is held where it is expected, the wider its class the looser, so what several
//! families share goes to what they have in common, and few rows change little.

use std::collections::BTreeMap;

use nrl_sim::effects::{self, Effects, KNOBS};
use nrl_sim::rates::Rates;
use nrl_sim::style::Style;

use super::{Case, Row, Table, metric};
use crate::least::Sparse;

/// A row to fit: its case and the seconds that were measured.
#[derive(Clone, Copy)]
pub struct Goal<'a> {
    pub row: &'a Row,
    pub case: &'a Case,
    pub seconds: f64,
    /// How much the row counts.
    pub weight: f64,
}

impl Goal<'_> {
    /// `log(predicted / measured)`.
    pub fn off(&self, rates: &Rates) -> f64 {
        (self.seconds_of(rates) / self.seconds).ln()
    }

    /// Is it of a layer, not of a step?
    pub fn of_layer(&self) -> bool {
        self.row.metric.starts_with("layer_")
    }

    /// What the row measures, by the planner.
    fn seconds_of(&self, rates: &Rates) -> f64 {
        match (self.row.metric.as_str(), self.case.layer(rates)) {
            ("layer_fwd_time", Some((forward, _))) => forward,
            ("layer_bwd_time", Some((_, backward))) => backward,
            _ => self.case.time(rates).seconds,
        }
    }
}

/// The rows of a table that measure time.
pub fn goals(table: &Table) -> Vec<Goal<'_>> {
    let rows = table.rows.iter().zip(&table.cases);
    rows.filter_map(|(row, case)| {
        let case = &table.all[*case.as_ref().ok()?];
        let seconds = match row.metric.as_str() {
            "layer_fwd_time" | "layer_bwd_time" => row.value / 1e3,
            _ => metric::measured_seconds(row, case)?,
        };
        // A benchmark of one layer says little of a step.
        let weight = if row.task == "microbench" { 0.1 } else { 1.0 };
        (seconds > 0.0).then_some(Goal { row, case, seconds, weight })
    })
    .collect()
}

/// Rows of one source beyond this many count less each, so that together they count as many.
const MANY: f64 = 40.0;
/// Runs of one source beyond about this many are left out: they tell nothing new.
const ENOUGH: usize = 160;

/// How the goals of one stack on one device get their rates.
struct Cell {
    base: Rates,
    /// Number, and the rate that it moves.
    moves: Vec<(usize, usize)>,
}

/// All effects that goals can tell.
#[derive(Default)]
struct Numbers {
    index: BTreeMap<String, usize>,
    held: Vec<f64>,
    stay: Vec<f64>,
}

impl Numbers {
    /// The cell of a style, with its effects numbered.
    fn cell(&mut self, style: &Style) -> Cell {
        let mut moves = vec![];
        for label in style.labels() {
            for (k, deviation) in effects::moves(&label) {
                let rate = KNOBS[k].name;
                let next = self.held.len();
                let number = *self.index.entry(effects::key(rate, &label.1)).or_insert(next);
                if number == next {
                    self.held.push(effects::known(rate, &label));
                    self.stay.push(1.0 / deviation);
                }
                moves.push((number, k));
            }
        }
        Cell { base: effects::base(style), moves }
    }
}

impl Cell {
    fn rates(&self, at: &[f64]) -> Rates {
        let mut by = vec![0.0; KNOBS.len()];
        for (number, k) in &self.moves {
            by[*k] += at[*number];
        }
        let mut rates = self.base.clone();
        effects::moved(&mut rates, &by);
        rates
    }
}

/// The effects with the smallest error on `goals`, starting from `from` where it has them.
pub fn fit(goals: &[Goal<'_>], from: &Effects, rounds: usize) -> Effects {
    let goals = &chosen(goals)[..];
    let mut numbers = Numbers::default();
    let mut cells: Vec<Cell> = vec![];
    let mut known: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut of = vec![];
    for g in goals {
        let style = g.case.style();
        let cell = *known.entry((style.name(), style.device.clone())).or_insert_with(|| {
            cells.push(numbers.cell(&style));
            cells.len() - 1
        });
        of.push(cell);
    }
    let mut touches = vec![vec![]; numbers.held.len()];
    for (i, cell) in of.iter().enumerate() {
        for (number, _) in &cells[*cell].moves {
            touches[*number].push(i);
        }
    }
    let mut start = numbers.held.clone();
    for (key, number) in &numbers.index {
        if let Some(x) = from.get(key) {
            start[*number] = *x;
        }
    }
    let off = |at: &[f64], i: usize| goals[i].off(&cells[of[i]].rates(at));
    let problem = Sparse {
        off: &off,
        weights: &goals.iter().map(|g| g.weight).collect::<Vec<_>>(),
        touches: &touches,
        held: &numbers.held,
        stay: &numbers.stay,
        start,
        rounds,
        enough: 2e-3,
    };
    let at = problem.solve();
    numbers.index.into_iter().map(|(key, number)| (key, at[number])).collect()
}

/// Goals of one run as one.
pub fn once<'a>(goals: &[Goal<'a>]) -> Vec<Goal<'a>> {
    let mut once: Vec<Goal<'a>> = vec![];
    for g in goals {
        match once.last_mut() {
            // Seconds and rate of one run.
            Some(l) if std::ptr::eq(l.case, g.case) && !g.of_layer() && !l.of_layer() => {
                l.seconds = (l.seconds * g.seconds).sqrt();
                l.weight += g.weight;
            }
            _ => once.push(*g),
        }
    }
    once
}

/// Goals to fit: those of one run as one, some of a source with many, which count less each.
fn chosen<'a>(goals: &[Goal<'a>]) -> Vec<Goal<'a>> {
    let mut once = once(goals);
    let source = |g: &Goal<'_>| g.row.source.split(':').next().unwrap_or("").to_string();
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for g in &once {
        *count.entry(source(g)).or_default() += 1;
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    once.retain(|g| {
        let at = seen.entry(source(g)).or_default();
        *at += 1;
        // Each n-th, so that all layouts have a share.
        let all = count[&source(g)];
        let (before, now) = ((*at - 1) * ENOUGH / all, *at * ENOUGH / all);
        all <= 2 * ENOUGH || now > before
    });
    // By publisher and metric file, what is left counts as MANY rows at most.
    let mut weight: BTreeMap<String, f64> = BTreeMap::new();
    for g in &once {
        *weight.entry(g.row.publisher().to_string()).or_default() += g.weight;
    }
    let many = |g: &Goal<'_>| MANY / weight[g.row.publisher()].max(MANY);
    once.iter().map(|g| Goal { weight: g.weight * many(g), ..*g }).collect()
}

/// Is a row in the half that is fitted on? Rows of one run are in the same half, whatever they measure.
pub fn half(row: &Row) -> bool {
    let key = format!(
        "{} {} {} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {} {:?} {:?} {:?} {} {}",
        row.source,
        row.task,
        row.model,
        row.layers,
        row.hidden,
        row.heads,
        row.gpus,
        row.tp,
        row.pp,
        row.vpp,
        row.cp,
        row.ep,
        row.fsdp,
        row.recompute,
        row.mbs,
        row.gbs,
        row.seq,
        row.precision,
        row.gpu
    );
    // FNV-1a: the same half on every machine.
    let hash = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    (hash >> 17) & 1 == 0
}
