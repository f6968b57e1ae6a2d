//! Types, dims and layouts.

use nrl_grammar::Rule;
use pest::iterators::Pair;

use super::{Build, Kids};
use crate::ast::{Expr, ExprKind, Layout, Name, Type, TypeKind, UnaryOp};

impl Build<'_> {
    pub fn ty(&mut self, pair: Pair<'_, Rule>) -> Option<Type> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let mut ty = self.type_atom(kids.next()?)?;
        for suffix in kids {
            let end = self.span(&suffix);
            let kind = self.type_suffix(ty, suffix)?;
            ty = Type { kind, span: span.to(end) };
            ty.span.end = end.end;
        }
        Some(ty)
    }

    fn type_atom(&mut self, pair: Pair<'_, Rule>) -> Option<Type> {
        let span = self.span(&pair);
        let kind = match pair.as_rule() {
            Rule::id_type => TypeKind::Id(Box::new(self.dim_expr(Kids::of(pair).next()?)?)),
            Rule::fn_type => {
                let mut kids = Kids::of(pair);
                let params = self.types(kids.next()?)?;
                TypeKind::Fn { params, result: Box::new(self.ty(kids.next()?)?) }
            }
            Rule::tuple_type => {
                let mut parts = self.types(pair)?;
                if parts.len() == 1 {
                    return parts.pop();
                }
                TypeKind::Tuple(parts)
            }
            Rule::apply_type => {
                let mut kids = Kids::of(pair);
                let name = self.name(&kids.next()?);
                TypeKind::Apply { name, args: self.types(kids.next()?)? }
            }
            Rule::pending => {
                let (kind, axes) = self.pending(pair)?;
                TypeKind::Pending { base: None, kind, axes }
            }
            Rule::unit_type => TypeKind::Unit(self.unit(pair)),
            _ => TypeKind::Name(self.path(pair)),
        };
        Some(Type { kind, span })
    }

    fn type_suffix(&mut self, base: Type, pair: Pair<'_, Rule>) -> Option<TypeKind> {
        let base = Box::new(base);
        Some(match pair.as_rule() {
            Rule::layouts => TypeKind::Tensor { element: base, dims: self.layouts(pair)? },
            Rule::optional => TypeKind::Optional(base),
            Rule::within_type => {
                let span = self.span(&pair);
                let inclusive = pair.as_str().contains("..=");
                let mut bounds = Kids::of(pair).filter(|kid| kid.as_rule() == Rule::bound);
                let start = Some(Box::new(self.bound(bounds.next()?)?));
                let end = Some(Box::new(self.bound(bounds.next()?)?));
                let kind = ExprKind::Range { start, end, inclusive };
                TypeKind::Within { base, range: Box::new(Expr { kind, span }) }
            }
            Rule::at_most_type => {
                let limit = Box::new(self.bound(Kids::of(pair).next()?)?);
                TypeKind::AtMost { base, limit }
            }
            Rule::where_type => {
                TypeKind::Where { base, cond: Box::new(self.expr(Kids::of(pair).next()?)?) }
            }
            _ => {
                let (kind, axes) = self.pending(pair)?;
                TypeKind::Pending { base: Some(base), kind, axes }
            }
        })
    }

    fn pending(&mut self, pair: Pair<'_, Rule>) -> Option<(Name, Vec<Name>)> {
        let mut kids = Kids::of(pair);
        let kind = self.name(&kids.next()?);
        Some((kind, self.names(kids.next()?)))
    }

    /// The types inside a list of types.
    pub fn types(&mut self, pair: Pair<'_, Rule>) -> Option<Vec<Type>> {
        Kids::of(pair).map(|kid| self.ty(kid)).collect()
    }

    /// A number, quantity or name with an optional minus.
    pub fn bound(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let negative = kids.pick(Rule::neg_op).is_some();
        let operand = self.operand(kids.next()?)?;
        if !negative {
            return Some(operand);
        }
        let kind = ExprKind::Unary { op: UnaryOp::Neg, operand: Box::new(operand) };
        Some(Expr { kind, span })
    }

    /// `[tok@dp, d]`
    pub fn layouts(&mut self, pair: Pair<'_, Rule>) -> Option<Vec<Layout>> {
        Kids::of(pair).map(|kid| self.layout(kid)).collect()
    }

    fn layout(&mut self, pair: Pair<'_, Rule>) -> Option<Layout> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let dim = self.dim_expr(kids.next()?)?;
        let axes = kids.map(|kid| self.axis_use(kid)).collect::<Option<_>>()?;
        Some(Layout { dim, axes, span })
    }

    /// The axis of `@tp`.
    pub fn axis_use(&mut self, pair: Pair<'_, Rule>) -> Option<Name> {
        Some(self.name(&Kids::of(pair).next()?))
    }
}
