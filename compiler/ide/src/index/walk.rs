//! The walk over a module's tree that fills an [`Index`].

use nrl_base::Span;
use nrl_syntax::ast::{
    Arg, Block, Expr, ExprKind, IndexItem, Item, ItemKind, Layout, Member, MemberKind, Mesh, Name,
    Param, Path, Pattern, PatternKind, PlanRule, PlanRuleKind, Stmt, StmtKind, Type, TypeKind,
    UnitFactor, Use, UseOrigin,
};

use super::{Def, Index, Kind, Target, Thing};
use crate::world::{Import, World, members, params};

struct Walk<'w> {
    world: &'w World,
    module: usize,
    out: Index,
    /// Names in scope, the innermost last.
    scope: Vec<(String, Span, Thing)>,
}

pub(super) fn walk(world: &World, module: usize) -> Index {
    let mut walk = Walk { world, module, out: Index::default(), scope: vec![] };
    let items = &world.modules[module].file.items;
    let end = world.sources.get(world.modules[module].source).map_or(0, |s| s.text().len() + 1);
    for item in items {
        walk.declare(item, end);
    }
    for item in items {
        walk.item(item);
    }
    walk.out
}

impl<'w> Walk<'w> {
    fn declare(&mut self, item: &Item, end: usize) {
        let kind = match &item.kind {
            ItemKind::Fn(_)
            | ItemKind::ExternFn(_)
            | ItemKind::ExternEnv(_)
            | ItemKind::Rollout(_) => Kind::Function,
            ItemKind::Model(_) => Kind::Model,
            ItemKind::Record(_) => Kind::Record,
            ItemKind::Enum(_) => Kind::Enum,
            ItemKind::Plan(_) | ItemKind::PlanFor(_) => Kind::Plan,
            ItemKind::Recipe(_) => Kind::Recipe,
            ItemKind::Mesh(_) | ItemKind::View(_) => Kind::Mesh,
            ItemKind::Const(_) => Kind::Constant,
            ItemKind::Type(_) => Kind::Type,
            ItemKind::Unit(_) => Kind::Unit,
            ItemKind::Use(_) | ItemKind::Pool(_) | ItemKind::Test(_) => return,
        };
        let Some(name) = item.name() else { return };
        let value = if let ItemKind::Const(b) = &item.kind { Some(b.value.span) } else { None };
        // A recipe is not a value: its name can be used nowhere.
        let visible = if kind == Kind::Recipe { 0..0 } else { 0..end };
        self.def(name, kind, visible, value, item.span, item.doc.clone());
        for m in members(item) {
            let kind = if kind == Kind::Record { Kind::Field } else { Kind::Variant };
            self.def(m.name, kind, 0..0, None, m.span, m.doc.map(str::to_string));
        }
    }

    fn def(
        &mut self,
        name: &Name,
        kind: Kind,
        visible: std::ops::Range<usize>,
        value: Option<Span>,
        whole: Span,
        doc: Option<String>,
    ) {
        self.out.defs.push(Def {
            name: name.text.clone(),
            span: name.span,
            kind,
            visible,
            value,
            whole,
            doc,
            thing: Thing::Unknown,
        });
    }

    /// Declares a name and puts it into scope.
    fn local(
        &mut self,
        name: &Name,
        kind: Kind,
        visible: std::ops::Range<usize>,
        value: Option<Span>,
        whole: Span,
        thing: Thing,
    ) {
        self.def(name, kind, visible, value, whole, None);
        if let Some(def) = self.out.defs.last_mut() {
            def.thing = thing.clone();
        }
        self.scope.push((name.text.clone(), name.span, thing));
    }

    fn used(&mut self, span: Span, target: Target) {
        self.out.uses.push(super::Use { span, target });
    }

