/**
 * Publishes whole segments by ordinary POSTs, one after the other: browsers cannot stream the body of a request over
 * HTTP/1.1.
 *
 * A segment gets its number when it is sent first, and keeps it, with its `Idempotency-Key`, until the server has it: so
 * a repeated POST is never stored twice. The queue is bounded: if the network is too slow, the oldest segments that have
 * no number yet are dropped.
 */

import { pause, retryDelay } from "./trickle.js";

const MAX_QUEUE_BYTES = 24 << 20;
const MAX_QUEUE = 30;
const REQUEST_MS = 20_000;

/**
 * A fault, in words. They are empty when a retry has succeeded. After `fatal` and `denied` the publisher has stopped.
 * @typedef {{kind: 'retry' | 'dropped' | 'fatal' | 'denied', text: string}} Trouble
 */

/** Random letters, as a part of names. @param {number} length */
export function letters(length) {
  const random = crypto.getRandomValues(new Uint8Array(length));
  return Array.from(random, (byte) => String.fromCharCode(97 + (byte % 26))).join("");
}

/** Publishes to one channel. */
export class Publisher {
  /**
   * @param {string} url the channel's URL
   * @param {string} type the media type of its segments
   * @param {() => string} token the user's token; empty if there is none
   * @param {(trouble: Trouble) => void} report
   */
  constructor(url, type, token, report) {
    this.url = url;
    this.type = type;
    this.token = token;
    this.report = report;
    /** @type {Uint8Array<ArrayBuffer>[]} segments without a number yet */
    this.queue = [];
    /** Segments that the server has. */
    this.sent = 0;
    /** Bytes that the server has. */
    this.bytes = 0;
    /** Segments that were dropped. */
    this.dropped = 0;
    /** Duration of the last POST, in milliseconds. */
    this.roundTripMs = NaN;
    /** @private sent as `Trickle-Client` */
    this.name = `browser-${letters(8)}`;
    /** @private the numbering with which it goes on, as in `Lp-Trickle-Life` */
    this.life = "";
    /** @private @type {number | null} the next segment's number, once the server has told it */
    this.seq = null;
    /** @private ends all requests */
    this.stop = new AbortController();
    /** @private drain(), while it runs @type {Promise<void> | null} */
    this.sending = null;
    /** Whether it has ended, for any reason. */
    this.over = false;
  }

  /** Explains a request without an answer. A browser does not tell a page of another origin that the server refused it. */
  get silence() {
    if (new URL(this.url).origin === location.origin) return "The server does not answer.";
    return `The server does not answer, or lets no page of ${location.origin} publish (--cors-write-origins).`;
  }

  /** Bytes that wait. */
  get waiting() {
    return this.queue.reduce((sum, { length }) => sum + length, 0);
  }

  /**
   * Create the channel if it does not exist, and ask for the number of the next segment.
   * @returns {Promise<boolean>} whether the server lets us publish
   */
  async begin() {
    this.seq = null;
    const made = await this.persist("POST", "", null, { "Expect-Content": this.type });
    if (!made) return false;
    const next = await this.persist("GET", "/next", null, {});
    if (!next) return false;
    this.seq = Number(next.headers.get("Lp-Trickle-Latest") ?? 0);
    this.life ||= `${letters(16)}:${this.seq}`;
    return true;
  }

  /**
   * Send a segment, after those before it.
   * @param {Uint8Array<ArrayBuffer>} segment
   */
  push(segment) {
    if (this.over) return;
    this.queue.push(segment);
    while (this.queue.length > MAX_QUEUE || (this.waiting > MAX_QUEUE_BYTES && this.queue.length > 1)) {
      this.queue.shift();
      this.dropped += 1;
      this.report({ kind: "dropped", text: "The network is too slow: the oldest segment that waits was dropped." });
    }
    this.sending ??= this.drain().finally(() => (this.sending = null));
  }

  /**
   * Send the waiting segments, for at most some seconds, and end the channel.
   * @param {number} seconds
   */
  async end(seconds) {
    if (this.over) return;
    const late = pause(seconds, this.stop.signal);
    while (this.sending && (await Promise.race([this.sending.then(() => false), late.then(() => true)])) === false);
    this.leave();
  }

