//! Expressions: precedence climbing over the flat pairs of the grammar.

use nrl_base::{Diagnostic, Span};
use nrl_grammar::Rule;
use pest::iterators::Pair;

use super::{Build, Kids, has};
use crate::ast::*;
use crate::errors::Place;

/// The binding strength of an operator between operands: left and right.
fn power(rule: Rule) -> Option<(u8, u8)> {
    Some(match rule {
        Rule::pipe_op => (1, 2),
        Rule::to_op => (3, 4),
        Rule::on_op => (5, 6),
        Rule::or_op => (7, 8),
        Rule::and_op => (9, 10),
        Rule::eq_op
        | Rule::ne_op
        | Rule::lt_op
        | Rule::le_op
        | Rule::gt_op
        | Rule::ge_op
        | Rule::in_op => (COMPARISON, COMPARISON + 1),
        Rule::range_op | Rule::range_incl_op => (15, 16),
        Rule::add_op | Rule::sub_op => (17, 18),
        Rule::mul_op | Rule::div_op | Rule::floor_div_op | Rule::rem_op | Rule::contract_op => {
            (19, 20)
        }
        Rule::pow_op => (24, 23),
        _ => return None,
    })
}

const NOT: u8 = 11;
const COMPARISON: u8 = 13;
const NEGATION: u8 = 21;

fn binary_op(rule: Rule) -> Option<BinaryOp> {
    Some(match rule {
        Rule::to_op => BinaryOp::To,
        Rule::on_op => BinaryOp::On,
        Rule::or_op => BinaryOp::Or,
        Rule::and_op => BinaryOp::And,
        Rule::eq_op => BinaryOp::Eq,
        Rule::ne_op => BinaryOp::Ne,
        Rule::lt_op => BinaryOp::Lt,
        Rule::le_op => BinaryOp::Le,
        Rule::gt_op => BinaryOp::Gt,
        Rule::ge_op => BinaryOp::Ge,
        Rule::in_op => BinaryOp::In,
        Rule::add_op => BinaryOp::Add,
        Rule::sub_op => BinaryOp::Sub,
        Rule::mul_op => BinaryOp::Mul,
        Rule::div_op => BinaryOp::Div,
        Rule::floor_div_op => BinaryOp::FloorDiv,
        Rule::rem_op => BinaryOp::Rem,
        Rule::contract_op => BinaryOp::Contract,
        Rule::pow_op => BinaryOp::Pow,
        _ => return None,
    })
}

