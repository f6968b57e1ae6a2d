//! `test "name" { .. }`: lines that are elaborated as a step is, and what they claim.
//!
//! In: a file. Out: per test its findings and claims. What is known now is decided now; claims of
//! tensors are left as outputs of one graph, with the numbers of its inputs, for an engine to run
//! and [`Tested::verdicts`] to judge. A test is wrong if it has a finding or a claim does not hold.

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, Problems, SourceMap, Span};
use nrl_ir::host::Value;
use nrl_ir::{Graph, Type, ValueId};
use nrl_syntax::ast::{self, BinaryOp, Block, ExprKind, ItemKind, StmtKind};

use crate::builder::Builder;
use crate::elab::{El, Elab, Mode, Stop};
use crate::intrinsic::Args;
use crate::modules::{self, ModuleId};
use crate::types::shown;
use crate::value::{Env, Tensor, Val};
use nrl_base::Files;

/// No model: nothing in a test is the model being updated.
const NO_MODEL: usize = usize::MAX;

/// One test after elaboration.
#[derive(Debug, Default)]
pub struct Tested {
    pub name: String,
    pub span: Span,
    /// What is wrong with its lines.
    pub problems: Vec<Diagnostic>,
    pub claims: Vec<Claim>,
    /// Computes what is not known yet; none if everything is.
    pub graph: Option<Graph>,
    /// Numbers of the graph's inputs.
    pub values: BTreeMap<String, Vec<f64>>,
    /// Samples of each group, and tokens of each sample.
    pub groups: Vec<usize>,
    pub tokens: Vec<usize>,
}

/// One `assert` or `fails`.
#[derive(Debug)]
pub struct Claim {
    pub span: Span,
    /// As written.
    pub text: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Known now; if it does not hold, why.
    Known(Option<String>),
    Later {
        op: BinaryOp,
        left: Part,
        right: Part,
        within: f64,
    },
}

/// One side of a comparison.
#[derive(Debug)]
enum Part {
    Known(Value),
    /// An output of the graph.
    Output(usize),
}

/// Numbers that a test gave, and their structure.
#[derive(Debug, Default)]
pub struct Trial {
    values: BTreeMap<String, Vec<f64>>,
    groups: Option<(Vec<usize>, Span)>,
    tokens: Option<(Vec<usize>, Span)>,
    outputs: Vec<ValueId>,
}

/// The tests of `path` whose names hold `filter`. Findings of the file itself come apart.
pub fn lower_tests(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    filter: Option<&str>,
) -> (Vec<Tested>, Problems) {
    let mut problems = Problems::new();
    let Some(mut loaded) = modules::load(files, sources, &mut problems, path) else {
        return (vec![], problems);
    };
    crate::extend::compose(&mut loaded, &mut problems);
    let folder = path.rsplit_once('/').map_or("", |(f, _)| f);
    if !problems.has_errors() {
        let mut elab = Elab::new(&loaded, files, sources, folder, Some(1));
        elab.trial = Some(Trial::default());
        elab.check_items();
        problems.extend(elab.problems.into_found());
    }
    if problems.has_errors() {
        return (vec![], problems);
    }
    let mut out: Vec<Tested> = vec![];
    for item in &loaded.get(ModuleId(0)).file.items {
        let ItemKind::Test(t) = &item.kind else { continue };
        if let Some(first) = out.iter().find(|o| o.name == t.name.value) {
            let what = format!("there are two tests `{}`", t.name.value);
            let d = Diagnostic::error("duplicate-name", what).label(t.name.span, "second one");
            problems.push(d.label(first.span, "first one"));
        }
        let mut elab = Elab::new(&loaded, files, sources, folder, Some(1));
        out.push(elab.test(t));
    }
    out.retain(|t| filter.is_none_or(|f| t.name.contains(f)));
    (out, problems)
}