    fn item(&mut self, item: &'w Item) {
        let depth = self.scope.len();
        let inside = item.span.start as usize..item.span.end as usize;
        match &item.kind {
            ItemKind::Use(u) => self.use_(u),
            ItemKind::Fn(f) | ItemKind::Rollout(f) => {
                self.params(&f.params, inside);
                self.ty_opt(f.result.as_ref());
                self.block(&f.body);
            }
            ItemKind::ExternFn(f) => {
                self.params(&f.params, inside);
                self.ty_opt(f.result.as_ref());
                f.options.iter().for_each(|o| self.expr(&o.value));
            }
            ItemKind::ExternEnv(e) => {
                e.options.iter().for_each(|o| self.expr(&o.value));
                for f in &e.fns {
                    f.params.iter().for_each(|p| self.ty_opt(p.ty.as_ref()));
                    self.ty_opt(f.result.as_ref());
                }
            }
            ItemKind::Model(m) => {
                self.params(&m.params, inside.clone());
                self.members(&m.members, inside.end);
            }
            ItemKind::Record(r) => {
                for f in &r.fields {
                    self.ty(&f.ty);
                    self.expected(f.default.as_ref(), Some(&f.ty), self.module);
                }
            }
            ItemKind::Enum(e) => {
                e.variants.iter().for_each(|v| v.fields.iter().for_each(|t| self.ty(t)));
            }
            ItemKind::Plan(p) => {
                self.params(&p.params, inside);
                self.rules(&p.rules);
            }
            ItemKind::PlanFor(p) => {
                self.expr(&p.base);
                self.rules(&p.rules);
            }
            ItemKind::Mesh(m) => self.mesh(m),
            ItemKind::Pool(p) => {
                self.expr(&p.cluster);
                p.parts.iter().for_each(|e| self.expr(e));
            }
            ItemKind::View(v) => v.axes.iter().for_each(|a| self.expr(&a.size)),
            ItemKind::Recipe(r) => {
                self.params(&r.params, inside);
                self.block(&r.body);
            }
            ItemKind::Test(t) => self.block(&t.body),
            ItemKind::Type(t) => self.ty(&t.ty),
            ItemKind::Unit(u) => u.of.iter().for_each(|e| self.expr(e)),
            ItemKind::Const(b) => {
                self.ty_opt(b.ty.as_ref());
                self.expr(&b.value);
            }
        }
        self.scope.truncate(depth);
    }

    fn use_(&mut self, u: &Use) {
        if let UseOrigin::Path(p) = &u.origin
            && let Some(m) = self.world.module(&p.text())
        {
            self.used(p.span, Target::Module(m));
        }
        for n in &u.names {
            let bound = n.alias.as_ref().unwrap_or(&n.name);
            if let Some(import) = self.world.modules[self.module].imports.get(&bound.text) {
                let target = self.target(*import);
                self.used(n.name.span, target.clone());
                if let Some(alias) = &n.alias {
                    self.used(alias.span, target);
                }
            }
        }
    }

    fn target(&self, import: Import) -> Target {
        match import {
            Import::Module(m) => Target::Module(m),
            Import::Item(m, i) => match self.world.item(m, i).name() {
                Some(name) => Target::Def(name.span),
                None => Target::Module(m),
            },
        }
    }

    fn params(&mut self, all: &'w [Param], visible: std::ops::Range<usize>) {
        for p in all {
            self.ty_opt(p.ty.as_ref());
            self.expected(p.default.as_ref(), p.ty.as_ref(), self.module);
            let thing = p.ty.as_ref().map_or(Thing::Unknown, |t| self.of_type(t, self.module));
            let from = p.span.end as usize..visible.end;
            self.local(
                &p.name,
                Kind::Parameter,
                from,
                p.default.as_ref().map(|e| e.span),
                p.span,
                thing,
            );
        }
    }

