//! Types of values: an element type and an ordered list of dims.

use serde::{Deserialize, Serialize};

use crate::dim::DimId;

/// Element type. Integers that index say what they index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    F32,
    Bf16,
    /// An index into the named dim.
    Id(DimId),
}

/// Type of a value. The order of `dims` is storage (row major), not meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Type {
    pub dtype: DType,
    pub dims: Vec<DimId>,
    /// A saved stack: one such tensor per iteration of a scan.
    pub stack: Option<usize>,
}

impl Type {
    pub fn f32(dims: impl Into<Vec<DimId>>) -> Type {
        Type { dtype: DType::F32, dims: dims.into(), stack: None }
    }

    pub fn id(of: DimId, dims: impl Into<Vec<DimId>>) -> Type {
        Type { dtype: DType::Id(of), dims: dims.into(), stack: None }
    }

    pub fn is_float(&self) -> bool {
        !matches!(self.dtype, DType::Id(_))
    }
}
