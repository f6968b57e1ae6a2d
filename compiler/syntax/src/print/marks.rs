//! What the grammar knows about single tokens and the formatter needs.
//!
//! In: masked text that parses. Out: by byte, which minus is a sign, which bracket keeps a blank
//! before it, which `@` splits a dim, and where neighboring lines may line up.

use std::collections::HashMap;

use nrl_grammar::{Grammar, Rule};
use pest::Parser;
use pest::iterators::Pair;

use crate::mask::Masked;

/// What is special about a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// A sign: no blank behind it.
    Unary,
    /// No blank on either side.
    Tight,
    /// `@` of a plan rule: a blank before, none behind.
    AxisSplit,
    /// A bracket that is not a call or an index: a blank before it.
    Spaced,
    /// A brace without blanks inside: a record, the names of `use`.
    TightBrace,
    /// A brace around parts that commas may separate.
    Fields,
    /// Lines up with the same class on neighboring lines.
    Column(Class),
}

/// What lines up with what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    Assign,
    From,
}

/// Marks by byte, and where items start.
pub(super) struct Marks {
    by_byte: HashMap<usize, Mark>,
    pub items: Vec<usize>,
}

impl Marks {
    pub fn of(masked: &Masked) -> Self {
        let items = masked.items.iter().map(|range| range.start).collect();
        let mut marks = Marks { by_byte: HashMap::new(), items };
        for range in &masked.items {
            let text = masked.text.get(range.clone()).unwrap_or("");
            let text = text.trim_end_matches([' ', '\n']);
            let Ok(pairs) = Grammar::parse(Rule::item_only, text) else { continue };
            for pair in pairs {
                marks.visit(&pair, Rule::item_only, range.start);
            }
        }
        marks
    }

    pub fn at(&self, byte: usize) -> Option<Mark> {
        self.by_byte.get(&byte).copied()
    }

    fn set(&mut self, byte: usize, mark: Mark) {
        self.by_byte.insert(byte, mark);
    }

    fn visit(&mut self, pair: &Pair<'_, Rule>, parent: Rule, offset: usize) {
        let start = offset + pair.as_span().start();
        match (pair.as_rule(), parent) {
            (Rule::neg_op, _) => self.set(start, Mark::Unary),
            (Rule::axis_use, Rule::layout) => self.set(start, Mark::Tight),
            (Rule::axis_use, _) => self.set(start, Mark::AxisSplit),
            (Rule::code, _) => {
                for (at, _) in pair.as_str().match_indices('-') {
                    self.set(start + at, Mark::Tight);
                }
            }
            (Rule::unit | Rule::unit_type, _) => {
                for (at, _) in pair.as_str().match_indices('/') {
                    self.set(start + at, Mark::Tight);
                }
            }
            (Rule::tuple_pattern, Rule::variant_pattern) => {}
            (
                Rule::tuple
                | Rule::name_tuple
                | Rule::axes
                | Rule::tuple_type
                | Rule::dim_group
                | Rule::list
                | Rule::setting_list
                | Rule::tuple_pattern,
                _,
            )
            | (Rule::call, Rule::with_args) => self.set(start, Mark::Spaced),
            (Rule::record | Rule::setting_map | Rule::use_names, _) => {
                let text = pair.as_str();
                if let (Some(open), Some(close)) = (text.find('{'), text.rfind('}')) {
                    self.set(start + open, Mark::TightBrace);
                    self.set(start + close, Mark::TightBrace);
                }
            }
            (Rule::record_item | Rule::enum_item | Rule::arms, _) => {
                if let Some(open) = pair.as_str().find('{') {
                    self.set(start + open, Mark::Fields);
                }
            }
            (Rule::assign, Rule::bind | Rule::mesh | Rule::pool | Rule::setting) => {
                self.set(start, Mark::Column(Class::Assign));
            }
            (Rule::param_from, _) => self.set(start, Mark::Column(Class::From)),
            _ => {}
        }
        for inner in pair.clone().into_inner() {
            self.visit(&inner, pair.as_rule(), offset);
        }
    }
}
