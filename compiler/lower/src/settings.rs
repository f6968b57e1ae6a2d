//! The `settings` block of a recipe: what another system is told, checked and left as it is.

use std::collections::HashMap;

use nrl_base::{Diagnostic, did_you_mean};
use nrl_syntax::ast;

use crate::elab::{El, Elab};

/// Systems that a block may name.
const SYSTEMS: &[&str] = &["nemo_rl"];

impl<'a> Elab<'a, '_> {
    /// A known system, and no path twice or inside another.
    pub fn settings(&mut self, block: &'a ast::Settings) -> El<()> {
        let system = &block.system;
        if !SYSTEMS.contains(&system.text.as_str()) {
            let said = format!("there are no settings of `{}`", system.text);
            let found = Diagnostic::error("unknown-name", said).label(system.span, "not known");
            let close = did_you_mean(&system.text, SYSTEMS.iter().copied());
            return self.fail(found.help(close.unwrap_or("write `settings nemo_rl`".into())));
        }
        let mut seen: HashMap<String, nrl_base::Span> = HashMap::new();
        for line in &block.lines {
            let names: Vec<&str> = line.path.iter().map(|name| name.text.as_str()).collect();
            let path = names.join(".");
            if let Some(first) = seen.insert(path.clone(), line.span) {
                let said = format!("`{path}` is set twice");
                let found = Diagnostic::error("duplicate-name", said).label(line.span, "again");
                return self.fail(found.label(first, "first here").help("keep one of the two"));
            }
        }
        Ok(())
    }
}
