//! The text form (`.nir`): printer and parser.