    fn members(&mut self, all: &'w [Member], end: usize) {
        for m in all {
            let from = m.span.end as usize..end;
            match &m.kind {
                MemberKind::Dims(dims) => {
                    for d in dims {
                        self.expr(&d.size);
                        let from = d.span.end as usize..end;
                        self.local(
                            &d.name,
                            Kind::Dim,
                            from,
                            Some(d.size.span),
                            d.span,
                            Thing::Unknown,
                        );
                    }
                }
                MemberKind::Param(p) => {
                    p.dims.iter().for_each(|l| self.layout(l));
                    p.or.iter().for_each(|t| {
                        self.expr(&t.param);
                        t.cond.iter().for_each(|c| self.expr(c));
                    });
                    p.init.iter().chain(&p.cond).for_each(|e| self.expr(e));
                    for n in &p.names {
                        self.local(n, Kind::Weight, from.clone(), None, m.span, Thing::Unknown);
                    }
                }
                MemberKind::Repeat { name, count, members } => {
                    self.expr(count);
                    let depth = self.scope.len();
                    self.members(members, m.span.end as usize);
                    self.scope.truncate(depth);
                    let weights = members.iter().filter_map(|m| match &m.kind {
                        MemberKind::Param(p) => Some(p.names.clone()),
                        _ => None,
                    });
                    let thing = Thing::Layers(weights.flatten().collect());
                    self.local(name, Kind::Layers, from, None, m.span, thing);
                }
                MemberKind::Fn(f) => {
                    let depth = self.scope.len();
                    self.params(&f.params, m.span.start as usize..m.span.end as usize);
                    self.ty_opt(f.result.as_ref());
                    self.block(&f.body);
                    self.scope.truncate(depth);
                    self.local(&f.name, Kind::Function, from, None, m.span, Thing::Unknown);
                }
                MemberKind::Let(b) => {
                    self.expr(&b.value);
                    for n in &b.names {
                        let value = Some(b.value.span);
                        self.local(n, Kind::Local, from.clone(), value, m.span, Thing::Unknown);
                    }
                }
            }
        }
    }

    fn rules(&mut self, rules: &'w [PlanRule]) {
        for r in rules {
            r.cond.iter().for_each(|c| self.expr(c));
            match &r.kind {
                PlanRuleKind::Recompute { mode: e, .. } | PlanRuleKind::Offload { what: e } => {
                    self.expr(e)
                }
                PlanRuleKind::Stages { chunks, split, paired, .. } => {
                    chunks.iter().chain(split).chain(paired).for_each(|e| self.expr(e));
                }
                _ => {}
            }
        }
    }

    fn mesh(&mut self, m: &'w Mesh) {
        self.expr(&m.cluster);
        for a in &m.axes {
            self.expr(&a.size);
            self.def(&a.name, Kind::Axis, 0..0, Some(a.size.span), a.span, None);
        }
    }

    fn block(&mut self, b: &'w Block) {
        let depth = self.scope.len();
        let end = b.span.end as usize;
        for s in &b.stmts {
            self.stmt(s, end);
        }
        b.value.iter().for_each(|e| self.expr(e));
        self.scope.truncate(depth);
    }

