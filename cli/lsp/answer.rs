//! Answers to requests: the questions of the protocol put to `nrl_ide`.

use std::path::PathBuf;

use lsp_server::ErrorCode;
use lsp_types as lsp;
use lsp_types::request::{
    CodeActionRequest, Completion, DocumentSymbolRequest, Formatting, GotoDefinition, HoverRequest,
    InlayHintRequest, PrepareRenameRequest, References, Rename, Request,
};
use nrl_base::{SourceMap, Span};
use nrl_driver::STD;
use nrl_ide::checking::{Language, Options, check};
use nrl_ide::findings;
use nrl_ide::utf16;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::buffers::{Buffers, path, uri};
use super::convert;

type Failed = (ErrorCode, String);

/// The answer to a request; `null` where there is nothing to say.
pub fn answer(buffers: &mut Buffers, method: &str, params: Value) -> Result<Value, Failed> {
    match method {
        HoverRequest::METHOD => json(hover(buffers, &read::<lsp::HoverParams>(params)?)),
        Completion::METHOD => json(completion(buffers, &read::<lsp::CompletionParams>(params)?)),
        GotoDefinition::METHOD => {
            json(definition(buffers, &read::<lsp::GotoDefinitionParams>(params)?))
        }
        References::METHOD => json(references(buffers, &read::<lsp::ReferenceParams>(params)?)),
        PrepareRenameRequest::METHOD => {
            json(prepare_rename(buffers, &read::<lsp::TextDocumentPositionParams>(params)?)?)
        }
        Rename::METHOD => json(rename(buffers, &read::<lsp::RenameParams>(params)?)?),
        Formatting::METHOD => {
            json(formatting(buffers, &read::<lsp::DocumentFormattingParams>(params)?))
        }
        DocumentSymbolRequest::METHOD => {
            json(symbols(buffers, &read::<lsp::DocumentSymbolParams>(params)?))
        }
        CodeActionRequest::METHOD => {
            json(actions(buffers, &read::<lsp::CodeActionParams>(params)?))
        }
        InlayHintRequest::METHOD => json(hints(buffers, &read::<lsp::InlayHintParams>(params)?)),
        _ => Err((ErrorCode::MethodNotFound, format!("{method} is not supported"))),
    }
}

fn read<T: DeserializeOwned>(params: Value) -> Result<T, Failed> {
    serde_json::from_value(params).map_err(|e| (ErrorCode::InvalidParams, e.to_string()))
}

fn json(value: impl Serialize) -> Result<Value, Failed> {
    serde_json::to_value(value).map_err(|e| (ErrorCode::InternalError, e.to_string()))
}

/// The findings of an open file that point into it, or nowhere.
pub fn diagnostics(buffers: &Buffers, at: &lsp::Uri) -> Vec<lsp::Diagnostic> {
    let text = buffers.text(&path(at)).unwrap_or_default();
    if Language::of(&path(at)) == Language::Nemo && !is_recipe(&text) {
        return vec![];
    }
    let (found, sources) = found(buffers, &path(at));
    found.iter().map(|d| convert::diagnostic(d, &sources, &path(at))).collect()
}

/// Whether a YAML file has a section of a NeMo RL recipe: editors also open others.
fn is_recipe(text: &str) -> bool {
    let sections = ["policy:", "grpo:", "ppo:", "dpo:", "sft:", "rm:", "distillation:", "loss_fn:"];
    text.lines().any(|line| sections.iter().any(|s| line.starts_with(s)))
}

fn found(buffers: &Buffers, path: &str) -> (Vec<nrl_base::Diagnostic>, SourceMap) {
    let (checked, _) = check(buffers, path, &Options::default());
    let mut all = [checked];
    findings::accept(&mut all, None);
    let [checked] = all;
    (checked.findings, checked.sources)
}

/// The file of a source's name: a local file, or a page of the library, written out to be read.
pub fn place(name: &str) -> Option<lsp::Uri> {
    if !name.starts_with("std/") {
        return name.starts_with('/').then(|| uri(name)).flatten();
    }
    let module = name.trim_end_matches(".nrl").replace('/', ".");
    let (_, text) = STD.iter().find(|(n, _)| *n == module)?;
    let folder = library();
    let file = folder.join(name);
    if std::fs::read_to_string(&file).ok().as_deref() != Some(*text) {
        std::fs::create_dir_all(file.parent()?).ok()?;
        let _ = std::fs::remove_file(&file);
        std::fs::write(&file, text).ok()?;
        let mut rights = std::fs::metadata(&file).ok()?.permissions();
        rights.set_readonly(true);
        let _ = std::fs::set_permissions(&file, rights);
    }
    uri(file.to_str()?)
}

