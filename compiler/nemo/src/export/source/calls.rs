//! Calls of an expression by what they call, and small readings of expressions.

use nrl_base::Span;
use nrl_syntax::ast::{Arg, Expr, ExprKind};

/// A call with what it calls written out: `grpo.clip`, `rows.take`.
pub(in crate::export) struct Call<'a> {
    pub callee: String,
    pub args: &'a [Arg],
    pub span: Span,
    target: &'a Expr,
}

impl<'a> Call<'a> {
    /// An argument by name.
    pub fn named(&self, name: &str) -> Option<&'a Expr> {
        let is = |arg: &&'a Arg| arg.name.as_ref().is_some_and(|n| n.text == name);
        self.args.iter().find(is).map(|arg| &arg.value)
    }

    /// The name before the dot.
    pub(super) fn base(&self) -> Option<&'a str> {
        match &self.target.kind {
            ExprKind::Field { base, .. } => name_of(base),
            _ => None,
        }
    }
}

/// All calls of an expression, outer ones first.
pub(in crate::export) fn calls(e: &Expr) -> Vec<Call<'_>> {
    let mut found = vec![];
    collect(e, &mut found, 64);
    found
}

fn collect<'a>(e: &'a Expr, found: &mut Vec<Call<'a>>, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    let inside = |e: &'a Expr, found: &mut Vec<Call<'a>>| collect(e, found, depth);
    match &e.kind {
        ExprKind::Call { callee, args } => {
            if let Some(path) = path_of(callee) {
                found.push(Call { callee: path, args, span: e.span, target: callee });
            }
            inside(callee, found);
            args.iter().for_each(|arg| inside(&arg.value, found));
        }
        ExprKind::With { base, args } => {
            inside(base, found);
            args.iter().for_each(|arg| inside(&arg.value, found));
        }
        ExprKind::Field { base, .. } => inside(base, found),
        ExprKind::Unary { operand, .. } => inside(operand, found),
        ExprKind::Binary { lhs, rhs, .. } => {
            inside(lhs, found);
            inside(rhs, found);
        }
        ExprKind::Pipe { input, stage } => {
            inside(input, found);
            inside(stage, found);
        }
        ExprKind::From { base, .. } => inside(base, found),
        ExprKind::List(items) | ExprKind::Tuple(items) => {
            items.iter().for_each(|item| inside(item, found));
        }
        ExprKind::Of { part, whole } => {
            inside(part, found);
            inside(whole, found);
        }
        _ => {}
    }
}

/// A dotted name.
pub(in crate::export) fn path_of(e: &Expr) -> Option<String> {
    match &e.kind {
        ExprKind::Name(name) => Some(name.clone()),
        ExprKind::Field { base, name } => Some(format!("{}.{}", path_of(base)?, name.text)),
        _ => None,
    }
}

/// A plain name.
pub(in crate::export) fn name_of(e: &Expr) -> Option<&str> {
    match &e.kind {
        ExprKind::Name(name) => Some(name),
        _ => None,
    }
}

pub(super) fn text_of(e: &Expr) -> Option<String> {
    match &e.kind {
        ExprKind::Text(text) => Some(text.clone()),
        _ => None,
    }
}

pub(super) fn units_of(e: &Expr) -> Vec<&str> {
    match &e.kind {
        ExprKind::Quantity(q) => q.unit.iter().map(|u| u.name.text.as_str()).collect(),
        _ => vec![],
    }
}

pub(super) fn unit_of(e: &Expr) -> Option<&str> {
    units_of(e).first().copied()
}