    fn stmt(&mut self, s: &'w Stmt, end: usize) {
        // Not at the very end of the statement, where it is still being typed.
        let from = s.span.end as usize + 1..end;
        match &s.kind {
            StmtKind::Bind(b) => {
                self.ty_opt(b.ty.as_ref());
                self.expr(&b.value);
                let thing = match &b.ty {
                    Some(t) => self.of_type(t, self.module),
                    None => Thing::Unknown,
                };
                for n in &b.names {
                    self.local(
                        n,
                        Kind::Local,
                        from.clone(),
                        Some(b.value.span),
                        s.span,
                        thing.clone(),
                    );
                }
            }
            StmtKind::Mesh(m) => {
                self.mesh(m);
                self.local(&m.name, Kind::Mesh, from, None, s.span, Thing::Unknown);
            }
            StmtKind::Pool(p) => {
                self.expr(&p.cluster);
                p.parts.iter().for_each(|e| self.expr(e));
                for n in &p.names {
                    self.local(
                        n,
                        Kind::Local,
                        from.clone(),
                        Some(p.cluster.span),
                        s.span,
                        Thing::Unknown,
                    );
                }
            }
            StmtKind::View(v) => {
                self.path(&v.mesh);
                v.axes.iter().for_each(|a| self.expr(&a.size));
                self.local(&v.name, Kind::Mesh, from, None, s.span, Thing::Unknown);
            }
            StmtKind::PlanFor(p) => {
                p.model.iter().chain(&p.mesh).for_each(|p| self.path(p));
                self.expr(&p.base);
                self.rules(&p.rules);
                self.local(&p.name, Kind::Plan, from, None, s.span, Thing::Unknown);
            }
            StmtKind::Run(r) => {
                self.expr(&r.length);
                r.within.iter().chain(&r.seed).for_each(|e| self.expr(e));
            }
            StmtKind::Place(p) => {
                p.models.iter().for_each(|e| self.expr(e));
                self.expr(&p.mesh);
                p.plan.iter().for_each(|e| self.expr(e));
            }
            StmtKind::Phase(p) => {
                p.length.iter().for_each(|e| self.expr(e));
                self.block(&p.body);
                self.def(&p.name, Kind::Phase, 0..0, None, s.span, None);
            }
            StmtKind::Step(b) => self.block(b),
            StmtKind::Every(t) | StmtKind::From(t) => {
                self.expr(&t.time);
                self.block(&t.body);
            }
            StmtKind::Halt(h) => {
                self.expr(&h.cond);
                h.lasting.iter().for_each(|e| self.expr(e));
            }
            StmtKind::Checkpoint(c) => c.keep.iter().chain(&c.by).for_each(|e| self.expr(e)),
            StmtKind::Update(u) => {
                self.expr(&u.model);
                self.expr(&u.optimizer);
                let parts = u.updates.iter().chain(&u.epochs).chain(&u.microbatch);
                parts.for_each(|e| self.expr(e));
                u.settings.iter().for_each(|a| self.expr(&a.value));
                self.block(&u.loss);
            }
            StmtKind::Expr(e) | StmtKind::Seed(e) => self.expr(e),
            StmtKind::Freeze(es) | StmtKind::Require(es) | StmtKind::Expect(es) => {
                es.iter().for_each(|e| self.expr(e));
            }
            StmtKind::Assume(a) => self.expr(&a.value),
            StmtKind::Assert(a) => {
                self.expr(&a.cond);
                a.within.iter().for_each(|e| self.expr(e));
            }
            StmtKind::Fails(f) => self.block(&f.body),
            StmtKind::Publish { what, every } => {
                what.iter().chain(every).for_each(|e| self.expr(e))
            }
            // The path is that of another recipe.
            StmtKind::Set { value, .. } | StmtKind::Append { value, .. } => self.expr(value),
            StmtKind::Remove { .. } => {}
            StmtKind::Settings(s) => {
                s.lines.iter().filter_map(|l| l.value.as_ref()).for_each(|e| self.expr(e))
            }
        }
    }

