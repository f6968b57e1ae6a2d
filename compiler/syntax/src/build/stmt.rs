//! Statements and blocks.

use nrl_base::{Diagnostic, Span};
use nrl_grammar::Rule;
use pest::iterators::Pair;

use super::{Build, Kids};
use crate::ast::{self, *};
use crate::errors::Place;

impl Build<'_> {
    pub fn block(&mut self, pair: Pair<'_, Rule>) -> Option<Block> {
        let span = self.span(&pair);
        if !self.enter(1, &pair) {
            self.leave(1);
            return Some(Block { stmts: Vec::new(), value: None, span });
        }
        let mut stmts = Vec::new();
        for line in Kids::of(pair) {
            if line.as_rule() == Rule::bad_line {
                self.bad_line(&line, Place::Statement);
            } else {
                stmts.extend(self.stmt(line));
            }
        }
        self.leave(1);
        let value = match stmts.pop() {
            Some(Stmt { kind: StmtKind::Expr(value), .. }) => Some(Box::new(value)),
            last => {
                stmts.extend(last);
                None
            }
        };
        Some(Block { stmts, value, span })
    }

    fn stmt(&mut self, pair: Pair<'_, Rule>) -> Option<Stmt> {
        let (span, doc) = (self.span(&pair), self.doc(&pair));
        let kind = self.stmt_kind(Kids::of(pair).next()?);
        if kind.is_none() {
            let message = "this statement is not understood";
            self.problems.push(Diagnostic::error("syntax", message).label(span, "here"));
        }
        Some(Stmt { doc, kind: kind?, span })
    }

    fn stmt_kind(&mut self, pair: Pair<'_, Rule>) -> Option<StmtKind> {
        let rule = pair.as_rule();
        Some(match rule {
            Rule::bind => StmtKind::Bind(self.bind(pair)?),
            Rule::expr_stmt => StmtKind::Expr(self.value(Kids::of(pair).next()?)?),
            Rule::mesh => StmtKind::Mesh(self.mesh(pair)?),
            Rule::pool => StmtKind::Pool(self.pool(pair)?),
            Rule::view => StmtKind::View(self.view(pair)?),
            Rule::plan_for => StmtKind::PlanFor(self.plan_for(pair)?),
            Rule::run_stmt => StmtKind::Run(self.run(pair)?),
            Rule::seed_stmt => StmtKind::Seed(self.expr(Kids::of(pair).next()?)?),
            Rule::place_stmt => StmtKind::Place(self.place(pair)?),
            Rule::freeze_stmt => StmtKind::Freeze(self.exprs(Kids::of(pair).next()?)?),
            Rule::phase_stmt => StmtKind::Phase(self.phase(pair)?),
            Rule::step_stmt => StmtKind::Step(self.block(Kids::of(pair).next()?)?),
            Rule::every_stmt => StmtKind::Every(self.timed(pair)?),
            Rule::from_stmt => StmtKind::From(self.timed(pair)?),
            Rule::halt_stmt => {
                let mut kids = Kids::of(pair);
                let cond = self.expr(kids.next()?)?;
                StmtKind::Halt(Halt { cond, lasting: self.clause(kids.next())? })
            }
            Rule::require_stmt => StmtKind::Require(self.exprs(pair)?),
            Rule::expect_stmt => StmtKind::Expect(self.exprs(pair)?),
            Rule::assert_stmt => {
                let mut kids = Kids::of(pair);
                let cond = self.expr(kids.next()?)?;
                StmtKind::Assert(Assert { cond, within: self.clause(kids.next())? })
            }
            Rule::fails_stmt => {
                let mut kids = Kids::of(pair);
                let code = kids.next()?;
                let span = self.span(&code);
                let words: Vec<&str> = code.into_inner().map(|w| w.as_str()).collect();
                let code = Name { text: words.join("-"), span };
                StmtKind::Fails(Fails { code, body: self.block(kids.next()?)? })
            }
            Rule::assume_stmt => StmtKind::Assume(self.assume(pair)?),
            Rule::checkpoint_stmt => StmtKind::Checkpoint(self.checkpoint(pair)?),
            Rule::update_stmt => StmtKind::Update(Box::new(self.update(pair)?)),
            Rule::publish_stmt => {
                let mut kids = Kids::of(pair);
                let what = self.exprs(kids.next()?)?;
                StmtKind::Publish { what, every: self.clause(kids.next())? }
            }
            Rule::set_stmt | Rule::append_stmt => {
                let mut kids = Kids::of(pair);
                let path = self.expr(kids.next()?)?;
                let value = self.value(kids.next()?)?;
                match rule {
                    Rule::set_stmt => StmtKind::Set { path, value },
                    _ => StmtKind::Append { path, value },
                }
            }
            Rule::remove_stmt => StmtKind::Remove { path: self.expr(Kids::of(pair).next()?)? },
            Rule::settings_stmt => StmtKind::Settings(self.settings(pair)?),
            _ => return None,
        })
    }

    pub fn bind(&mut self, pair: Pair<'_, Rule>) -> Option<Bind> {
        let mut kids = Kids::of(pair);
        let names = self.names(kids.next()?);
        let ty = match kids.pick(Rule::type_) {
            Some(pair) => Some(self.ty(pair)?),
            None => None,
        };
        Some(Bind { names, ty, value: self.value(kids.next()?)? })
    }

    fn run(&mut self, pair: Pair<'_, Rule>) -> Option<Run> {
        let mut kids = Kids::of(pair);
        let mut run = Run { length: self.expr(kids.next()?)?, within: None, seed: None };
        for clause in kids {
            let (rule, span) = (clause.as_rule(), self.span(&clause));
            let slot = match rule {
                Rule::within_clause => &mut run.within,
                _ => &mut run.seed,
            };
            if slot.is_some() {
                self.twice(span);
            }
            *slot = self.clause(Some(clause))?;
        }
        Some(run)
    }

    fn twice(&mut self, span: Span) {
        self.problems.push(
            Diagnostic::error("syntax", "this is said twice")
                .label(span, "said before in the same statement")
                .help("keep one of them"),
        );
    }

    fn place(&mut self, pair: Pair<'_, Rule>) -> Option<ast::Place> {
        let mut kids = Kids::of(pair);
        let models = self.exprs(kids.next()?)?;
        let mesh = self.expr(kids.next()?)?;
        let plan = match kids.next() {
            Some(by) => Some(self.value(Kids::of(by).next()?)?),
            None => None,
        };
        Some(ast::Place { models, mesh, plan })
    }

    fn phase(&mut self, pair: Pair<'_, Rule>) -> Option<Phase> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let length = self.clause(kids.pick(Rule::for_clause))?;
        Some(Phase { name, length, body: self.block(kids.next()?)? })
    }

    fn timed(&mut self, pair: Pair<'_, Rule>) -> Option<Timed> {
        let mut kids = Kids::of(pair);
        Some(Timed { time: self.expr(kids.next()?)?, body: self.block(kids.next()?)? })
    }

    fn assume(&mut self, pair: Pair<'_, Rule>) -> Option<Assume> {
        let mut kids = Kids::of(pair);
        let name = self.name(&kids.next()?);
        let value = kids.next()?;
        let from_file = value.as_rule() == Rule::text;
        Some(Assume { name, value: self.operand(value)?, from_file })
    }

    fn checkpoint(&mut self, pair: Pair<'_, Rule>) -> Option<Checkpoint> {
        let mut kids = Kids::of(pair);
        let keep = self.clause(kids.pick(Rule::keep_clause))?;
        let by = self.clause(kids.pick(Rule::by_clause))?;
        Some(Checkpoint { keep, by, latest: kids.next().is_some() })
    }

    fn update(&mut self, pair: Pair<'_, Rule>) -> Option<Update> {
        let mut kids = Kids::of(pair);
        let model = self.expr(kids.next()?)?;
        let optimizer = self.expr(kids.next()?)?;
        let mut parts = Vec::new();
        while let Some(part) = kids.pick(Rule::update_part) {
            parts.push(self.arg(Kids::of(part).next()?)?);
        }
        let loss = self.block(kids.next()?)?;
        let (updates, epochs, microbatch, settings) = (None, None, None, Vec::new());
        let mut update = Update { model, optimizer, updates, epochs, microbatch, settings, loss };
        for part in parts {
            self.update_part(&mut update, part);
        }
        Some(update)
    }

    /// Sorts `2 updates`, `4 epochs`, `8192 tokens/microbatch` by what they count.
    fn update_part(&mut self, update: &mut Update, part: Arg) {
        let counted = match &part.name {
            Some(name) => name.text.clone(),
            None => counted(&part.value).unwrap_or_default(),
        };
        let slot = match counted.as_str() {
            "update" | "updates" => &mut update.updates,
            "epoch" | "epochs" => &mut update.epochs,
            "microbatch" | "microbatches" => &mut update.microbatch,
            _ if part.name.is_some() => return update.settings.push(part),
            _ => {
                self.problems.push(
                    Diagnostic::error(
                        "syntax",
                        "this part of `update` does not say what it counts",
                    )
                    .label(part.span, "no `updates`, `epochs` or `.../microbatch`")
                    .help("write `in 2 updates, 4 epochs, 8192 tokens/microbatch`"),
                );
                return;
            }
        };
        if slot.replace(part.value).is_some() {
            self.twice(part.span);
        }
    }
}

/// The last word of a quantity's unit: `microbatch` of `8192 tokens/microbatch`.
fn counted(value: &Expr) -> Option<String> {
    match &value.kind {
        ExprKind::Quantity(quantity) => Some(quantity.unit.last()?.name.text.clone()),
        _ => None,
    }
}
