// A trickle reader for web pages: it follows the segments of a channel at the live edge.
//
// The protocol is docs/reference/protocol.md, section 4. A reader asks for the newest segment that has begun (-2), and
// from then on for one segment after the other. It sends the request for segment N + 1 as soon as the answer for
// segment N has begun, so that no round trip lies between two segments. A browser opens six connections to a server;
// a reader needs two of them.
//
// A page cannot read trailers. So it learns that a segment is truncated from a header (the segment was truncated
// before the answer began), from a body that breaks off, or from the container: see `isWhole` in containers.js.

import { openedMs } from "./seek.js";

/** The segment number that stands for the newest segment that has begun. */
export const LIVE = -2;

/** The first and the longest delay before a request is repeated, in seconds. The server's storm guard never delays a
 * client that waits a second. */
const FIRST_DELAY_S = 1;
const LONGEST_DELAY_S = 8;

/**
 * An event that a reader reports.
 * - `segment`: the answer for a segment has begun. `behind`: how many newer segments the channel has. `restarted`: the
 *   segment does not follow the one before it (another publisher, or the channel's next epoch). `openedMs`: when the
 *   server got its first byte, in milliseconds since 1970; NaN for one that is still being written.
 * - `chunk`: bytes of that segment, as they arrived.
 * - `end`: the segment is over. `truncated`: why it is not whole, if HTTP says so; else empty.
 * - `gap`: segments from `from` to before `to` are missing.
 * - `wait`: nothing can be read now; the next request follows in `seconds`. `why`: `missing` (no such channel), `ended`,
 *   `behind` (the publisher sends segments again), `refused` (the server's limits), `offline` (no answer).
 * - `denied`: the server accepts only another token, or no token at all. The reader stops.
 * - `invalid`: the request is wrong, so a retry cannot help. The reader stops.
 * @typedef {{kind: 'segment', seq: number, type: string, epoch: number, restarted: boolean, behind: number, openedMs: number}
 *   | {kind: 'chunk', seq: number, data: Uint8Array}
 *   | {kind: 'end', seq: number, truncated: string}
 *   | {kind: 'gap', from: number, to: number, why: string}
 *   | {kind: 'wait', why: 'missing' | 'ended' | 'behind' | 'refused' | 'offline', text: string, seconds: number}
 *   | {kind: 'denied' | 'invalid', status: number, text: string}} ReaderEvent
 */

/**
 * An answer, or the reason why there is none.
 * @typedef {{response: Response, stop: AbortController} | {error: unknown, stop: AbortController}} Answer
 */

/**
 * Delay before the next attempt, in seconds.
 * @param {number} failures failed attempts in a row, 1 or more
 * @param {number} atLeast the value of `Retry-After`; the jitter comes on top of it
 */
export function retryDelay(failures, atLeast = 0) {
  const ceiling = Math.min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** Math.min(failures - 1, 10));
  return Math.max(atLeast, ceiling / 2) + (Math.random() * ceiling) / 2;
}

/**
 * Wait, but not beyond the end of `signal`.
 * @param {number} seconds
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
export function pause(seconds, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, seconds * 1000);
    signal.addEventListener('abort', done, { once: true });
  });
}

/**
 * The header fields of an answer that place it in the channel.
 * @param {Headers} headers
 */
function placed(headers) {
  const number = (/** @type {string} */ name) => {
    const value = headers.get(name);
    return value === null ? null : Number(value);
  };
  const [name, first] = (headers.get('Lp-Trickle-Life') ?? '').split(':');
  return {
    seq: number('Lp-Trickle-Seq'),
    latest: number('Lp-Trickle-Latest'),
    epoch: number('Lp-Trickle-Epoch'),
    life: name,
    lifeFirst: first === undefined ? null : Number(first),
    closed: headers.has('Lp-Trickle-Closed'),
    truncated: headers.get('Lp-Trickle-Truncated') ?? '',
    retryAfter: number('Retry-After') ?? 0,
  };
}

