//! Completion in `.nrl` files.
//!
//! In: a [`Document`] and an offset, usually behind a word that is being typed. Out: what may stand there:
//! behind a dot what its left side has, in `use` what can be imported, behind `@` axes, in a call its
//! parameters and all names in scope, at the start of a line statements. What stands before the offset is
//! read as text, since the line seldom parses.

use nrl_base::Files;
use nrl_driver::STD;
use nrl_lower::seen::{builtin, builtins};
use nrl_syntax::ast::{Item, ItemKind};

use crate::document::Document;
use crate::index::{Def, Kind, Target, Thing};
use crate::words;
use crate::world::{Import, members, params};

/// What a completion is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    Declared(Kind),
    Module,
    Builtin,
    Keyword,
    Unit,
    /// `name: ` of an argument or a field.
    Argument,
    /// A path of settings.
    Setting,
}

/// One thing that may be typed.
#[derive(Clone, PartialEq, Debug)]
pub struct Completion {
    pub label: String,
    /// What is typed, if it is not the label.
    pub insert: Option<String>,
    pub sort: Sort,
    pub detail: String,
    pub doc: Option<String>,
}

fn one(label: &str, sort: Sort, detail: impl Into<String>) -> Completion {
    Completion { label: label.into(), insert: None, sort, detail: detail.into(), doc: None }
}

/// The text before the offset, taken apart.
struct Before<'t> {
    text: &'t str,
    /// Names and dots that lead to the word being typed: `grpo.` of `grpo.adv`.
    chain: Vec<&'t str>,
    /// What stands before chain and word, blanks left out.
    last: &'t str,
    /// Whether nothing else stands on the line.
    opens_line: bool,
}

/// A file with a name put where one is missing, over all other files.
struct Patched<'f> {
    files: &'f dyn Files,
    path: &'f str,
    text: String,
}

impl Files for Patched<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        if path == self.path { Ok(self.text.clone().into_bytes()) } else { self.files.read(path) }
    }
}

/// What may be typed at an offset of the file at `path`. Behind a dot a name is put first, so that the
/// item around it can be read.
pub fn complete(files: &dyn Files, path: &str, open: &[&str], offset: usize) -> Vec<Completion> {
    let text = files.read(path).map(|b| String::from_utf8_lossy(&b).into_owned());
    let Ok(mut text) = text else { return vec![] };
    if !has_gap(&text, offset) {
        return Document::open(files, path, open).complete(offset);
    }
    text.insert(offset, 'x');
    Document::open(&Patched { files, path, text }, path, open).complete(offset)
}

/// Whether a name is missing in front of an offset, so that its line cannot be read.
pub fn has_gap(text: &str, offset: usize) -> bool {
    text.get(..offset).is_some_and(|t| t.ends_with(['.', '@']))
}

impl Document {
    /// What may be typed at an offset.
    pub fn complete(&self, offset: usize) -> Vec<Completion> {
        let text = self.text();
        let Some(text) = text.get(..offset) else { return vec![] };
        let line = &text[text.rfind('\n').map_or(0, |at| at + 1)..];
        if in_comment(line) {
            return vec![];
        }
        let before = Before::of(text);
        let mut out = if let Some(uses) = self.uses(line) {
            uses
        } else if !before.chain.is_empty() {
            self.behind_dot(&before.chain, offset)
        } else if before.last.ends_with('@') {
            self.axes()
        } else {
            self.anywhere(&before, offset)
        };
        let mut seen: Vec<String> = vec![];
        out.retain(|c| {
            let new = !seen.contains(&c.label);
            seen.push(c.label.clone());
            new
        });
        out
    }

    /// `use std.`, `use std.{a, `, `use std.models.{`.
    fn uses(&self, line: &str) -> Option<Vec<Completion>> {
        let rest = line.trim_start().strip_prefix("use ")?.trim_start();
        let (path, _) = rest.split_once('{').unwrap_or(match rest.rsplit_once('.') {
            Some((path, word)) => (path, word),
            None => return Some(vec![one("std", Sort::Module, "the standard library")]),
        });
        let path = path.trim_end_matches('.').trim();
        let mut out = vec![];
        for (name, text) in STD {
            let Some(below) = name.strip_prefix(path).and_then(|n| n.strip_prefix('.')) else {
                continue;
            };
            if !below.contains('.') {
                let about = text.lines().find_map(|l| l.strip_prefix("## ")).unwrap_or_default();
                out.push(one(below, Sort::Module, about));
            }
        }
        let module = self.world.modules.iter().position(|m| m.name == path);
        out.extend(module.into_iter().flat_map(|m| self.of_module(m)));
        Some(out)
    }

