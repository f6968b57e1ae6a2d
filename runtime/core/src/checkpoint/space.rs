//! Whether a run's checkpoints fit the volume, told before the run.
//!
//! In: the number of parameters, bytes stored for each, how many checkpoints are kept, the free bytes. Out: the need
//! and a verdict. One more checkpoint than is kept is counted, since the new one is written before an old one goes.

use std::path::Path;

use crate::files::{Size, free_space};

/// Bytes of one parameter in our checkpoints: the weight and two Adam moments, all f32.
pub const BYTES_PER_PARAM: u64 = 4 + 8;

/// What checkpoints need and what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub each: Size,
    pub needed: Size,
    pub free: Size,
    /// How many are kept.
    pub keep: usize,
}

/// What to make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fits,
    /// More than nine tenths of what is free.
    Tight,
    DoesNotFit,
}

impl Space {
    /// Needs of `keep` checkpoints against `free` bytes.
    pub fn new(params: u64, bytes_per_param: u64, keep: usize, free: u64) -> Space {
        let each = params.saturating_mul(bytes_per_param);
        let needed = each.saturating_mul(keep as u64 + 1);
        Space { each: Size(each), needed: Size(needed), free: Size(free), keep }
    }

    /// The same against the volume of `dir`.
    pub fn at(
        dir: &Path,
        params: u64,
        bytes_per_param: u64,
        keep: usize,
    ) -> std::io::Result<Space> {
        Ok(Space::new(params, bytes_per_param, keep, free_space(dir)?))
    }

    /// Whether it fits.
    pub fn verdict(&self) -> Verdict {
        if self.needed > self.free {
            Verdict::DoesNotFit
        } else if u128::from(self.needed.0) * 10 > u128::from(self.free.0) * 9 {
            Verdict::Tight
        } else {
            Verdict::Fits
        }
    }

    /// One sentence for the user, with what to do; nothing if it fits.
    pub fn problem(&self, dir: &Path) -> Option<String> {
        let Space { each, needed, free, keep } = self;
        let what = format!("{} checkpoints of {each} need {needed}", keep + 1);
        let fit = (free.0 / each.0.max(1)).saturating_sub(1);
        match self.verdict() {
            Verdict::Fits => None,
            Verdict::Tight => Some(format!("{what}, and {} has {free} free", dir.display())),
            Verdict::DoesNotFit if fit == 0 => Some(format!(
                "{what}, but {} has only {free} free; write to a larger volume",
                dir.display()
            )),
            Verdict::DoesNotFit => Some(format!(
                "{what}, but {} has only {free} free; `keep {fit}` would fit",
                dir.display()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case c96: 2 bytes of weights and 12 of optimizer for each parameter.
    #[test]
    fn the_need_is_told_before_the_run() {
        let space = Space::new(7_615_616_512, 2 + 12, 3, 300_000_000_000);
        assert_eq!(
            (space.each.to_string(), space.needed.to_string()),
            ("106.6 GB".into(), "426.5 GB".into())
        );
        assert_eq!(space.verdict(), Verdict::DoesNotFit);
        assert_eq!(
            space.problem(Path::new("runs")).unwrap(),
            "4 checkpoints of 106.6 GB need 426.5 GB, but runs has only 300.0 GB free; `keep 1` would fit"
        );
    }

    #[test]
    fn verdicts_at_their_edges() {
        let verdict = |free| Space::new(100, 1, 0, free).verdict();
        assert_eq!(
            [99, 100, 111, 112].map(verdict),
            [Verdict::DoesNotFit, Verdict::Tight, Verdict::Tight, Verdict::Fits]
        );
        assert!(
            Space::new(100, BYTES_PER_PARAM, 1, 2000)
                .problem(Path::new("d"))
                .unwrap()
                .ends_with("larger volume")
        );
        assert_eq!(Space::new(u64::MAX, 12, 3, 1).verdict(), Verdict::DoesNotFit);
        assert_eq!(Space::at(Path::new("."), 1, 1, 1).unwrap().problem(Path::new(".")), None);
    }
}
