//! The pest grammar of .nrl files.
