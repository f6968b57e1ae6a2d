//! Which checkpoints stay.
//!
//! In: the checkpoints of a directory, how many to keep and by which metric. Out: the others are removed. The latest
//! always stays, so that a run can go on; among equals the newer stays.

use std::path::{Path, PathBuf};

use super::state::{Saved, list};
use crate::files::FileError;

/// The policy of `checkpoint keep 3 by test.accuracy, and the latest`.
#[derive(Clone, Debug, PartialEq)]
pub struct Keep {
    /// How many stay by the metric, besides the latest.
    pub best: usize,
    /// Without one the newest stay.
    pub metric: Option<String>,
    /// Whether more of the metric is better.
    pub higher: bool,
}

impl Keep {
    /// The paths to remove, oldest first.
    pub fn surplus(&self, saved: &[Saved]) -> Vec<PathBuf> {
        let Some((latest, older)) = saved.split_last() else { return Vec::new() };
        let value = |s: &Saved| {
            let Some(metric) = &self.metric else { return Some(s.state.step as f64) };
            let x = s.state.metrics.get(metric).copied().filter(|x| !x.is_nan())?;
            Some(if self.higher { x } else { -x })
        };
        // The latest takes part: if it is among the best it counts as one of them.
        let mut ranked: Vec<&Saved> = older.iter().chain([latest]).collect();
        ranked.sort_by(|a, b| {
            let (x, y) =
                (value(a).unwrap_or(f64::NEG_INFINITY), value(b).unwrap_or(f64::NEG_INFINITY));
            y.total_cmp(&x).then(b.state.step.cmp(&a.state.step))
        });
        let kept: Vec<&PathBuf> = ranked.iter().take(self.best).map(|s| &s.path).collect();
        older.iter().map(|s| &s.path).filter(|p| !kept.contains(p)).cloned().collect()
    }

    /// Removes what the policy does not keep and returns the removed paths.
    pub fn prune(&self, dir: &Path) -> Result<Vec<PathBuf>, FileError> {
        let surplus = self.surplus(&list(dir));
        for path in &surplus {
            std::fs::remove_dir_all(path).map_err(|e| FileError::new("remove", path, e))?;
        }
        Ok(surplus)
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::save_step;
    use super::*;

    fn kept(keep: &Keep, metrics: &[f64]) -> Vec<u64> {
        let dir = tempfile::tempdir().unwrap();
        for (step, &x) in metrics.iter().enumerate() {
            save_step(dir.path(), step as u64, &[("acc", x)]);
        }
        keep.prune(dir.path()).unwrap();
        list(dir.path()).iter().map(|s| s.state.step).collect()
    }

    #[test]
    fn the_best_and_the_latest_stay() {
        let keep = Keep { best: 2, metric: Some("acc".into()), higher: true };
        assert_eq!(kept(&keep, &[0.5, 0.9, 0.1, 0.7, 0.2]), [1, 3, 4]);
        assert_eq!(kept(&keep, &[0.5, 0.1, 0.9]), [0, 2]);
        assert_eq!(kept(&keep, &[0.5, 0.5, 0.5, 0.0]), [1, 2, 3]);
        assert_eq!(kept(&keep, &[f64::NAN, 0.1, f64::NAN, 0.2, 0.0]), [1, 3, 4]);
        let low = Keep { higher: false, ..keep };
        assert_eq!(kept(&low, &[0.5, 0.9, 0.1, 0.7, 0.8]), [0, 2, 4]);
    }

    #[test]
    fn without_a_metric_the_newest_stay() {
        let keep = Keep { best: 2, metric: None, higher: true };
        assert_eq!(kept(&keep, &[0.0; 5]), [3, 4]);
        assert_eq!(kept(&Keep { best: 0, ..keep }, &[0.0; 3]), [2]);
        assert_eq!(Keep { best: 1, metric: None, higher: true }.surplus(&[]).len(), 0);
    }
}
