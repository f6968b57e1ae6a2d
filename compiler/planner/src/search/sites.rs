//! Where a recipe writes the choices of a search, and its text with others.
//!
//! In: the text of a recipe and what it compiled to. Out: places of the mesh that trains, of plans,
//! micro-batches, the generator's mesh, pools and staleness; the layout as written; pins; the text of another
//! layout. Everything else in the text stays as it is, comments included.
//!
//! A comment `# pinned` after a line keeps all choices of that line, `# pinned: tp, ep` those it names.

use std::collections::BTreeSet;
use std::ops::Range;

use nrl_base::{Diagnostic, SourceId, Span};
use nrl_driver::Compiled;
use nrl_ir::program::Stage;
use nrl_syntax::ast::{BinaryOp, Expr, ExprKind, Stmt, StmtKind};

use super::layout::{Again, CHOICES, Family, Layout};

type Found<T> = Result<T, Box<Diagnostic>>;

/// Places of choices in a text.
#[derive(Clone, Debug)]
pub struct Sites {
    text: String,
    /// What stands before the names of plans: `plans.`.
    prefix: String,
    /// Axes of the mesh that trains, as written, and where their list stands.
    axes: Vec<(String, String)>,
    mesh: Range<usize>,
    plans: Vec<Range<usize>>,
    batches: Vec<Range<usize>>,
    serve: Option<Serve>,
    /// Sizes of the pools, and which of them trains.
    pool: Option<(Range<usize>, usize, usize)>,
    staleness: Vec<Range<usize>>,
    /// `require` of budgets: searching, they are compared with numbers, not errors.
    requires: Vec<Range<usize>>,
    /// Index of the mesh that trains in the program.
    pub train: usize,
    /// Index of the mesh that samples, if it is one of its own.
    pub sample: Option<usize>,
    /// The recipe's own layout.
    pub current: Layout,
    /// Whether a search could have made it.
    pub known: bool,
    pub pins: BTreeSet<String>,
}

/// The mesh of a generator.
#[derive(Clone, Debug)]
struct Serve {
    list: Range<usize>,
    axes: Vec<(String, String)>,
    name: String,
    /// Names of its axes of copies and of shared weights.
    names: (&'static str, &'static str),
}

impl Sites {
    /// The choices of the recipe that `c` was compiled from.
    pub fn of(text: &str, c: &Compiled) -> Found<Sites> {
        let (file, _) = nrl_syntax::parse(SourceId(0), text);
        let recipe = crate::edit::recipe(&file, Some(&c.program.name))
            .ok_or_else(|| refused(format!("`{}` is not written in this file", c.program.name)))?;
        let mut lines = vec![];
        crate::edit::statements(&recipe.body.stmts, &mut |s| lines.push(s));
        let train = trained(c)?;
        let name = c.program.meshes[train].0.clone();
        let (list, axes) = mesh(&lines, &name, text)
            .ok_or_else(|| refused(format!("mesh `{name}` is not written in this recipe")))?;
        let mut sites = Sites {
            text: text.to_string(),
            prefix: String::new(),
            axes,
            mesh: list,
            plans: vec![],
            batches: vec![],
            serve: None,
            pool: None,
            staleness: vec![],
            requires: vec![],
            train,
            sample: None,
            current: Layout::default(),
            known: true,
            pins: BTreeSet::new(),
        };
        sites.sizes(c);
        sites.placed(&lines, &name);
        sites.updated(&lines, c);
        sites.serving(&lines, c);
        sites.pooled(&lines, c);
        sites.stale(&lines);
        sites.budgets(&lines);
        sites.comments(&lines, &name);
        Ok(sites)
    }

    /// The text of recipe `name` with its budgets turned into remarks.
    pub fn relaxed(text: &str, name: Option<&str>) -> String {
        let (file, _) = nrl_syntax::parse(SourceId(0), text);
        let Some(recipe) = crate::edit::recipe(&file, name) else { return text.to_string() };
        let mut all = vec![];
        crate::edit::statements(&recipe.body.stmts, &mut |s| all.extend(demand(s, text)));
        let mut out = text.to_string();
        all.into_iter().rev().for_each(|r| out.replace_range(r, EXPECT));
        out
    }