    fn of_module(&self, module: usize) -> Vec<Completion> {
        let here = &self.world.modules[module];
        let items = here.file.items.iter().filter_map(|i| self.item(i));
        let imports = here.imports.iter().filter(|_| here.is_std());
        let inner = imports.map(|(name, _)| one(name, Sort::Module, String::new()));
        items.chain(inner).collect()
    }

    fn item(&self, item: &Item) -> Option<Completion> {
        let name = item.name()?;
        let kind = match &item.kind {
            ItemKind::Model(_) => Kind::Model,
            ItemKind::Record(_) => Kind::Record,
            ItemKind::Enum(_) => Kind::Enum,
            ItemKind::Plan(_) | ItemKind::PlanFor(_) => Kind::Plan,
            ItemKind::Mesh(_) | ItemKind::View(_) => Kind::Mesh,
            ItemKind::Const(_) => Kind::Constant,
            ItemKind::Type(_) => Kind::Type,
            ItemKind::Unit(_) => Kind::Unit,
            ItemKind::Recipe(_) | ItemKind::Use(_) | ItemKind::Pool(_) | ItemKind::Test(_) => {
                return None;
            }
            ItemKind::Fn(_)
            | ItemKind::ExternFn(_)
            | ItemKind::ExternEnv(_)
            | ItemKind::Rollout(_) => Kind::Function,
        };
        let names: Vec<&str> = params(item).iter().map(|p| p.name.text.as_str()).collect();
        let detail = if names.is_empty() {
            kind.word().to_string()
        } else {
            format!("({})", names.join(", "))
        };
        Some(Completion { doc: item.doc.clone(), ..one(&name.text, Sort::Declared(kind), detail) })
    }

    fn behind_dot(&self, chain: &[&str], offset: usize) -> Vec<Completion> {
        let (thing, def) = self.follow(chain, offset);
        let mut out = match thing {
            Thing::Module(m) => self.of_module(m),
            Thing::Item(m, i) | Thing::Of(m, i) => {
                let item = self.world.item(m, i);
                let kind = if matches!(item.kind, ItemKind::Enum(_)) {
                    Kind::Variant
                } else {
                    Kind::Field
                };
                members(item)
                    .into_iter()
                    .map(|m| Completion {
                        doc: m.doc.map(str::to_string),
                        ..one(&m.name.text, Sort::Declared(kind), kind.word())
                    })
                    .collect()
            }
            Thing::Layers(all) => {
                all.iter().map(|n| one(&n.text, Sort::Declared(Kind::Weight), "weight")).collect()
            }
            Thing::Unknown => vec![],
        };
        let Some(def) = def else { return out };
        let typed = self.world.sources.text(def.whole).trim_end();
        if typed.ends_with("Sample") && def.kind == Kind::Parameter {
            let fields = ["prompt", "completion", "answer", "row", "tokens", "finished"];
            out.extend(fields.map(|f| one(f, Sort::Declared(Kind::Field), "of a sample")));
        }
        for fact in self.of_def(def).into_iter().flatten().filter(|_| chain.len() == 1) {
            let names = fact.members.iter();
            out.extend(names.map(|n| one(n, Sort::Declared(Kind::Field), fact.text.as_str())));
            if fact.methods {
                let all = builtins().filter(|b| b.method);
                out.extend(all.map(|b| {
                    one(b.name, Sort::Builtin, format!("({})", b.params[1..].join(", ")))
                }));
            }
        }
        out
    }