impl<'a> Elab<'a, '_> {
    fn test(&mut self, t: &'a ast::Test) -> Tested {
        self.trial = Some(Trial::default());
        self.builders.push(Builder::new("test"));
        self.modes.push(Mode::Loss { model: NO_MODEL });
        let mut claims = vec![];
        self.test_block(&mut Env::new(ModuleId(0)), &t.body, &mut claims);
        self.modes.pop();
        let trial = self.trial.take().unwrap_or_default();
        let names: Vec<String> = (0..trial.outputs.len()).map(|i| format!("out.{i}")).collect();
        let outputs: Vec<(&str, ValueId)> =
            names.iter().map(String::as_str).zip(trial.outputs.iter().copied()).collect();
        let built = self.builders.pop().filter(|_| !outputs.is_empty());
        let groups = trial.groups.map_or(vec![], |(g, _)| g);
        let samples = groups.iter().sum();
        Tested {
            name: t.name.value.clone(),
            span: t.name.span,
            problems: std::mem::take(&mut self.problems).into_found(),
            claims,
            graph: built.map(|b| b.finish(&outputs)),
            values: trial.values,
            groups,
            tokens: trial.tokens.map_or_else(|| vec![1; samples], |(t, _)| t),
        }
    }

    fn test_block(&mut self, env: &mut Env<'a>, block: &'a Block, claims: &mut Vec<Claim>) {
        for s in &block.stmts {
            let done = match &s.kind {
                StmtKind::Bind(b) => {
                    let bound = self.expr(env, &b.value).and_then(|v| self.bind_names(env, b, v));
                    if bound.is_err() {
                        b.names.iter().for_each(|n| env.bind(&n.text, Val::Poison));
                    }
                    bound
                }
                StmtKind::Expr(e) => self.expr(env, e).map(|_| ()),
                StmtKind::Assert(a) => self.assert(env, a, s.span).map(|c| claims.push(c)),
                StmtKind::Fails(f) => {
                    claims.push(self.fails(env, f, s.span));
                    Ok(())
                }
                _ => self.error(
                    "misplaced",
                    s.span,
                    "this line has no meaning in a test",
                    "bindings, `assert` and `fails` stand here",
                ),
            };
            let _: El<()> = done;
        }
        if let Some(v) = &block.value {
            let _ = self.expr(env, v);
        }
    }

    fn assert(&mut self, env: &Env<'a>, a: &'a ast::Assert, span: Span) -> El<Claim> {
        let within = match &a.within {
            None => 0.0,
            Some(e) => {
                let v = self.expr(env, e)?;
                self.number(&v, e.span, "how far two numbers may be apart")?
            }
        };
        let text = self.sources.text(span).to_string();
        let claim = |kind| Claim { span, text, kind };
        let compared = match &a.cond.kind {
            ExprKind::Binary { op, lhs, rhs, .. } if is_comparison(*op) => Some((*op, lhs, rhs)),
            _ => None,
        };
        let Some((op, lhs, rhs)) = compared else {
            return match self.expr(env, &a.cond)? {
                Val::Const(Value::Bool(true), _) => Ok(claim(Kind::Known(None))),
                Val::Const(Value::Bool(false), _) => {
                    Ok(claim(Kind::Known(Some("it is false".into()))))
                }
                v if self.is_tensor(&v) => {
                    let left = self.part(&v, a.cond.span)?;
                    let right = Part::Known(Value::Num(0.0));
                    Ok(claim(Kind::Later { op: BinaryOp::Ne, left, right, within }))
                }
                v => {
                    let kind = v.kind();
                    let what = format!("`assert` takes a bool or a comparison, not {kind}");
                    self.error("wrong-type", a.cond.span, what, format!("this is {kind}"))
                }
            };
        };
        let left = self.expr(env, lhs)?;
        let right = match &left {
            Val::Variant { of, .. } => self.expr_for_enum(env, rhs, of)?,
            _ => self.expr(env, rhs)?,
        };
        if let (Val::Const(Value::Num(_), u), Val::Const(Value::Num(_), w)) = (&left, &right)
            && u != w
        {
            let (su, sw) = (u.to_string(), w.to_string());
            let d = Diagnostic::error("unit-mismatch", format!("`{}` of {su} and {sw}", op.text()));
            return self.fail(d.label(lhs.span, su).label(rhs.span, sw));
        }
        let shows = (shown(&left), shown(&right));
        let (left, right) = (self.part(&left, lhs.span)?, self.part(&right, rhs.span)?);
        Ok(claim(match (left, right) {
            (Part::Known(l), Part::Known(r)) => {
                let holds = compare(op, &l, &r, within);
                Kind::Known((!holds).then(|| sides(&l, &r, &shows)))
            }
            (left, right) => Kind::Later { op, left, right, within },
        }))
    }

    /// A value as one side of a comparison.
    fn part(&mut self, v: &Val<'a>, span: Span) -> El<Part> {
        let id = match v {
            Val::Loss(id) => *id,
            v if self.is_tensor(v) => self.tensor(v, span)?.id,
            Val::Range(low, high) => {
                return Ok(Part::Known(Value::list(vec![Value::Num(*low), Value::Num(*high)])));
            }
            Val::Tuple(items) | Val::List(items) => {
                let mut out = vec![];
                for i in items {
                    match self.part(i, span)? {
                        Part::Known(v) => out.push(v),
                        Part::Output(_) => {
                            let what = "the parts of a tuple are compared one by one";
                            return self.error("wrong-type", span, what, "write `a, b = ..` above");
                        }
                    }
                }
                return Ok(Part::Known(Value::list(out)));
            }
            v => return Ok(Part::Known(self.constants(v, span)?)),
        };
        let Some(trial) = &mut self.trial else { return Err(Stop) };
        trial.outputs.push(id);
        Ok(Part::Output(trial.outputs.len() - 1))
    }

    /// Lines that must raise an error of a code; what they build is thrown away.
    fn fails(&mut self, env: &Env<'a>, f: &'a ast::Fails, span: Span) -> Claim {
        let outside = std::mem::take(&mut self.problems);
        let unknown = self.unknown.clone();
        let builders = self.builders.clone();
        let trial = self.trial.as_ref().map(|t| t.outputs.len());
        self.test_block(&mut env.clone(), &f.body, &mut vec![]);
        self.builders = builders;
        if let (Some(t), Some(n)) = (&mut self.trial, trial) {
            t.outputs.truncate(n);
        }
        self.unknown = unknown;
        let found = std::mem::replace(&mut self.problems, outside).into_found();
        let holds = found.iter().any(|d| d.code == f.code.text);
        let why = (!holds).then(|| match &found[..] {
            [] => "nothing fails here".to_string(),
            found => {
                let all: Vec<String> =
                    found.iter().map(|d| format!("{} ({})", d.code, d.message)).collect();
                format!("it fails otherwise: {}", all.join(", "))
            }
        });
        if !nrl_base::codes::CODES.iter().any(|(c, _)| *c == f.code.text) {
            let what = format!("there is no error `{}`", f.code.text);
            let known = nrl_base::codes::CODES.iter().map(|(c, _)| *c);
            let help = nrl_base::did_you_mean(&f.code.text, known);
            let d = Diagnostic::error("unknown-name", what).label(f.code.span, "not a code");
            self.problems.push(d.help_opt(help));
        }
        Claim { span, text: format!("fails {}", f.code.text), kind: Kind::Known(why) }
    }

    /// `per_token([[[0.1, 0.2], [0.3]]])`, `per_sample([[1, 0]])`, `per_group([3])`, `per_pair([0.5])`: given
    /// numbers. The pairs of a batch are its groups.
    pub fn literal(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let (name, span) = (a.which.name, a.span);
        let (v, at) = a.need("numbers");
        if self.trial.is_none() {
            let what = format!("`{name}` gives numbers to a test");
            let d = Diagnostic::error("misplaced", what).label(span, "outside of a test");
            return self.fail(d.help("in a step such values come from samples and rewards"));
        }
        let depth = match name {
            "per_token" => 3,
            "per_sample" => 2,
            _ => 1,
        };
        let value = self.constants(&v, at)?;
        let mut lists = vec![value.clone()];
        // One group, or one sample of it, needs no brackets of its own.
        let missing = depth - nesting(&value).min(depth);
        for _ in 0..missing {
            lists = vec![Value::list(lists)];
        }
        let mut sizes: Vec<Vec<usize>> = vec![];
        for _ in 0..depth {
            let mut next = vec![];
            let mut lens = vec![];
            for l in &lists {
                let Value::List(items) = l else {
                    let what = format!("`{name}` takes lists of numbers");
                    return self.error("wrong-type", at, what, "nested otherwise here");
                };
                lens.push(items.len());
                next.extend(items.iter().cloned());
            }
            sizes.push(lens);
            lists = next;
        }
        let mut numbers = vec![];
        let mut valid = vec![];
        for l in &lists {
            match l {
                Value::Num(x) => numbers.push(*x),
                Value::None if name == "per_sample" => numbers.push(0.0),
                l => {
                    let what = format!("`{name}` takes numbers, not a {}", l.kind());
                    return self.error("wrong-type", at, what, "not a number in here");
                }
            }
            valid.push(f64::from(!matches!(l, Value::None)));
        }
        self.same_structure(&sizes, numbers.len(), depth, at)?;
        let count = self.trial.as_ref().map_or(0, |t| t.values.len());
        let input = format!("given.{count}");
        let b = self.builder(span)?;
        let dim = b.dim(["group", "seq", "act"][depth - 1]);
        let id = b.input(&input, Type::f32([dim]));
        let mask = format!("{input}.valid");
        let made = (name == "per_sample").then(|| b.input(&mask, Type::f32([dim])));
        let Some(trial) = &mut self.trial else { return Err(Stop) };
        trial.values.insert(input, numbers);
        if made.is_some() {
            trial.values.insert(mask, valid);
        }
        Ok(Val::Tensor(Tensor { id, valid: made, origin: None }))
    }

    /// All numbers of a test are of the same groups, samples and tokens.
    fn same_structure(
        &mut self,
        sizes: &[Vec<usize>],
        count: usize,
        depth: usize,
        at: Span,
    ) -> El<()> {
        let groups = match depth {
            1 => None,
            _ => Some(sizes[1].clone()),
        };
        let tokens = (depth == 3).then(|| sizes[2].clone());
        let Some(trial) = &mut self.trial else { return Err(Stop) };
        let mut conflict = None;
        let mut check =
            |slot: &mut Option<(Vec<usize>, Span)>, new: Option<Vec<usize>>, what| match (
                &slot, new,
            ) {
                (Some((old, place)), Some(new)) if *old != new => {
                    conflict = Some((format!("{what} {new:?}"), format!("{what} {old:?}"), *place));
                }
                (None, Some(new)) => *slot = Some((new, at)),
                _ => {}
            };
        check(&mut trial.groups, groups, "samples per group");
        check(&mut trial.tokens, tokens, "tokens per sample");
        if depth == 1 {
            match &trial.groups {
                Some((g, place)) if g.len() != count => {
                    let groups = |n: usize| format!("{n} groups or pairs");
                    conflict = Some((groups(count), groups(g.len()), *place));
                }
                Some(_) => {}
                None => trial.groups = Some((vec![1; count], at)),
            }
        }
        match conflict {
            None => Ok(()),
            Some((new, old, place)) => {
                let what =
                    format!("the numbers of a test are of one batch: {new} here, {old} before");
                let d = Diagnostic::error("dim-mismatch", what).label(at, new);
                self.fail(d.label(place, old))
            }
        }
    }
}