    fn expr(&mut self, e: &'w Expr) {
        match &e.kind {
            ExprKind::Name(n) => self.name(n, e.span),
            ExprKind::Field { base, name } => {
                self.expr(base);
                if let Some(span) = self.member(base, name) {
                    self.used(name.span, span);
                }
            }
            ExprKind::Call { callee, args } => {
                self.expr(callee);
                self.args(callee, args, 0);
            }
            ExprKind::Pipe { input, stage } => {
                self.expr(input);
                match &stage.kind {
                    ExprKind::Call { callee, args } => {
                        self.expr(callee);
                        self.args(callee, args, 1);
                    }
                    _ => self.expr(stage),
                }
            }
            ExprKind::Lambda { params, body } => {
                let depth = self.scope.len();
                for p in params {
                    let visible = body.span.start as usize..body.span.end as usize + 1;
                    self.local(p, Kind::Parameter, visible, None, e.span, Thing::Unknown);
                }
                self.expr(body);
                self.scope.truncate(depth);
            }
            ExprKind::Block(b) => self.block(b),
            ExprKind::For(f) => {
                self.expr(&f.over);
                f.carrying.iter().for_each(|c| match &c.start {
                    Some(e) => self.expr(e),
                    None => self.name(&c.name.text, c.name.span),
                });
                let depth = self.scope.len();
                let visible = f.body.span.start as usize..f.body.span.end as usize;
                let thing = self.thing(&f.over);
                self.local(&f.var, Kind::Local, visible.clone(), Some(f.over.span), e.span, thing);
                for c in f.carrying.iter().filter(|c| c.start.is_some()) {
                    let value = c.start.as_ref().map(|e| e.span);
                    self.local(
                        &c.name,
                        Kind::Local,
                        visible.clone(),
                        value,
                        e.span,
                        Thing::Unknown,
                    );
                }
                f.until.iter().for_each(|e| self.expr(e));
                self.block(&f.body);
                self.scope.truncate(depth);
            }
            ExprKind::Scan(s) => {
                s.inputs.iter().for_each(|n| self.name(&n.text, n.span));
                s.carrying.iter().for_each(|c| c.start.iter().for_each(|e| self.expr(e)));
                let depth = self.scope.len();
                let visible = s.body.span.start as usize..s.body.span.end as usize;
                for c in s.carrying.iter().filter(|c| c.start.is_some()) {
                    self.local(&c.name, Kind::Local, visible.clone(), None, e.span, Thing::Unknown);
                }
                self.block(&s.body);
                self.scope.truncate(depth);
            }
            ExprKind::Match { value, arms } => {
                self.expr(value);
                let thing = self.thing(value);
                for arm in arms {
                    let depth = self.scope.len();
                    self.pattern(&arm.pattern, &thing, arm.span.end as usize);
                    self.expr(&arm.value);
                    self.scope.truncate(depth);
                }
            }
            ExprKind::With { base, args } => {
                self.expr(base);
                args.iter().for_each(|a| self.expr(&a.value));
            }
            ExprKind::Collect(c) => {
                self.expr(&c.count);
                self.block(&c.body);
                c.cond.iter().chain(&c.within).for_each(|e| self.expr(e));
            }
            ExprKind::Some(x) | ExprKind::Unary { operand: x, .. } => self.expr(x),
            ExprKind::List(items) | ExprKind::Tuple(items) => {
                items.iter().for_each(|e| self.expr(e))
            }
            ExprKind::Record(fields) => fields.iter().for_each(|f| self.expr(&f.value)),
            ExprKind::Index { base, items } => {
                self.expr(base);
                items.iter().for_each(|i| match i {
                    IndexItem::Expr(e) => self.expr(e),
                    IndexItem::All(_) | IndexItem::Rename { .. } => {}
                });
            }
            ExprKind::Binary { lhs: a, rhs: b, .. }
            | ExprKind::From { base: a, source: b }
            | ExprKind::Of { part: a, whole: b } => {
                self.expr(a);
                self.expr(b);
            }
            ExprKind::Range { start, end, .. } => {
                start.iter().chain(end).for_each(|e| self.expr(e));
            }
            ExprKind::If { cond, then, otherwise } => {
                self.expr(cond);
                self.expr(then);
                otherwise.iter().for_each(|e| self.expr(e));
            }
            ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Text(_)
            | ExprKind::Bool(_)
            | ExprKind::None
            | ExprKind::Rest => {}
            ExprKind::Quantity(q) => self.units(&q.unit),
        }
    }

    /// Units that files declare, written with or without an `s`.
    fn units(&mut self, factors: &'w [UnitFactor]) {
        factors.iter().for_each(|factor| self.unit(&factor.name));
    }

    fn unit(&mut self, written: &Name) {
        let name = written.text.as_str();
        let one = name.strip_suffix('s').filter(|one| !one.is_empty()).unwrap_or(name);
        let several = format!("{one}s");
        let found = [name, one, &several].into_iter().find_map(|name| {
            let import = self.world.global(self.module, name)?;
            let Import::Item(m, i) = import else { return None };
            matches!(self.world.item(m, i).kind, ItemKind::Unit(_)).then_some(import)
        });
        if let Some(import) = found {
            let target = self.target(import);
            self.used(written.span, target);
        }
    }

    fn pattern(&mut self, p: &'w Pattern, thing: &Thing, end: usize) {
        match &p.kind {
            PatternKind::Name(n) => {
                if let Thing::Of(m, i) = thing
                    && let Some(variant) = self.member_of(*m, *i, n)
                {
                    self.used(p.span, Target::Def(variant));
                    return;
                }
                let name = Name { text: n.clone(), span: p.span };
                let visible = p.span.end as usize..end + 1;
                self.local(&name, Kind::Local, visible, None, p.span, Thing::Unknown);
            }
            PatternKind::Value(e) => self.expr(e),
            PatternKind::Some(inner) => self.pattern(inner, &Thing::Unknown, end),
            PatternKind::Tuple(all) => {
                all.iter().for_each(|p| self.pattern(p, &Thing::Unknown, end));
            }
            PatternKind::Variant { args, .. } => {
                args.iter().for_each(|p| self.pattern(p, &Thing::Unknown, end));
            }
            PatternKind::Any | PatternKind::None => {}
        }
    }

