//! Between the protocol's types and ours.

use lsp_types as lsp;
use nrl_base::{Diagnostic, Severity, SourceMap, Span};
use nrl_ide::Sort;
use nrl_ide::index::Kind;
use nrl_ide::utf16;
use serde_json::{Value, json};

/// What the server can do.
pub fn capabilities() -> Value {
    json!({
        "positionEncoding": "utf-16",
        "textDocumentSync": {"openClose": true, "change": 2, "save": true},
        "hoverProvider": true,
        "completionProvider": {"triggerCharacters": [".", "@", "{", "(", ","]},
        "definitionProvider": true,
        "referencesProvider": true,
        "renameProvider": {"prepareProvider": true},
        "documentFormattingProvider": true,
        "documentSymbolProvider": true,
        "codeActionProvider": {"codeActionKinds": ["quickfix"]},
        "inlayHintProvider": true,
    })
}

/// A position of the protocol.
pub fn from(p: lsp::Position) -> utf16::Position {
    utf16::Position { line: p.line, unit: p.character }
}

/// A position for the protocol.
pub fn position(text: &str, offset: usize) -> lsp::Position {
    let p = utf16::position(text, offset);
    lsp::Position { line: p.line, character: p.unit }
}

/// The range of a span in its text.
pub fn range(text: &str, span: Span) -> lsp::Range {
    let range = span.range();
    lsp::Range { start: position(text, range.start), end: position(text, range.end) }
}

/// A finding. Facts in other files become places of their own if those are files.
pub fn diagnostic(d: &Diagnostic, sources: &SourceMap, path: &str) -> lsp::Diagnostic {
    let text = |span: Span| sources.get(span.source).map_or("", |s| s.text());
    let here =
        d.labels.iter().find(|l| sources.get(l.span.source).is_some_and(|s| s.name() == path));
    let mut message = d.message.clone();
    let mut related = vec![];
    for label in &d.labels {
        if here.is_some_and(|h| h.span == label.span) {
            if !label.text.is_empty() {
                message.push_str(&format!("\n{}", label.text));
            }
            continue;
        }
        let name = sources.get(label.span.source).map_or("", |s| s.name());
        match super::answer::place(name).filter(|_| !label.text.is_empty()) {
            Some(uri) => related.push(lsp::DiagnosticRelatedInformation {
                location: lsp::Location { uri, range: range(text(label.span), label.span) },
                message: label.text.clone(),
            }),
            None => message.push_str(&format!("\n{}: {}", sources.place(label.span), label.text)),
        }
    }
    d.notes.iter().for_each(|n| message.push_str(&format!("\nnote: {n}")));
    d.help.iter().for_each(|h| message.push_str(&format!("\nhelp: {h}")));
    lsp::Diagnostic {
        range: here.map_or_else(lsp::Range::default, |l| range(text(l.span), l.span)),
        severity: Some(match d.severity {
            Severity::Error => lsp::DiagnosticSeverity::ERROR,
            Severity::Warning => lsp::DiagnosticSeverity::WARNING,
            Severity::Note => lsp::DiagnosticSeverity::INFORMATION,
        }),
        code: Some(lsp::NumberOrString::String(d.code.to_string())),
        source: Some("nrlc".into()),
        message,
        related_information: (!related.is_empty()).then_some(related),
        ..lsp::Diagnostic::default()
    }
}

/// The protocol's kind of a declaration.
pub fn symbol(kind: Kind) -> lsp::SymbolKind {
    match kind {
        Kind::Function => lsp::SymbolKind::FUNCTION,
        Kind::Model | Kind::Record | Kind::Type | Kind::Unit => lsp::SymbolKind::STRUCT,
        Kind::Enum => lsp::SymbolKind::ENUM,
        Kind::Plan => lsp::SymbolKind::OBJECT,
        Kind::Recipe => lsp::SymbolKind::CLASS,
        Kind::Mesh | Kind::Layers => lsp::SymbolKind::ARRAY,
        Kind::Axis | Kind::Dim => lsp::SymbolKind::NUMBER,
        Kind::Phase => lsp::SymbolKind::NAMESPACE,
        Kind::Constant => lsp::SymbolKind::CONSTANT,
        Kind::Parameter | Kind::Local => lsp::SymbolKind::VARIABLE,
        Kind::Weight | Kind::Field => lsp::SymbolKind::FIELD,
        Kind::Variant => lsp::SymbolKind::ENUM_MEMBER,
    }
}

/// The protocol's kind of a completion.
pub fn item(sort: Sort) -> lsp::CompletionItemKind {
    match sort {
        Sort::Declared(Kind::Function) | Sort::Builtin => lsp::CompletionItemKind::FUNCTION,
        Sort::Declared(Kind::Model | Kind::Record | Kind::Type | Kind::Unit | Kind::Recipe) => {
            lsp::CompletionItemKind::STRUCT
        }
        Sort::Declared(Kind::Enum) => lsp::CompletionItemKind::ENUM,
        Sort::Declared(Kind::Variant) => lsp::CompletionItemKind::ENUM_MEMBER,
        Sort::Declared(Kind::Field | Kind::Weight | Kind::Axis | Kind::Dim) | Sort::Argument => {
            lsp::CompletionItemKind::FIELD
        }
        Sort::Declared(_) => lsp::CompletionItemKind::VARIABLE,
        Sort::Module => lsp::CompletionItemKind::MODULE,
        Sort::Keyword => lsp::CompletionItemKind::KEYWORD,
        Sort::Unit => lsp::CompletionItemKind::UNIT,
        Sort::Setting => lsp::CompletionItemKind::PROPERTY,
    }
}
