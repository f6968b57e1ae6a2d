//! What a rule is, and what it finds.
//!
//! A rule looks at a recipe and reports through `Findings`, which turns facts into labels (those
//! with a place) and notes (those without). One mistake is one finding.

use nrl_base::{Diagnostic, Severity, nearest};

use crate::recipe::{Cause, Recipe, Shown};

/// Looks at a recipe and reports what is wrong with it.
pub type Check = fn(&Recipe, &mut Findings<'_>);

/// One rule: its number in the catalogue, the code that it raises, and how loud it is.
pub struct Rule {
    pub id: &'static str,
    pub code: &'static str,
    pub severity: Severity,
    /// The mistake, in one line.
    pub about: &'static str,
    pub check: Check,
}

/// A rule that stops: what is refused later anyway, or can only be a mistake.
pub const fn error(
    id: &'static str,
    code: &'static str,
    about: &'static str,
    check: Check,
) -> Rule {
    Rule { id, code, severity: Severity::Error, about, check }
}

/// A rule about what runs, and most likely not as it was meant.
pub const fn warning(
    id: &'static str,
    code: &'static str,
    about: &'static str,
    check: Check,
) -> Rule {
    Rule { id, code, severity: Severity::Warning, about, check }
}

/// A rule about what is worth knowing.
pub const fn note(id: &'static str, code: &'static str, about: &'static str, check: Check) -> Rule {
    Rule { id, code, severity: Severity::Note, about, check }
}

/// One finding and the rule that made it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub id: &'static str,
    pub diagnostic: Diagnostic,
}

/// Collects what the rules find.
pub struct Findings<'r> {
    recipe: &'r Recipe,
    rule: &'r Rule,
    found: Vec<Finding>,
}

/// The finding just made, to be completed.
pub struct Found<'f>(&'f mut Diagnostic);

impl<'r> Findings<'r> {
    /// Runs all rules of all tables.
    pub fn of(recipe: &'r Recipe, tables: &'r [&'r [Rule]]) -> Vec<Finding> {
        let mut found = vec![];
        for rule in tables.iter().copied().flatten() {
            let mut one = Findings { recipe, rule, found: vec![] };
            (rule.check)(recipe, &mut one);
            found.append(&mut one.found);
        }
        found
    }

    /// Reports a finding with the facts that conflict, the place of the finding first.
    pub fn found(&mut self, message: impl Into<String>, facts: &[&dyn Shown]) -> Found<'_> {
        let causes: Vec<Cause> = facts.iter().flat_map(|fact| fact.causes()).collect();
        self.report(message.into(), causes)
    }

    /// Reports a finding about settings named by their paths, set or not.
    pub fn at(&mut self, message: impl Into<String>, paths: &[&str]) -> Found<'_> {
        let causes = paths.iter().flat_map(|path| self.recipe.setting(path)).collect();
        self.report(message.into(), causes)
    }

    /// Reports a text that is none of the choices, with the nearest one.
    pub fn choice(&mut self, path: &str, choices: &[&str]) {
        let Some(given) = self.recipe.text(path) else { return };
        if !choices.contains(&given.value.as_str()) {
            let help = match nearest(&given.value, choices.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("one of {}", choices.join(", ")),
            };
            let text = format!("`{path}` cannot be \"{}\"", given.value);
            let found = self.found(text, &[&given]).help(help);
            found.note(format!("the choices are {}", choices.join(", ")));
        }
    }

    fn report(&mut self, message: String, causes: Vec<Cause>) -> Found<'_> {
        let mut diagnostic = Diagnostic::new(self.rule.code, self.rule.severity, message);
        for Cause { text, span } in causes {
            match span {
                Some(span) if diagnostic.labels.iter().any(|l| l.span == span) => {}
                Some(span) => diagnostic = diagnostic.label(span, text),
                None if diagnostic.notes.contains(&text) => {}
                None => diagnostic = diagnostic.note(text),
            }
        }
        self.found.push(Finding { id: self.rule.id, diagnostic });
        let last = self.found.len() - 1;
        Found(&mut self.found[last].diagnostic)
    }
}

impl Found<'_> {
    /// Says what to type.
    pub fn help(self, text: impl Into<String>) -> Self {
        self.0.help = Some(text.into());
        self
    }

    /// Says what to type, if something is known.
    pub fn help_opt(self, text: Option<String>) -> Self {
        if text.is_some() {
            self.0.help = text;
        }
        self
    }

    /// Adds a line of explanation.
    pub fn note(self, text: impl Into<String>) -> Self {
        self.0.notes.push(text.into());
        self
    }

    /// Makes it louder or quieter than its rule.
    pub fn severity(self, severity: Severity) -> Self {
        self.0.severity = severity;
        self
    }
}
