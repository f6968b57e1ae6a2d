//! `require` and `expect`: what a recipe demands of its numbers.
//!
//! In: a condition. Out: what is known now is decided now, an error for `require` and a warning for
//! `expect`; a budget of what only the plan knows (`peak_memory`, `step_time`) is kept, typed, for
//! the phase that has plans.

use nrl_base::{Diagnostic, Severity, Span};
use nrl_ir::host::Value;
use nrl_syntax::ast::{BinaryOp, Expr, ExprKind};

use crate::elab::{El, Elab, Stop};
use crate::types::shown;
use crate::units::Unit;
use crate::value::{Env, Val};

/// A condition on what a plan knows.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    pub measure: Measure,
    /// `<`, `<=`, `>`, `>=` with the measure on the left.
    pub op: BinaryOp,
    pub limit: Limit,
    /// As written.
    pub text: String,
    pub span: Span,
    /// An error, or a warning, if it does not hold.
    pub severity: Severity,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Most bytes of a rank in any stage.
    PeakMemory,
    /// Seconds of a step.
    StepTime,
}

/// What it is measured by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    Bytes(f64),
    /// `92 % of device`.
    OfDevice(f64),
    Seconds(f64),
}

impl Budget {
    /// Does it hold of a measured number and the number of the limit?
    pub fn holds(&self, measured: f64, limit: f64) -> bool {
        match self.op {
            BinaryOp::Lt => measured < limit,
            BinaryOp::Le => measured <= limit,
            BinaryOp::Gt => measured > limit,
            _ => measured >= limit,
        }
    }
}

/// The measure that a name stands for.
fn measure(e: &Expr) -> Option<Measure> {
    match e.as_name()? {
        "peak_memory" => Some(Measure::PeakMemory),
        "step_time" => Some(Measure::StepTime),
        _ => None,
    }
}

impl<'a> Elab<'a, '_> {
    /// One condition of a `require` or `expect` line.
    pub fn require(&mut self, env: &Env<'a>, e: &'a Expr, severity: Severity) {
        let mut budget = false;
        crate::walk::expr(e, &mut |x| {
            budget |= measure(x).is_some_and(|_| x.as_name().is_some_and(|n| env.get(n).is_none()));
        });
        let result = match budget {
            true => self.budget(env, e, severity).map(|b| self.out.budgets.push(b)),
            false => self.known_condition(env, e, severity),
        };
        // What failed has been reported, and nothing depends on it.
        let _: El<()> = result;
    }

    fn known_condition(&mut self, env: &Env<'a>, e: &'a Expr, severity: Severity) -> El<()> {
        match self.expr(env, e)? {
            Val::Const(Value::Bool(true), _) => Ok(()),
            Val::Const(Value::Bool(false), _) => {
                let text = self.sources.text(e.span).to_string();
                let (what, label) = match severity {
                    Severity::Error => (format!("`{text}` does not hold"), "required here"),
                    _ => (format!("`{text}` is expected and does not hold"), "expected here"),
                };
                let mut d =
                    Diagnostic::new("requirement-fails", severity, what).label(e.span, label);
                if let ExprKind::Binary { op, lhs, rhs, .. } = &e.kind
                    && !matches!(op, BinaryOp::And | BinaryOp::Or)
                    && let (Ok(l), Ok(r)) = (self.expr(env, lhs), self.expr(env, rhs))
                {
                    d = d.note(format!("left is {}, right is {}", shown(&l), shown(&r)));
                }
                self.problems.push(d);
                Ok(())
            }
            v => {
                let kind = v.kind();
                let what = format!("a requirement is a bool, not {kind}");
                self.error("wrong-type", e.span, what, format!("this is {kind}"))
            }
        }
    }

    fn budget(&mut self, env: &Env<'a>, e: &'a Expr, severity: Severity) -> El<Budget> {
        use BinaryOp as B;
        let parts = match &e.kind {
            ExprKind::Binary { op, lhs, rhs, .. } => match (measure(lhs), measure(rhs)) {
                (Some(m), None) => Some((m, *op, rhs)),
                // `2 GB > peak_memory` reads the other way round.
                (None, Some(m)) => match op {
                    B::Lt => Some((m, B::Gt, lhs)),
                    B::Le => Some((m, B::Ge, lhs)),
                    B::Gt => Some((m, B::Lt, lhs)),
                    B::Ge => Some((m, B::Le, lhs)),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        };
        let compares = |op: &B| matches!(op, B::Lt | B::Le | B::Gt | B::Ge);
        let Some((measure, op, limit)) = parts.filter(|(_, op, _)| compares(op)) else {
            let d =
                Diagnostic::error("wrong-type", "a budget compares one measure with one number");
            let d = d.label(e.span, "only the plan knows what stands here");
            return self
                .fail(d.help("write `peak_memory <= 92 % of device` or `step_time < 90 s`"));
        };
        let limit = self.limit(env, measure, limit)?;
        let text = self.sources.text(e.span).to_string();
        Ok(Budget { measure, op, limit, text, span: e.span, severity })
    }

    fn limit(&mut self, env: &Env<'a>, measure: Measure, e: &'a Expr) -> El<Limit> {
        if let ExprKind::Of { part, whole } = &e.kind {
            if whole.as_name() != Some("device") || measure != Measure::PeakMemory {
                let what = "a share is one of the memory of a device";
                let d = Diagnostic::error("wrong-type", what)
                    .label(e.span, "a share of something else");
                return self.fail(d.help("write `peak_memory <= 92 % of device`"));
            }
            let share = self.expr(env, part)?;
            let share = self.number(&share, part.span, "a share")?;
            if !(share > 0.0 && share <= 1.0) {
                let what = format!("a device has no {} % of its memory", 100.0 * share);
                return self.error("out-of-range", part.span, what, "this share");
            }
            return Ok(Limit::OfDevice(share));
        }
        let v = self.expr(env, e)?;
        let (unit, make): (Unit, fn(f64) -> Limit) = match measure {
            Measure::PeakMemory => (Unit::of("byte"), Limit::Bytes),
            Measure::StepTime => (Unit::of("second"), Limit::Seconds),
        };
        match &v {
            Val::Const(Value::Num(x), u) if *u == unit => Ok(make(*x)),
            Val::Poison => Err(Stop),
            v => {
                let kind = v.kind();
                let (name, like) = match measure {
                    Measure::PeakMemory => ("peak_memory", "`76 GB` or `92 % of device`"),
                    Measure::StepTime => ("step_time", "`90 s`"),
                };
                let d = Diagnostic::error(
                    "unit-mismatch",
                    format!("`{name}` is in {unit}, this is {kind}"),
                );
                self.fail(d.label(e.span, format!("this is {kind}")).help(format!("write {like}")))
            }
        }
    }
}