/// A folder of this user and version.
fn library() -> PathBuf {
    let home = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    home.unwrap_or_else(std::env::temp_dir).join("nrlc").join(env!("CARGO_PKG_VERSION"))
}

fn location(sources: &SourceMap, span: Span) -> Option<lsp::Location> {
    let source = sources.get(span.source)?;
    Some(lsp::Location { uri: place(source.name())?, range: convert::range(source.text(), span) })
}

/// The path of a question, and where in its text it is asked.
fn asked(
    buffers: &Buffers,
    at: &lsp::TextDocumentPositionParams,
) -> Option<(String, String, usize)> {
    let path = path(&at.text_document.uri);
    let text = buffers.text(&path)?;
    let offset = utf16::offset(&text, convert::from(at.position));
    Some((path, text, offset))
}

fn hover(buffers: &mut Buffers, p: &lsp::HoverParams) -> Option<lsp::Hover> {
    let (path, text, offset) = asked(buffers, &p.text_document_position_params)?;
    let found = match Language::of(&path) {
        Language::Nrl => buffers.document(&path).hover(offset),
        Language::Nemo => buffers.sheet(&path).hover(offset),
    }?;
    let contents = lsp::MarkupContent { kind: lsp::MarkupKind::Markdown, value: found.text };
    Some(lsp::Hover {
        contents: lsp::HoverContents::Markup(contents),
        range: Some(convert::range(&text, found.span)),
    })
}

fn completion(
    buffers: &mut Buffers,
    p: &lsp::CompletionParams,
) -> Option<Vec<lsp::CompletionItem>> {
    let (path, text, offset) = asked(buffers, &p.text_document_position)?;
    let found = match Language::of(&path) {
        Language::Nrl if !nrl_ide::has_gap(&text, offset) => {
            buffers.document(&path).complete(offset)
        }
        Language::Nrl => nrl_ide::complete(buffers, &path, &buffers.recipes(), offset),
        Language::Nemo => buffers.sheet(&path).complete(offset),
    };
    let item = |(at, c): (usize, nrl_ide::Completion)| lsp::CompletionItem {
        label: c.label,
        kind: Some(convert::item(c.sort)),
        detail: (!c.detail.is_empty()).then_some(c.detail),
        documentation: c.doc.map(|value| {
            lsp::Documentation::MarkupContent(lsp::MarkupContent {
                kind: lsp::MarkupKind::Markdown,
                value,
            })
        }),
        insert_text: c.insert,
        sort_text: Some(format!("{at:04}")),
        ..lsp::CompletionItem::default()
    };
    Some(found.into_iter().enumerate().map(item).collect())
}

fn definition(buffers: &mut Buffers, p: &lsp::GotoDefinitionParams) -> Option<lsp::Location> {
    let (path, _, offset) = asked(buffers, &p.text_document_position_params)?;
    match Language::of(&path) {
        Language::Nrl => {
            let d = buffers.document(&path);
            location(&d.world.sources, d.definition(offset)?)
        }
        Language::Nemo => {
            let s = buffers.sheet(&path);
            location(&s.sources, s.definition(offset)?)
        }
    }
}

fn references(buffers: &mut Buffers, p: &lsp::ReferenceParams) -> Option<Vec<lsp::Location>> {
    let (path, _, offset) = asked(buffers, &p.text_document_position)?;
    let d = (Language::of(&path) == Language::Nrl).then(|| buffers.document(&path))?;
    let declared = d.definition(offset);
    let wanted = |s: &Span| p.context.include_declaration || Some(*s) != declared;
    let places = d.references(offset).into_iter().filter(wanted);
    Some(places.filter_map(|s| location(&d.world.sources, s)).collect())
}

fn prepare_rename(
    buffers: &mut Buffers,
    p: &lsp::TextDocumentPositionParams,
) -> Result<Option<lsp::Range>, Failed> {
    let Some((path, text, offset)) = asked(buffers, p) else { return Ok(None) };
    if Language::of(&path) != Language::Nrl {
        return Err((ErrorCode::RequestFailed, "keys of a YAML file keep their names".into()));
    }
    let (span, _) =
        buffers.document(&path).renamable(offset).map_err(|e| (ErrorCode::RequestFailed, e))?;
    Ok(Some(convert::range(&text, span)))
}

