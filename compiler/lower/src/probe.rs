//! One function alone as a tensor graph, to try it on numbers.
//!
//! In: a module and the name of a function it sees. Out: a graph whose inputs are the function's
//! parameters over the ragged dims that a step has: `tok` stands for the trained tokens (`act`),
//! then `seq` and `group`. Parameters asked to be trained are weights instead of inputs, so that
//! `passes::grad` gives the function's gradient. A loss is what `update` would minimise: its counts
//! `count.tokens`, `count.samples` and `count.groups` are inputs.

use nrl_base::{Problems, SourceMap, Span};
use nrl_ir::graph::ParamDecl;
use nrl_ir::op::Op;
use nrl_ir::{DimId, Graph, ParamId, Type};
use nrl_syntax::ast::{self, ItemKind, TypeKind};

use crate::builder::Builder;
use crate::elab::{El, Elab, Mode, Stop};
use crate::modules::{self, ModuleId};
use crate::value::{Env, Val};
use nrl_base::Files;

/// No model: nothing in a probed function is the model being updated.
const NO_MODEL: usize = usize::MAX;

/// The function that module `path` sees as `name` (its own, imported, or of the prelude) as a
/// graph.
///
/// Its parameters over `tok`, `seq`, `group` or nothing (`f32`) are graph inputs of their names,
/// those in `trained` parameters; other ones take their defaults. A parameter over `[seq]` has a
/// second input `x.valid`, 1 where the reward did not fail. Output `loss`, `out`, or `out.0`,
/// `out.1`, .. of a tuple. No graph if a problem is an error.
pub fn lower_fn(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    name: &str,
    trained: &[&str],
) -> (Option<Graph>, Problems) {
    let mut problems = Problems::new();
    let Some(modules) = modules::load(files, sources, &mut problems, path) else {
        return (None, problems);
    };
    if problems.has_errors() {
        return (None, problems);
    }
    let folder = path.rsplit_once('/').map_or("", |(f, _)| f);
    let mut elab = Elab::new(&modules, files, sources, folder, Some(1));
    let graph = elab.probe(name, trained).ok();
    problems.extend(elab.problems.as_slice().to_vec());
    (graph.filter(|_| !problems.has_errors()), problems)
}

impl<'a> Elab<'a, '_> {
    fn probe(&mut self, name: &str, trained: &[&str]) -> El<Graph> {
        let start = Span::new(self.modules.get(ModuleId(0)).source, 0, 0);
        let found = self.name(&Env::new(ModuleId(0)), name, start)?;
        let function = match &found {
            Val::Item(_, ast::Item { kind: ItemKind::Fn(f), .. }) => f,
            v => {
                let kind = v.kind();
                return self.error(
                    "wrong-type",
                    start,
                    format!("`{name}` is {kind}, not a function to try"),
                    "in this file",
                );
            }
        };
        let known = |n: &&&str| function.params.iter().any(|p| p.name.text == **n);
        if let Some(other) = trained.iter().find(|n| !known(n)) {
            return self.error(
                "unknown-name",
                function.name.span,
                format!("`{name}` has no parameter `{other}` to train"),
                "this function",
            );
        }
        self.builders.push(Builder::new(name));
        self.modes.push(Mode::Loss { model: NO_MODEL });
        let outputs = self.probe_call(found.clone(), function, trained);
        self.modes.pop();
        let (Some(builder), outputs) = (self.builders.pop(), outputs?) else { return Err(Stop) };
        let named: Vec<_> = outputs.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        Ok(builder.finish(&named))
    }

    /// Calls the function on its inputs; its results with their output names.
    fn probe_call(
        &mut self,
        callee: Val<'a>,
        function: &'a ast::Fn,
        trained: &[&str],
    ) -> El<Vec<(String, nrl_ir::ValueId)>> {
        let mut args = vec![];
        for p in &function.params {
            match self.probe_dims(p)? {
                Some(dims) => {
                    let train = trained.contains(&p.name.text.as_str());
                    let value = self.probe_input(p, &dims, train)?;
                    args.push((Some(&p.name), value, p.span));
                }
                None if p.default.is_some() && !trained.contains(&p.name.text.as_str()) => {}
                None => {
                    return self.error(
                        "wrong-type",
                        p.span,
                        format!(
                            "`{}` is no tensor over tok, seq or group, so that it cannot be tried",
                            p.name.text
                        ),
                        "wrap the function in one that gives this a value",
                    );
                }
            }
        }
        let span = function.name.span;
        let result = self.apply_named(callee, args, span, span)?;
        let parts = match result {
            Val::Tuple(parts) => parts,
            v => vec![v],
        };
        let one = parts.len() == 1;
        let mut out = vec![];
        for (i, part) in parts.into_iter().enumerate() {
            out.push(match part {
                Val::Loss(l) => ("loss".to_string(), l),
                v => {
                    let name = if one { "out".to_string() } else { format!("out.{i}") };
                    (name, self.tensor(&v, span)?.id)
                }
            });
        }
        Ok(out)
    }

    /// The graph's dims of a parameter; none if it is no tensor.
    fn probe_dims(&mut self, p: &'a ast::Param) -> El<Option<Vec<DimId>>> {
        let written = match p.ty.as_ref().map(|t| &t.kind) {
            Some(TypeKind::Tensor { dims, .. }) => dims,
            Some(TypeKind::Name(n)) if n.text() == "f32" => return Ok(Some(vec![])),
            _ => return Ok(None),
        };
        let mut out = vec![];
        for layout in written {
            let dim = match layout.dim.as_name() {
                Some("tok") => "act",
                Some("seq") => "seq",
                Some("group" | "pair") => "group",
                _ => return Ok(None),
            };
            out.push(self.builder(p.span)?.dim(dim));
        }
        Ok(Some(out))
    }

    fn probe_input(&mut self, p: &'a ast::Param, dims: &[DimId], train: bool) -> El<Val<'a>> {
        let name = &p.name.text;
        let b = self.builder(p.span)?;
        let seq = b.dim("seq");
        let valid = (dims == [seq]).then(|| b.input(&format!("{name}.valid"), Type::f32([seq])));
        if !train {
            let id = b.input(name, Type::f32(dims));
            return Ok(Val::Tensor(crate::value::Tensor { id, valid, origin: None }));
        }
        let param = ParamId(b.graph.params.len() as u32);
        b.graph.params.push(ParamDecl {
            name: name.clone(),
            dims: dims.to_vec(),
            repeat: None,
            checkpoint: name.clone(),
            checkpoint_dims: dims.iter().map(|d| vec![*d]).collect(),
            trained: true,
        });
        let id = self.tensor_op(Op::Use { param }, &[], &[], p.span)?;
        Ok(Val::Tensor(crate::value::Tensor { id, valid, origin: None }))
    }
}
