//! What every part of the compiler shares: sources, spans, diagnostics and did-you-mean.
//!
//! In: nothing but text. Out: plain data that the command line renders and tests compare.
//! A `Span` is a byte range of one source; a `Diagnostic` never holds text of a source, only spans.
//! No I/O happens here.

pub mod codes;
mod diagnostic;
mod divisors;
mod files;
mod nearest;
mod source;

pub use diagnostic::{Diagnostic, Label, Problems, Severity};
pub use divisors::{divisors, listed};
pub use files::Files;
pub use nearest::{did_you_mean, nearest};
pub use source::{Position, Source, SourceId, SourceMap, Span};