    /// Sizes of the mesh that trains.
    fn sizes(&mut self, c: &Compiled) {
        let m = &c.program.meshes[self.train].1;
        let view = c.facts.meshes[self.train].experts.map(|v| &c.facts.views[v].axes);
        let folded = |name: &str| {
            view.and_then(|axes| axes.iter().find(|a| a.name == name)).map_or(1, |a| a.size)
        };
        let l = &mut self.current;
        (l.pp, l.dp, l.fsdp) = (m.size("pp"), m.size("dp"), m.size("fsdp"));
        (l.cp, l.tp) = (m.size("cp"), m.size("tp"));
        (l.ep, l.etp) = (folded("ep"), folded("etp"));
    }

    /// Plans of what is placed on the mesh that trains.
    fn placed(&mut self, lines: &[&Stmt], name: &str) {
        for s in lines {
            let StmtKind::Place(p) = &s.kind else { continue };
            if p.mesh.as_name() != Some(name) {
                continue;
            }
            let Some(plan) = &p.plan else {
                self.current.family = Family::Own;
                continue;
            };
            self.plans.push(plan.span.range());
            let mut read = Read::default();
            read.plan(plan);
            match read.prefix {
                Some(prefix) if !read.own => {
                    self.prefix = prefix;
                    let l = &mut self.current;
                    (l.sp, l.recompute, l.chunks) = (read.sp, read.recompute, read.chunks);
                    (l.offload, l.paired) = (read.offload, read.paired);
                    self.known &= read.family.is_some();
                    if l.family != Family::Own {
                        l.family = read.family.unwrap_or_default();
                    }
                }
                _ => self.current.family = Family::Own,
            }
        }
        if self.plans.is_empty() {
            self.current.family = Family::Own;
        }
        if self.current.family == Family::Own {
            for choice in ["plan", "sp", "recompute", "offload", "chunks"] {
                self.pins.insert(choice.into());
            }
        }
    }

    /// Micro-batches of the models on the mesh that trains.
    fn updated(&mut self, lines: &[&Stmt], c: &Compiled) {
        let here = |name: &str| {
            let model = c.program.models.iter().find(|m| m.name == name);
            model.is_none_or(|m| m.mesh == self.train)
        };
        let mut spans = vec![];
        for s in lines {
            let StmtKind::Update(u) = &s.kind else { continue };
            let Some(size) = &u.microbatch else { continue };
            if u.model.as_name().is_none_or(here) {
                spans.push(size.span.range());
            }
        }
        self.batches = spans;
        let tokens = stages(c).find_map(|s| match s {
            Stage::Update { model, tokens, .. } if c.program.models[*model].mesh == self.train => {
                Some(*tokens)
            }
            _ => None,
        });
        self.current.microbatch = tokens.filter(|_| !self.batches.is_empty());
    }

    fn serving(&mut self, lines: &[&Stmt], c: &Compiled) {
        let own = c.program.generators.iter().find(|g| g.mesh != self.train);
        let Some(g) = own else { return };
        let (name, m) = &c.program.meshes[g.mesh];
        let Some((list, axes)) = mesh(lines, name, &self.text) else { return };
        let has = |n: &str| axes.iter().any(|(a, _)| a == n);
        let names = if has("rep") || has("rtp") { ("rep", "rtp") } else { ("dp", "tp") };
        if axes.iter().any(|(a, _)| a != names.0 && a != names.1) {
            return;
        }
        self.sample = Some(g.mesh);
        self.current.rtp = Some(m.size(names.1));
        self.serve = Some(Serve { list, axes, name: name.clone(), names });
    }

    /// The pool that trains, where a cluster is split in two.
    fn pooled(&mut self, lines: &[&Stmt], c: &Compiled) {
        let cluster = |mesh: usize| c.facts.meshes.get(mesh).and_then(|m| m.cluster);
        let Some(own) = cluster(self.train).map(|i| &c.facts.clusters[i]) else { return };
        if own.part_of.is_none() || self.sample.and_then(cluster) == cluster(self.train) {
            return;
        }
        for s in lines {
            let StmtKind::Pool(p) = &s.kind else { continue };
            let at = p.names.iter().position(|n| n.text == own.name);
            let (Some(at), Some(first), Some(last)) = (at, p.parts.first(), p.parts.last()) else {
                continue;
            };
            if p.parts.len() != 2 || !own.ranks.is_multiple_of(own.per_node) {
                continue;
            }
            let all = c.facts.clusters[own.part_of.map_or(0, |x| x.0)].ranks / own.per_node;
            self.pool = Some((first.span.start as usize..last.span.end as usize, at, all));
            self.current.nodes = Some(own.ranks / own.per_node);
        }
    }

