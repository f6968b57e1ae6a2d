//! The language server over its real protocol: the program is started, framed messages go in and come out.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::Bench;

struct Client {
    bench: Bench,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    next: i64,
    /// Notifications that came while waiting for an answer.
    heard: Vec<Value>,
}

impl Client {
    fn start() -> Client {
        let bench = Bench::new();
        let cache = bench.path("cache");
        let mut child = bench
            .command()
            .arg("lsp")
            .env("XDG_CACHE_HOME", cache)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut client = Client { bench, child, input, output, next: 0, heard: vec![] };
        let answer = client
            .ask("initialize", json!({"capabilities": {}, "processId": null, "rootUri": null}));
        assert_eq!(answer["capabilities"]["positionEncoding"], "utf-16");
        client.tell("initialized", json!({}));
        client
    }

    fn send(&mut self, message: &Value) {
        let body = message.to_string();
        write!(self.input, "Content-Length: {}\r\n\r\n{body}", body.len())
            .expect("a message goes in");
        self.input.flush().expect("a message goes in");
    }

    fn tell(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    fn request(&mut self, method: &str, params: Value) -> i64 {
        self.next += 1;
        let id = self.next;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    fn receive(&mut self) -> Value {
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.output.read_line(&mut line).expect("a header");
            assert!(!line.is_empty(), "the server has ended");
            match line.trim().strip_prefix("Content-Length: ") {
                Some(n) => length = n.parse().expect("a length"),
                None if line.trim().is_empty() => break,
                None => {}
            }
        }
        let mut body = vec![0; length];
        self.output.read_exact(&mut body).expect("a body");
        serde_json::from_slice(&body).expect("JSON")
    }

    fn answer(&mut self, id: i64) -> Value {
        loop {
            let message = self.receive();
            if message["id"] == json!(id) {
                return message;
            }
            self.heard.push(message);
        }
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        let answer = self.answer(id);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The next diagnostics of a file.
    fn diagnostics(&mut self, uri: &str) -> Vec<Value> {
        loop {
            let heard = self.heard.iter().position(|m| m["params"]["uri"] == json!(uri));
            let message = match heard {
                Some(at) => self.heard.remove(at),
                None => self.receive(),
            };
            if message["method"] == "textDocument/publishDiagnostics"
                && message["params"]["uri"] == json!(uri)
            {
                return message["params"]["diagnostics"].as_array().expect("a list").clone();
            }
        }
    }

    fn uri(&self, name: &str) -> String {
        format!("file://{}", self.bench.path(name).display())
    }

    fn open(&mut self, name: &str, text: &str) -> String {
        let uri = self.uri(name);
        let document = json!({"uri": uri, "languageId": "nrl", "version": 1, "text": text});
        self.tell("textDocument/didOpen", json!({"textDocument": document}));
        uri
    }

    fn stop(mut self) {
        self.ask("shutdown", Value::Null);
        self.tell("exit", Value::Null);
        assert!(self.child.wait().expect("it ends").success());
    }
}

/// Line and UTF-16 unit of the `n`-th `part` of a text, `skip` bytes into it.
fn place(text: &str, part: &str, n: usize, skip: usize) -> Value {
    let at = text.match_indices(part).nth(n).expect("the part").0 + skip;
    let line = text[..at].matches('\n').count();
    let start = text[..at].rfind('\n').map_or(0, |s| s + 1);
    json!({"line": line, "character": text[start..at].encode_utf16().count()})
}

fn at(uri: &str, position: &Value) -> Value {
    json!({"textDocument": {"uri": uri}, "position": position})
}

const TEXT: &str = "use std.{data}\n\nrecipe r {\n  run 1 step\n  rows = data.made(9 rows, i -> {prompt: \"😀é\", answer: \"2\"})\n  \
                    step {\n    b = rows.take(8 prompst)\n  }\n}\n";

#[test]
fn a_session_from_initialize_to_shutdown() {
    let mut c = Client::start();
    let uri = c.open("a.nrl", TEXT);
    let found = c.diagnostics(&uri);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["code"], "unknown-unit");
    assert_eq!(found[0]["range"]["start"], place(TEXT, "8 prompst", 0, 0));
    // The quick fix makes it right.
    let range = json!({"start": place(TEXT, "prompst", 0, 0), "end": place(TEXT, "prompst", 0, 0)});
    let params =
        json!({"textDocument": {"uri": uri}, "range": range, "context": {"diagnostics": []}});
    let actions = c.ask("textDocument/codeAction", params);
    let edit = &actions[0]["edit"]["changes"][&uri][0];
    assert_eq!(
        (&edit["newText"], &edit["range"]["start"]),
        (&json!("prompts"), &place(TEXT, "prompst", 0, 0))
    );
    let change = json!([{"range": edit["range"], "text": edit["newText"]}]);
    c.tell(
        "textDocument/didChange",
        json!({"textDocument": {"uri": uri, "version": 2}, "contentChanges": change}),
    );
    assert_eq!(c.diagnostics(&uri), Vec::<Value>::new());
    let text = TEXT.replace("prompst", "prompts");
    // A definition behind characters of two units.
    let here = place(&text, "rows.take", 0, 0);
    let found = c.ask("textDocument/definition", at(&uri, &here));
    assert_eq!(
        (&found["uri"], &found["range"]["start"]),
        (&json!(uri), &place(&text, "rows =", 0, 0))
    );
    let found = c.ask("textDocument/definition", at(&uri, &place(&text, "data.made", 0, 6)));
    let library = found["uri"].as_str().expect("a file").trim_start_matches("file://").to_string();
    assert!(
        std::fs::read_to_string(&library).expect("the library").contains("fn made("),
        "{library}"
    );
    let mut params = at(&uri, &here);
    params["newName"] = json!("table");
    let edits = c.ask("textDocument/rename", params.clone());
    assert_eq!(edits["changes"][&uri].as_array().map(Vec::len), Some(2));
    params["position"] = place(&text, "data.made", 0, 6);
    let id = c.request("textDocument/rename", params);
    let refused = c.answer(id);
    assert!(
        refused["error"]["message"].as_str().is_some_and(|m| m.contains("standard library")),
        "{refused}"
    );
    let symbols = c.ask("textDocument/documentSymbol", json!({"textDocument": {"uri": uri}}));
    assert_eq!(symbols[0]["name"], "r");
    assert_eq!(symbols[0]["children"][0]["name"], "rows");
    c.stop();
}

#[test]
fn a_half_typed_text_a_format_and_a_cancelled_request() {
    let mut c = Client::start();
    let uri = c.open("a.nrl", "recipe r {\n  x = (\n");
    assert!(!c.diagnostics(&uri).is_empty());
    let whole = |text: &str, version: i32| json!({"textDocument": {"uri": "", "version": version}, "contentChanges": [{"text": text}]});
    let mut params = whole("recipe   r {\nx   =  1\n}\n", 2);
    params["textDocument"]["uri"] = json!(uri);
    c.tell("textDocument/didChange", params);
    let options =
        json!({"textDocument": {"uri": uri}, "options": {"tabSize": 2, "insertSpaces": true}});
    let edits = c.ask("textDocument/formatting", options);
    assert_eq!(edits[0]["newText"], "recipe r {\n  x = 1\n}\n");
    // Two requests in one write, and the second is taken back at once.
    let hover = json!({"textDocument": {"uri": uri}, "position": {"line": 0, "character": 8}});
    let mut bytes = vec![];
    let cancelled = c.next + 41;
    for message in [
        json!({"jsonrpc": "2.0", "id": c.next + 40, "method": "textDocument/hover", "params": hover}),
        json!({"jsonrpc": "2.0", "id": cancelled, "method": "textDocument/hover", "params": hover}),
        json!({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": cancelled}}),
    ] {
        let body = message.to_string();
        bytes.extend(format!("Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes());
    }
    c.input.write_all(&bytes).expect("messages go in");
    let answer = c.answer(cancelled);
    // Whether it was still waiting is a matter of luck; an answer it has in any case.
    let code = answer["error"]["code"].as_i64();
    assert!(code == Some(-32800) || answer.get("result").is_some(), "{answer}");
    let id = c.request("textDocument/nothing", json!({}));
    assert_eq!(c.answer(id)["error"]["code"], -32601);
    c.stop();
}

#[test]
fn hover_and_completion_answer_on_the_largest_example() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let texts = std::fs::read_dir(root).expect("examples").flatten().map(|e| e.path());
    let texts = texts.filter(|p| p.extension().is_some_and(|e| e == "nrl"));
    let texts = texts.map(|p| std::fs::read_to_string(p).expect("an example"));
    let text = texts.max_by_key(String::len).expect("an example");
    let mut c = Client::start();
    let uri = c.open("a.nrl", &text);
    c.diagnostics(&uri);
    // The name that the recipe gives to its policy is used further down.
    let here = place(&text, "policy", 1, 2);
    for (what, method) in
        [("hover", "textDocument/hover"), ("completion", "textDocument/completion")]
    {
        for turn in ["first", "second"] {
            let start = Instant::now();
            let answer = c.ask(method, at(&uri, &here));
            println!("{what}, {turn}: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
            assert!(answer.to_string().contains("policy"), "{answer}");
        }
    }
    c.stop();
}

#[test]
fn a_nemo_recipe_has_diagnostics_and_hover() {
    let mut c = Client::start();
    c.bench.write("base.yaml", "policy:\n  length: 512\n");
    let text = "defaults: base.yaml\npolicy:\n  length: ${policy.lenght}\n";
    let uri = c.open("a.yaml", text);
    let found = c.diagnostics(&uri);
    assert!(
        found.iter().any(|d| d["severity"] == 1 && d["range"]["start"]["line"] == 2),
        "{found:?}"
    );
    let params = json!({"textDocument": {"uri": uri, "version": 2}, "contentChanges": [
        {"text": "defaults: base.yaml\npolicy:\n  other: 1\n"}]});
    c.tell("textDocument/didChange", params);
    let found = c.ask("textDocument/hover", at(&uri, &json!({"line": 2, "character": 4})));
    assert!(
        found["contents"]["value"].as_str().is_some_and(|v| v.contains("policy.other: 1")),
        "{found}"
    );
    c.stop();
}