/** One reader of one channel. */
export class Reader {
  /**
   * @param {string} url the channel's URL, without a segment number
   * @param {{token?: string, signal: AbortSignal, from?: number}} options `token`: sent in the Authorization header;
   *   `signal`: ends the reader; `from`: the first segment
   */
  constructor(url, { token = '', signal, from = LIVE }) {
    this.url = url;
    this.token = token;
    this.signal = signal;
    /** @private @type {number} the segment that is wanted next */
    this.next = from;
    /** @private the name of the numbering, once it is known */
    this.life = '';
    /** @private of the channel, as the server said last */
    this.epoch = 0;
    /** @private whether the next segment continues no earlier one */
    this.restarted = false;
    /** @private @type {number | null} the first segment that was left out on the way to the live edge */
    this.skipping = null;
    /** @private how often it went elsewhere */
    this.turns = 0;
    /** @private the request for the next segment @type {{seq: number, answer: Promise<Answer>, stop: AbortController} | null} */
    this.ahead = null;
    /** @private @type {AbortController | null} the answer that is waited for, or the body that is being read */
    this.reading = null;
    /** @private waits in a row for one reason */
    this.failures = 0;
    /** @private the reason of the last wait */
    this.why = "";
    /** @private @type {AbortController} ends the present wait */
    this.waiting = new AbortController();
  }

  /** Go on at the newest segment that has begun, and leave out what lies between. */
  jump() {
    if (this.next === LIVE) return;
    const from = this.next;
    this.go(LIVE);
    this.skipping = from;
  }

  /** Go on at another segment, which the user has chosen. @param {number} seq */
  go(seq) {
    this.next = seq;
    this.skipping = null;
    this.turns += 1;
    this.reading?.abort();
    this.ahead?.stop.abort();
    this.ahead = null;
    this.waiting.abort();
  }

  /** Send the next request now: for example, the network is back. */
  hurry() {
    this.waiting.abort();
  }

  /**
   * Read until the signal ends the reader, or the server denies it.
   * @returns {AsyncGenerator<ReaderEvent, void, void>}
   */
  async *read() {
    try {
      while (!this.signal.aborted) {
        const { turns } = this;
        const answer = await this.ask(this.next);
        if (this.signal.aborted) return;
        if (turns !== this.turns) continue;
        if ('error' in answer) {
          yield* this.wait('offline', 'The server does not answer.');
          continue;
        }
        const { response } = answer;
        if (response.status === 200) {
          yield* this.segment(answer);
        } else if (response.status === 470) {
          yield* this.moved(placed(response.headers));
        } else {
          const text = (await response.text().catch(() => '')).trim().slice(0, 300);
          if (response.status === 404) {
            const ended = response.headers.has('Lp-Trickle-Closed');
            yield* this.wait(ended ? 'ended' : 'missing', text);
          } else if (response.status === 401 || response.status === 403) {
            yield { kind: 'denied', status: response.status, text };
            return;
          } else if (response.status < 500 && response.status !== 408 && response.status !== 429) {
            yield { kind: 'invalid', status: response.status, text };
            return;
          } else {
            yield* this.wait('refused', text, placed(response.headers).retryAfter);
          }
        }
      }
    } finally {
      this.reading?.abort();
      this.ahead?.stop.abort();
    }
  }

  /**
   * @private
   * @param {number} seq
   * @returns {Promise<Answer>}
   */
  ask(seq) {
    if (this.ahead && this.ahead.seq === seq) {
      const { answer, stop } = this.ahead;
      this.ahead = null;
      this.reading = stop;
      return answer;
    }
    this.ahead?.stop.abort();
    this.ahead = null;
    this.reading = new AbortController();
    return this.get(seq, this.reading);
  }

  /**
   * @private
   * @param {number} seq
   * @param {AbortController} stop
   * @returns {Promise<Answer>}
   */
  async get(seq, stop) {
    /** @type {Record<string, string>} */
    const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    this.signal.addEventListener('abort', () => stop.abort(), { once: true, signal: stop.signal });
    try {
      // The browser's cache would let one tab wait for another one's answer.
      const response = await fetch(`${this.url}/${seq}`, { headers, cache: 'no-store', signal: stop.signal });
      return { response, stop };
    } catch (error) {
      return { error, stop };
    }
  }

  /**
   * Report a wait, and wait.
   * @private
   * @param {'missing' | 'ended' | 'behind' | 'refused' | 'offline'} why
   * @param {string} text
   * @param {number} atLeast
   * @returns {AsyncGenerator<ReaderEvent, void, void>}
   */
  async *wait(why, text, atLeast = 0) {
    this.ahead?.stop.abort();
    this.ahead = null;
    // Another reason means progress, so the delays begin anew: for example, the server is back, and the publisher is not.
    this.failures = why === this.why ? this.failures + 1 : 1;
    this.why = why;
    const seconds = retryDelay(this.failures, atLeast);
    this.waiting = new AbortController();
    yield { kind: 'wait', why, text, seconds };
    await pause(seconds, AbortSignal.any([this.signal, this.waiting.signal]));
  }

