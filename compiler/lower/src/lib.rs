//! Resolved recipes to graphs: names, dims, units, and elaboration.