    /// `with staleness <= 1 step`.
    fn stale(&mut self, lines: &[&Stmt]) {
        for s in lines {
            let StmtKind::Bind(b) = &s.kind else { continue };
            let ExprKind::With { args, .. } = &b.value.kind else { continue };
            for a in args {
                if a.name.as_ref().is_none_or(|n| n.text != "staleness") {
                    continue;
                }
                if let ExprKind::Quantity(q) = &a.value.kind {
                    self.staleness.push(a.value.span.range());
                    self.current.staleness = Some(q.value as usize);
                }
            }
        }
    }

    fn budgets(&mut self, lines: &[&Stmt]) {
        self.requires = lines.iter().filter_map(|s| demand(s, &self.text)).collect();
    }

    /// Choices of lines that end in `# pinned`.
    fn comments(&mut self, lines: &[&Stmt], name: &str) {
        let all = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let one_line = !self.text[self.mesh.clone()].contains('\n');
        let mut found: Vec<(Range<usize>, Vec<String>)> = vec![];
        for s in lines {
            let StmtKind::Mesh(m) = &s.kind else { continue };
            let serving = self.serve.as_ref().filter(|v| contains(s.span, &v.list));
            for a in &m.axes {
                let axes = match serving {
                    Some(_) => all(&["rtp"]),
                    // One line says all of the mesh: what it does not write is 1.
                    None if m.name.text == name && one_line => {
                        all(&["pp", "dp", "fsdp", "cp", "tp", "ep", "etp"])
                    }
                    None if m.name.text == name => vec![a.name.text.clone()],
                    None => continue,
                };
                found.push((a.span.range(), axes));
            }
        }
        let plan = all(&["plan", "sp", "recompute", "offload", "chunks"]);
        found.extend(self.plans.iter().map(|r| (r.clone(), plan.clone())));
        found.extend(self.batches.iter().map(|r| (r.clone(), all(&["microbatch"]))));
        found.extend(self.pool.iter().map(|(r, ..)| (r.clone(), all(&["pool"]))));
        found.extend(self.staleness.iter().map(|r| (r.clone(), all(&["staleness"]))));
        for (range, choices) in found {
            let Some(named) = pinned(&self.text, range.end) else { continue };
            let whole = named.is_empty();
            self.pins.extend(choices.into_iter().filter(|c| whole || named.contains(c)));
            self.pins.extend(named.into_iter().filter(|n| CHOICES.contains(&n.as_str())));
        }
    }

    /// Pins by paths such as `train.tp`, `serve.rtp` or `microbatch`.
    pub fn pin(&mut self, paths: &[String]) -> Found<()> {
        for path in paths {
            let (mesh, name) = path.rsplit_once('.').unwrap_or(("", path));
            let serving = self.serve.as_ref().is_some_and(|s| s.name == mesh && s.names.1 == name);
            let choice = if serving { "rtp" } else { name };
            if !CHOICES.contains(&choice) {
                let d = Diagnostic::error(
                    "unknown-name",
                    format!("there is no choice `{path}` to pin"),
                );
                let help = nrl_base::did_you_mean(choice, CHOICES.iter().copied())
                    .unwrap_or_else(|| format!("choices are {}", CHOICES.join(", ")));
                return Err(Box::new(d.help(help)));
            }
            self.pins.insert(choice.to_string());
        }
        Ok(())
    }

    /// Nodes of the cluster that the pools split.
    pub fn nodes(&self) -> Option<usize> {
        self.pool.as_ref().map(|(_, _, all)| *all)
    }

    /// The text with another layout. One that the formatter has laid out is laid out anew; the lines of
    /// any other stay as they are.
    pub fn apply(&self, l: &Layout, split: Option<&[usize]>) -> String {
        let text = self.edited(l, split, &[]);
        match nrl_syntax::print::format(&self.text) {
            Ok(f) if f == self.text => nrl_syntax::print::format(&text).unwrap_or(text),
            _ => text,
        }
    }

