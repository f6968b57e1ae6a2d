//! What expressions turned out to be, for editors.
//!
//! In: every expression of the user's own files with its value, as elaboration meets it. Out: words, dims
//! and the names that may follow a dot, by span. Nothing is kept unless it was asked for, and what
//! is kept decides nothing. A function that is expanded several times leaves up to three
//! different facts per expression.

use std::collections::BTreeMap;

use nrl_base::{Files, SourceMap, Span};
use nrl_ir::host::Value;
use nrl_ir::infer::show_type;
use nrl_ir::{DimId, Graph};
use nrl_syntax::ast::ItemKind;

use crate::elab::{Elab, Lowered};
use crate::value::{StepShape, Val};
use crate::{Options, elaborate};

/// Most facts per expression.
const MOST: usize = 3;

/// Longest text of a value.
const LONGEST: usize = 200;

/// One fact about an expression.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Fact {
    /// `f32[tok, d]`, `16 samples/prompt`, `a data set`.
    pub text: String,
    /// Dims of a tensor with their sizes, where they are known.
    pub dims: Vec<(String, Option<usize>)>,
    /// Names that may follow a dot, other than functions.
    pub members: Vec<String>,
    /// Whether functions such as `.take(..)` may follow it.
    pub methods: bool,
}

/// Facts by place.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub facts: BTreeMap<Span, Vec<Fact>>,
}

/// Elaborates a recipe as far as it goes, even past errors, and tells what its expressions are.
pub fn lower_seen(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    options: &Options,
) -> (Lowered, Seen) {
    let (lowered, _, seen) = elaborate(files, sources, path, options, Some(Seen::default()));
    (lowered, seen.unwrap_or_default())
}