impl Build<'_> {
    /// Any of the flat expression rules: `expr`, `simple`, `dim_expr`.
    pub fn expr(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        let more = pair.clone().into_inner().count();
        if !self.enter(more, &pair) {
            self.leave(more);
            return Some(Expr { kind: ExprKind::None, span: self.span(&pair) });
        }
        let built = self.climb(&mut Kids::of(pair), 0);
        self.leave(more);
        built
    }

    /// An expression of dims.
    pub fn dim_expr(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        self.expr(pair)
    }

    /// An expression and, at the end of a line, the settings after `with`.
    pub fn value(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let base = self.expr(kids.next()?)?;
        let Some(open) = kids.next() else { return Some(base) };
        let args = Kids::of(open).map(|item| self.with_item(item)).collect::<Option<_>>()?;
        Some(Expr { kind: ExprKind::With { base: Box::new(base), args }, span })
    }

    fn with_item(&mut self, pair: Pair<'_, Rule>) -> Option<Arg> {
        let inner = Kids::of(pair).next()?;
        if inner.as_rule() == Rule::arg {
            return self.arg(inner);
        }
        let span = self.span(&inner);
        let word = Span { end: span.start + "delay".len() as u32, ..span };
        let name = Some(Name { text: String::from("delay"), span: word });
        Some(Arg { name, value: self.expr(Kids::of(inner).next()?)?, span })
    }

    fn climb(&mut self, kids: &mut Kids<'_>, least: u8) -> Option<Expr> {
        let mut left = self.prefixed(kids)?;
        let mut compared = false;
        while let Some((strength, right)) = kids.rule().and_then(power) {
            if strength < least {
                break;
            }
            let op = kids.next()?;
            let comparison = strength == COMPARISON;
            if comparison && compared {
                self.chained(&op);
            }
            compared = comparison;
            let rhs = self.climb(kids, right)?;
            left = self.infix(left, &op, rhs)?;
        }
        Some(left)
    }

    fn chained(&mut self, op: &Pair<'_, Rule>) {
        let span = self.span(op);
        self.problems.push(
            Diagnostic::error("syntax", "comparisons do not chain")
                .label(span, "a second comparison")
                .help("write `a < b and b < c`"),
        );
    }

    fn infix(&mut self, left: Expr, op: &Pair<'_, Rule>, right: Expr) -> Option<Expr> {
        let span = left.span.to(right.span);
        let op_span = self.span(op);
        let (lhs, rhs) = (Box::new(left), Box::new(right));
        let kind = match op.as_rule() {
            Rule::pipe_op => ExprKind::Pipe { input: lhs, stage: rhs },
            Rule::range_op | Rule::range_incl_op => ExprKind::Range {
                start: Some(lhs),
                end: Some(rhs),
                inclusive: op.as_rule() == Rule::range_incl_op,
            },
            rule => ExprKind::Binary { op: binary_op(rule)?, op_span, lhs, rhs },
        };
        Some(Expr { kind, span })
    }

    fn prefixed(&mut self, kids: &mut Kids<'_>) -> Option<Expr> {
        let first = kids.next()?;
        let start = self.span(&first);
        let (operand, wrap): (Expr, fn(Box<Expr>) -> ExprKind) = match first.as_rule() {
            Rule::neg_op => (self.climb(kids, NEGATION)?, |operand| ExprKind::Unary {
                op: UnaryOp::Neg,
                operand,
            }),
            Rule::not_op => {
                (self.climb(kids, NOT)?, |operand| ExprKind::Unary { op: UnaryOp::Not, operand })
            }
            Rule::some_op => (self.climb(kids, NEGATION)?, ExprKind::Some),
            _ => {
                let operand = self.operand(first)?;
                return self.postfixed(operand, kids);
            }
        };
        let span = start.to(operand.span);
        Some(Expr { kind: wrap(Box::new(operand)), span })
    }

    fn postfixed(&mut self, mut base: Expr, kids: &mut Kids<'_>) -> Option<Expr> {
        while let Some(rule) = kids.rule().filter(|rule| {
            matches!(
                rule,
                Rule::call
                    | Rule::index
                    | Rule::field
                    | Rule::open_range
                    | Rule::with_args
                    | Rule::from_text
            )
        }) {
            let pair = kids.next()?;
            let span = base.span.to(self.span(&pair));
            let inner = Box::new(base);
            let kind = match rule {
                Rule::call => ExprKind::Call { callee: inner, args: self.args(pair)? },
                Rule::index => {
                    let items =
                        Kids::of(pair).map(|kid| self.index_item(kid)).collect::<Option<_>>()?;
                    ExprKind::Index { base: inner, items }
                }
                Rule::field => {
                    ExprKind::Field { base: inner, name: self.name(&Kids::of(pair).next()?) }
                }
                Rule::open_range => {
                    ExprKind::Range { start: Some(inner), end: None, inclusive: false }
                }
                Rule::with_args => {
                    ExprKind::With { base: inner, args: self.args(Kids::of(pair).next()?)? }
                }
                _ => {
                    let text = self.text(&Kids::of(pair).next()?);
                    let source = Expr { kind: ExprKind::Text(text.value), span: text.span };
                    ExprKind::From { base: inner, source: Box::new(source) }
                }
            };
            base = Expr { kind, span };
        }
        Some(base)
    }

    fn args(&mut self, pair: Pair<'_, Rule>) -> Option<Vec<Arg>> {
        Kids::of(pair).map(|kid| self.arg(kid)).collect()
    }

    /// `x` or `name: x`
    pub fn arg(&mut self, pair: Pair<'_, Rule>) -> Option<Arg> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let name = match kids.pick(Rule::arg_name) {
            Some(name) => Some(self.name(&Kids::of(name).next()?)),
            None => None,
        };
        Some(Arg { name, value: self.expr(kids.next()?)?, span })
    }

    fn index_item(&mut self, pair: Pair<'_, Rule>) -> Option<IndexItem> {
        let span = self.span(&pair);
        Some(match pair.as_rule() {
            Rule::all => IndexItem::All(span),
            Rule::rename => {
                let mut kids = Kids::of(pair);
                let from = self.name(&kids.next()?);
                IndexItem::Rename { from, to: self.name(&kids.next()?), span }
            }
            _ => IndexItem::Expr(self.expr(pair)?),
        })
    }

    /// One operand without what stands before and behind it.
    pub fn operand(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        let span = self.span(&pair);
        let kind = match pair.as_rule() {
            Rule::expr | Rule::simple | Rule::dim_expr => return self.expr(pair),
            Rule::number => self.number(&pair),
            Rule::quantity => return self.quantity(pair),
            Rule::text => ExprKind::Text(self.text(&pair).value),
            Rule::bool_lit => ExprKind::Bool(pair.as_str() == "true"),
            Rule::none_lit => ExprKind::None,
            Rule::name_expr => ExprKind::Name(pair.as_str().trim_end().to_string()),
            Rule::rest_expr => return self.rest(pair),
            Rule::tuple => return self.tuple(pair),
            Rule::dim_group => return self.expr(Kids::of(pair).next()?),
            Rule::list => ExprKind::List(self.exprs(pair)?),
            Rule::record => ExprKind::Record(
                Kids::of(pair).map(|kid| self.field_value(kid)).collect::<Option<_>>()?,
            ),
            Rule::block_expr => ExprKind::Block(Box::new(self.block(Kids::of(pair).next()?)?)),
            Rule::lambda => self.lambda(pair)?,
            Rule::if_expr => self.if_expr(pair)?,
            Rule::match_expr => self.match_expr(pair)?,
            Rule::for_expr => self.for_expr(pair)?,
            Rule::scan_expr => self.scan_expr(pair)?,
            Rule::collect_expr => self.collect_expr(pair)?,
            _ => return None,
        };
        Some(Expr { kind, span })
    }

    /// The expressions inside a pair.
    pub fn exprs(&mut self, pair: Pair<'_, Rule>) -> Option<Vec<Expr>> {
        Kids::of(pair).map(|kid| self.expr(kid)).collect()
    }

    fn number(&mut self, pair: &Pair<'_, Rule>) -> ExprKind {
        let text = pair.as_str().replace('_', "");
        if text.bytes().all(|b| b.is_ascii_digit()) {
            if let Ok(value) = text.parse() {
                return ExprKind::Int(value);
            }
            self.bad_number(pair, "9223372036854775807");
        }
        ExprKind::Float(self.float(pair))
    }

    fn float(&mut self, pair: &Pair<'_, Rule>) -> f64 {
        let value = pair.as_str().replace('_', "").parse().unwrap_or(f64::INFINITY);
        if f64::is_infinite(value) {
            self.bad_number(pair, "1.7e308");
        }
        value
    }

    fn bad_number(&mut self, pair: &Pair<'_, Rule>, largest: &str) {
        let span = self.span(pair);
        self.problems.push(
            Diagnostic::error("bad-number", format!("`{}` is too large", pair.as_str()))
                .label(span, "does not fit")
                .help(format!("the largest is {largest}")),
        );
    }

    /// The quantity of a unit that is a multiple of another.
    pub fn unit_of(&mut self, pair: Option<Pair<'_, Rule>>) -> Option<Option<Expr>> {
        pair.map_or(Some(None), |pair| self.quantity(pair).map(Some))
    }

    fn quantity(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        let whole_span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let number = kids.next()?;
        let unit = kids.next()?;
        let span = self.span(&number).to(self.span(&unit));
        let text = number.as_str().to_string();
        let quantity = Quantity {
            value: self.float(&number),
            whole: text.bytes().all(|b| b.is_ascii_digit() || b == b'_'),
            text,
            unit: self.unit(unit),
        };
        let part = Expr { kind: ExprKind::Quantity(quantity), span };
        self.of(part, kids.next(), whole_span)
    }

    pub fn unit(&mut self, pair: Pair<'_, Rule>) -> Vec<UnitFactor> {
        if pair.as_rule() == Rule::percent_unit {
            return vec![UnitFactor { name: self.name(&pair), power: 1 }];
        }
        let words = pair.into_inner().enumerate();
        words
            .map(|(at, word)| UnitFactor {
                name: self.name(&word),
                power: if at == 0 { 1 } else { -1 },
            })
            .collect()
    }

    fn rest(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        let span = self.span(&pair);
        let word = Span { end: span.start + "rest".len() as u32, ..span };
        let part = Expr { kind: ExprKind::Rest, span: word };
        self.of(part, Kids::of(pair).next(), span)
    }

    fn of(&mut self, part: Expr, clause: Option<Pair<'_, Rule>>, span: Span) -> Option<Expr> {
        let Some(clause) = clause else { return Some(part) };
        let whole = Box::new(self.expr(Kids::of(clause).next()?)?);
        Some(Expr { kind: ExprKind::Of { part: Box::new(part), whole }, span })
    }

    fn tuple(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        let span = self.span(&pair);
        let comma = has(&pair, Rule::trailing_comma);
        let parts = Kids::of(pair).filter(|kid| kid.as_rule() == Rule::expr);
        let mut parts: Vec<Expr> = parts.map(|kid| self.expr(kid)).collect::<Option<_>>()?;
        match parts.pop() {
            Some(only) if parts.is_empty() && !comma => Some(Expr { span, ..only }),
            last => {
                parts.extend(last);
                Some(Expr { kind: ExprKind::Tuple(parts), span })
            }
        }
    }

    fn field_value(&mut self, pair: Pair<'_, Rule>) -> Option<RecordValue> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        Some(RecordValue { name, value: self.expr(kids.next()?)?, span })
    }

    fn lambda(&mut self, pair: Pair<'_, Rule>) -> Option<ExprKind> {
        let mut kids = Kids::of(pair);
        let head = kids.next()?;
        let params = match head.as_rule() {
            Rule::name_tuple => self.names(Kids::of(head).next()?),
            _ => vec![self.name(&head)],
        };
        Some(ExprKind::Lambda { params, body: Box::new(self.expr(kids.next()?)?) })
    }

    fn if_expr(&mut self, pair: Pair<'_, Rule>) -> Option<ExprKind> {
        let mut kids = Kids::of(pair);
        let cond = Box::new(self.expr(kids.next()?)?);
        let then = Box::new(self.branch(kids.next()?)?);
        let otherwise = match kids.next() {
            Some(pair) => Some(Box::new(self.branch(pair)?)),
            None => None,
        };
        Some(ExprKind::If { cond, then, otherwise })
    }

    fn branch(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        let span = self.span(&pair);
        let kind = match pair.as_rule() {
            Rule::block => ExprKind::Block(Box::new(self.block(pair)?)),
            Rule::if_expr => self.if_expr(pair)?,
            _ => return self.expr(pair),
        };
        Some(Expr { kind, span })
    }

    fn match_expr(&mut self, pair: Pair<'_, Rule>) -> Option<ExprKind> {
        let mut kids = Kids::of(pair);
        let value = Box::new(self.expr(kids.next()?)?);
        let mut arms = Vec::new();
        for line in Kids::of(kids.next()?) {
            if line.as_rule() == Rule::bad_line {
                self.bad_line(&line, Place::Arm);
                continue;
            }
            let span = self.span(&line);
            let mut parts = Kids::of(line);
            let pattern = self.pattern(parts.next()?)?;
            arms.push(Arm { pattern, value: self.expr(parts.next()?)?, span });
        }
        Some(ExprKind::Match { value, arms })
    }

    fn pattern(&mut self, pair: Pair<'_, Rule>) -> Option<Pattern> {
        let span = self.span(&pair);
        let inner = Kids::of(pair).next()?;
        let kind = match inner.as_rule() {
            Rule::some_pattern => {
                let inside = Kids::of(inner).find(|kid| kid.as_rule() == Rule::pattern)?;
                PatternKind::Some(Box::new(self.pattern(inside)?))
            }
            Rule::none_lit => PatternKind::None,
            Rule::tuple_pattern => PatternKind::Tuple(self.patterns(inner)?),
            Rule::value_pattern => PatternKind::Value(self.value_pattern(inner)?),
            Rule::variant_pattern => {
                let mut kids = Kids::of(inner);
                let path = self.path(kids.next()?);
                PatternKind::Variant { path, args: self.patterns(kids.next()?)? }
            }
            _ if inner.as_str() == "_" => PatternKind::Any,
            _ => PatternKind::Name(inner.as_str().to_string()),
        };
        Some(Pattern { kind, span })
    }

    fn patterns(&mut self, pair: Pair<'_, Rule>) -> Option<Vec<Pattern>> {
        Kids::of(pair).map(|kid| self.pattern(kid)).collect()
    }

    fn value_pattern(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        let span = self.span(&pair);
        let inclusive = pair.as_str().contains("..=");
        let mut kids = Kids::of(pair);
        let first = kids.next()?;
        if first.as_rule() != Rule::bound_value {
            return self.operand(first);
        }
        let start = self.bound(first)?;
        let Some(end) = kids.find(|kid| kid.as_rule() == Rule::bound_value) else {
            return Some(start);
        };
        let end = Some(Box::new(self.bound(end)?));
        let kind = ExprKind::Range { start: Some(Box::new(start)), end, inclusive };
        Some(Expr { kind, span })
    }

    fn carrying(&mut self, pair: Option<Pair<'_, Rule>>) -> Option<Vec<Carry>> {
        let Some(pair) = pair else { return Some(Vec::new()) };
        Kids::of(pair)
            .map(|kid| {
                let mut parts = Kids::of(kid);
                let name = self.name(&parts.next()?);
                let start = self.expr_opt(parts.next())?;
                Some(Carry { name, start })
            })
            .collect()
    }

    /// An optional expression; the outer `None` means the grammar disagrees.
    pub fn expr_opt(&mut self, pair: Option<Pair<'_, Rule>>) -> Option<Option<Expr>> {
        match pair {
            Some(pair) => self.expr(pair).map(Some),
            None => Some(None),
        }
    }

    /// The expression inside an optional clause such as `within 13 h`.
    pub fn clause(&mut self, pair: Option<Pair<'_, Rule>>) -> Option<Option<Expr>> {
        match pair {
            Some(pair) => self.expr(Kids::of(pair).next()?).map(Some),
            None => Some(None),
        }
    }

    fn for_expr(&mut self, pair: Pair<'_, Rule>) -> Option<ExprKind> {
        let mut kids = Kids::of(pair);
        let var = self.name(&kids.next()?);
        let over = self.expr(kids.next()?)?;
        let carrying = self.carrying(kids.pick(Rule::carrying))?;
        let until = self.clause(kids.pick(Rule::until_clause))?;
        let body = self.block(kids.next()?)?;
        Some(ExprKind::For(Box::new(For { var, over, carrying, until, body })))
    }

    fn scan_expr(&mut self, pair: Pair<'_, Rule>) -> Option<ExprKind> {
        let back = has(&pair, Rule::kw_back);
        let mut kids = Kids::of(pair);
        let inputs = self.names(kids.next()?);
        let carrying = self.carrying(kids.pick(Rule::carrying))?;
        let body = self.block(kids.next()?)?;
        Some(ExprKind::Scan(Box::new(Scan { back, inputs, carrying, body })))
    }

    fn collect_expr(&mut self, pair: Pair<'_, Rule>) -> Option<ExprKind> {
        let mut kids = Kids::of(pair);
        let count = self.expr(kids.next()?)?;
        let cond = self.clause(kids.pick(Rule::where_clause))?;
        let within = self.clause(kids.pick(Rule::within_clause))?;
        let body = self.block(kids.next()?)?;
        Some(ExprKind::Collect(Box::new(Collect { count, cond, within, body })))
    }
}