    /// Arguments of a call; `shift` of them came before.
    fn args(&mut self, callee: &'w Expr, args: &'w [Arg], shift: usize) {
        let world = self.world;
        let called = match self.thing(callee) {
            Thing::Item(m, i) => Some((m, world.item(m, i))),
            _ => None,
        };
        for (at, a) in args.iter().enumerate() {
            let all = called.map_or(&[][..], |(_, item)| params(item));
            let param = match &a.name {
                Some(n) => all.iter().find(|p| p.name.text == n.text),
                None => all.get(at + shift),
            };
            if let (Some(n), Some(p)) = (&a.name, param) {
                self.used(n.span, Target::Def(p.name.span));
            }
            let module = called.map_or(self.module, |(m, _)| m);
            self.expected(Some(&a.value), param.and_then(|p| p.ty.as_ref()), module);
        }
    }

    /// An expression where a type is expected: variants may be bare, fields belong to its record.
    fn expected(&mut self, e: Option<&'w Expr>, ty: Option<&Type>, module: usize) {
        let Some(e) = e else { return };
        let thing = ty.map_or(Thing::Unknown, |t| self.of_type(t, module));
        let Thing::Of(m, i) = thing else { return self.expr(e) };
        match &e.kind {
            ExprKind::Name(n) => match self.member_of(m, i, n).filter(|_| self.find(n).is_none()) {
                Some(variant) => self.used(e.span, Target::Def(variant)),
                None => self.expr(e),
            },
            ExprKind::Record(fields) => {
                let world = self.world;
                for f in fields {
                    if let Some(span) = self.member_of(m, i, &f.name.text) {
                        self.used(f.name.span, Target::Def(span));
                    }
                    let ty = match &world.item(m, i).kind {
                        ItemKind::Record(r) => r.fields.iter().find(|x| x.name.text == f.name.text),
                        _ => None,
                    };
                    self.expected(Some(&f.value), ty.map(|x| &x.ty), m);
                }
            }
            _ => self.expr(e),
        }
    }

    fn find(&self, name: &str) -> Option<(Target, Thing)> {
        if let Some((_, span, thing)) = self.scope.iter().rev().find(|(n, _, _)| n == name) {
            return Some((Target::Def(*span), thing.clone()));
        }
        let import = self.world.global(self.module, name)?;
        let recipe = matches!(import, Import::Item(m, i) if matches!(self.world.item(m, i).kind, ItemKind::Recipe(_)));
        (!recipe).then(|| (self.target(import), thing_of(import)))
    }

    fn name(&mut self, name: &str, span: Span) {
        let found = self.find(name).map(|(target, _)| target);
        let builtin = || nrl_lower::seen::builtin(name).map(|_| Target::Builtin(name.to_string()));
        if let Some(target) = found.or_else(builtin) {
            self.used(span, target);
        }
    }

    /// What an expression is known to be.
    fn thing(&self, e: &Expr) -> Thing {
        match &e.kind {
            ExprKind::Name(n) => self.find(n).map_or(Thing::Unknown, |(_, thing)| thing),
            ExprKind::Field { base, name } => match self.thing(base) {
                Thing::Module(m) => {
                    self.world.within(m, &name.text).map_or(Thing::Unknown, thing_of)
                }
                Thing::Of(m, i) => match &self.world.item(m, i).kind {
                    ItemKind::Record(r) => {
                        let field = r.fields.iter().find(|f| f.name.text == name.text);
                        field.map_or(Thing::Unknown, |f| self.of_type(&f.ty, m))
                    }
                    _ => Thing::Unknown,
                },
                _ => Thing::Unknown,
            },
            _ => Thing::Unknown,
        }
    }

