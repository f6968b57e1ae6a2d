//! What the README shows of `nrlc check` is what `nrlc check` prints.

use std::path::Path;
use std::process::Command;

/// Blocks that begin with a command after `$ `, as command and lines.
fn shown(page: &str) -> Vec<(String, Vec<String>)> {
    let blocks = page.split("```").skip(1).step_by(2);
    let of = |block: &str| {
        let mut lines = block.trim_start_matches('\n').lines();
        let command = lines.next()?.strip_prefix("$ ")?.to_string();
        Some((command, lines.map(|l| l.trim().to_string()).collect()))
    };
    blocks.filter_map(of).collect()
}

#[test]
fn the_commands_of_the_readme_print_what_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("README.md")).expect("the README");
    let blocks = shown(&page);
    assert!(blocks.len() >= 2, "{} commands with their output", blocks.len());
    for (command, lines) in blocks {
        let mut words = command.split(' ');
        assert_eq!(words.next(), Some("nrlc"), "{command}");
        let out = Command::new(env!("CARGO_BIN_EXE_nrlc"))
            .args(words)
            .current_dir(root)
            .env("COLUMNS", "100")
            .output()
            .expect("it runs");
        let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
        text += &String::from_utf8_lossy(&out.stderr);
        let mut printed = text.lines().map(str::trim);
        // In order; `...` and empty lines stand for anything.
        for line in lines.iter().filter(|l| !l.is_empty() && *l != "...") {
            let found = printed.any(|p| p == line);
            assert!(found, "`{command}` does not print `{line}` there, but\n{text}");
        }
    }
}
