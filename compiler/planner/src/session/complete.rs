//! What may be typed next in a session.

use nrl_base::SourceMap;

use super::{COMMANDS, Session};
use crate::explain::known;

impl Session<'_> {
    /// Where the word before `at` begins, and what it may become.
    pub fn complete(&self, line: &str, at: usize) -> (usize, Vec<String>) {
        let before = line.get(..at).unwrap_or(line);
        let start = before.rfind(char::is_whitespace).map_or(0, |i| i + 1);
        let word = &before[start..];
        let command = before.split_whitespace().next().unwrap_or("");
        let all: Vec<String> = if before[..start].trim().is_empty() {
            let paths = self.paths();
            COMMANDS.iter().map(|c| (*c).to_string()).chain(paths).collect()
        } else {
            match command {
                "set" | "legal" => self.paths(),
                "explain" | "types" => self.names(),
                "why" => self.reasons(&before[..start]),
                "as" => vec!["nemo".into()],
                "lengths" => vec!["from".into()],
                "fits" => vec!["on".into()],
                _ => vec![],
            }
        };
        let mut fitting: Vec<String> = all.into_iter().filter(|x| x.starts_with(word)).collect();
        fitting.dedup();
        (start, fitting)
    }

    fn paths(&self) -> Vec<String> {
        self.input.paths(&mut SourceMap::new()).into_iter().map(|n| n.path).collect()
    }

    fn names(&self) -> Vec<String> {
        known(&self.planned, &self.input.paths(&mut SourceMap::new()))
    }

    fn reasons(&self, before: &str) -> Vec<String> {
        let kinds = self.report.steps.iter().flat_map(|s| s.phases.iter().map(|p| p.kind.clone()));
        let mut out: Vec<String> = match before.trim() {
            "why" => ["memory", "time"].iter().map(|w| (*w).to_string()).collect(),
            _ => vec![],
        };
        let terms = self.report.memory.stages.iter().flat_map(|s| &s.terms);
        match before.trim() {
            "why" => out.extend(terms.map(|t| t.name.clone())),
            _ => out.extend(kinds),
        }
        out.sort();
        out.dedup();
        out
    }
}