    fn member(&self, base: &Expr, name: &Name) -> Option<Target> {
        match self.thing(base) {
            Thing::Module(m) => self.world.within(m, &name.text).map(|i| self.target(i)),
            Thing::Item(m, i) | Thing::Of(m, i) => {
                self.member_of(m, i, &name.text).map(Target::Def)
            }
            Thing::Layers(all) => {
                all.iter().find(|n| n.text == name.text).map(|n| Target::Def(n.span))
            }
            Thing::Unknown => nrl_lower::seen::builtin(&name.text)
                .filter(|b| b.method)
                .map(|_| Target::Builtin(name.text.clone())),
        }
    }

    fn member_of(&self, module: usize, item: usize, name: &str) -> Option<Span> {
        members(self.world.item(module, item))
            .iter()
            .find(|m| m.name.text == name)
            .map(|m| m.name.span)
    }

    /// A value of a declared type.
    fn of_type(&self, ty: &Type, module: usize) -> Thing {
        match &ty.kind {
            TypeKind::Name(p) => match self.item_of(p, module) {
                Some((m, i)) => Thing::Of(m, i),
                None => Thing::Unknown,
            },
            TypeKind::Optional(inner) => self.of_type(inner, module),
            _ => Thing::Unknown,
        }
    }

    fn item_of(&self, p: &Path, module: usize) -> Option<(usize, usize)> {
        let mut found = self.world.global(module, &p.names.first()?.text)?;
        for n in &p.names[1..] {
            let Import::Module(m) = found else { return None };
            found = self.world.within(m, &n.text)?;
        }
        if let Import::Item(m, i) = found { Some((m, i)) } else { None }
    }

    fn path(&mut self, p: &Path) {
        if let Some(first) = p.names.first() {
            self.name(&first.text, first.span);
        }
    }

    fn ty_opt(&mut self, ty: Option<&'w Type>) {
        if let Some(ty) = ty {
            self.ty(ty);
        }
    }

    fn ty(&mut self, ty: &'w Type) {
        match &ty.kind {
            TypeKind::Name(p) => {
                let Some(last) = p.names.last() else { return };
                if let Some((m, i)) = self.item_of(p, self.module) {
                    let target = self.target(Import::Item(m, i));
                    self.used(last.span, target);
                } else if let [unit] = &p.names[..] {
                    self.unit(unit);
                }
                if let [first, _, ..] = &p.names[..]
                    && let Some(import) = self.world.global(self.module, &first.text)
                {
                    let target = self.target(import);
                    self.used(first.span, target);
                }
            }
            TypeKind::Id(dim) => self.dim(dim),
            TypeKind::Apply { args, .. } | TypeKind::Tuple(args) => {
                args.iter().for_each(|t| self.ty(t))
            }
            TypeKind::Tensor { element, dims } => {
                self.ty(element);
                dims.iter().for_each(|l| self.layout(l));
            }
            TypeKind::Optional(t) => self.ty(t),
            TypeKind::Fn { params, result } => {
                params.iter().for_each(|t| self.ty(t));
                self.ty(result);
            }
            TypeKind::Unit(factors) => self.units(factors),
            TypeKind::Within { base, range: e }
            | TypeKind::AtMost { base, limit: e }
            | TypeKind::Where { base, cond: e } => {
                self.ty(base);
                self.expr(e);
            }
            TypeKind::Pending { base, .. } => base.iter().for_each(|t| self.ty(t)),
        }
    }

    fn layout(&mut self, l: &Layout) {
        self.dim(&l.dim);
    }

    /// A dim in a type: those of a model are declared, those of a function stand for what comes.
    fn dim(&mut self, e: &Expr) {
        if let ExprKind::Name(n) = &e.kind
            && let Some((_, span, _)) = self.scope.iter().rev().find(|(name, _, _)| name == n)
        {
            self.used(e.span, Target::Def(*span));
        }
    }
}

fn thing_of(import: Import) -> Thing {
    match import {
        Import::Module(m) => Thing::Module(m),
        Import::Item(m, i) => Thing::Item(m, i),
    }
}
