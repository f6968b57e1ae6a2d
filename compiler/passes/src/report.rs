//! What passes tell: the rewrites they made, and the problems they found.

use nrl_ir::infer::ShapeError;

/// Byte range in a source: source id, start, end.
pub type Origin = Option<(u32, u32, u32)>;

/// Lines of a report, in the order things happened first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What was done, and how often.
    pub lines: Vec<(String, usize)>,
}

impl Report {
    /// Counts one more of `what`.
    pub fn count(&mut self, what: impl Into<String>) {
        let what = what.into();
        match self.lines.iter_mut().find(|(w, _)| *w == what) {
            Some((_, n)) => *n += 1,
            None => self.lines.push((what, 1)),
        }
    }

    /// Takes back one count of `what`.
    pub fn take(&mut self, what: &str) {
        self.lines.iter_mut().filter(|(w, _)| w == what).for_each(|(_, n)| *n -= 1);
        self.lines.retain(|(_, n)| *n > 0);
    }

    /// How often `what` was done.
    pub fn times(&self, what: &str) -> usize {
        self.lines.iter().find(|(w, _)| w == what).map_or(0, |(_, n)| *n)
    }
}

/// A dim that cannot be split over a mesh axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    pub dim: String,
    pub size: usize,
    pub axis: String,
    pub axis_size: usize,
    /// Sizes the axis may have.
    pub legal: Vec<usize>,
}

/// A mistake of the user's, or (code `internal`) of an earlier pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub code: &'static str,
    /// Headline, lower case, no full stop.
    pub text: String,
    pub help: Option<String>,
    pub origin: Origin,
    pub split: Option<Split>,
}

impl Problem {
    pub fn new(code: &'static str, text: impl Into<String>, origin: Origin) -> Problem {
        Problem { code, text: text.into(), help: None, origin, split: None }
    }

    pub fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }

    /// A pass made something that does not fit: a mistake of ours.
    pub fn internal(text: impl Into<String>, origin: Origin) -> Problem {
        Problem::new("internal", text, origin)
    }
}

impl From<ShapeError> for Problem {
    fn from(e: ShapeError) -> Problem {
        Problem { help: e.help, ..Problem::internal(e.text, None) }
    }
}
