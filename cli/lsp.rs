//! `nrlc lsp`: the language server on standard input and output.
//!
//! In: messages of the Language Server Protocol. Out: answers and diagnostics. All that is known comes from
//! `nrl_ide`; this file keeps the open texts, and translates. Requests are answered in order; changes are checked
//! when no message waits; a request that was cancelled before its turn is not computed.

mod answer;
mod buffers;
mod convert;

use std::collections::VecDeque;
use std::process::ExitCode;

use lsp_server::{Connection, ErrorCode, Message, Notification, Request, RequestId, Response};
use lsp_types::notification::Notification as _;
use lsp_types::{
    CancelParams, DidChangeTextDocumentParams, DidCloseTextDocumentParams,
    DidOpenTextDocumentParams, NumberOrString, PublishDiagnosticsParams, Uri,
};

use buffers::Buffers;

/// Serves editors over standard input and output
#[derive(clap::Args, Debug)]
pub struct LspArgs {
    /// Accepted, and always so
    #[arg(long, hide = true)]
    pub stdio: bool,
}

/// Runs the server until the editor ends it; 0 if it did so properly.
pub fn run(_: &LspArgs) -> ExitCode {
    let (connection, threads) = Connection::stdio();
    let result = serve(&connection);
    drop(connection);
    match result.and_then(|()| threads.join().map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(1)
        }
    }
}

fn serve(connection: &Connection) -> Result<(), String> {
    let started = connection.initialize_start();
    let (id, _) = started.map_err(|e| {
        format!("no editor talks here ({e}); an editor starts this command, see editors/README.md")
    })?;
    let info = serde_json::json!({
        "capabilities": convert::capabilities(),
        "serverInfo": {"name": "nrlc", "version": env!("CARGO_PKG_VERSION")},
    });
    connection.initialize_finish(id, info).map_err(|e| e.to_string())?;
    Server { connection, buffers: Buffers::default(), waiting: VecDeque::new(), stale: vec![] }
        .run()
}

struct Server<'c> {
    connection: &'c Connection,
    buffers: Buffers,
    /// Messages received and not handled yet.
    waiting: VecDeque<Message>,
    /// Open files whose diagnostics are older than their text.
    stale: Vec<Uri>,
}

impl Server<'_> {
    fn run(&mut self) -> Result<(), String> {
        loop {
            while let Ok(message) = self.connection.receiver.try_recv() {
                self.receive(message);
            }
            let message = match self.waiting.pop_front() {
                Some(message) => message,
                None if !self.stale.is_empty() => {
                    self.publish_one();
                    continue;
                }
                None => match self.connection.receiver.recv() {
                    Ok(message) => {
                        self.receive(message);
                        continue;
                    }
                    Err(_) => return Ok(()),
                },
            };
            match message {
                Message::Request(request) => {
                    if self.connection.handle_shutdown(&request).map_err(|e| e.to_string())? {
                        return Ok(());
                    }
                    let response = self.answer(request);
                    self.send(Message::Response(response));
                }
                Message::Notification(n) => self.notified(n),
                Message::Response(_) => {}
            }
        }
    }

    /// Queues a message; a cancellation takes its request out of the queue.
    fn receive(&mut self, message: Message) {
        if let Message::Notification(n) = &message
            && n.method == lsp_types::notification::Cancel::METHOD
        {
            if let Ok(params) = serde_json::from_value::<CancelParams>(n.params.clone()) {
                self.cancel(params.id);
            }
            return;
        }
        self.waiting.push_back(message);
    }

    fn cancel(&mut self, id: NumberOrString) {
        let id = match id {
            NumberOrString::Number(n) => RequestId::from(n),
            NumberOrString::String(s) => RequestId::from(s),
        };
        let named = |m: &Message| matches!(m, Message::Request(r) if r.id == id);
        if let Some(at) = self.waiting.iter().position(named) {
            self.waiting.remove(at);
            let code = ErrorCode::RequestCanceled as i32;
            self.send(Message::Response(Response::new_err(id, code, "cancelled".into())));
        }
    }

    /// Sends; an editor that has gone away is noticed when nothing more comes from it.
    fn send(&self, message: Message) {
        let _ = self.connection.sender.send(message);
    }

    fn answer(&mut self, request: Request) -> Response {
        let id = request.id.clone();
        let answered =
            guarded(|| answer::answer(&mut self.buffers, &request.method, request.params));
        match answered {
            Some(Ok(value)) => Response::new_ok(id, value),
            Some(Err((code, why))) => Response::new_err(id, code as i32, why),
            None => Response::new_err(
                id,
                ErrorCode::InternalError as i32,
                "this is a bug in nrlc".into(),
            ),
        }
    }

    fn notified(&mut self, n: Notification) {
        match n.method.as_str() {
            lsp_types::notification::DidOpenTextDocument::METHOD => {
                if let Ok(p) = serde_json::from_value::<DidOpenTextDocumentParams>(n.params) {
                    self.buffers.put(
                        &p.text_document.uri,
                        p.text_document.text,
                        p.text_document.version,
                    );
                    self.changed();
                }
            }
            lsp_types::notification::DidChangeTextDocument::METHOD => {
                if let Ok(p) = serde_json::from_value::<DidChangeTextDocumentParams>(n.params) {
                    self.buffers.change(
                        &p.text_document.uri,
                        p.content_changes,
                        p.text_document.version,
                    );
                    self.changed();
                }
            }
            lsp_types::notification::DidCloseTextDocument::METHOD => {
                if let Ok(p) = serde_json::from_value::<DidCloseTextDocumentParams>(n.params) {
                    self.buffers.close(&p.text_document.uri);
                    self.publish(p.text_document.uri, vec![], None);
                    self.changed();
                }
            }
            lsp_types::notification::DidSaveTextDocument::METHOD
            | lsp_types::notification::DidChangeWatchedFiles::METHOD => self.changed(),
            _ => {}
        }
    }

    /// Files use each other: when one changes, all open ones are checked again.
    fn changed(&mut self) {
        self.buffers.forget();
        self.stale = self.buffers.open();
    }

    fn publish_one(&mut self) {
        let Some(uri) = self.stale.pop() else { return };
        let found = guarded(|| answer::diagnostics(&self.buffers, &uri));
        let version = self.buffers.version(&uri);
        self.publish(uri, found.unwrap_or_default(), version);
    }

    fn publish(&self, uri: Uri, diagnostics: Vec<lsp_types::Diagnostic>, version: Option<i32>) {
        let params = PublishDiagnosticsParams { uri, diagnostics, version };
        let method = lsp_types::notification::PublishDiagnostics::METHOD.to_string();
        self.send(Message::Notification(Notification::new(method, params)));
    }
}

/// A defect costs one answer, not the server.
fn guarded<T>(f: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).ok()
}