    /// The text with another layout, budgets turned into remarks.
    pub fn tried(&self, l: &Layout, split: Option<&[usize]>) -> String {
        self.edited(l, split, &self.requires)
    }

    fn edited(&self, l: &Layout, split: Option<&[usize]>, requires: &[Range<usize>]) -> String {
        let mut edits: Vec<(Range<usize>, String)> =
            requires.iter().map(|r| (r.clone(), EXPECT.to_string())).collect();
        edits.push((self.mesh.clone(), list(&self.axes, &l.axes())));
        if l.family != Family::Own {
            let plan = l.plan(&self.prefix, split);
            edits.extend(self.plans.iter().map(|r| (r.clone(), plan.clone())));
        }
        if let Some(n) = l.microbatch {
            let text = format!("{n} tokens/microbatch");
            edits.extend(self.batches.iter().map(|r| (r.clone(), text.clone())));
        }
        if let (Some(s), Some(n)) = (&self.serve, l.rtp) {
            edits.push((s.list.clone(), serve_list(s, n)));
        }
        if let (Some((r, at, all)), Some(n)) = (&self.pool, l.nodes) {
            let first = if *at == 0 { n } else { all - n };
            edits.push((r.clone(), format!("{first} {}, rest", nodes(first))));
        }
        if let Some(n) = l.staleness {
            let text = if n == 1 { "1 step".to_string() } else { format!("{n} steps") };
            edits.extend(self.staleness.iter().map(|r| (r.clone(), text.clone())));
        }
        edits.sort_by_key(|(r, _)| std::cmp::Reverse(r.start));
        let mut text = self.text.clone();
        for (r, new) in edits {
            // What says the same stays as it is written.
            if text[r.clone()].split_whitespace().ne(new.split_whitespace()) {
                text.replace_range(r, &new);
            }
        }
        text
    }
}

/// As long as the word that it replaces: places stay.
const EXPECT: &str = "expect ";

/// The word of a demand.
fn demand(s: &Stmt, text: &str) -> Option<Range<usize>> {
    const WORD: &str = "require";
    let from = s.span.start as usize;
    let written = matches!(s.kind, StmtKind::Require(_)) && text.get(from..)?.starts_with(WORD);
    written.then_some(from..from + WORD.len())
}

fn nodes(n: usize) -> &'static str {
    if n == 1 { "node" } else { "nodes" }
}

fn refused(what: String) -> Box<Diagnostic> {
    let help = "a search changes the recipe's own lines: run it on the file that has them";
    Box::new(Diagnostic::error("not-supported", what).help(help))
}

fn contains(s: Span, r: &Range<usize>) -> bool {
    s.start as usize <= r.start && r.end <= s.end as usize
}

/// Stages of all steps.
pub fn stages(c: &Compiled) -> impl Iterator<Item = &Stage> {
    c.program.phases.iter().flat_map(|p| &p.step).map(|b| &b.stage)
}

/// The mesh on devices whose models have most weights to learn.
fn trained(c: &Compiled) -> Found<usize> {
    let mut best: Option<(usize, usize)> = None;
    for s in stages(c) {
        let Stage::Update { model, .. } = s else { continue };
        let m = &c.program.models[*model];
        if nrl_driver::machine_of(c, m.mesh).is_none() {
            continue;
        }
        let size = super::facts::parameters(m);
        if best.is_none_or(|(_, n)| size > n) {
            best = Some((m.mesh, size));
        }
    }
    best.map(|(mesh, _)| mesh).ok_or_else(|| {
        let what = format!("recipe `{}` updates no model on a mesh of GPUs", c.program.name);
        let help = "place the model: `place policy on train by plans.megatron()`";
        Box::new(Diagnostic::error("not-supported", what).help(help))
    })
}

/// An axis: its name and its size, as written.
type Written = (String, String);

/// Where the axes of a mesh stand, and each as it is written.
fn mesh(lines: &[&Stmt], name: &str, text: &str) -> Option<(Range<usize>, Vec<Written>)> {
    lines.iter().find_map(|s| {
        let StmtKind::Mesh(m) = &s.kind else { return None };
        if m.name.text != name {
            return None;
        }
        let (first, last) = (m.axes.first()?, m.axes.last()?);
        let written = |a: &nrl_syntax::ast::Axis| {
            Some((a.name.text.clone(), text.get(a.size.span.range())?.to_string()))
        };
        let axes = m.axes.iter().map(written).collect::<Option<Vec<_>>>()?;
        Some((first.span.start as usize..last.span.end as usize, axes))
    })
}