    /// What a path of names means at an offset, and its declaration if it is one name.
    fn follow(&self, chain: &[&str], offset: usize) -> (Thing, Option<&Def>) {
        let Some(first) = chain.first() else { return (Thing::Unknown, None) };
        let visible = self.index().map_or(vec![], |i| i.visible(offset));
        let def = visible.into_iter().find(|d| d.name == *first);
        let own = def.map(|d| d.thing.clone()).filter(|t| *t != Thing::Unknown);
        let item = def.is_none_or(|d| {
            matches!(d.kind, Kind::Function | Kind::Model | Kind::Record | Kind::Enum | Kind::Plan)
        });
        let global = || match self.world.global(0, first) {
            Some(Import::Module(m)) => Thing::Module(m),
            Some(Import::Item(m, i)) => Thing::Item(m, i),
            None => Thing::Unknown,
        };
        let mut thing = own.unwrap_or_else(|| if item { global() } else { Thing::Unknown });
        for name in &chain[1..] {
            thing = match thing {
                Thing::Module(m) => match self.world.within(m, name) {
                    Some(Import::Module(m)) => Thing::Module(m),
                    Some(Import::Item(m, i)) => Thing::Item(m, i),
                    None => Thing::Unknown,
                },
                _ => Thing::Unknown,
            };
        }
        (thing, def)
    }

    fn axes(&self) -> Vec<Completion> {
        let own = self.index().into_iter().flat_map(|i| &i.defs).filter(|d| d.kind == Kind::Axis);
        let known =
            ["dp", "fsdp", "tp", "rep", "rtp"].map(|a| one(a, Sort::Declared(Kind::Axis), "axis"));
        own.map(|d| one(&d.name, Sort::Declared(Kind::Axis), self.world.sources.text(d.whole)))
            .chain(known)
            .collect()
    }

    fn anywhere(&self, before: &Before<'_>, offset: usize) -> Vec<Completion> {
        let mut out = vec![];
        if let Some(call) = Call::around(before.text) {
            out.extend(self.arguments(&call, offset));
        }
        let number = before.last.trim_end();
        if number.ends_with(|c: char| c.is_ascii_digit())
            && before.text.ends_with(|c: char| !c.is_ascii_digit())
        {
            return nrl_lower::seen::units().map(|u| one(u, Sort::Unit, "unit")).collect();
        }
        let visible = self.index().map_or(vec![], |i| i.visible(offset));
        for def in visible.iter().filter(|d| d.visible.start > 0) {
            let detail = match self.of_def(def).and_then(|f| f.first()) {
                Some(fact) => fact.text.clone(),
                None => def.kind.word().to_string(),
            };
            out.push(Completion {
                doc: def.doc.clone(),
                ..one(&def.name, Sort::Declared(def.kind), detail)
            });
        }
        out.extend(self.of_module(0));
        if let Some(m) = self.world.modules.first() {
            for (name, import) in &m.imports {
                out.push(match import {
                    Import::Module(m) => {
                        one(name, Sort::Module, self.world.modules[*m].name.as_str())
                    }
                    Import::Item(m, i) => match self.item(self.world.item(*m, *i)) {
                        Some(c) => Completion { label: name.clone(), ..c },
                        None => continue,
                    },
                });
            }
        }
        out.extend(self.world.prelude.into_iter().flat_map(|p| self.of_module(p)));
        out.extend(
            builtins()
                .filter(|b| !b.method)
                .map(|b| one(b.name, Sort::Builtin, format!("({})", b.params.join(", ")))),
        );
        if before.opens_line {
            let inside = before.text.matches('{').count() > before.text.matches('}').count();
            let all: &[&str] = if inside { &words::STATEMENTS } else { &words::ITEMS };
            out.extend(all.iter().map(|w| one(w, Sort::Keyword, "")));
        } else {
            out.extend(
                words::RESERVED.iter().chain(&words::INSIDE).map(|w| one(w, Sort::Keyword, "")),
            );
        }
        out
    }

