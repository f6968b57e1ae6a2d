//! The forecast of a recipe with a layout written into it: the numbers that are shown.

use nrl_driver::{Budget, Compiled, Limit, Measure};
use nrl_ir::program::Stage;
use nrl_sim::forecast::{Forecast, Kind};
use serde::Serialize;

use super::layout::Layout;
use super::recipe::codes;
use super::screen::Screen;

/// A layout with what it takes.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// `pp 4 dp 4 tp 4 sp`.
    pub name: String,
    pub layout: Layout,
    /// Seconds of a step, in the mean over phases, and between what they should lie.
    pub seconds: f64,
    pub low: f64,
    pub high: f64,
    /// Bytes of the fullest rank, and of the device it is.
    pub bytes: f64,
    pub device: f64,
    /// The stage that is fullest: `update policy`.
    pub fullest: String,
    /// What most of the time goes into: `update policy: products`, and its share.
    pub dominates: String,
    pub share: f64,
    /// Whether it fits and keeps the budgets.
    pub fits: bool,
    /// Whether it learns the same, rounding aside.
    pub same_maths: bool,
}

/// Forecasts of edited recipes.
pub struct Exact<'a> {
    pub screen: &'a Screen<'a>,
}

impl Exact<'_> {
    /// The line of a layout.
    pub fn of(&self, l: &Layout) -> Result<Line, String> {
        let split = self.screen.space.split(l);
        let text = self.screen.sites.tried(l, split.as_deref());
        self.line(l, &text)
    }

    /// The line of a text that has layout `l`.
    pub fn line(&self, l: &Layout, text: &str) -> Result<Line, String> {
        let (c, f) = self.forecast(text)?;
        let tightest = f.tightest().ok_or("no stage on devices")?;
        let (dominates, share) = dominant(&f);
        let steps: usize = f.steps.iter().map(|s| s.steps).sum();
        let mean = |of: &dyn Fn(&nrl_sim::forecast::Step) -> f64| {
            f.steps.iter().map(|s| of(s) * s.steps as f64).sum::<f64>() / steps.max(1) as f64
        };
        let seconds = mean(&|s| s.seconds.value);
        // A generator whose pool holds no sample has no phase.
        let asked =
            super::sites::stages(&c).filter(|s| matches!(s, Stage::Generate { .. })).count();
        let phases = f.steps.iter().flat_map(|s| &s.phases);
        let samples = phases.filter(|p| p.kind == Kind::Sample).count() == asked;
        let room = f.memory.iter().all(|m| m.margin() >= 0.0);
        let fits = samples && room && self.keeps(&c, &f, seconds);
        let current = &self.screen.sites.current;
        Ok(Line {
            name: l.name(),
            layout: l.clone(),
            seconds,
            low: mean(&|s| s.seconds.low),
            high: mean(&|s| s.seconds.high),
            bytes: tightest.sum(),
            device: tightest.device.memory,
            fullest: tightest.stage.clone(),
            dominates,
            share,
            fits,
            same_maths: l.staleness == current.staleness,
        })
    }

    /// A text compiled, with its forecast.
    pub fn forecast(&self, text: &str) -> Result<(Compiled, Forecast), String> {
        let recipe = self.screen.recipe;
        let relaxed = super::Sites::relaxed(text, recipe.name());
        let c = recipe.compile(relaxed).map_err(|f| {
            codes(&f.found).into_iter().next().unwrap_or_else(|| "the compiler refuses it".into())
        })?;
        let f = nrl_driver::forecast(&c, &recipe.assume).ok_or("its meshes are on no devices")?;
        Ok((c, f))
    }

    /// Are all demands met?
    fn keeps(&self, c: &Compiled, f: &Forecast, seconds: f64) -> bool {
        c.budgets.iter().all(|b| match (b.measure, b.limit) {
            (Measure::StepTime, Limit::Seconds(s)) => b.holds(seconds, s),
            (Measure::PeakMemory, Limit::Bytes(n)) => f.memory.iter().all(|m| b.holds(m.sum(), n)),
            (Measure::PeakMemory, Limit::OfDevice(share)) => {
                f.memory.iter().all(|m| b.holds(m.sum(), share * m.device.memory))
            }
            _ => true,
        })
    }
}

/// Bytes that a rank may hold by the device and the budgets.
pub fn most_bytes(budgets: &[Budget], device: f64) -> f64 {
    let limits = budgets.iter().filter(|b| b.measure == Measure::PeakMemory);
    limits.fold(device, |least, b| match b.limit {
        Limit::Bytes(n) if !b.holds(f64::INFINITY, n) => least.min(n),
        Limit::OfDevice(share) if !b.holds(f64::INFINITY, share * device) => {
            least.min(share * device)
        }
        _ => least,
    })
}

/// The longest part of any phase, and its share of all.
fn dominant(f: &Forecast) -> (String, f64) {
    let all: f64 = f.total().max(f64::MIN_POSITIVE);
    let phases = f.steps.iter().flat_map(|s| s.phases.iter().map(move |p| (s.steps, p)));
    let parts = phases.flat_map(|(n, p)| {
        p.parts.iter().map(move |part| (part.seconds * n as f64, &p.name, &part.name))
    });
    let longest = parts.max_by(|a, b| a.0.total_cmp(&b.0));
    longest.map_or((String::new(), 0.0), |(s, phase, part)| (format!("{phase}: {part}"), s / all))
}
