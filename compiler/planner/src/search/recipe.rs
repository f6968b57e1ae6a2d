//! A recipe that threads compile again and again with other texts.
//!
//! In: an input. Out: its text, options and every file that checking it read, kept: other texts of it read no more.

use std::cell::RefCell;
use std::collections::BTreeMap;

use nrl_base::{Diagnostic, Files, SourceMap};
use nrl_driver::{Assume, Compiled, Options};

use crate::input::{Findings, Input, Over};

/// Files that were read once.
#[derive(Clone, Debug, Default)]
struct Kept(BTreeMap<String, Result<Vec<u8>, String>>);

impl Files for Kept {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        self.0.get(path).cloned().unwrap_or_else(|| Err("it was not read before".into()))
    }
}

/// Files, and what was read of them.
struct Watched<'f> {
    files: Over<'f>,
    read: RefCell<Kept>,
}

impl Files for Watched<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let found = self.files.read(path);
        self.read.borrow_mut().0.insert(path.to_string(), found.clone());
        found
    }
}

/// A recipe with all that it reads.
pub struct Recipe {
    pub text: String,
    pub assume: Assume,
    path: String,
    options: Options,
    files: Kept,
    /// Codes of errors that checking it finds as it is.
    pub errors: Vec<String>,
}

impl Recipe {
    /// Reads all of it.
    pub fn of(input: &Input<'_>) -> Recipe {
        let watched = Watched { files: input.files(), read: RefCell::default() };
        let mut sources = SourceMap::new();
        let (_, found) = nrl_driver::check(&watched, &mut sources, &input.path, &input.options);
        Recipe {
            text: input.text.clone(),
            assume: Assume { steps_alone: true, ..input.assume.clone() },
            path: input.path.clone(),
            options: input.options.clone(),
            files: watched.read.into_inner(),
            errors: codes(&found),
        }
    }

    /// The recipe's name, if it was asked for by name.
    pub fn name(&self) -> Option<&str> {
        self.options.recipe.as_deref()
    }

    /// Compiles another text.
    pub fn compile(&self, text: String) -> Result<Compiled, Findings> {
        let files = Over { files: &self.files, path: self.path.clone(), text };
        let mut sources = SourceMap::new();
        let (c, found) = nrl_driver::compile(&files, &mut sources, &self.path, &self.options);
        c.ok_or(Findings { found, sources })
    }

    /// Codes of the errors that checking another text finds.
    pub fn check(&self, text: String) -> Vec<String> {
        let files = Over { files: &self.files, path: self.path.clone(), text };
        let mut sources = SourceMap::new();
        let (_, found) = nrl_driver::check(&files, &mut sources, &self.path, &self.options);
        codes(&found)
    }
}

/// Codes of errors.
pub fn codes(found: &[Diagnostic]) -> Vec<String> {
    found.iter().filter(|d| d.is_error()).map(|d| d.code.to_string()).collect()
}