    /// Parameters of the call that are not given yet; fields of the record that a parameter is; variants.
    fn arguments(&self, call: &Call<'_>, offset: usize) -> Vec<Completion> {
        let (name, owner) = match call.path.split_last() {
            Some(split) => split,
            None => return vec![],
        };
        let (thing, _) = self.follow(&call.path, offset);
        let given = |name: &str| call.given.contains(&name);
        let field = |name: &str, detail: String| Completion {
            insert: Some(format!("{name}: ")),
            ..one(name, Sort::Argument, detail)
        };
        let Thing::Item(m, i) = thing else {
            let Some(b) = builtin(name) else { return vec![] };
            let skip = usize::from(b.method && !owner.is_empty());
            let open =
                b.params[skip..].iter().map(|p| p.trim_end_matches('?')).filter(|p| !given(p));
            return open.map(|p| field(p, format!("of {name}"))).collect();
        };
        let item = self.world.item(m, i);
        let all = params(item);
        let text = |span| self.world.sources.text(span).to_string();
        let mut out = vec![];
        if !call.record {
            let open = all.iter().skip(call.position).filter(|p| !given(&p.name.text));
            out.extend(open.map(|p| field(&p.name.text, text(p.span))));
        }
        let param = match call.naming {
            Some(named) => all.iter().find(|p| p.name.text == named),
            None => all.get(call.position),
        };
        let Some(index) = self.index_of(m) else { return out };
        let ty = param.and_then(|p| p.ty.as_ref()).map(|t| t.span);
        let named = ty.and_then(|t| index.uses.iter().find(|u| u.span.to(t) == t));
        if let Some(Target::Def(at)) = named.map(|u| &u.target)
            && let Some(owner) = self.world.module_of(at.source)
            && let Some(found) = self.world.modules[owner]
                .file
                .items
                .iter()
                .find(|i| i.name().is_some_and(|n| n.span == *at))
        {
            match &found.kind {
                ItemKind::Record(r) if call.record => {
                    let open = r.fields.iter().filter(|f| !given(&f.name.text));
                    out.extend(open.map(|f| Completion {
                        doc: f.doc.clone(),
                        ..field(&f.name.text, text(f.span))
                    }));
                }
                ItemKind::Enum(_) => out.extend(members(found).into_iter().map(|m| Completion {
                    doc: m.doc.map(str::to_string),
                    ..one(&m.name.text, Sort::Declared(Kind::Variant), "variant")
                })),
                _ => {}
            }
        }
        out
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn in_comment(line: &str) -> bool {
    line.split('"').step_by(2).any(|part| part.contains('#'))
}

impl<'t> Before<'t> {
    fn of(text: &'t str) -> Before<'t> {
        let mut rest = text.trim_end_matches(is_word);
        let mut chain = vec![];
        while let Some(left) = rest.strip_suffix('.') {
            let base = left.trim_end_matches(is_word);
            let name = &left[base.len()..];
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
                break;
            }
            chain.insert(0, name);
            rest = base;
        }
        let last = rest.trim_end_matches([' ', '\t']);
        Before {
            text,
            chain,
            last,
            opens_line: last.is_empty() || last.ends_with(['\n', '{', ';']),
        }
    }
}

/// The call whose parentheses are open at the end of a text.
struct Call<'t> {
    path: Vec<&'t str>,
    /// Arguments before the one being typed.
    position: usize,
    /// Names that are given already.
    given: Vec<&'t str>,
    /// Whether a record in the call is open.
    record: bool,
    /// The parameter whose value is being typed.
    naming: Option<&'t str>,
}

/// How far back a call may have begun.
const FAR: usize = 4000;

impl<'t> Call<'t> {
    fn around(text: &'t str) -> Option<Call<'t>> {
        let mut start = text.len().saturating_sub(FAR);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        let mut depth = 0usize;
        let (mut position, mut record, mut open_at) = (0, false, None);
        let mut quoted = false;
        for (at, c) in text[start..].char_indices().rev() {
            match c {
                '"' => quoted = !quoted,
                _ if quoted => {}
                ')' | ']' | '}' => depth += 1,
                '(' if depth == 0 => {
                    open_at = Some(start + at);
                    break;
                }
                '{' if depth == 0 && !record => {
                    // A record in a call, if a parenthesis or a comma stands before it.
                    let left = text[..start + at].trim_end();
                    if !left.ends_with(['(', ',', ':']) {
                        return None;
                    }
                    (position, record) = (0, true);
                }
                '[' if depth == 0 => return None,
                '(' | '[' | '{' => depth = depth.checked_sub(1)?,
                ',' if depth == 0 => position += 1,
                _ => {}
            }
        }
        let open = open_at?;
        let inside = &text[open + 1..];
        let mut left = &text[..open];
        let mut path = vec![];
        loop {
            let base = left.trim_end_matches(is_word);
            let name = &left[base.len()..];
            if name.is_empty() {
                break;
            }
            path.insert(0, name);
            match base.strip_suffix('.') {
                Some(rest) => left = rest,
                None => break,
            }
        }
        let given =
            inside.split([',', '{']).filter_map(|part| Some(part.split_once(':')?.0.trim()));
        let last = inside.rsplit([',', '{', '(']).next().unwrap_or("");
        let naming = last.split_once(':').map(|(name, _)| name.trim());
        Some(Call { path, position, given: given.collect(), record, naming })
    }
}
