//! What must hold of a graph between passes.
