//! The standard library as part of the program: names, texts and syntax trees.
//!
//! The trees are made by `build.rs` and decoded when a module is first asked for, once per process: reading the
//! library costs a recipe nothing that grows with the library. Spans are of [`nrl_base::SourceId::built_in`]
//! sources, so a tree serves every compilation; [`add_source`] makes its text known to one.

use std::sync::{Arc, OnceLock};

use nrl_base::{SourceId, SourceMap};
use nrl_syntax::ast::File;

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

static READ: [OnceLock<Arc<File>>; TREES.len()] = [const { OnceLock::new() }; TREES.len()];

/// The place in [`STD`] of the module called `name`, such as `std.models.llama`.
pub fn find(name: &str) -> Option<usize> {
    STD.iter().position(|(n, _)| *n == name)
}

/// The source that the spans of a module are of.
pub fn source(module: usize) -> SourceId {
    SourceId::built_in(u32::try_from(module).unwrap_or(u32::MAX))
}

/// Makes the text of a module known to `sources`, as `std/models/llama.nrl`.
pub fn add_source(sources: &mut SourceMap, module: usize) -> SourceId {
    let id = source(module);
    if let Some((name, text)) = STD.get(module) {
        sources.add_built_in(id, format!("{}.nrl", name.replace('.', "/")), text);
    }
    id
}

/// The tree of a module of [`STD`]; an empty one if there is no such module.
pub fn tree(module: usize) -> Arc<File> {
    let read = || {
        let stored = TREES.get(module).and_then(|bytes| postcard::from_bytes(bytes).ok());
        let text = STD.get(module).map_or("", |(_, text)| text);
        Arc::new(stored.unwrap_or_else(|| nrl_syntax::parse(source(module), text).0))
    };
    READ.get(module).map_or_else(read, |once| once.get_or_init(read).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_tree_is_what_the_parser_reads() {
        for (module, (name, text)) in STD.iter().enumerate() {
            assert_eq!(find(name), Some(module));
            let stored: File = postcard::from_bytes(TREES[module]).expect(name);
            let (read, problems) = nrl_syntax::parse(source(module), text);
            assert!(problems.is_empty(), "{name}: {problems:?}");
            assert!(stored == read, "{name} is stored as something else");
            assert!(!read.items.is_empty(), "{name} has items");
        }
    }

    #[test]
    fn a_module_is_read_once_and_its_places_are_known() {
        let module = find("std.grpo").expect("std.grpo is there");
        assert!(Arc::ptr_eq(&tree(module), &tree(module)));
        let mut sources = SourceMap::new();
        sources.add("a.nrl", "x = 1\n");
        add_source(&mut sources, module);
        let file = tree(module);
        let clip = file.items.iter().find_map(|i| i.name().filter(|n| n.text == "clip"));
        let span = clip.expect("std.grpo has `clip`").span;
        assert_eq!(sources.text(span), "clip");
        let line = STD[module].1.lines().position(|l| l.starts_with("fn clip(")).expect("a line");
        assert_eq!(sources.place(span), format!("std/grpo.nrl:{}:4", line + 1));
        assert!(tree(STD.len()).items.is_empty());
    }
}
