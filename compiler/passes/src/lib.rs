//! Graph to graph: `simplify`, `incremental`, `grad`, `shard`, `fuse`, `schedule`.
//!
//! Each pass is one function in a file of its name, takes a graph that [`nrl_ir::verify`] accepts
//! and gives one that it accepts. Order of results is deterministic: nothing iterates over a hash.
//! User mistakes come out as [`Problem`]s; the driver adds the places in the source.

mod emit;
mod fuse;
mod grad;
mod incremental;
mod rename;
mod report;
mod schedule;
mod shard;
mod simplify;
mod values;

pub use fuse::{FuseConfig, fuse};
pub use grad::{Recompute, grad};
pub use incremental::incremental;
pub use report::{Origin, Problem, Report, Split};
pub use schedule::{pipeline, schedule};
pub use shard::{DimRule, PathRule, Rules, Sharded, State, shard};
pub use simplify::{Stage, simplify};
