// The extension: starts `nrlc lsp` and puts its answers into VS Code. All knowledge is the server's.
"use strict";

const vscode = require("vscode");
const { Client } = require("./client");

let server = null;

function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand("nrl.restart", async () => {
      await stop();
      start(context);
    }),
  );
  start(context);
}

async function stop() {
  const old = server;
  server = null;
  if (!old) return;
  for (const d of old.registered) d.dispose();
  await old.client.stop();
}

const range = (r) => new vscode.Range(r.start.line, r.start.character, r.end.line, r.end.character);
const lspRange = (r) => ({
  start: { line: r.start.line, character: r.start.character },
  end: { line: r.end.line, character: r.end.character },
});
const location = (l) => new vscode.Location(vscode.Uri.parse(l.uri), range(l.range));
const edits = (list) => (list || []).map((e) => new vscode.TextEdit(range(e.range), e.newText));

function workspaceEdit(edit) {
  const out = new vscode.WorkspaceEdit();
  for (const [uri, list] of Object.entries((edit && edit.changes) || {})) out.set(vscode.Uri.parse(uri), edits(list));
  return out;
}

function diagnostic(d) {
  // Severities of the protocol count from one, those of VS Code from zero.
  const out = new vscode.Diagnostic(range(d.range), d.message, (d.severity || 1) - 1);
  out.code = d.code;
  out.source = d.source;
  out.relatedInformation = (d.relatedInformation || []).map(
    (r) => new vscode.DiagnosticRelatedInformation(location(r.location), r.message),
  );
  return out;
}

function symbol(s) {
  const out = new vscode.DocumentSymbol(s.name, s.detail || "", s.kind - 1, range(s.range), range(s.selectionRange));
  out.children = (s.children || []).map(symbol);
  return out;
}

async function start(context) {
  const settings = vscode.workspace.getConfiguration("nrl");
  const glob = settings.get("nemo");
  const selector = [{ language: "nrl", scheme: "file" }];
  if (glob) selector.push({ language: "yaml", scheme: "file", pattern: glob });
  const ours = (document) => vscode.languages.match(selector, document) > 0;

  const collection = vscode.languages.createDiagnosticCollection("nrlc");
  const client = new Client(
    settings.get("path"),
    ["lsp"],
    (method, params) => {
      if (method !== "textDocument/publishDiagnostics") return;
      collection.set(vscode.Uri.parse(params.uri), params.diagnostics.map(diagnostic));
    },
    (reason) => {
      if (server && server.client === client) {
        vscode.window.showWarningMessage(`nrlc lsp is not running: ${reason}. Set nrl.path to the program.`);
      }
    },
  );
  const me = { client, registered: [collection] };
  server = me;
  context.subscriptions.push({ dispose: stop });
  try {
    await client.request("initialize", { processId: process.pid, rootUri: null, capabilities: {} });
  } catch {
    return;
  }
  client.notify("initialized", {});

  const keep = (d) => me.registered.push(d);
  const item = (document) => ({ uri: document.uri.toString() });
  const at = (document, position) => ({
    textDocument: item(document),
    position: { line: position.line, character: position.character },
  });
  const open = (document) => {
    if (!ours(document)) return;
    const { version, languageId } = document;
    client.notify("textDocument/didOpen", {
      textDocument: { ...item(document), languageId, version, text: document.getText() },
    });
  };
  vscode.workspace.textDocuments.forEach(open);
  keep(vscode.workspace.onDidOpenTextDocument(open));
  keep(
    vscode.workspace.onDidChangeTextDocument((e) => {
      if (!ours(e.document)) return;
      client.notify("textDocument/didChange", {
        textDocument: { ...item(e.document), version: e.document.version },
        contentChanges: [{ text: e.document.getText() }],
      });
    }),
  );
  keep(
    vscode.workspace.onDidSaveTextDocument((document) => {
      if (ours(document)) client.notify("textDocument/didSave", { textDocument: item(document) });
    }),
  );
  keep(
    vscode.workspace.onDidCloseTextDocument((document) => {
      if (ours(document)) client.notify("textDocument/didClose", { textDocument: item(document) });
    }),
  );

  const languages = vscode.languages;
  keep(
    languages.registerHoverProvider(selector, {
      async provideHover(document, position, token) {
        const h = await client.request("textDocument/hover", at(document, position), token);
        return h && new vscode.Hover(new vscode.MarkdownString(h.contents.value), h.range && range(h.range));
      },
    }),
  );
  keep(
    languages.registerCompletionItemProvider(
      selector,
      {
        async provideCompletionItems(document, position, token) {
          const list = await client.request("textDocument/completion", at(document, position), token);
          return (list || []).map((c) => {
            const out = new vscode.CompletionItem(c.label, c.kind === undefined ? undefined : c.kind - 1);
            out.detail = c.detail;
            out.insertText = c.insertText;
            out.sortText = c.sortText;
            if (c.documentation) out.documentation = new vscode.MarkdownString(c.documentation.value);
            return out;
          });
        },
      },
      ".", "@", "{", "(", ",",
    ),
  );
  keep(
    languages.registerDefinitionProvider(selector, {
      async provideDefinition(document, position, token) {
        const l = await client.request("textDocument/definition", at(document, position), token);
        return l && location(l);
      },
    }),
  );
  keep(
    languages.registerReferenceProvider(selector, {
      async provideReferences(document, position, options, token) {
        const params = { ...at(document, position), context: { includeDeclaration: options.includeDeclaration } };
        return ((await client.request("textDocument/references", params, token)) || []).map(location);
      },
    }),
  );
  keep(
    languages.registerRenameProvider(selector, {
      async prepareRename(document, position, token) {
        const r = await client.request("textDocument/prepareRename", at(document, position), token);
        if (!r) throw new Error("nothing here has a name");
        return range(r);
      },
      async provideRenameEdits(document, position, newName, token) {
        const params = { ...at(document, position), newName };
        return workspaceEdit(await client.request("textDocument/rename", params, token));
      },
    }),
  );
  keep(
    languages.registerDocumentFormattingEditProvider(selector, {
      async provideDocumentFormattingEdits(document, options, token) {
        const params = { textDocument: item(document), options };
        return edits(await client.request("textDocument/formatting", params, token));
      },
    }),
  );
  keep(
    languages.registerDocumentSymbolProvider(selector, {
      async provideDocumentSymbols(document, token) {
        const list = await client.request("textDocument/documentSymbol", { textDocument: item(document) }, token);
        return (list || []).map(symbol);
      },
    }),
  );
  keep(
    languages.registerCodeActionsProvider(selector, {
      async provideCodeActions(document, where, _context, token) {
        const params = { textDocument: item(document), range: lspRange(where), context: { diagnostics: [] } };
        const list = await client.request("textDocument/codeAction", params, token);
        return (list || []).map((a) => {
          const out = new vscode.CodeAction(a.title, vscode.CodeActionKind.QuickFix);
          out.edit = workspaceEdit(a.edit);
          out.diagnostics = (a.diagnostics || []).map(diagnostic);
          out.isPreferred = a.isPreferred;
          return out;
        });
      },
    }),
  );
  keep(
    languages.registerInlayHintsProvider(selector, {
      async provideInlayHints(document, where, token) {
        const params = { textDocument: item(document), range: lspRange(where) };
        const list = await client.request("textDocument/inlayHint", params, token);
        return (list || []).map(
          (h) => new vscode.InlayHint(new vscode.Position(h.position.line, h.position.character), h.label, h.kind),
        );
      },
    }),
  );
}

module.exports = { activate, deactivate: stop };
