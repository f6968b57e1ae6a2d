//! Operations and pipelines of a report, from the work of each phase.

use super::build::Made;
use super::data::Report;

/// Adds operations and pipelines.
pub(super) fn add(_made: &Made<'_>, _report: &mut Report) {}