impl<'a> Elab<'a, '_> {
    /// Keeps what `v`, the value of the expression at `span`, is.
    pub(crate) fn note_seen(&mut self, span: Span, v: &Val<'a>) {
        if self.seen.is_none() || matches!(v, Val::Poison) || self.is_std(span) {
            return;
        }
        let fact = self.fact(v);
        let Some(seen) = &mut self.seen else { return };
        let facts = seen.facts.entry(span).or_default();
        if facts.len() < MOST && !facts.contains(&fact) {
            facts.push(fact);
        }
    }

    fn fact(&self, v: &Val<'a>) -> Fact {
        let graph = self.builders.last().map(|b| &b.graph);
        let tensor = |text: String, dims: &[DimId], g: &Graph| Fact {
            text,
            dims: dims.iter().map(|d| (word(g.dims.name(*d)), g.dims.size(*d))).collect(),
            ..Fact::default()
        };
        let members = |text: String, names: &[&str], methods: bool| Fact {
            text,
            members: names.iter().map(|n| (*n).to_string()).collect(),
            methods,
            ..Fact::default()
        };
        let text = |text: String| members(text, &[], false);
        match (v, graph) {
            (Val::Const(Value::Num(x), u), _) if !u.is_none() => text(format!("{x} {u}")),
            (Val::Const(Value::Record(r), _), _) => {
                let keys: Vec<&str> = r.keys().map(String::as_str).collect();
                members(cut(Value::Record(r.clone()).to_json().to_string()), &keys, false)
            }
            (Val::Const(v, _), _) => text(cut(v.to_json().to_string())),
            (Val::Host(_, t), _) => {
                let sample = ["prompt", "completion", "answer", "tokens", "finished", "row"];
                let record = t.describe() == "record";
                members(t.describe(), if record { &sample } else { &[] }, false)
            }
            (Val::Tensor(t), Some(g)) => {
                tensor(word_type(show_type(g, g.ty(t.id))), g.dims_of(t.id), g)
            }
            (Val::Param(p), Some(g)) => {
                let decl = g.param(*p);
                let names: Vec<String> = decl.dims.iter().map(|d| word(g.dims.name(*d))).collect();
                tensor(format!("parameter [{}]", names.join(", ")), &decl.dims, g)
            }
            (Val::Dim(d), Some(g)) => {
                let size = g.dims.size(*d).map_or(String::new(), |n| format!(" = {n}"));
                text(format!("dim {}{size}", word(g.dims.name(*d))))
            }
            (Val::Step(s), _) => {
                let (shown, dim) = match s.shape {
                    StepShape::Act => ("f32[tok]", Some("tok")),
                    StepShape::Seq => ("f32[seq]", Some("seq")),
                    StepShape::Group => ("f32[group]", Some("group")),
                    StepShape::Scalar => ("f32", None),
                };
                Fact {
                    dims: dim.map(|d| (d.to_string(), None)).into_iter().collect(),
                    ..text(shown.to_string())
                }
            }
            (Val::Loss(_), _) => text("loss".into()),
            (Val::Range(low, high), _) => {
                members(format!("{low}..{high}"), &["low", "high"], false)
            }
            (Val::Record(fields), _) => {
                let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
                members(format!("a record of {}", keys.join(", ")), &keys, false)
            }
            (Val::Variant { .. }, _) => text(format!("{}: {}", v.kind(), crate::types::shown(v))),
            (Val::Samples(s), _) => {
                let all = ["length", "truncated", "logprob"];
                members(v.kind(), &all[..2 + usize::from(s.drawing.is_some())], false)
            }
            (Val::Report(_), _) => {
                let all = ["accuracy", "reward", "pass_at_k", "length", "truncated", "failed"];
                members(v.kind(), &all, false)
            }
            (Val::Layer(l), _) => {
                let names: Vec<&str> = l.params.keys().map(String::as_str).collect();
                members(format!("a layer: {}", names.join(", ")), &names, false)
            }
            (Val::Layers(l), _) => {
                let first = l.runs.iter().flat_map(|r| &r.layers).next();
                let names: Vec<&str> =
                    first.iter().flat_map(|l| l.params.keys()).map(String::as_str).collect();
                members(format!("{} layers: {}", l.count, names.join(", ")), &names, false)
            }
            (Val::Module(m), _) => {
                let module = self.modules.get(*m);
                let names: Vec<&str> = module.names.keys().map(String::as_str).collect();
                members(format!("module {}", module.name), &names, false)
            }
            (Val::Item(_, item), _) => match &item.kind {
                ItemKind::Enum(e) => {
                    let names: Vec<&str> =
                        e.variants.iter().map(|v| v.name.text.as_str()).collect();
                    members(format!("one of {}", names.join(", ")), &names, false)
                }
                _ => text(v.kind()),
            },
            (Val::Mesh(i), _) => {
                let axes = self.out.program.meshes.get(*i).map(|(_, m)| &m.axes[..]).unwrap_or(&[]);
                let shown: Vec<String> =
                    axes.iter().map(|a| format!("{} {}", a.name, a.size)).collect();
                text(format!("a mesh: {}", shown.join(", ")))
            }
            (Val::Model(i), _) => match self.out.program.models.get(*i) {
                Some(m) => text(format!("a model: {}, context {}", m.family, m.context)),
                None => text(v.kind()),
            },
            (Val::Generator(_, s), _) => {
                members(format!("a generator at temperature {}", s.sampling.temperature), &[], true)
            }
            (Val::Data(_) | Val::Prompts { .. }, _) => members(v.kind(), &[], true),
            _ => text(v.kind()),
        }
    }
}

/// The name of a dim as recipes write it: trained tokens are `tok`.
fn word(dim: &str) -> String {
    (if dim == "act" { "tok" } else { dim }).to_string()
}

fn word_type(shown: String) -> String {
    shown.replace("[act", "[tok").replace(", act", ", tok")
}

fn cut(text: String) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// A function of the compiler itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BuiltIn {
    pub name: &'static str,
    /// Names of its parameters; those that may be left out end in `?`. Empty where they have no names.
    pub params: &'static [&'static str],
    /// Whether it may be written `x.f(..)`.
    pub method: bool,
}

/// The built-in function called `name`.
pub fn builtin(name: &str) -> Option<BuiltIn> {
    let i = crate::intrinsic::find(name)?;
    Some(BuiltIn { name: i.name, params: i.params, method: i.method })
}

/// All built-in functions.
pub fn builtins() -> impl Iterator<Item = BuiltIn> {
    crate::intrinsic::names().filter_map(builtin)
}

/// Every spelling of a unit.
pub fn units() -> impl Iterator<Item = &'static str> {
    crate::units::Unit::spellings()
}