/// Axes as a list; the one that took the rest still does.
fn list(written: &[(String, String)], new: &[(&str, usize)]) -> String {
    let rest = written.iter().find(|(_, size)| size == "rest").map(|(name, _)| name.as_str());
    let one = |(name, size): &(&str, usize)| match rest {
        Some(r) if r == *name => format!("{name}: rest"),
        _ => format!("{name}: {size}"),
    };
    new.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn serve_list(s: &Serve, shared: usize) -> String {
    let (copies, own) = s.names;
    match shared == 1 && !s.axes.iter().any(|(n, _)| n == own) {
        true => format!("{copies}: rest"),
        false => format!("{copies}: rest, {own}: {shared}"),
    }
}

/// Choices that a `# pinned` at the end of the line of `at` names; all of the line if it names none.
fn pinned(text: &str, at: usize) -> Option<Vec<String>> {
    let line = text.get(at..)?.lines().next()?;
    let (_, comment) = line.split_once('#')?;
    let rest = comment.trim().strip_prefix("pinned")?;
    match rest.strip_prefix(':') {
        Some(names) => Some(names.split(',').map(|n| n.trim().to_string()).collect()),
        None => rest.trim().is_empty().then(Vec::new),
    }
}

/// What a plan made of the library's plans says.
#[derive(Default)]
struct Read {
    prefix: Option<String>,
    own: bool,
    family: Option<Family>,
    sp: bool,
    recompute: Again,
    offload: bool,
    paired: bool,
    chunks: usize,
}

impl Read {
    fn plan(&mut self, e: &Expr) {
        self.chunks = self.chunks.max(1);
        match &e.kind {
            ExprKind::Binary { op: BinaryOp::Mul, lhs, rhs, .. } => {
                self.plan(lhs);
                self.plan(rhs);
            }
            ExprKind::Call { callee, args } => {
                let (prefix, name) = match &callee.kind {
                    ExprKind::Field { base, name } => match base.as_name() {
                        Some(module) => (format!("{module}."), name.text.as_str()),
                        None => return self.own = true,
                    },
                    ExprKind::Name(n) => (String::new(), n.as_str()),
                    _ => return self.own = true,
                };
                if self.prefix.as_ref().is_some_and(|p| *p != prefix) {
                    self.own = true;
                }
                self.prefix = Some(prefix);
                self.call(name, args);
            }
            _ => self.own = true,
        }
    }

    fn call(&mut self, name: &str, args: &[nrl_syntax::ast::Arg]) {
        match name {
            "fsdp" => self.family = Some(Family::Fsdp),
            "hsdp" => self.family = Some(Family::Hsdp),
            "megatron" => {
                self.family.get_or_insert(Family::Megatron);
            }
            "single" | "ddp" | "zero1" | "zero2" | "tensor_parallel" | "context_parallel" => {}
            "recomputed" if args.is_empty() => self.recompute = Again::Full,
            "recomputed" => {}
            "offloaded" if args.is_empty() => self.offload = true,
            _ => self.own = true,
        }
        for (i, a) in args.iter().enumerate() {
            let order = ["sp", "recompute", "chunks", "split", "paired"];
            let named = a.name.as_ref().map(|n| n.text.as_str());
            let key = match name {
                "megatron" => named.or(order.get(i).copied()).unwrap_or(""),
                "recomputed" => "recompute",
                _ => continue,
            };
            match (key, &a.value.kind) {
                ("split", _) => {}
                ("sp", ExprKind::Bool(on)) => self.sp = *on,
                ("paired", ExprKind::Bool(on)) => self.paired = *on,
                ("chunks", ExprKind::Int(n)) => self.chunks = (*n).max(1) as usize,
                ("recompute", ExprKind::None) => self.recompute = Again::None,
                ("recompute", ExprKind::Name(n)) if n == "full" => self.recompute = Again::Full,
                ("recompute", ExprKind::Name(n)) if n == "selective" => {
                    self.recompute = Again::Selective;
                }
                // What is not written out is not known here.
                _ => self.own = true,
            }
        }
    }
}
