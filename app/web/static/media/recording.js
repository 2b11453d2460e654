/**
 * The recording of a channel that has ended, as a server with a data directory keeps it: its playlist of HLS names all
 * segments with their lengths (docs/reference/protocol.md, section 8). `RecordingReader` reports the events of `Reader`,
 * so the page plays it with the same sinks. Times count from the beginning of the recording.
 */

import { pause } from "./trickle.js";

/** More segments than a server lists. */
const MAX_SEGMENTS = 30_000;
const ATTEMPTS = 4;

/**
 * One segment: where it is, where its init segment is ("" without one), when it begins and how long it is, in seconds.
 * @typedef {{url: string, init: string, atS: number, lengthS: number}} Piece
 */

/**
 * The segments that a playlist of type VOD names; empty for any other.
 * @param {string} text
 * @param {string} base the playlist's URL
 * @returns {Piece[]}
 */
export function piecesOf(text, base) {
  /** @type {Piece[]} */
  const pieces = [];
  if (!/^#EXT-X-PLAYLIST-TYPE:VOD$/m.test(text)) return pieces;
  let [init, atS, lengthS, isGap] = ["", 0, 0, false];
  for (const line of text.split("\n")) {
    if (line.startsWith("#EXT-X-MAP:")) init = new URL(/URI="([^"]+)"/.exec(line)?.[1] ?? "", base).href;
    else if (line.startsWith("#EXTINF:")) lengthS = parseFloat(line.slice(8)) || 0;
    else if (line === "#EXT-X-GAP") isGap = true;
    else if (line && !line.startsWith("#")) {
      if (!isGap) pieces.push({ url: new URL(line, base).href, init, atS, lengthS });
      atS += isGap ? 0 : lengthS; // the player leaves no hole for what is missing
      isGap = false;
      if (pieces.length >= MAX_SEGMENTS) break;
    }
  }
  return pieces;
}

/** Reads one recording. */
export class RecordingReader {
  /**
   * @param {Piece[]} pieces
   * @param {{token?: string, signal: AbortSignal}} options
   */
  constructor(pieces, { token = "", signal }) {
    this.pieces = pieces;
    this.signal = signal;
    /** @private */
    this.headers = token ? { Authorization: `Bearer ${token}` } : undefined;
    /** @private the piece that is wanted next */
    this.next = 0;
    /** @private ends the present request, or the wait at the end */
    this.reading = new AbortController();
    /** @private the newest init segment @type {{url: string, data: Uint8Array}} */
    this.init = { url: "", data: new Uint8Array() };
  }

  /**
   * The recording of a channel, or null if there is none.
   * @param {string} url the channel's URL
   * @param {string} token
   */
  static async find(url, token) {
    const playlist = `${url}/media.m3u8`;
    const response = await fetch(playlist, token ? { headers: { Authorization: `Bearer ${token}` } } : {}).catch(() => null);
    if (!response?.ok) return null;
    const pieces = piecesOf(await response.text(), playlist);
    return pieces.length ? pieces : null;
  }

  /** Go on at another piece. @param {number} at */
  go(at) {
    this.next = Math.max(0, Math.min(at, this.pieces.length - 1));
    this.reading.abort();
  }

  /** There is no live edge. */
  jump() {}

  /** It never waits. */
  hurry() {}

  /** @returns {AsyncGenerator<import("./trickle.js").ReaderEvent, void, void>} */
  async *read() {
    let failures = 0;
    while (!this.signal.aborted) {
      this.reading = new AbortController();
      const seq = this.next;
      const piece = this.pieces[seq];
      const signal = AbortSignal.any([this.signal, this.reading.signal]);
      if (!piece) {
        yield { kind: "wait", why: "ended", text: "", seconds: 0 };
        await pause(3600, signal);
        continue;
      }
      const data = await this.get(piece, signal).catch(() => null);
      if (signal.aborted) continue;
      if (!data && (failures += 1) < ATTEMPTS) {
        yield { kind: "wait", why: "offline", text: "", seconds: failures };
        await pause(failures, signal);
        continue;
      }
      if (this.next === seq) this.next = seq + 1;
      if (!data) {
        yield { kind: "gap", from: seq, to: seq + 1, why: "gone" };
        continue;
      }
      failures = 0;
      const behind = this.pieces.length - seq - 1;
      yield { kind: "segment", seq, type: "", epoch: 0, restarted: false, behind, openedMs: NaN };
      for (const one of data) if (one.length && !this.reading.signal.aborted) yield { kind: "chunk", seq, data: one };
      yield { kind: "end", seq, truncated: this.reading.signal.aborted ? "skipped" : "" };
    }
  }

  /**
   * A segment, behind its init segment.
   * @private
   * @param {Piece} piece
   * @param {AbortSignal} signal
   * @returns {Promise<Uint8Array[]>}
   */
  async get(piece, signal) {
    const load = async (/** @type {string} */ url) => {
      const response = await fetch(url, { ...(this.headers && { headers: this.headers }), signal });
      if (!response.ok) throw new Error(`${response.status}`);
      return new Uint8Array(await response.arrayBuffer());
    };
    if (!piece.init) return [await load(piece.url)];
    if (this.init.url !== piece.init) this.init = { url: piece.init, data: await load(piece.init) };
    return [this.init.data, await load(piece.url)];
  }
}
