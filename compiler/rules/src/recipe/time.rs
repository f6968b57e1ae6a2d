//! Times of a run: limits, and when something is predicted to happen.

use std::fmt;

use super::Fact;

/// A time in seconds, shown as people say it.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Seconds(pub f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seconds(s) = *self;
        if s < 1.0 {
            return write!(f, "{:.0} ms", s * 1e3);
        }
        if s < 120.0 {
            return write!(f, "{} s", (s * 10.0).round() / 10.0);
        }
        let minutes = (s / 60.0).round();
        if minutes < 120.0 {
            return write!(f, "{minutes} min");
        }
        write!(f, "{} h {:02} min", (minutes / 60.0).floor(), minutes % 60.0)
    }
}

/// A step of a run and when it is predicted to be done.
#[derive(Clone, PartialEq, Debug)]
pub struct Reached {
    /// Steps between checkpoints of the schedule; the whole run if it has none.
    pub period: Fact<i64>,
    /// The step, counted over the whole run.
    pub step: i64,
    /// Seconds from the start of the run: the likely number and the ends of its interval.
    pub after: Seconds,
    pub low: Seconds,
    pub high: Seconds,
    /// Seconds of one of the steps before it.
    pub each: Seconds,
}

#[cfg(test)]
mod tests {
    use super::Seconds;

    #[test]
    fn times_as_people_say_them() {
        let said = |s: f64| Seconds(s).to_string();
        assert_eq!(said(0.25), "250 ms");
        assert_eq!(said(90.0), "90 s");
        assert_eq!(said(600.0), "10 min");
        assert_eq!(said(4.0 * 3600.0), "4 h 00 min");
        assert_eq!(said(4.0 * 3600.0 + 300.0), "4 h 05 min");
    }
}