#[expect(clippy::mutable_key_type, reason = "the protocol's type; a URI's text does not change")]
fn rename(
    buffers: &mut Buffers,
    p: &lsp::RenameParams,
) -> Result<Option<lsp::WorkspaceEdit>, Failed> {
    let Some((path, _, offset)) = asked(buffers, &p.text_document_position) else {
        return Ok(None);
    };
    if Language::of(&path) != Language::Nrl {
        return Err((ErrorCode::RequestFailed, "keys of a YAML file keep their names".into()));
    }
    let d = buffers.document(&path);
    let edits = d.rename(offset, &p.new_name).map_err(|e| (ErrorCode::RequestFailed, e))?;
    let mut changes = std::collections::HashMap::new();
    for edit in edits {
        if let Some(at) = location(&d.world.sources, edit.span) {
            let edit = lsp::TextEdit { range: at.range, new_text: edit.text };
            changes.entry(at.uri).or_insert_with(Vec::new).push(edit);
        }
    }
    Ok(Some(lsp::WorkspaceEdit { changes: Some(changes), ..lsp::WorkspaceEdit::default() }))
}

fn formatting(buffers: &Buffers, p: &lsp::DocumentFormattingParams) -> Option<Vec<lsp::TextEdit>> {
    let path = path(&p.text_document.uri);
    let text = buffers.text(&path)?;
    let new_text =
        (Language::of(&path) == Language::Nrl).then(|| nrl_syntax::print::format(&text).ok())??;
    if new_text == text {
        return Some(vec![]);
    }
    let end = convert::position(&text, text.len());
    Some(vec![lsp::TextEdit {
        range: lsp::Range { start: lsp::Position::default(), end },
        new_text,
    }])
}

#[expect(deprecated, reason = "a field of the protocol that must be named")]
fn symbols(
    buffers: &mut Buffers,
    p: &lsp::DocumentSymbolParams,
) -> Option<Vec<lsp::DocumentSymbol>> {
    let path = path(&p.text_document.uri);
    let d = (Language::of(&path) == Language::Nrl).then(|| buffers.document(&path))?;
    let text = d.text();
    let mut out: Vec<(Span, lsp::DocumentSymbol)> = vec![];
    for s in d.symbols() {
        let made = lsp::DocumentSymbol {
            name: s.name,
            detail: Some(s.kind.word().to_string()),
            kind: convert::symbol(s.kind),
            tags: None,
            deprecated: None,
            range: convert::range(text, s.whole),
            selection_range: convert::range(text, s.span),
            children: None,
        };
        // An item holds what lies within it; the outline has two levels.
        match out.last_mut() {
            Some((whole, parent)) if whole.to(s.whole) == *whole && *whole != s.whole => {
                parent.children.get_or_insert_with(Vec::new).push(made);
            }
            _ => out.push((s.whole, made)),
        }
    }
    Some(out.into_iter().map(|(_, s)| s).collect())
}

#[expect(clippy::mutable_key_type, reason = "the protocol's type; a URI's text does not change")]
fn actions(buffers: &Buffers, p: &lsp::CodeActionParams) -> Option<Vec<lsp::CodeAction>> {
    let file = path(&p.text_document.uri);
    let (found, sources) = found(buffers, &file);
    let mut out = vec![];
    for d in &found {
        let Some(edit) = findings::fix(d, &sources) else { continue };
        let Some(source) = sources.get(edit.span.source).filter(|s| s.name() == file) else {
            continue;
        };
        let shown = convert::diagnostic(d, &sources, &file);
        let range = convert::range(source.text(), edit.span);
        let asked = |r: &lsp::Range| r.start <= p.range.end && p.range.start <= r.end;
        if !asked(&shown.range) && !asked(&range) {
            continue;
        }
        let title = format!("replace `{}` by `{}`", sources.text(edit.span), edit.text);
        let change = lsp::TextEdit { range, new_text: edit.text };
        let changes =
            std::collections::HashMap::from([(p.text_document.uri.clone(), vec![change])]);
        out.push(lsp::CodeAction {
            title,
            kind: Some(lsp::CodeActionKind::QUICKFIX),
            diagnostics: Some(vec![shown]),
            edit: Some(lsp::WorkspaceEdit {
                changes: Some(changes),
                ..lsp::WorkspaceEdit::default()
            }),
            is_preferred: Some(true),
            ..lsp::CodeAction::default()
        });
    }
    Some(out)
}

fn hints(buffers: &mut Buffers, p: &lsp::InlayHintParams) -> Option<Vec<lsp::InlayHint>> {
    let path = path(&p.text_document.uri);
    let d = (Language::of(&path) == Language::Nrl).then(|| buffers.document(&path))?;
    let text = d.text();
    let from = utf16::offset(text, convert::from(p.range.start));
    let to = utf16::offset(text, convert::from(p.range.end));
    let hint = |h: nrl_ide::document::Hint| lsp::InlayHint {
        position: convert::position(text, h.offset),
        label: lsp::InlayHintLabel::String(h.text),
        kind: Some(lsp::InlayHintKind::TYPE),
        text_edits: None,
        tooltip: None,
        padding_left: None,
        padding_right: None,
        data: None,
    };
    Some(d.hints(from, to).into_iter().map(hint).collect())
}
