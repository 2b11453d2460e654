/**
 * What a server keeps of a channel, and when that was: the ground of the player's seek bar.
 *
 * It needs no right but that of a reader. The entity tag of a finished segment begins with the microsecond in which the
 * server got its first byte (docs/reference/protocol.md, section 4). So a HEAD of the oldest segment and one of a new one
 * tell from when until when there is something, and a few more find the segment of any time between. The server makes
 * nothing for it, and reads no media.
 */

/** Smaller than any seq: the oldest segment that is kept. */
const OLDEST = -999_999_999;
/** Segments that a search looks at. With an even pace of segments, two or three are enough. */
const MAX_STEPS = 14;
/** After as many steps by proportion it goes on by halves: the publisher's pace was uneven. */
const PROPORTIONAL_STEPS = 5;

/**
 * A segment and when it began, in milliseconds since 1970 by the server's clock; NaN if that is not known.
 * @typedef {{seq: number, ms: number}} Mark
 */

/**
 * When a segment began, from its entity tag: NaN without one.
 * @param {Headers} headers
 */
export function openedMs(headers) {
  const micros = /^"([0-9a-f]{1,14})\.\d+\.\d+\.[0-9a-f]+"$/.exec(headers.get("ETag") ?? "")?.[1];
  return micros ? parseInt(micros, 16) / 1000 : NaN;
}

/** The past of one channel. */
export class Past {
  /**
   * @param {string} url the channel's URL
   * @param {() => string} token of the user; empty without one
   */
  constructor(url, token) {
    this.url = url;
    this.token = token;
    /** @private the oldest segment, and the newest finished one that is known @type {[Mark, Mark] | null} */
    this.ends = null;
    /** @private when the server was last asked, by this page's clock */
    this.lookedAt = -Infinity;
    /** @private whether it is asked now */
    this.looking = false;
    /** @private the mean length of a segment, in milliseconds */
    this.lengthMs = 0;
  }

  /** When the oldest segment began; NaN as long as nothing is known. */
  get oldestMs() {
    return this.ends ? this.ends[0].ms : NaN;
  }

  /** Where the live edge is now. */
  get edgeMs() {
    // The newest finished segment has been followed by one that is half written, on the average.
    return this.ends ? this.ends[1].ms + 1.5 * this.lengthMs + performance.now() - this.lookedAt : NaN;
  }

  /** Whether a viewer may go back: at least two segments are there. */
  get isKnown() {
    return this.ends !== null;
  }

  /**
   * Ask the server what it keeps, but not more often than this.
   * @param {number} everyMs
   */
  async look(everyMs) {
    if (this.looking || performance.now() - this.lookedAt < everyMs) return;
    this.looking = true;
    try {
      const oldest = await this.head(OLDEST);
      const head = oldest?.head ?? 0;
      const first = oldest && (oldest.ms > 0 ? oldest : await this.marked(oldest.next, head));
      const newest = first && (await this.marked(Math.max(first.seq, head - 2), head));
      this.ends = first && newest && newest.seq > first.seq ? [first, newest] : null;
      if (this.ends) this.lengthMs = (this.ends[1].ms - this.ends[0].ms) / (this.ends[1].seq - this.ends[0].seq);
    } catch {
      // No answer: what was known is still the best there is.
    } finally {
      this.lookedAt = performance.now();
      this.looking = false;
    }
  }

  /**
   * The segment in which a time lies, and how far in it; null: nothing is kept.
   * @param {number} ms
   * @returns {Promise<{seq: number, s: number} | null>}
   */
  async find(ms) {
    if (!this.ends) return null;
    let [low, high] = this.ends;
    if (ms >= high.ms) low = high;
    for (let step = 0; step < MAX_STEPS && high.seq - low.seq > 1; step += 1) {
      const share = step < PROPORTIONAL_STEPS ? (ms - low.ms) / (high.ms - low.ms) : 0.5;
      const guess = Math.min(high.seq - 1, Math.max(low.seq + 1, low.seq + Math.floor(share * (high.seq - low.seq))));
      const found = await this.marked(guess, high.seq).catch(() => null);
      if (!found || found.seq >= high.seq) high = { seq: guess, ms: high.ms };
      else if (found.ms <= ms) low = found;
      else high = found;
    }
    return { seq: low.seq, s: Math.max(0, Math.min((ms - low.ms) / 1000, 60)) };
  }

  /**
   * The first segment from this one on whose time is known, before `end`; null: there is none near.
   * @private
   * @param {number} seq
   * @param {number} end
   * @returns {Promise<Mark | null>}
   */
  async marked(seq, end) {
    for (let tries = 0; tries < 4 && seq < end; tries += 1) {
      const found = await this.head(seq);
      if (!found) return null;
      if (found.ms > 0) return found;
      seq = found.next;
    }
    return null;
  }

  /**
   * @private
   * @param {number} seq
   * @returns {Promise<(Mark & {head: number, next: number}) | null>} null: the channel is not there
   */
  async head(seq) {
    /** @type {Record<string, string>} */
    const headers = this.token() ? { Authorization: `Bearer ${this.token()}` } : {};
    const options = /** @type {RequestInit} */ ({ method: "HEAD", headers, cache: "no-store" });
    const { status, headers: told } = await fetch(`${this.url}/${seq}`, options);
    if (status !== 200 && status !== 470) return null;
    const number = (/** @type {string} */ name) => Number(told.get(name) ?? NaN);
    const at = status === 200 ? number("Lp-Trickle-Seq") : seq;
    const next = status === 200 ? at + 1 : number("Lp-Trickle-Next") || at + 1;
    return { seq: at, ms: openedMs(told), head: number("Lp-Trickle-Latest") || at, next };
  }
}