/// How deep the first items of lists lie.
fn nesting(v: &Value) -> usize {
    match v {
        Value::List(items) => 1 + items.iter().map(nesting).max().unwrap_or(0),
        _ => 0,
    }
}

fn is_comparison(op: BinaryOp) -> bool {
    use BinaryOp as B;
    matches!(op, B::Eq | B::Ne | B::Lt | B::Le | B::Gt | B::Ge)
}

/// Numbers compared; equal NaNs are equal.
fn numbers_hold(op: BinaryOp, x: f64, y: f64, within: f64) -> bool {
    let equal = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= within;
    match op {
        BinaryOp::Eq => equal,
        BinaryOp::Ne => !equal,
        BinaryOp::Lt => x < y,
        BinaryOp::Le => x <= y,
        BinaryOp::Gt => x > y,
        _ => x >= y,
    }
}

fn compare(op: BinaryOp, l: &Value, r: &Value, within: f64) -> bool {
    match (l, r) {
        (Value::Num(x), Value::Num(y)) => numbers_hold(op, *x, *y, within),
        _ => match op {
            BinaryOp::Eq => equal(l, r, within),
            BinaryOp::Ne => !equal(l, r, within),
            // Lists are compared item by item; other values have no order.
            op => match (l, r) {
                (Value::List(a), Value::List(b)) => {
                    a.len() == b.len()
                        && a.iter().zip(b.iter()).all(|(a, b)| compare(op, a, b, within))
                }
                (Value::List(a), b @ Value::Num(_)) => a.iter().all(|a| compare(op, a, b, within)),
                _ => false,
            },
        },
    }
}