  /** End the channel now. The request is made even if the page is being closed. */
  leave() {
    if (this.over) return;
    this.over = true;
    this.stop.abort();
    fetch(this.url, { method: "DELETE", headers: this.headers({}), keepalive: true }).catch(() => {});
  }

  /** Stop, and leave the channel as it is. */
  abandon() {
    this.over = true;
    this.stop.abort();
    this.queue = [];
  }

  /**
   * @private
   * @param {Record<string, string>} more
   */
  headers(more) {
    const token = this.token();
    return {
      "Trickle-Client": this.name,
      // Never take over a channel that somebody else publishes to.
      "Lp-Trickle-If-Idle": "1",
      ...(token ? { Authorization: `Bearer ${token}` } : {}),
      ...more,
    };
  }

  /** @private */
  async drain() {
    if (this.seq === null && !(await this.begin())) return;
    while (this.queue.length && !this.over) {
      const segment = /** @type {Uint8Array<ArrayBuffer>} */ (this.queue.shift());
      const answer = await this.persist("POST", "", segment, { "Content-Type": this.type });
      if (!answer) continue;
      this.sent += 1;
      this.bytes += segment.length;
      this.life = answer.headers.get("Lp-Trickle-Life") ?? this.life;
      if (answer.headers.has("Lp-Trickle-Closed")) this.fatal("Somebody has ended the channel.");
    }
  }

  /**
   * Repeat a request until the server accepts it or refuses it for good.
   * @private
   * @param {string} method
   * @param {string} path below the channel; with a body the segment's number is used instead
   * @param {Uint8Array<ArrayBuffer> | null} body
   * @param {Record<string, string>} more headers
   * @returns {Promise<Response | null>} a 200; null if the segment is given up, or the publisher has stopped
   */
  async persist(method, path, body, more) {
    let key = letters(20);
    for (let attempt = 1; !this.over; attempt += 1) {
      const began = performance.now();
      let answer = null;
      try {
        const headers = this.headers({
          ...more,
          "Trickle-Attempt": String(attempt),
          ...(body ? { "Idempotency-Key": key, "Lp-Trickle-Life": this.life } : {}),
        });
        const signal = AbortSignal.any([this.stop.signal, AbortSignal.timeout(REQUEST_MS)]);
        const where = body ? `/${this.seq}` : path;
        answer = await fetch(this.url + where, { method, headers, body, signal, cache: "no-store" });
      } catch {
        // No answer: the server or the network is down.
      }
      if (this.over) return null;
      if (answer?.ok) {
        if (attempt > 1) this.report({ kind: "retry", text: "" });
        if (body) {
          this.roundTripMs = performance.now() - began;
          this.seq = Number(this.seq) + 1;
        }
        return answer;
      }
      const text = ((await answer?.text().catch(() => "")) ?? "").trim().slice(0, 300);
      const latest = answer?.headers.get("Lp-Trickle-Latest");
      switch (answer?.status) {
        case 400:
        case 403:
          this.fatal(answer.status === 403 ? `The server does not allow it: ${text}` : text);
          return null;
        case 401:
          this.report({ kind: "denied", text });
          this.abandon();
          return null;
        case 409:
          if (answer.headers.has("Lp-Trickle-Publishing-For")) {
            this.fatal("Somebody else publishes to this channel. Choose another name.");
            return null;
          }
          break;
        case 413:
          this.dropped += 1;
          this.report({ kind: "dropped", text: `The server takes no segment of this size: ${text}` });
          return null;
        default:
      }
      if (body && latest && (answer?.status === 409 || answer?.status === 470)) {
        // That number is taken, or is not the next one: the segment gets another one.
        this.seq = Number(latest);
        key = letters(20);
      } else if (body && answer?.status === 404) {
        // The server was restarted, and creates no channel at a POST of a segment.
        await this.create();
      } else {
        this.report({ kind: "retry", text: `${answer ? text : this.silence} Trying again.` });
      }
      await pause(retryDelay(attempt, Number(answer?.headers.get("Retry-After") ?? 0)), this.stop.signal);
    }
    return null;
  }

  /** @private */
  async create() {
    const headers = this.headers({ "Expect-Content": this.type });
    await fetch(this.url, { method: "POST", headers, signal: this.stop.signal }).catch(() => {});
  }

  /**
   * @private
   * @param {string} text
   */
  fatal(text) {
    this.report({ kind: "fatal", text });
    this.abandon();
  }
}
