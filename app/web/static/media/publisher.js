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
 * What went wrong, in words, which are empty when a retry has brought it right; a publisher that reports `fatal` has
 * stopped.
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
    /** Segments and bytes that the server has; segments that were dropped; the last POST's duration in milliseconds. */
    this.sent = 0;
    this.bytes = 0;
    this.dropped = 0;
    this.roundTripMs = NaN;
    /** @private */
    this.name = `browser-${letters(8)}`;
    /** @private */
    this.life = "";
    /** @private @type {number | null} the next segment's number, once the server has told it */
    this.seq = null;
    /** @private */
    this.stop = new AbortController();
    /** @private @type {Promise<void> | null} */
    this.sending = null;
    /** Whether it has ended, for any reason. */
    this.over = false;
  }

  /** What it means that there is no answer. A browser does not say that the server refused a page of another origin. */
  get silence() {
    if (new URL(this.url).origin === location.origin) return "The server does not answer.";
    return `The server does not answer, or lets no page of ${location.origin} publish (--cors-write-origins).`;
  }

  /** Bytes that wait. */
  get waiting() {
    return this.queue.reduce((sum, { length }) => sum + length, 0);
  }

  /**
   * Create the channel, if need be, and learn at which number to go on.
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
   * Send what waits, but not for longer than some seconds, and end the channel.
   * @param {number} seconds
   */
  async end(seconds) {
    if (this.over) return;
    const late = pause(seconds, this.stop.signal);
    while (this.sending && (await Promise.race([this.sending.then(() => false), late.then(() => true)])) === false);
    this.leave();
  }

  /** End the channel now, also if the page is being closed. */
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
   * Make a request again and again until the server has answered it in one way or the other.
   * @private
   * @param {string} method
   * @param {string} path below the channel; the segment's number takes its place if there is a body
   * @param {Uint8Array<ArrayBuffer> | null} body
   * @param {Record<string, string>} more headers
   * @returns {Promise<Response | null>} a 200; null if the segment is given up, or all is over
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
        // No answer: the server is away, or the network.
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
        // The segment of this number is closed, or the channel stands elsewhere: it gets another number.
        this.seq = Number(latest);
        key = letters(20);
      } else if (body && answer?.status === 404) {
        // A server that was restarted, and makes no channel by itself.
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