fn equal(l: &Value, r: &Value, within: f64) -> bool {
    match (l, r) {
        (Value::Num(x), Value::Num(y)) => numbers_hold(BinaryOp::Eq, *x, *y, within),
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| equal(a, b, within))
        }
        (Value::Record(a), Value::Record(b)) => {
            a.len() == b.len()
                && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| equal(v, w, within)))
        }
        (l, r) => l == r,
    }
}

/// Both sides as they are.
fn sides(l: &Value, r: &Value, shows: &(String, String)) -> String {
    let far = match (l, r) {
        (Value::Num(x), Value::Num(y)) => format!(" (apart by {})", (x - y).abs()),
        _ => String::new(),
    };
    let show = |v: &Value, text: &String| match v {
        Value::Record(_) | Value::List(_) => v.to_json().to_string(),
        _ => text.clone(),
    };
    format!("left is {}, right is {}{far}", show(l, &shows.0), show(r, &shows.1))
}

impl Tested {
    /// What does not hold, with its place; `outputs` are those of the graph, in order.
    pub fn verdicts(&self, outputs: &[Vec<f64>]) -> Vec<(Span, String, String)> {
        let mut out = vec![];
        for c in &self.claims {
            let why = match &c.kind {
                Kind::Known(why) => why.clone(),
                Kind::Later { op, left, right, within } => {
                    let side = |p: &Part| match p {
                        Part::Known(v) => flat(v),
                        Part::Output(i) => outputs.get(*i).cloned().unwrap_or_default(),
                    };
                    tensors(*op, &side(left), &side(right), *within)
                }
            };
            out.extend(why.map(|w| (c.span, c.text.clone(), w)));
        }
        out
    }
}

