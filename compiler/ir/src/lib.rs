//! The language between compiler and runtime.
//!
//! Two graphs of one kind: the *tensor graph* ([`graph`]) is what one stage computes on one rank,
//! the *step graph* ([`program`]) has RL stages as nodes. Host expressions ([`host`]) run rewards,
//! filters and schedules. A [`plan::Plan`] is the only thing an engine receives.
//!
//! Depends on `nrl-base` alone; no I/O.

pub mod cost;
pub mod cycle;
pub mod dim;
pub mod graph;
pub mod host;
pub mod infer;
pub mod kernel;
pub mod mesh;
pub mod op;
pub mod plan;
pub mod program;
pub mod text;
pub mod types;
pub mod verify;

pub use cycle::Cycle;
pub use dim::{Dim, DimId, Dims, Extent, Routed, Shard};
pub use graph::{Block, Graph, Node, ParamDecl, ParamId, ValueId};
pub use mesh::{Axis, Mesh, View};
pub use op::{BinaryOp, Op, ReduceOp, UnaryOp};
pub use types::{DType, Type};
