//! Types and dims of expressions.
//!
//! An expression is put where it can be read: at the end of the recipe, of a step, or at the beginning of a loss. The
//! first place where it means something counts.

use nrl_base::{SourceId, SourceMap, Span};
use nrl_driver::Files;
use nrl_lower::seen::{Fact, lower_seen};
use nrl_syntax::ast::{Block, StmtKind};

use super::{Answer, Session, told};
use crate::edit;
use crate::input::Over;

const PROBE: &str = "asked__";

impl Session<'_> {
    pub(super) fn types(&self, text: &str) -> Answer {
        if text.is_empty() {
            return Answer::failed("write `types EXPR`, such as `types adv`");
        }
        if let Err(found) = nrl_syntax::parse_expr(SourceId(0), text) {
            let why = found.first().map_or("it is no expression", |d| d.message.as_str());
            return Answer::failed(format!("`{text}` cannot be read: {why}"));
        }
        let mut first = None;
        for (at, lead) in self.places() {
            let head = format!("{lead}{PROBE} = ");
            let mut probed = self.input.text.clone();
            probed.insert_str(at, &format!("\n{head}{text}\n"));
            let start = at + 1 + head.len();
            let span = Span::new(SourceId(0), start, start + text.len());
            let files = Over { files: self.files, path: self.input.path.clone(), text: probed };
            if let Some(fact) = self.fact(&files, span) {
                return Answer::said(shown(&fact));
            }
            first = first.or_else(|| self.problem(&files, span));
        }
        if let Ok(said) = crate::explain::explain(&self.input, &self.planned, text) {
            return Answer::said(said);
        }
        Answer::failed(first.unwrap_or_else(|| format!("`{text}` means nothing here")))
    }

    /// Offsets where a line can be put, and what it begins with there.
    fn places(&self) -> Vec<(usize, &'static str)> {
        let text = &self.input.text;
        let (file, _) = nrl_syntax::parse(SourceId(0), text);
        let Some(recipe) = edit::recipe(&file, self.input.options.recipe.as_deref()) else {
            return vec![];
        };
        let close = |b: &Block| text.get(..b.span.end as usize).and_then(|t| t.rfind('}'));
        let mut out: Vec<(usize, &'static str)> =
            close(&recipe.body).map(|at| (at, "")).into_iter().collect();
        let mut losses = vec![];
        edit::statements(&recipe.body.stmts, &mut |s| match &s.kind {
            StmtKind::Step(b) => out.extend(close(b).map(|at| (at, ""))),
            StmtKind::Update(u) => {
                losses.extend(u.loss.value.as_ref().map(|v| (v.span.start as usize, "let ")))
            }
            _ => {}
        });
        out.extend(losses);
        out
    }

    fn fact(&self, files: &dyn Files, span: Span) -> Option<Fact> {
        let options = nrl_lower::Options {
            sets: self.input.options.sets.clone(),
            ranks: self.input.options.ranks,
            recipe: self.input.options.recipe.clone(),
        };
        let (_, seen) = lower_seen(files, &mut SourceMap::new(), &self.input.path, &options);
        seen.facts.get(&span)?.first().cloned()
    }

    /// The first error about the expression itself.
    fn problem(&self, files: &dyn Files, span: Span) -> Option<String> {
        let mut sources = SourceMap::new();
        let options = &self.input.options;
        let (_, found) = nrl_driver::compile(files, &mut sources, &self.input.path, options);
        let inside =
            |s: Span| s.source == span.source && s.start >= span.start && s.end <= span.end;
        let own = found.into_iter().find(|d| d.is_error() && d.span().is_some_and(inside))?;
        let text = told(&[own], &sources);
        // Places of a line that is not there would only confuse.
        Some(
            text.lines()
                .map(|l| l.split("   (").next().unwrap_or(l))
                .collect::<Vec<_>>()
                .join("\n"),
        )
    }
}

/// `f32[tok]   tok: ragged`, with the sizes of dims that are known.
fn shown(fact: &Fact) -> String {
    let sizes: Vec<String> = fact
        .dims
        .iter()
        .map(|(d, n)| n.map_or_else(|| format!("{d} ragged"), |n| format!("{d} {n}")))
        .collect();
    match sizes.is_empty() {
        true => fact.text.clone(),
        false => format!("{}   {}", fact.text, sizes.join(", ")),
    }
}
