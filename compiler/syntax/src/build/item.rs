//! Items and their members.

use nrl_base::Diagnostic;
use nrl_grammar::Rule;
use pest::iterators::Pair;

use super::{Build, Kids, has};
use crate::ast::*;
use crate::errors::Place;

impl Build<'_> {
    pub fn item(&mut self, pair: Pair<'_, Rule>) -> Option<Item> {
        let (span, doc) = (self.span(&pair), self.doc(&pair));
        let kind = self.item_kind(Kids::of(pair).next()?);
        if kind.is_none() {
            let message = "this item is not understood";
            self.problems.push(Diagnostic::error("syntax", message).label(span, "here"));
        }
        Some(Item { doc, kind: kind?, span })
    }

    fn item_kind(&mut self, pair: Pair<'_, Rule>) -> Option<ItemKind> {
        Some(match pair.as_rule() {
            Rule::bind => ItemKind::Const(self.bind(pair)?),
            Rule::use_item => ItemKind::Use(self.use_item(pair)?),
            Rule::fn_item => ItemKind::Fn(self.fn_item(pair)?),
            Rule::rollout_item => ItemKind::Rollout(self.fn_item(pair)?),
            Rule::extern_fn => ItemKind::ExternFn(self.extern_fn(pair)?),
            Rule::extern_env => ItemKind::ExternEnv(self.extern_env(pair)?),
            Rule::model_item => {
                let mut kids = Kids::of(pair);
                let name = self.name(&kids.next()?);
                let params = self.params(kids.pick(Rule::params))?;
                ItemKind::Model(Model { name, params, members: self.members(kids.next()?)? })
            }
            Rule::record_item => ItemKind::Record(self.record_item(pair)?),
            Rule::enum_item => ItemKind::Enum(self.enum_item(pair)?),
            Rule::plan_item => {
                let mut kids = Kids::of(pair);
                let name = self.name(&kids.next()?);
                let params = self.params(kids.pick(Rule::params))?;
                ItemKind::Plan(Plan { name, params, rules: self.rules(kids.next())? })
            }
            Rule::plan_for => ItemKind::PlanFor(self.plan_for(pair)?),
            Rule::mesh => ItemKind::Mesh(self.mesh(pair)?),
            Rule::pool => ItemKind::Pool(self.pool(pair)?),
            Rule::view => ItemKind::View(self.view(pair)?),
            Rule::recipe_item => ItemKind::Recipe(self.recipe(pair)?),
            Rule::test_item => {
                let mut kids = Kids::of(pair);
                let name = kids.next()?;
                let name = match name.as_rule() {
                    Rule::text => self.text(&name),
                    _ => Text { value: name.as_str().to_string(), span: self.span(&name) },
                };
                ItemKind::Test(Test { name, body: self.block(kids.next()?)? })
            }
            Rule::type_item => {
                let mut kids = Kids::of(pair);
                let name = self.name(&kids.next()?);
                ItemKind::Type(TypeDef { name, ty: self.ty(kids.next()?)? })
            }
            Rule::unit_item => {
                let mut kids = Kids::of(pair);
                let name = self.name(&kids.next()?);
                ItemKind::Unit(UnitDef { name, of: self.unit_of(kids.next())? })
            }
            _ => return None,
        })
    }

    fn use_item(&mut self, pair: Pair<'_, Rule>) -> Option<Use> {
        let mut kids = Kids::of(pair);
        let origin = kids.next()?;
        let origin = match origin.as_rule() {
            Rule::text => UseOrigin::File(self.text(&origin)),
            _ => UseOrigin::Path(self.path(origin)),
        };
        let mut found = Use { origin, names: Vec::new(), alias: None };
        match kids.next() {
            Some(pair) if pair.as_rule() == Rule::use_names => {
                found.names =
                    Kids::of(pair).map(|kid| self.use_name(kid)).collect::<Option<_>>()?;
            }
            Some(pair) => found.alias = Some(self.name(&Kids::of(pair).next()?)),
            None => {}
        }
        Some(found)
    }

    fn use_name(&mut self, pair: Pair<'_, Rule>) -> Option<UseName> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let alias = match kids.next() {
            Some(pair) => Some(self.name(&Kids::of(pair).next()?)),
            None => None,
        };
        Some(UseName { name, alias })
    }

    fn fn_item(&mut self, pair: Pair<'_, Rule>) -> Option<Fn> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let params = self.params(kids.pick(Rule::params))?;
        let result = self.result(kids.pick(Rule::result))?;
        let body = kids.next()?;
        let body = match body.as_rule() {
            Rule::block => self.block(body)?,
            _ => {
                let span = self.span(&body);
                Block { stmts: Vec::new(), value: Some(Box::new(self.value(body)?)), span }
            }
        };
        Some(Fn { name, params, result, body })
    }

    fn params(&mut self, pair: Option<Pair<'_, Rule>>) -> Option<Vec<Param>> {
        let Some(pair) = pair else { return Some(Vec::new()) };
        Kids::of(pair).map(|kid| self.param(kid)).collect()
    }

    fn param(&mut self, pair: Pair<'_, Rule>) -> Option<Param> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let ty = match kids.pick(Rule::type_) {
            Some(pair) => Some(self.ty(pair)?),
            None => None,
        };
        Some(Param { name, ty, default: self.expr_opt(kids.next())?, span })
    }

    fn result(&mut self, pair: Option<Pair<'_, Rule>>) -> Option<Option<Type>> {
        match pair {
            Some(pair) => self.ty(Kids::of(pair).next()?).map(Some),
            None => Some(None),
        }
    }

    fn extern_fn(&mut self, pair: Pair<'_, Rule>) -> Option<ExternFn> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let params = self.params(kids.pick(Rule::params))?;
        let result = self.result(kids.pick(Rule::result))?;
        let command = self.text(&kids.next()?);
        let options = self.options(kids.next()?)?;
        Some(ExternFn { name, params, result, command, options })
    }

    fn extern_env(&mut self, pair: Pair<'_, Rule>) -> Option<ExternEnv> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let command = self.text(&kids.next()?);
        let options = self.options(kids.next()?)?;
        let mut fns = Vec::new();
        for line in kids {
            match line.as_rule() {
                Rule::bad_line => self.bad_line(&line, Place::Signature),
                _ => fns.push(self.signature(line)?),
            }
        }
        Some(ExternEnv { name, command, options, fns })
    }

    fn signature(&mut self, pair: Pair<'_, Rule>) -> Option<Signature> {
        let (span, doc) = (self.span(&pair), self.doc(&pair));
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let params = self.params(kids.pick(Rule::params))?;
        let result = self.result(kids.pick(Rule::result))?;
        Some(Signature { doc, name, params, result, span })
    }

    fn options(&mut self, pair: Pair<'_, Rule>) -> Option<Vec<ProcessOption>> {
        Kids::of(pair).map(|kid| self.option(kid)).collect()
    }

    /// `timeout 2 s`, or a count named by its unit: `32 workers`.
    fn option(&mut self, pair: Pair<'_, Rule>) -> Option<ProcessOption> {
        let span = self.span(&pair);
        let words = pair.clone().into_inner().filter(|kid| kid.as_rule().keyword().is_some());
        let words: Vec<Name> = words.map(|word| self.name(&word)).collect();
        let value = self.operand(Kids::of(pair).next()?)?;
        let name = match (words.as_slice(), &value.kind) {
            ([first, .., last], _) => Name {
                text: format!("{}_{}", first.text, last.text),
                span: first.span.to(last.span),
            },
            ([only], _) => only.clone(),
            ([], ExprKind::Quantity(quantity)) => quantity.unit.first()?.name.clone(),
            _ => return None,
        };
        Some(ProcessOption { name, value, span })
    }

    fn members(&mut self, pair: Pair<'_, Rule>) -> Option<Vec<Member>> {
        let mut members = Vec::new();
        for line in Kids::of(pair) {
            match line.as_rule() {
                Rule::bad_line => self.bad_line(&line, Place::Member),
                _ => members.push(self.member(line)?),
            }
        }
        Some(members)
    }

    fn member(&mut self, pair: Pair<'_, Rule>) -> Option<Member> {
        let (span, doc) = (self.span(&pair), self.doc(&pair));
        let inner = Kids::of(pair).next()?;
        let kind = match inner.as_rule() {
            Rule::bind => MemberKind::Let(self.bind(inner)?),
            Rule::dims => MemberKind::Dims(
                Kids::of(inner).map(|kid| self.dim_decl(kid)).collect::<Option<_>>()?,
            ),
            Rule::param_decl => MemberKind::Param(Box::new(self.param_decl(inner)?)),
            Rule::repeat => {
                let mut kids = Kids::of(inner);
                let name = self.name(&kids.next()?);
                let count = self.expr(kids.next()?)?;
                MemberKind::Repeat { name, count, members: self.members(kids.next()?)? }
            }
            Rule::fn_item => MemberKind::Fn(self.fn_item(inner)?),
            _ => return None,
        };
        Some(Member { doc, kind, span })
    }

    fn dim_decl(&mut self, pair: Pair<'_, Rule>) -> Option<DimDecl> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        Some(DimDecl { name, size: self.expr(kids.next()?)?, span })
    }

    fn param_decl(&mut self, pair: Pair<'_, Rule>) -> Option<ParamDecl> {
        let mut kids = Kids::of(pair);
        let names = self.names(kids.next()?);
        let dtype = kids.pick(Rule::name).map(|name| self.name(&name));
        let dims = self.layouts(kids.next()?)?;
        let before = self.clause(kids.pick(Rule::init_clause))?;
        let (mut from, mut or) = (None, None);
        if let Some(pair) = kids.pick(Rule::param_from) {
            let mut parts = Kids::of(pair);
            from = Some(self.text(&parts.next()?));
            if let Some(tie) = parts.next() {
                or = Some(self.tie(tie)?);
            }
        }
        let init = before.or(self.clause(kids.pick(Rule::init_clause))?);
        let cond = self.clause(kids.pick(Rule::cond))?;
        Some(ParamDecl { names, dtype, dims, from, or, init, cond })
    }

    fn tie(&mut self, pair: Pair<'_, Rule>) -> Option<Tie> {
        let span = self.span(&pair);
        let mut kids = Kids::of(pair);
        let param = self.expr(kids.next()?)?;
        Some(Tie { param, cond: self.clause(kids.next())?, span })
    }

    fn record_item(&mut self, pair: Pair<'_, Rule>) -> Option<Record> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let mut fields = Vec::new();
        for line in kids {
            match line.as_rule() {
                Rule::bad_line => self.bad_line(&line, Place::Field),
                _ => fields.push(self.record_field(line)?),
            }
        }
        Some(Record { name, fields })
    }

    fn record_field(&mut self, pair: Pair<'_, Rule>) -> Option<RecordField> {
        let (span, doc) = (self.span(&pair), self.doc(&pair));
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let ty = self.ty(kids.next()?)?;
        Some(RecordField { doc, name, ty, default: self.expr_opt(kids.next())?, span })
    }

    fn enum_item(&mut self, pair: Pair<'_, Rule>) -> Option<Enum> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let mut variants = Vec::new();
        for line in kids {
            if line.as_rule() == Rule::bad_line {
                self.bad_line(&line, Place::Variant);
                continue;
            }
            let (span, doc) = (self.span(&line), self.doc(&line));
            let mut parts = Kids::of(line);
            let name = self.name(&parts.next()?);
            let fields = match parts.next() {
                Some(list) => self.types(list)?,
                None => Vec::new(),
            };
            variants.push(Variant { doc, name, fields, span });
        }
        Some(Enum { name, variants })
    }

    pub fn plan_for(&mut self, pair: Pair<'_, Rule>) -> Option<PlanFor> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let model = self.path_clause(kids.pick(Rule::plan_model))?;
        let mesh = self.path_clause(kids.pick(Rule::plan_mesh))?;
        let base = self.expr(kids.next()?)?;
        Some(PlanFor { name, model, mesh, base, rules: self.rules(kids.next())? })
    }

    fn path_clause(&mut self, pair: Option<Pair<'_, Rule>>) -> Option<Option<Path>> {
        match pair {
            Some(pair) => Some(Some(self.path(Kids::of(pair).next()?))),
            None => Some(None),
        }
    }

    fn rules(&mut self, pair: Option<Pair<'_, Rule>>) -> Option<Vec<PlanRule>> {
        let mut rules = Vec::new();
        for line in pair.into_iter().flat_map(Kids::of) {
            if line.as_rule() == Rule::bad_line {
                self.bad_line(&line, Place::Rule);
                continue;
            }
            let (span, doc) = (self.span(&line), self.doc(&line));
            let mut parts = Kids::of(line);
            let kind = self.rule_kind(parts.next()?)?;
            rules.push(PlanRule { doc, kind, cond: self.clause(parts.next())?, span });
        }
        Some(rules)
    }

    fn rule_kind(&mut self, pair: Pair<'_, Rule>) -> Option<PlanRuleKind> {
        let rule = pair.as_rule();
        let replicated = has(&pair, Rule::kw_replicated);
        let mut kids = Kids::of(pair);
        Some(match rule {
            Rule::recompute_rule => {
                let target = self.expr(kids.next()?)?;
                PlanRuleKind::Recompute { target, mode: self.expr(kids.next()?)? }
            }
            Rule::reduce_rule => {
                let axis = self.name(&kids.next()?);
                PlanRuleKind::Reduce { axis, dtype: self.name(&kids.next()?) }
            }
            Rule::offload_rule => PlanRuleKind::Offload { what: self.expr(kids.next()?)? },
            Rule::state_rule => {
                let mode = self.name(&kids.next()?);
                let axes = kids.next().map(|names| self.names(names)).unwrap_or_default();
                PlanRuleKind::State { mode, axes }
            }
            _ => {
                let targets = self.exprs(kids.next()?)?;
                if replicated {
                    return Some(PlanRuleKind::Split { targets, axes: Vec::new(), view: None });
                }
                self.at_rule(targets, kids.next()?)?
            }
        })
    }

    fn at_rule(&mut self, mut targets: Vec<Expr>, pair: Pair<'_, Rule>) -> Option<PlanRuleKind> {
        if pair.as_rule() == Rule::splits {
            let mut axes = Vec::new();
            let mut kids = Kids::of(pair);
            while let Some(axis) = kids.pick(Rule::axis_use) {
                axes.push(self.axis_use(axis)?);
            }
            let view = match kids.next() {
                Some(pair) => Some(self.name(&Kids::of(pair).next()?)),
                None => None,
            };
            return Some(PlanRuleKind::Split { targets, axes, view });
        }
        if let Some(extra) = targets.get(1) {
            let span = extra.span;
            self.problems.push(
                Diagnostic::error("syntax", "this rule takes one name before `:`")
                    .label(span, "a second name")
                    .help("write one rule for each"),
            );
        }
        let target = targets.drain(..).next()?;
        Some(match pair.as_rule() {
            Rule::layouts => PlanRuleKind::Layout { target, dims: self.layouts(pair)? },
            Rule::recompute_mode => {
                PlanRuleKind::Recompute { target, mode: self.expr(Kids::of(pair).next()?)? }
            }
            _ => {
                let mut kids = Kids::of(pair);
                let axis = self.name(&kids.next()?);
                let (mut chunks, mut split, mut paired) = (None, None, None);
                for clause in kids {
                    match clause.as_rule() {
                        Rule::virtual_clause => chunks = self.clause(Some(clause))?,
                        Rule::paired_clause => paired = self.clause(Some(clause))?,
                        _ => split = self.clause(Some(clause))?,
                    }
                }
                PlanRuleKind::Stages { target, axis, chunks, split, paired }
            }
        })
    }

    pub fn mesh(&mut self, pair: Pair<'_, Rule>) -> Option<Mesh> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let cluster = self.expr(kids.next()?)?;
        Some(Mesh { name, cluster, axes: self.axes(kids.next()?)? })
    }

    fn axes(&mut self, pair: Pair<'_, Rule>) -> Option<Vec<Axis>> {
        Kids::of(pair)
            .map(|kid| {
                let span = self.span(&kid);
                let mut parts = Kids::of(kid);
                let name = self.name(&parts.next()?);
                Some(Axis { name, size: self.expr(parts.next()?)?, span })
            })
            .collect()
    }

    pub fn pool(&mut self, pair: Pair<'_, Rule>) -> Option<Pool> {
        let mut kids = Kids::of(pair);
        let names = self.names(kids.next()?);
        let cluster = self.expr(kids.next()?)?;
        let parts = Kids::of(kids.next()?).filter(|kid| kid.as_rule() == Rule::expr);
        let parts = parts.map(|kid| self.expr(kid)).collect::<Option<_>>()?;
        Some(Pool { names, cluster, parts })
    }

    pub fn view(&mut self, pair: Pair<'_, Rule>) -> Option<View> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let mesh = self.path(kids.next()?);
        let folds = self.names(kids.next()?);
        Some(View { name, mesh, folds, axes: self.axes(kids.next()?)? })
    }

    fn recipe(&mut self, pair: Pair<'_, Rule>) -> Option<Recipe> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let params = self.params(kids.pick(Rule::params))?;
        let extends = kids.pick(Rule::path).map(|path| self.path(path));
        Some(Recipe { name, params, extends, body: self.block(kids.next()?)? })
    }
}
