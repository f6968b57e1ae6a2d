//! Documentation made of `##` comments: the page of the standard library, and of any file.
//!
//! In: texts in the language. Out: Markdown or HTML with each module's header, the signatures of its
//! items with their comments, and its tests as examples. The examples are the files of
//! `stdlib/tests`, so each is run wherever tests are run.

use std::fmt::Write as _;

pub use nrl_stdlib::EXAMPLES;
use nrl_stdlib::STD;

const INTRO: &str = "Everything here is written in `.nrl` and can be read, copied beside a recipe and changed: `nrlc explain std.grpo >
grpo.nrl`, then `use \"grpo.nrl\"`. Names of `std.prelude` need no `use`. [language.md](language.md) has the functions of
the language itself. This page is made from the comments in `stdlib/` by `nrlc doc`; its examples are tests, and are run.
";

/// Words that begin an item.
const ITEMS: [&str; 8] =
    ["fn ", "plan ", "enum ", "record ", "model ", "type ", "extern fn ", "recipe "];

/// One module.
#[derive(Debug)]
pub struct ModuleDoc {
    pub name: String,
    /// Paragraphs that stand before an empty line.
    pub words: Vec<String>,
    pub items: Vec<ItemDoc>,
    /// A file of tests.
    pub example: Option<&'static str>,
}

/// One item of a module.
#[derive(Debug)]
pub struct ItemDoc {
    pub signature: String,
    pub words: Vec<String>,
}

/// The modules of the standard library.
pub fn library() -> Vec<ModuleDoc> {
    STD.iter()
        .map(|(name, text)| ModuleDoc {
            example: EXAMPLES.iter().find(|(n, _)| n == name).map(|(_, t)| *t),
            ..module(name, text)
        })
        .collect()
}

/// What a text says of itself.
pub fn module(name: &str, text: &str) -> ModuleDoc {
    let mut out = ModuleDoc { name: name.into(), words: vec![], items: vec![], example: None };
    let mut comment: Vec<String> = vec![];
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let rest = &text[at..];
        at += line.len();
        let line = line.trim_end();
        if let Some(words) = line.strip_prefix("## ") {
            comment.push(words.to_string());
        } else if ITEMS.iter().any(|w| line.starts_with(w)) {
            let words = std::mem::take(&mut comment);
            out.items.push(ItemDoc { signature: signature(rest), words });
        } else if line.is_empty() && !comment.is_empty() {
            out.words.append(&mut comment);
        }
    }
    out
}

/// The item that begins at `text`, up to its body, on one line; an enum with its variants.
fn signature(text: &str) -> String {
    let (whole, named) = (text.starts_with("enum "), text.starts_with("type "));
    let mut depth = 0;
    let mut end = text.len();
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '\n' if depth == 0 && named => {
                end = i;
                break;
            }
            '{' | '=' | '\n' if depth == 0 && !whole && !named => {
                end = i;
                break;
            }
            '}' if whole => {
                end = i + 1;
                break;
            }
            _ => {}
        }
    }
    let line = text[..end].split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace("( ", "(").replace(" )", ")")
}

/// A page in Markdown.
pub fn markdown(title: &str, intro: &str, modules: &[ModuleDoc]) -> String {
    let mut out = format!("# {title}\n");
    if !intro.is_empty() {
        let _ = write!(out, "\n{intro}");
    }
    for m in modules {
        let _ = writeln!(out, "\n## {}", m.name);
        if !m.words.is_empty() {
            let _ = writeln!(out, "\n{}", m.words.join("\n"));
        }
        for i in &m.items {
            let _ = write!(out, "\n- `{}`", i.signature);
            if !i.words.is_empty() {
                let _ = write!(out, "\n  {}", i.words.join("\n  "));
            }
        }
        if !m.items.is_empty() {
            out.push('\n');
        }
        if let Some(e) = m.example {
            let _ = write!(out, "\n```nrl\n{e}```\n");
        }
    }
    out
}

/// The page of the standard library in Markdown.
pub fn std_page() -> String {
    markdown("The standard library", INTRO, &library())
}

/// A page in HTML.
pub fn html(title: &str, modules: &[ModuleDoc]) -> String {
    let title = escaped(title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<h1>{title}</h1>\n"
    );
    for m in modules {
        let _ = writeln!(out, "<h2 id=\"{0}\">{0}</h2>", escaped(&m.name));
        if !m.words.is_empty() {
            let _ = writeln!(out, "<p>{}</p>", inline(&m.words.join("\n")));
        }
        if !m.items.is_empty() {
            let _ = writeln!(out, "<dl>");
            for i in &m.items {
                let _ = writeln!(out, "<dt><code>{}</code></dt>", escaped(&i.signature));
                let _ = writeln!(out, "<dd>{}</dd>", inline(&i.words.join("\n")));
            }
            let _ = writeln!(out, "</dl>");
        }
        if let Some(e) = m.example {
            let _ = writeln!(out, "<pre><code>{}</code></pre>", escaped(e));
        }
    }
    out + "</html>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Text with code in backquotes.
fn inline(text: &str) -> String {
    let mut out = String::new();
    for (i, part) in text.split('`').enumerate() {
        let part = escaped(part);
        out += &if i % 2 == 1 { format!("<code>{part}</code>") } else { part };
    }
    out
}
