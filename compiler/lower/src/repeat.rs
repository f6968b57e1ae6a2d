//! Layers of a model that repeat: equal ones, or a pattern of a few kinds.
//!
//! In: `repeat 32 { .. }`, or `repeat LIST { .. }` with an item for each layer. Out: runs, each a few layers that follow
//! one another a number of times, with the parameters of every layer of one turn. A run is one loop of the graph, so that
//! depth stays a loop: the runs are those that together have the fewest layers in their bodies.

use std::rc::Rc;

use indexmap::IndexMap;
use nrl_base::Span;
use nrl_ir::host::Value;
use nrl_ir::{DimId, Graph, ParamId};
use nrl_syntax::ast;

use crate::elab::{El, Elab};
use crate::model::ModelInfo;
use crate::value::{Env, Layer, Layers, Run, Val};

/// The longest turn that is looked for.
const LONGEST: usize = 16;
/// The most layers that a list may have.
const MOST: usize = 1024;

/// A layer of a turn while its parameters are declared.
pub struct Place {
    /// The group of the run, and how many turns it has.
    pub group: String,
    pub turns: usize,
    /// What the names of its parameters begin with.
    pub path: String,
    /// Its number in the first turn, and how many layers a turn has.
    first: usize,
    apart: usize,
    pub params: IndexMap<String, Option<ParamId>>,
}

impl Place {
    /// A checkpoint's name with the number of the layer in terms of the turn, see
    /// [`nrl_ir::graph::ParamDecl::tensor`].
    pub fn numbered(&self, name: &str) -> String {
        if self.first == 0 && self.apart == 1 {
            return name.to_string();
        }
        name.replace("{i}", &format!("{{i*{}+{}}}", self.apart, self.first))
    }
}

impl<'a> Elab<'a, '_> {
    /// The layers of a `repeat`, whose parameters are declared in the current graph.
    pub fn repeat(
        &mut self,
        env: &mut Env<'a>,
        name: &ast::Name,
        count: &'a ast::Expr,
        members: &'a [ast::Member],
        info: &ModelInfo<'a>,
    ) -> El<Layers<'a>> {
        let v = self.expr(env, count)?;
        let Some(items) = self.items(&v, count.span)? else {
            let count = self.whole(&v, count.span, "the number of layers")?;
            let mut place = Place {
                group: name.text.clone(),
                turns: count,
                path: name.text.clone(),
                first: 0,
                apart: 1,
                params: IndexMap::new(),
            };
            for m in members {
                self.member(env, m, Some(&mut place), info)?;
            }
            let layer = Layer { name: name.text.clone(), it: None, params: place.params };
            let run = Run { group: place.group, turns: count, layers: vec![Rc::new(layer)] };
            return Ok(Layers { count, runs: vec![run] });
        };
        let found = runs(&items);
        let alone = found.len() == 1;
        let mut out = Layers { count: items.len(), runs: vec![] };
        let mut first = 0;
        for (r, (apart, turns)) in found.into_iter().enumerate() {
            let group = if alone { name.text.clone() } else { format!("{}.{r}", name.text) };
            let mut layers = vec![];
            for i in 0..apart {
                let it = Val::constant(items[first + i].clone());
                let mut inner = env.clone();
                inner.bind("it", it.clone());
                let path = if apart == 1 { group.clone() } else { format!("{group}.{i}") };
                let mut place = Place {
                    group: group.clone(),
                    turns,
                    path,
                    first: first + i,
                    apart,
                    params: IndexMap::new(),
                };
                for m in members {
                    self.member(&mut inner, m, Some(&mut place), info)?;
                }
                let layer = Layer { name: name.text.clone(), it: Some(it), params: place.params };
                layers.push(Rc::new(layer));
            }
            out.runs.push(Run { group, turns, layers });
            first += apart * turns;
        }
        Ok(out)
    }

    /// The items of a list or the characters of a text; none of a number.
    fn items(&mut self, v: &Val<'a>, span: Span) -> El<Option<Vec<Value>>> {
        let items: Vec<Value> = match v {
            Val::Const(Value::Text(t), _) => {
                t.chars().map(|c| Value::Text(c.to_string().into())).collect()
            }
            Val::Const(Value::List(items), _) => items.to_vec(),
            _ => return Ok(None),
        };
        if items.is_empty() || items.len() > MOST {
            let what = format!("a list of {} layers", items.len());
            return self.error("out-of-range", span, what, format!("1 to {MOST} are possible"));
        }
        Ok(Some(items))
    }
}

/// The runs of a list, each as the number of its layers in a turn and of turns, such that the turns
/// together are as short as can be, and of those the fewest.
fn runs(items: &[Value]) -> Vec<(usize, usize)> {
    let n = items.len();
    // Of the items from each place on: layers in bodies, runs, and the first run.
    let mut best = vec![(0, 0, (0, 0)); n + 1];
    for at in (0..n).rev() {
        let mut found: Option<(usize, usize, (usize, usize))> = None;
        for apart in 1..=LONGEST.min(n - at) {
            let mut turns = 1;
            loop {
                let end = at + apart * turns;
                let next = (best[end].0 + apart, best[end].1 + 1, (apart, turns));
                if found.is_none_or(|f| (next.0, next.1) < (f.0, f.1)) {
                    found = Some(next);
                }
                let again = items.get(end..end + apart);
                if again.is_none_or(|x| x != &items[at..at + apart]) {
                    break;
                }
                turns += 1;
            }
        }
        best[at] = found.unwrap_or_default();
    }
    let (mut out, mut at) = (vec![], 0);
    while at < n {
        let (apart, turns) = best[at].2;
        out.push((apart, turns));
        at += (apart * turns).max(1);
    }
    out
}

/// A name `x.weight[..]` with the rows of that tensor that follow those of the parameters before:
/// `x.weight[4..8]`.
pub fn next_rows(g: &Graph, name: String, dims: &[DimId]) -> String {
    let Some(base) = name.strip_suffix("[..]") else { return name };
    let rows = |p: &nrl_ir::graph::ParamDecl| Some(p.rows()?.1.end);
    let same = g.params.iter().filter(|p| p.rows().is_some_and(|(n, _)| n == base));
    let start = same.filter_map(rows).max().unwrap_or(0);
    let merged: usize = dims
        .iter()
        .enumerate()
        .take_while(|(i, d)| *i == 0 || crate::model::is_merged(g.dims.name(**d)))
        .map(|(_, d)| g.dims.bound(*d))
        .product();
    format!("{base}[{start}..{}]", start + merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(usize, usize)> {
        runs(&text.chars().map(|c| Value::Text(c.to_string().into())).collect::<Vec<_>>())
    }

    #[test]
    fn a_pattern_is_few_loops() {
        assert_eq!(of("MMMM"), [(1, 4)]);
        assert_eq!(of("LLLFLLLFLLLF"), [(4, 3)]);
        assert_eq!(of("DEEE"), [(1, 1), (1, 3)]);
        // Layers of Nemotron 3 Nano, 52, and Super, 88: in bodies 14 and 27.
        let nano = of("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME");
        assert_eq!(nano.iter().map(|(a, n)| a * n).sum::<usize>(), 52);
        assert_eq!(nano.iter().map(|(a, _)| a).sum::<usize>(), 14);
        let large = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME";
        assert!(of(large).iter().map(|(a, _)| a).sum::<usize>() <= 30, "{:?}", of(large));
        assert_eq!(of(large).iter().map(|(a, n)| a * n).sum::<usize>(), 88);
    }
}
