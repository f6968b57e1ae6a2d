// Talks to a language server over its standard input and output: framed JSON messages, requests with
// promises, notifications with handlers. Needs nothing but node.
"use strict";

const { spawn } = require("child_process");

class Client {
  // `onNotification(method, params)`, and `onEnd(reason)` once, when the server is gone.
  constructor(command, args, onNotification, onEnd) {
    this.onNotification = onNotification;
    this.waiting = new Map();
    this.next = 1;
    this.buffer = Buffer.alloc(0);
    this.ended = false;
    this.child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
    const end = (reason) => {
      if (this.ended) return;
      this.ended = true;
      for (const { reject } of this.waiting.values()) reject(new Error(reason));
      this.waiting.clear();
      onEnd(reason);
    };
    this.child.on("error", (e) => end(String(e.message)));
    this.child.on("exit", (code) => end(`it ended with ${code}`));
    this.child.stdin.on("error", () => {});
    this.child.stdout.on("data", (chunk) => this.read(chunk));
  }

  read(chunk) {
    this.buffer = Buffer.concat([this.buffer, chunk]);
    for (;;) {
      const head = this.buffer.indexOf("\r\n\r\n");
      if (head < 0) return;
      const match = /Content-Length: (\d+)/i.exec(this.buffer.toString("ascii", 0, head));
      const start = head + 4;
      const end = start + (match ? Number(match[1]) : 0);
      if (this.buffer.length < end) return;
      const body = this.buffer.toString("utf8", start, end);
      this.buffer = this.buffer.subarray(end);
      if (match) this.handle(JSON.parse(body));
    }
  }

  handle(message) {
    if (message.method !== undefined) {
      if (message.id !== undefined) {
        // The server asks nothing that has to be answered with more than this.
        this.write({ jsonrpc: "2.0", id: message.id, result: null });
      } else {
        this.onNotification(message.method, message.params);
      }
      return;
    }
    const waiting = this.waiting.get(message.id);
    if (!waiting) return;
    this.waiting.delete(message.id);
    if (message.error) waiting.reject(new Error(message.error.message));
    else waiting.resolve(message.result);
  }

  write(message) {
    if (this.ended) return;
    const body = Buffer.from(JSON.stringify(message), "utf8");
    this.child.stdin.write(`Content-Length: ${body.length}\r\n\r\n`);
    this.child.stdin.write(body);
  }

  notify(method, params) {
    this.write({ jsonrpc: "2.0", method, params });
  }

  // `token` is one of VS Code's cancellation tokens, or nothing.
  request(method, params, token) {
    if (this.ended) return Promise.reject(new Error("the server is not running"));
    const id = this.next++;
    const answer = new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
    if (token) token.onCancellationRequested(() => this.notify("$/cancelRequest", { id }));
    this.write({ jsonrpc: "2.0", id, method, params });
    return answer;
  }

  async stop() {
    if (this.ended) return;
    try {
      await this.request("shutdown", null);
      this.notify("exit", null);
    } catch {
      this.child.kill();
    }
  }
}

module.exports = { Client };
