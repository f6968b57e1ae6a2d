//! Text of a graph for `--emit`.

use nrl_ir::Graph;

/// The `.nir` form.
pub fn graph(g: &Graph) -> String {
    format!("{g:#?}")
}
