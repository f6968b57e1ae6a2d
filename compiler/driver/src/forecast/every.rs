//! What runs every so many steps on devices: evaluations and checkpoints.
//!
//! In: the `every` blocks of a phase. Out: seconds of one time of each. Samples of an evaluation are drawn as those of a
//! step are; a checkpoint goes to a disk of which nobody says how fast it is.

use nrl_ir::program::{Phase as Section, Source as Rows, Stage};
use nrl_sim::forecast::{Assumed, Estimate, Periodic, Source};

use super::{Assume, Cast};
use crate::{Compiled, fits};

/// Bytes per second that a node writes to a file system that nodes share. Assumed.
const WRITE: f64 = 2e9;

/// Bytes of one checkpoint: weights of every trained model, and optimizer state of what is trained of them.
pub fn checkpoint_bytes(c: &Compiled) -> f64 {
    let mut trained: Vec<(usize, usize)> = vec![];
    for b in c.program.phases.iter().flat_map(|p| &p.step) {
        if let Stage::Update { model, optimizer, .. } = &b.stage
            && !trained.contains(&(*model, *optimizer))
        {
            trained.push((*model, *optimizer));
        }
    }
    let bytes = trained.iter().map(|(model, optimizer)| {
        let moments = c.program.optimizers[*optimizer].state.len() as f64;
        let half = fits::is_bf16(c, *model);
        let none = c.facts.bf16_masters.get(*optimizer) == Some(&true);
        let master = if half && !none { 4.0 } else { 0.0 };
        let weight = if half { 2.0 } else { 4.0 };
        let m = &c.program.models[*model];
        parameters(m, false) * weight + parameters(m, true) * (master + 4.0 * moments)
    });
    bytes.sum()
}

/// Number of weights of a model, all or those that are trained.
pub(super) fn parameters(m: &nrl_ir::program::Model, trained: bool) -> f64 {
    let one = |p: &nrl_ir::ParamDecl| {
        let layers = p.repeat.as_ref().map_or(1, |(_, n)| *n) as f64;
        layers * p.dims.iter().map(|d| m.dims.bound(*d) as f64).product::<f64>()
    };
    m.params.iter().filter(|p| p.trained || !trained).map(one).sum()
}

/// Rows that an evaluation takes of a data set; `None` where nobody has counted them and there is no limit.
pub(crate) fn evaluated(
    c: &Compiled,
    assume: &Assume,
    data: usize,
    limit: Option<usize>,
) -> Option<f64> {
    let rows = match &c.program.data[data].source {
        Rows::Made { rows, .. } => Some(*rows as f64),
        Rows::JsonLines { .. } => assume.seen.get(&data).map(|s| s.rows as f64),
    };
    rows.into_iter().chain(limit.map(|l| l as f64)).reduce(f64::min)
}

impl Cast<'_> {
    /// Evaluations and checkpoints of a phase; those that cannot be timed go to `open`, in words.
    pub(super) fn every(
        &self,
        section: &Section,
        assumed: &mut Vec<Assumed>,
        open: &mut Vec<String>,
    ) -> Vec<Periodic> {
        let mut out = vec![];
        for e in &section.every {
            for b in &e.stages {
                let one = match &b.stage {
                    Stage::Evaluate { .. } => {
                        let seconds = self.evaluation(b, open);
                        seconds.map(|s| (format!("evaluate {}", b.name), s))
                    }
                    Stage::Checkpoint { .. } => {
                        Some(("checkpoint".to_string(), self.checkpoint(assumed)))
                    }
                    _ => None,
                };
                let period = e.period;
                out.extend(one.map(|(name, seconds)| Periodic { name, period, seconds }));
            }
        }
        out
    }

    fn evaluation(&self, b: &nrl_ir::program::Binding, open: &mut Vec<String>) -> Option<Estimate> {
        let Stage::Evaluate { generator, data, limit, copies, max_new, .. } = &b.stage else {
            return None;
        };
        let Some(rows) = evaluated(self.c, self.assume, *data, *limit) else {
            open.push(format!(
                "SECONDS OF `evaluate {}`: how many rows it has (`limit: ..`)",
                b.name
            ));
            return None;
        };
        let model = self.c.program.generators[*generator].model;
        let most = max_new.unwrap_or(self.c.program.models[model].context);
        let lengths = self.lengths(*data, Some(most), false);
        let phase = self.sample(b, *generator, *copies, rows * *copies as f64, &lengths);
        if phase.is_none() {
            open.push(format!("SECONDS OF `evaluate {}`", b.name));
        }
        Some(phase?.seconds)
    }

    fn checkpoint(&self, assumed: &mut Vec<Assumed>) -> Estimate {
        let whole = self.c.facts.clusters.iter().filter(|x| x.device.gpu && x.part_of.is_none());
        let nodes: usize = whole.map(|x| x.ranks.div_ceil(x.per_node.max(1))).sum();
        let rate = WRITE * nodes.max(1) as f64;
        let a = Assumed {
            what: "writing of checkpoints".into(),
            value: format!("{:.0} GB/s per node", WRITE / 1e9),
            source: Source::Assumed,
            help: "a disk that is faster or slower scales it".into(),
        };
        if !assumed.contains(&a) {
            assumed.push(a);
        }
        Estimate::around(checkpoint_bytes(self.c) / rate, 3.0, Source::Assumed)
    }
}