  /**
   * Compare the name of the numbering with the one that the reader follows (protocol, "Lives").
   * @private
   * @param {ReturnType<typeof placed>} place
   * @returns {boolean} whether the channel's numbers have begun again, so that the wanted one means nothing
   */
  begunAgain(place) {
    if (!place.life || place.life === this.life) return false;
    if (!this.life || this.next === LIVE) {
      this.restarted ||= this.life !== '';
      this.life = place.life;
      return false;
    }
    if (place.lifeFirst === null) return false;
    this.life = place.life;
    if (place.lifeFirst >= this.next) return false;
    this.restarted = true;
    return true;
  }

  /**
   * 470: the wanted segment is not there.
   * @private
   * @param {ReturnType<typeof placed>} place
   * @returns {AsyncGenerator<ReaderEvent, void, void>}
   */
  async *moved(place) {
    const wanted = this.next;
    if (this.begunAgain(place) || (place.latest !== null && wanted !== LIVE && place.latest > wanted)) {
      if (!this.restarted) this.skipping ??= wanted;
      this.next = LIVE;
      return;
    }
    yield* this.wait('behind', '', place.retryAfter);
  }

  /**
   * 200: a segment, an empty one, or the end of the channel.
   * @private
   * @param {{response: Response, stop: AbortController}} answer
   * @returns {AsyncGenerator<ReaderEvent, void, void>}
   */
  async *segment({ response, stop }) {
    const place = placed(response.headers);
    const { turns } = this;
    if (this.begunAgain(place)) {
      stop.abort();
      this.next = LIVE;
      return;
    }
    const seq = place.seq ?? Math.max(this.next, 0);
    if (response.headers.get('Content-Length') === '0') {
      if (place.closed) {
        this.next = Math.max(this.next, place.latest ?? seq);
        yield* this.wait('ended', 'The channel has ended.');
        return;
      }
      if (place.truncated) yield { kind: 'gap', from: seq, to: seq + 1, why: place.truncated };
      this.next = seq + 1;
      this.failures = 0;
      return;
    }
    if (this.skipping !== null && seq > this.skipping && !this.restarted) {
      yield { kind: 'gap', from: this.skipping, to: seq, why: 'skipped' };
    }
    this.skipping = null;
    const { restarted } = this;
    this.restarted = false;
    this.epoch = place.epoch ?? this.epoch;
    this.next = seq + 1;
    this.reading = stop;
    const ahead = new AbortController();
    this.ahead = { seq: this.next, answer: this.get(this.next, ahead), stop: ahead };
    yield {
      kind: 'segment',
      seq,
      type: response.headers.get('Content-Type') ?? '',
      epoch: this.epoch,
      restarted,
      behind: place.latest === null ? 0 : Math.max(0, place.latest - seq - 1),
      openedMs: openedMs(response.headers),
    };
    let truncated = place.truncated;
    for await (const data of this.body(seq, response, turns)) {
      if (typeof data === 'string') truncated = data;
      else yield { kind: 'chunk', seq, data };
    }
    this.reading = null;
    yield { kind: 'end', seq, truncated };
  }

  /**
   * Yields the bytes of a segment, and at the end the reason if it is not whole. If a body breaks off, the reader asks for
   * the segment again, and skips the bytes that it has.
   * @private
   * @param {number} seq
   * @param {Response} first
   * @param {number} turns of the reader when the answer began
   * @returns {AsyncGenerator<Uint8Array | string, void, void>}
   */
  async *body(seq, first, turns) {
    /** @type {Response | null} */
    let response = first;
    let done = 0;
    for (let attempt = 1; response?.body; attempt += 1) {
      let passed = 0;
      const stream = response.body.getReader();
      try {
        for (;;) {
          const { value, done: over } = await stream.read();
          if (over) return;
          this.failures = 0;
          this.why = "";
          const fresh = passed >= done ? value : value.subarray(Math.min(value.length, done - passed));
          passed += value.length;
          if (fresh.length === 0) continue;
          done += fresh.length;
          yield fresh;
        }
      } catch {
        // The connection broke, or the page goes elsewhere.
      }
      if (this.signal.aborted || turns !== this.turns || attempt > 3) break;
      this.ahead?.stop.abort();
      this.ahead = null;
      await pause(retryDelay(attempt), this.signal);
      const again = await this.get(seq, (this.reading = new AbortController()));
      response = 'response' in again && this.continues(again.response) ? again.response : null;
    }
    if (!this.signal.aborted) yield turns === this.turns ? 'cut off' : 'skipped';
  }

  /**
   * @private
   * @param {Response} response
   */
  continues(response) {
    const place = placed(response.headers);
    return response.status === 200 && (!place.life || place.life === this.life);
  }
}
