//! What the arms of a `match` take together.
//!
//! In: arms, and the enum that the value is of if it is one. Out: what no arm takes, and arms that
//! come too late. Decided for enums, bools and what may be none; numbers and texts are endless.

use nrl_base::Span;
use nrl_syntax::ast::{Arm, ExprKind, Item, ItemKind, Pattern, PatternKind, Variant};

/// What is left over; none if everything is taken or the values are endless.
pub fn missing(arms: &[Arm], of: Option<&Item>) -> Option<Vec<String>> {
    let variants: Vec<&str> = match of.map(|i| &i.kind) {
        Some(ItemKind::Enum(e)) => e.variants.iter().map(|v| v.name.text.as_str()).collect(),
        _ => vec![],
    };
    if arms.iter().any(|a| takes_all(&a.pattern, &variants)) {
        return None;
    }
    let taken: Vec<String> = arms.iter().filter_map(|a| word(&a.pattern)).collect();
    let all: Vec<&str> = if !variants.is_empty() {
        variants
    } else if taken.len() != arms.len() {
        return None;
    } else if taken.iter().any(|t| t == "true" || t == "false") {
        vec!["true", "false"]
    } else {
        vec!["none", "some x"]
    };
    let declared = |name: &str| match of.map(|i| &i.kind) {
        Some(ItemKind::Enum(e)) => e.variants.iter().find(|v| v.name.text == name),
        _ => None,
    };
    let shown = |name: &&str| declared(name).map_or((*name).to_string(), |v| form(v, "_", &[]));
    let left: Vec<String> =
        all.iter().filter(|a| !taken.iter().any(|t| t == *a)).map(shown).collect();
    (!left.is_empty()).then_some(left)
}

/// A variant as it is written: `selective(_)`, with `..` or the types of its values in place of `_`.
pub fn form(v: &Variant, each: &str, types: &[String]) -> String {
    if v.fields.is_empty() {
        return v.name.text.clone();
    }
    let one = |i: usize| types.get(i).map_or(each, String::as_str);
    let all: Vec<&str> = (0..v.fields.len()).map(one).collect();
    format!("{}({})", v.name.text, all.join(", "))
}

/// The first arm that an earlier one leaves nothing for, and that one.
pub fn never(arms: &[Arm], of: Option<&Item>) -> Option<(Span, Span)> {
    let variants: Vec<&str> = match of.map(|i| &i.kind) {
        Some(ItemKind::Enum(e)) => e.variants.iter().map(|v| v.name.text.as_str()).collect(),
        _ => vec![],
    };
    for (i, late) in arms.iter().enumerate() {
        let earlier = arms[..i].iter().find(|e| {
            let same = word(&e.pattern).is_some() && word(&e.pattern) == word(&late.pattern);
            same || takes_all(&e.pattern, &variants)
        });
        if let Some(e) = earlier {
            return Some((late.pattern.span, e.pattern.span));
        }
    }
    None
}

/// Does a pattern take every value? A name does, unless it is a variant.
fn takes_all(p: &Pattern, variants: &[&str]) -> bool {
    match &p.kind {
        PatternKind::Any => true,
        PatternKind::Name(n) => variants.is_empty() && !n.is_empty(),
        _ => false,
    }
}

/// The one word that a pattern takes: a variant, `true`, `none`, any `some x`.
fn word(p: &Pattern) -> Option<String> {
    match &p.kind {
        PatternKind::Name(n) => Some(n.clone()),
        PatternKind::None => Some("none".into()),
        PatternKind::Variant { path, args } if args.iter().all(|p| takes_all(p, &[])) => {
            path.names.last().map(|n| n.text.clone())
        }
        PatternKind::Some(inner) if takes_all(inner, &[]) => Some("some x".into()),
        PatternKind::Value(e) => match &e.kind {
            ExprKind::Bool(b) => Some(b.to_string()),
            _ => None,
        },
        _ => None,
    }
}
