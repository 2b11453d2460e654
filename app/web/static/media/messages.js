/** Shows the segments of a channel of text or JSON as a list of messages. */

import { element } from "../session.js";

const MAX_MESSAGES = 300;
const MAX_BYTES = 64 * 1024;

/** Shows messages in a list; nothing in them is ever read as markup. */
export class Messages {
  /** @param {HTMLElement} list gets an element for each message, the newest first */
  constructor(list) {
    this.list = list;
    this.count = 0;
    /** Whether new messages are only counted. */
    this.paused = false;
    /** @private of the present segment; a character may be cut between two chunks */
    this.decoder = new TextDecoder();
    /** @private the message that is being received */
    this.text = "";
    /** @private characters of the message that are not shown */
    this.cut = 0;
    /** @private the segment that is being received */
    this.seq = 0;
    /** @private whether each line is a message, because JSON stands in it */
    this.byLine = false;
  }

  /**
   * A segment begins.
   * @param {number} seq
   * @param {string} type its content type
   */
  begin(seq, type) {
    this.seq = seq;
    this.byLine = /ndjson|jsonl|json-seq|json-lines/.test(type);
    this.decoder = new TextDecoder();
    this.text = "";
    this.cut = 0;
  }

  /** @param {Uint8Array} data */
  push(data) {
    this.text += this.decoder.decode(data, { stream: true });
    if (this.byLine) {
      const lines = this.text.split("\n");
      this.text = lines.pop() ?? "";
      for (const line of lines) this.add(line);
    }
    if (this.text.length > MAX_BYTES) {
      this.cut += this.text.length - MAX_BYTES;
      this.text = this.text.slice(0, MAX_BYTES);
    }
  }

  /**
   * The segment is over.
   * @param {string} truncated why it is not whole; else empty
   */
  end(truncated) {
    this.add(this.text + this.decoder.decode(), truncated);
    this.text = "";
  }

  /**
   * A line that is no message: for example, a gap.
   * @param {string} text
   */
  note(text) {
    this.insert(element("li", { className: "note" }, text));
  }

  /** Remove all of them. */
  clear() {
    this.list.replaceChildren();
  }

  /**
   * @private
   * @param {string} raw
   * @param {string} truncated
   */
  add(raw, truncated = "") {
    const text = raw.slice(0, MAX_BYTES).replace(/^\x1e/, "").trim();
    this.cut += Math.max(0, raw.length - MAX_BYTES);
    if (!text) return;
    this.count += 1;
    const notes = [];
    if (truncated) notes.push(`not whole: ${truncated}`);
    if (this.cut) notes.push(`${this.cut} more characters are not shown`);
    const time = new Date();
    this.insert(
      element(
        "li",
        {},
        element(
          "p",
          { className: "meta" },
          element("time", { dateTime: time.toISOString() }, time.toLocaleTimeString()),
          element("span", { className: "num" }, `segment ${this.seq}`),
          ...notes.map((note) => element("span", { className: "bad" }, note)),
        ),
        element("pre", { tabIndex: 0 }, pretty(text)),
      ),
    );
    this.cut = 0;
  }

  /**
   * @private
   * @param {HTMLElement} item
   */
  insert(item) {
    if (this.paused) return;
    this.list.prepend(item);
    while (this.list.childElementCount > MAX_MESSAGES) this.list.lastElementChild?.remove();
  }
}

/** How deep lines are indented at most: a hostile text could nest without an end. */
const MAX_INDENT = 40;

/**
 * JSON with line breaks; any other text as it is. Numbers are shown as they were written: as values of JavaScript,
 * integers above 2^53 would change.
 * @param {string} text
 */
function pretty(text) {
  try {
    if (typeof JSON.parse(text) !== "object") return text;
  } catch {
    return text;
  }
  const tokens = text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{},:]|[^\s[\]{},:"]+/g) ?? [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, MAX_INDENT))}`;
  const parts = tokens.map((token, at) => {
    switch (token) {
      case "[":
      case "{":
        depth += 1;
        return token + ("]}".includes(tokens[at + 1] ?? "-") ? "" : line());
      case "]":
      case "}":
        depth -= 1;
        return "[{".includes(tokens[at - 1] ?? "-") ? token : line() + token;
      case ",":
        return token + line();
      case ":":
        return ": ";
      default:
        return token.startsWith('"') ? JSON.stringify(JSON.parse(token)) : token;
    }
  });
  return parts.join("");
}
