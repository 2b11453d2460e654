/**
 * Follows the server's feed: Server-Sent Events over `fetch`, since an EventSource cannot send a token.
 *
 * A connection that breaks, or is silent for too long, is made again after pauses that grow; the server may ask for
 * longer ones.
 */

import { isAsking, problem, request } from "../session.js";

const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 30_000;

/** The server sends a frame at least every 5 s. After this time without one the connection counts as lost. */
const SILENT_MS = 12_000;

/** Longest event, in characters. A longer one does not come from this server. */
const MAX_EVENT = 64 << 20;

/**
 * @typedef {{ state: "connecting" | "live" | "lost" | "refused", since: number, again?: number, why?: string }} Status
 * Times in milliseconds since 1970; `since`: when the server was heard last; `again`: when the next attempt is made,
 * Infinity if none is made until the user asks for it.
 */

class SilentServer extends Error {
  constructor() {
    super("no frame has come for some seconds");
  }
}

export class Feed {
  /**
   * @param {string} url
   * @param {(frame: import("./model.js").Frame, whole: boolean) => void} onFrame
   * @param {(status: Status) => void} onStatus
   */
  constructor(url, onFrame, onStatus) {
    this._url = url;
    this._onFrame = onFrame;
    this._onStatus = onStatus;
    this._failures = 0;
    this._retryMs = this._serverRetryMs = 0;
    this._heardAt = 0;
    this._refused = false;
    /** @type {(() => void) | null} */
    this._hurry = null;
    /** @type {Status} */
    this.status = { state: "connecting", since: Date.now() };
  }

  /** Follow the feed, with a new connection after each one that ends. Never returns. */
  async run() {
    this._say({ state: "connecting", since: Date.now() });
    for (;;) {
      this._refused = false;
      const why = await this._follow().catch((error) => (error instanceof SilentServer ? error.message : ""));
      const grown = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.min(this._failures++, 10));
      const pause = Math.max(this._retryMs, grown * (0.75 + Math.random() / 2));
      this._retryMs = 0;
      const told = /** @type {Status} */ ({ state: this._refused ? "refused" : "lost", since: this._heardAt, why });
      this._say({ ...told, again: Date.now() + pause });
      await new Promise((resolve) => {
        const timer = pause < Infinity ? setTimeout(resolve, pause) : 0;
        this._hurry = () => (clearTimeout(timer), resolve(null));
      });
      this._hurry = null;
      this._say(told);
    }
  }

  /** Make the next attempt now. */
  hurry() {
    this._hurry?.();
  }

  /** @param {Status} status */
  _say(status) {
    this.status = status;
    this._onStatus(status);
  }

  /** One connection. @returns {Promise<string>} why it has ended */
  async _follow() {
    const abort = new AbortController();
    let watchdog = 0;
    const watch = () => {
      clearTimeout(watchdog);
      watchdog = window.setTimeout(() => (isAsking() ? watch() : abort.abort(new SilentServer())), SILENT_MS);
    };
    watch();
    try {
      const response = await request(this._url, {
        headers: { Accept: "text/event-stream" }, signal: abort.signal,
      });
      if (!response.ok || !response.body) {
        this._refused = response.status === 401 || response.status === 403;
        // Another attempt needs another token, which only the user has.
        this._retryMs = this._refused ? Infinity : 1000 * (Number(response.headers.get("Retry-After")) || 0);
        return response.status === 403 ? "your token lacks the right `manage`" : await problem(response);
      }
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return "the connection has ended";
        watch();
        this._heardAt = Date.now();
        let from = Math.max(0, text.length - 1);
        text += value;
        let end;
        while ((end = text.indexOf("\n\n", from)) >= 0) {
          const block = text.slice(0, end);
          text = text.slice(end + 2);
          from = 0;
          const why = this._event(block);
          if (why) return why;
        }
        if (text.length > MAX_EVENT) return "the server sends no events";
      }
    } finally {
      clearTimeout(watchdog);
      abort.abort();
    }
  }

  /** Take one event. @param {string} block @returns {string} why the server ends the stream; empty if it goes on */
  _event(block) {
    let kind = "message";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
      else if (line.startsWith("retry: ")) this._serverRetryMs = Number(line.slice(7));
    }
    if (!data) return "";
    const content = JSON.parse(data);
    if (kind === "end") {
      this._retryMs = this._serverRetryMs;
      return ENDS[/** @type {string} */ (content.reason)] ?? `the server ended the stream: ${content.reason}`;
    }
    this._failures = 0;
    try {
      this._onFrame(content, kind === "snapshot");
    } catch (error) {
      reportError(error); // a fault of the page, and not of the connection
      throw error;
    }
    if (this.status.state !== "live") this._say({ state: "live", since: Date.now() });
    return "";
  }
}

/** @type {Record<string, string>} */
const ENDS = { shutdown: "the server is shutting down", expired: "your token has expired" };
