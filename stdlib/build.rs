//! Reads the standard library once, when the program is built.
//!
//! In: the `.nrl` files beside this one. Out: `modules.rs` with their names, texts and trees, and a file per
//! tree. A module is a file; one that has a syntax error fails the build with its place.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use nrl_base::{SourceId, SourceMap};

/// One file of the library.
struct Module {
    /// `std.models.llama`
    name: String,
    path: PathBuf,
}

fn main() -> io::Result<()> {
    let home = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let mut modules = vec![];
    for (folder, name) in [(home.clone(), "std"), (home.join("models"), "std.models")] {
        modules.extend(files(&folder, name)?);
    }
    // Names that need no `use` come first, also in the documentation.
    modules.sort_by_key(|m| (m.name != "std.prelude", m.name.clone()));
    let tests = files(&home.join("tests"), "std")?;
    println!("cargo::rerun-if-changed=build.rs");
    let trees = trees(&modules, &out)?;
    fs::write(out.join("modules.rs"), table("STD", &modules) + &table("EXAMPLES", &tests) + &trees)
}

/// The `.nrl` files of a folder in alphabetical order; the build depends on them and on their number.
fn files(folder: &Path, name: &str) -> io::Result<Vec<Module>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut found = vec![];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "nrl") {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            println!("cargo::rerun-if-changed={}", path.display());
            found.push(Module { name: format!("{name}.{stem}"), path });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// A constant with names and texts.
fn table(constant: &str, modules: &[Module]) -> String {
    let about = match constant {
        "STD" => "The modules of the standard library: names and texts.",
        _ => "The tests of the library's modules, which are their examples.",
    };
    let mut out = format!("/// {about}\npub const {constant}: &[(&str, &str)] = &[\n");
    for m in modules {
        let _ = writeln!(out, "    ({:?}, include_str!({:?})),", m.name, m.path);
    }
    out + "];\n"
}

/// Writes the tree of each module, and gives the constant that holds them in the same order.
fn trees(modules: &[Module], out: &Path) -> io::Result<String> {
    let mut list = format!("const TREES: [&[u8]; {}] = [\n", modules.len());
    for (index, m) in modules.iter().enumerate() {
        let text = fs::read_to_string(&m.path)?;
        let id = SourceId::built_in(u32::try_from(index).unwrap_or(u32::MAX));
        let (tree, problems) = nrl_syntax::parse(id, &text);
        let mut sources = SourceMap::new();
        for p in &problems {
            let text: &'static str = String::leak(text.clone());
            sources.add_built_in(id, m.path.display().to_string(), text);
            let place = p.span().map_or(String::new(), |span| sources.place(span));
            println!("cargo::error={place}: {}", p.message);
        }
        let bytes = postcard::to_allocvec(&tree).map_err(io::Error::other)?;
        let file = out.join(format!("{}.tree", m.name));
        fs::write(&file, bytes)?;
        let _ = writeln!(list, "    include_bytes!({file:?}),");
    }
    Ok(list + "];\n")
}
