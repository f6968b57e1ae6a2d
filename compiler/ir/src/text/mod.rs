//! The text form (`.nir`): printer and parser.
//!
//! One line per node, `%5 = contract %3, %4 over [d] : f32[tok, q, hd]`; bodies of loops and kernels
//! are indented. A dim whose name is not unique is written `vocab#9`, by its id. After `//` stands
//! why a collective or a kernel is there, and after `@` the place in the source. Law: parsing what
//! was printed gives the same graph, if no value is without a definition.

mod lex;
mod parse;
mod parse_ops;
mod print;

pub use parse::{ParseError, parse};
pub use print::print;

/// Can `name` be written without quotes?
fn is_word(name: &str) -> bool {
    let starts = |c: char| c.is_alphabetic() || c == '_';
    name.starts_with(starts) && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
}