/// Why two tensors are not as claimed; a single number stands for all items.
fn tensors(op: BinaryOp, l: &[f64], r: &[f64], within: f64) -> Option<String> {
    let n = l.len().max(r.len());
    if (l.len() != n && l.len() != 1) || (r.len() != n && r.len() != 1) {
        return Some(format!("left has {} numbers, right has {}", l.len(), r.len()));
    }
    let at = |v: &[f64], i: usize| if v.len() == 1 { v[0] } else { v[i] };
    let bad = (0..n).find(|i| !numbers_hold(op, at(l, *i), at(r, *i), within));
    let any = op == BinaryOp::Ne && n > 1;
    if any && (0..n).any(|i| numbers_hold(op, at(l, i), at(r, i), within)) {
        return None;
    }
    let i = bad?;
    let (x, y) = (at(l, i), at(r, i));
    let which = if n > 1 { format!("item {i}: ") } else { String::new() };
    Some(format!("{which}left is {x}, right is {y} (apart by {})", (x - y).abs()))
}

/// The numbers of nested lists, in order.
fn flat(v: &Value) -> Vec<f64> {
    match v {
        Value::List(items) => items.iter().flat_map(flat).collect(),
        Value::Num(x) => vec![*x],
        Value::Bool(b) => vec![f64::from(*b)],
        _ => vec![f64::NAN],
    }
}
