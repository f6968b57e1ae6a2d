//! How long things are: runs counted in epochs, and what is assumed of lengths that only a run knows.

use nrl_base::{Diagnostic, Span};
use nrl_ir::host::Value;
use nrl_ir::program::{Binding, Source, Stage};
use nrl_syntax::ast::{self, ExprKind};

use crate::elab::{El, Elab};
use crate::facts::{Assumption, Law};
use crate::units::Unit;
use crate::value::{Env, Val};

/// What may be assumed, and its unit.
const ASSUMED: &[(&str, &str)] =
    &[("lengths", "token"), ("turns", ""), ("latency", "second"), ("kept", "")];

impl<'a> Elab<'a, '_> {
    /// Steps of `run 1 epoch`: what the data holds over what a step takes.
    pub fn epoch_steps(&mut self, step: &[Binding], epochs: usize, span: Span) -> usize {
        let taken = step.iter().find_map(|b| match b.stage {
            Stage::Take { data, count, .. } => Some((data, count)),
            _ => None,
        });
        let Some((data, count)) = taken else {
            if self.problems.has_errors() {
                // The line that takes may be the one that failed.
                return 1;
            }
            let what = "an epoch is a pass over data, and no line of the step takes any";
            let _: El<()> = self.error("nothing-to-run", span, what, "counted in epochs");
            return 1;
        };
        let d = &self.out.program.data[data];
        let rows = match &d.source {
            Source::Made { rows, .. } => *rows,
            Source::JsonLines { path } => match self.files.read(path) {
                Ok(bytes) => {
                    let lines = bytes.split(|b| *b == b'\n');
                    lines.filter(|l| l.iter().any(|b| !b.is_ascii_whitespace())).count()
                }
                Err(why) => {
                    let what = format!("an epoch of {path} has an unknown length: {why}");
                    let d =
                        Diagnostic::error("data-not-found", what).label(span, "counted in epochs");
                    self.out.not_yet.push(d.help("put the file there, or say how many steps"));
                    return 1;
                }
            },
        };
        let name = d.name.clone();
        if rows / count == 0 {
            let what =
                format!("`{name}` has {rows} rows, one step takes {count}: an epoch is 0 steps");
            let d = Diagnostic::error("epoch-is-empty", what).label(span, "nothing would run");
            let _: El<()> = self.fail(d.help(format!("take at most {rows}")));
        }
        (rows / count * epochs).max(1)
    }

    /// `assume lengths = lognormal(mean: 700 tokens, p99: 2400 tokens)`, `assume lengths from "FILE"`.
    pub fn assume(&mut self, env: &Env<'a>, a: &'a ast::Assume) -> El<()> {
        let name = a.name.text.as_str();
        let Some((_, unit)) = ASSUMED.iter().find(|(n, _)| *n == name) else {
            let known = ASSUMED.iter().map(|(n, _)| *n);
            let help = nrl_base::did_you_mean(name, known.clone())
                .unwrap_or_else(|| format!("one of {}", known.collect::<Vec<_>>().join(", ")));
            let what = format!("nothing assumes `{name}`");
            let d = Diagnostic::error("unknown-name", what).label(a.name.span, "not assumed");
            return self.fail(d.help(help));
        };
        let law = if a.from_file {
            let v = self.expr(env, &a.value)?;
            let path = self.text_of(&v, a.value.span, "the file")?;
            match self.files.read(&path) {
                Ok(bytes) if name == "lengths" => {
                    let all = measured(&bytes);
                    if all.is_empty() {
                        let what = format!("no line of {path} says how many tokens a sample has");
                        let d = Diagnostic::error("data-not-found", what);
                        let d = d.label(a.value.span, "no lengths here");
                        return self.fail(d.help(
                            "lines of JSON with `completion_tokens`, `length`, or a list `tokens` or `logprobs`, as in `rollouts.jsonl` of a run",
                        ));
                    }
                    Law::Measured(all)
                }
                _ => Law::File(path),
            }
        } else {
            self.law(env, &a.value, unit)?
        };
        if name == "kept" && law.mean().is_none_or(|share| !(share > 0.0 && share <= 1.0)) {
            let what = "the share of groups that a `collect` keeps lies between 0 % and 100 %";
            let d = Diagnostic::error("out-of-range", what).label(a.value.span, "not a share");
            return self.fail(d.help("such as `assume kept = 30 %`"));
        }
        let of = name.to_string();
        self.out.facts.assumptions.push(Assumption { of, law, span: a.value.span });
        Ok(())
    }

    fn law(&mut self, env: &Env<'a>, e: &'a ast::Expr, unit: &'static str) -> El<Law> {
        let (name, args) = match &e.kind {
            ExprKind::Call { callee, args } => (callee.as_name().unwrap_or(""), &args[..]),
            _ => {
                let x = self.quantity_in(env, e, unit)?;
                return Ok(Law::Always(x));
            }
        };
        let want: &[&str] = match name {
            "lognormal" => &["mean", "p99"],
            "uniform" => &["low", "high"],
            "always" => &["value"],
            _ => {
                let known = ["lognormal", "uniform", "always"];
                let help = nrl_base::did_you_mean(name, known)
                    .unwrap_or_else(|| format!("one of {}", known.join(", ")));
                let what = "this is not a way to be distributed";
                return self.fail(
                    Diagnostic::error("unknown-name", what).label(e.span, "not known").help(help),
                );
            }
        };
        let mut given: Vec<Option<f64>> = vec![None; want.len()];
        for (i, a) in args.iter().enumerate() {
            let at = match &a.name {
                Some(n) => want.iter().position(|w| *w == n.text),
                None => Some(i).filter(|i| *i < want.len()),
            };
            let Some(at) = at else {
                let what = format!("`{name}` takes {}", want.join(", "));
                return self.error("wrong-arguments", a.span, what, "not one of them");
            };
            given[at] = Some(self.quantity_in(env, &a.value, unit)?);
        }
        let values: Option<Vec<f64>> = given.into_iter().collect();
        match (name, values.as_deref()) {
            ("lognormal", Some([mean, p99])) if p99 > mean => {
                Ok(Law::Lognormal { mean: *mean, p99: *p99 })
            }
            ("uniform", Some([low, high])) if high >= low => {
                Ok(Law::Uniform { low: *low, high: *high })
            }
            ("always", Some([x])) => Ok(Law::Always(*x)),
            (_, None) => {
                let what = format!("`{name}` needs {}", want.join(" and "));
                self.error("wrong-arguments", e.span, what, "not all given")
            }
            _ => {
                let what = format!("`{name}` needs {} < {}", want[0], want[want.len() - 1]);
                self.error("out-of-range", e.span, what, "the wrong way round")
            }
        }
    }

    fn quantity_in(&mut self, env: &Env<'a>, e: &'a ast::Expr, unit: &'static str) -> El<f64> {
        let want = if unit.is_empty() { Unit::none() } else { Unit::of(unit) };
        match self.expr(env, e)? {
            Val::Const(Value::Num(x), u) if u == want => Ok(x),
            v => {
                let kind = v.kind();
                let what = format!("this is assumed in {want}, not {kind}");
                self.error("unit-mismatch", e.span, what, format!("this is {kind}"))
            }
        }
    }
}

/// Tokens of the samples in lines of JSON.
fn measured(bytes: &[u8]) -> Vec<u32> {
    let lines = bytes.split(|b| *b == b'\n');
    let values = lines.filter_map(|l| serde_json::from_slice::<serde_json::Value>(l).ok());
    let one = |v: serde_json::Value| {
        let number = |key: &str| v.get(key)?.as_u64();
        let list = |key: &str| v.get(key)?.as_array().map(|a| a.len() as u64);
        let numbers = ["completion_tokens", "generated_tokens", "length"];
        let lists = ["completion_ids", "logprobs", "tokens", "ids"];
        let found = numbers.iter().find_map(|k| number(k));
        found.or_else(|| lists.iter().find_map(|k| list(k))).map(|n| n as u32)
    };
    values.filter_map(one).collect()
}
