//! Validation by the loss of a step: forward passes of its updates, and passes that score, over held-out rows.
//!
//! In: where a recipe validates, how many rows the software takes. Out: seconds of one validation; where nobody says how
//! many rows there are, a line of what is not modelled.

use nrl_ir::program::Phase as Section;
use nrl_lower::facts::Validation;
use nrl_sim::forecast::{Estimate, Periodic, Source};
use nrl_sim::rates::Speed;

use super::every::evaluated;
use super::{Cast, Counted, timed};
use crate::regroup::Works;

impl Cast<'_> {
    /// Validations of a phase; those that cannot be timed go to `open`, in words.
    pub(super) fn validations(&self, section: &Section, open: &mut Vec<String>) -> Vec<Periodic> {
        let at = self.c.program.phases.iter().position(|p| std::ptr::eq(p, section));
        let own = self.c.facts.validations.iter().filter(|v| Some(v.phase) == at);
        let mut out = vec![];
        for v in own {
            let name = format!("validate {}", self.c.program.data[v.data].name);
            match self.validation(section, v) {
                Some(seconds) => out.push(Periodic { name, period: v.period, seconds }),
                None => open.push(format!("SECONDS OF `{name}`: how many rows it has")),
            }
        }
        out
    }

    fn validation(&self, section: &Section, v: &Validation) -> Option<Estimate> {
        let rows = match self.c.framework.validated {
            Some(rows) => rows as f64,
            None => evaluated(self.c, self.assume, v.data, None)?,
        };
        let rows = rows * self.c.program.data[v.data].answers() as f64;
        let lengths = self.lengths(v.data, None, true);
        let zero = Estimate { source: Source::Counted, ..Estimate::default() };
        let mut sum = zero;
        for b in &section.step {
            let Some((pass, _, _, _, budget)) = self.asked(&section.step, b) else { continue };
            let rl = self.rl.as_deref();
            let all = Counted { updates: 1, budget, count: rows, lengths: &lengths, rl };
            let mut one = timed(self.c, &pass, &all, None, &mut Works::default())?;
            let work = &mut one.job.work;
            let layers = work.layers.iter_mut().map(|l| &mut l.each);
            for region in layers.chain([&mut work.before, &mut work.after]) {
                region.backward.clear();
            }
            let (rates, compute) = (&self.found.rates, self.assume.compute);
            let took = one.run(&Speed { machine: &one.machine, rates, compute });
            let (spread, source) = (self.found.spread, self.found.source);
            sum = sum.plus(Estimate::around(took.seconds * one.times, spread, source));
        }
        (sum.value > 0.0).then_some(sum)
    }
}
