//! The editors' packages: the VS Code extension packs offline, and its client talks to the server.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::Bench;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("editors").join(name)
}

/// Whether a program can be started; says so if not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no {program}");
    }
    found
}

#[test]
fn the_vs_code_extension_packs_without_a_network() {
    if !has("python3") {
        return;
    }
    let b = Bench::new();
    let script = folder("vscode/package.py");
    let packed = |name: &str| {
        let out = b.path(name);
        let ran = Command::new("python3").arg(&script).arg(&out).output().expect("python3 runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        std::fs::read(out).expect("the package")
    };
    let bytes = packed("a.vsix");
    assert_eq!(bytes, packed("b.vsix"), "the same files give the same bytes");
    // A zip: local headers, and an end record that counts them.
    assert!(bytes.starts_with(b"PK\x03\x04"));
    let end = bytes.windows(4).rposition(|w| w == b"PK\x05\x06").expect("an end record");
    let count = u16::from_le_bytes([bytes[end + 10], bytes[end + 11]]);
    let mut at =
        u32::from_le_bytes(bytes[end + 16..end + 20].try_into().expect("four bytes")) as usize;
    let mut names = vec![];
    for _ in 0..count {
        assert!(bytes[at..].starts_with(b"PK\x01\x02"));
        let short = |i: usize| u16::from_le_bytes([bytes[at + i], bytes[at + i + 1]]) as usize;
        names.push(String::from_utf8_lossy(&bytes[at + 46..at + 46 + short(28)]).into_owned());
        at += 46 + short(28) + short(30) + short(32);
    }
    for name in [
        "[Content_Types].xml",
        "extension.vsixmanifest",
        "extension/package.json",
        "extension/extension.js",
    ] {
        assert!(names.iter().any(|n| n == name), "{names:?}");
    }
    // All that the manifest of the extension names is in it.
    let text = std::fs::read_to_string(folder("vscode/package.json")).expect("package.json");
    let about: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let contributes = &about["contributes"];
    for path in [
        &about["main"],
        &contributes["languages"][0]["configuration"],
        &contributes["grammars"][0]["path"],
    ] {
        let path = path.as_str().and_then(|p| p.strip_prefix("./")).expect("a path");
        assert!(names.contains(&format!("extension/{path}")), "{path}");
    }
}

#[test]
fn the_extensions_client_talks_to_the_server() {
    if !has("node") {
        return;
    }
    let script = format!(
        r##"
const {{ Client }} = require({client:?});
const uri = "file:///nowhere/a.nrl";
let told = null;
const client = new Client({nrlc:?}, ["lsp"], (method, params) => {{ if (told) told(params); }}, () => {{}});
(async () => {{
  const init = await client.request("initialize", {{ capabilities: {{}} }});
  client.notify("initialized", {{}});
  const found = new Promise((resolve) => {{ told = resolve; }});
  const text = "# é😀\nx = 1\ny = x & 1\n";
  client.notify("textDocument/didOpen", {{ textDocument: {{ uri, languageId: "nrl", version: 1, text }} }});
  const params = await found;
  const hover = await client.request("textDocument/hover",
    {{ textDocument: {{ uri }}, position: {{ line: 2, character: 4 }} }});
  const failed = await client.request("nonsense", {{}}).catch((e) => e.message);
  await client.stop();
  console.log(JSON.stringify([init.serverInfo.name, params.diagnostics.length, hover.contents.value, failed]));
}})();
"##,
        client = folder("vscode/client.js"),
        nrlc = env!("CARGO_BIN_EXE_nrlc"),
    );
    let ran = Command::new("node").arg("-e").arg(script).output().expect("node runs");
    let out = String::from_utf8_lossy(&ran.stdout).into_owned();
    let said: serde_json::Value = serde_json::from_str(&out)
        .unwrap_or_else(|e| panic!("{e}: {out} {}", String::from_utf8_lossy(&ran.stderr)));
    assert_eq!((&said[0], &said[1]), (&"nrlc".into(), &1.into()), "{said}");
    assert!(said[2].as_str().is_some_and(|h| h.contains("x = 1")), "{said}");
    assert!(said[3].as_str().is_some_and(|e| e.contains("not supported")), "{said}");
}
