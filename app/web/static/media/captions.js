/**
 * Shows captions that stand in the pictures of H.264 and HEVC (CEA-608 in messages of ATSC A/53, part 4, 6.2). Browsers
 * show none of what a page gives them by Media Source Extensions.
 *
 * A *tap* sees the bytes of each segment before the browser does, and keeps the captions of each picture with its time.
 * Pictures arrive in the order in which they are decoded. When a picture is shown, all earlier ones have been: only then
 * are the captions up to it decoded, in their order, and the screen is what the viewer sees beside that picture.
 */

import { element } from "../session.js";
import { Cea608 } from "./cea608.js";
import { joined, runs } from "./containers.js";

const PACKET = 188;
const TS_CLOCK_HZ = 90_000;
const TS_WRAP = 2 ** 33;
/** Captions stand before the picture; what follows this many bytes of a picture is not looked at. */
const HEAD = 4096;
/** A longer `moof` is not looked at. */
const MAX_BOX = 1 << 20;
/** Pictures whose captions are kept, for a viewer who goes back: at 60 a second, half a minute at the least. */
const MOST_KEPT = 2048;
/** `itu_t_t35` of ATSC: country, provider, "GA94", captions. */
const ATSC = [0xb5, 0x00, 0x31, 0x47, 0x41, 0x39, 0x34, 0x03];
const HEVC = 0x24;

/** The captions of a picture: pairs of bytes with their field. @typedef {[number, number, number][]} Pairs */

/**
 * The NAL units before a picture's own, from the beginning of the picture.
 * @param {Uint8Array} head with start codes (annex B)
 * @returns {Generator<Uint8Array, void, void>}
 */
function* unitsOfStream(head) {
  let from = -1;
  for (let at = 0; at + 3 <= head.length; at += 1) {
    if (head[at] || head[at + 1] || head[at + 2] !== 1) continue;
    if (from >= 0) yield head.subarray(from, at);
    from = at + 3;
    at += 2;
  }
  if (from >= 0) yield head.subarray(from);
}

/**
 * @param {Uint8Array} head with lengths of four bytes, as in MP4
 * @returns {Generator<Uint8Array, void, void>}
 */
function* unitsOfSample(head) {
  const view = new DataView(head.buffer, head.byteOffset, head.length);
  for (let at = 0; at + 5 <= head.length; ) {
    const size = view.getUint32(at);
    yield head.subarray(at + 4, at + 4 + size);
    at += 4 + size;
  }
}

/**
 * The captions of a picture.
 * @param {Iterable<Uint8Array>} units of its beginning
 * @param {boolean} isHevc
 * @returns {Pairs} without padding
 */
function pairsOf(units, isHevc) {
  /** @type {Pairs} */
  const pairs = [];
  for (const unit of units) {
    const type = isHevc ? ((unit[0] ?? 0) >> 1) & 0x3f : (unit[0] ?? 0) & 0x1f;
    if (isHevc ? type < 32 : type >= 1 && type <= 5) break; // the picture itself
    if (type === (isHevc ? 39 : 6)) readMessages(plain(unit.subarray(isHevc ? 2 : 1)), pairs);
  }
  return pairs;
}

/** Without the bytes that prevent the emulation of start codes (7.4.1). @param {Uint8Array} unit */
function plain(unit) {
  const out = new Uint8Array(unit.length);
  let length = 0;
  let zeros = 0;
  for (const byte of unit) {
    if (zeros >= 2 && byte === 3) {
      zeros = 0;
      continue;
    }
    zeros = byte ? 0 : zeros + 1;
    out[length++] = byte;
  }
  return out.subarray(0, length);
}

/**
 * Read supplemental messages (7.3.2.3.1).
 * @param {Uint8Array} data
 * @param {Pairs} pairs those that are found are added
 */
function readMessages(data, pairs) {
  for (let at = 0; at + 2 < data.length; ) {
    let [type, size] = [0, 0];
    for (; data[at] === 0xff; at += 1) type += 255;
    type += data[at++] ?? 0;
    for (; data[at] === 0xff; at += 1) size += 255;
    size += data[at++] ?? 0;
    const message = data.subarray(at, at + size);
    at += size;
    if (type !== 4 || !ATSC.every((byte, place) => message[place] === byte)) continue;
    const flags = message[8] ?? 0;
    if (!(flags & 0x40)) continue;
    for (let n = 0; n < (flags & 0x1f); n += 1) {
      const [marker = 0, one = 0, two = 0] = message.subarray(10 + 3 * n, 13 + 3 * n);
      if (marker & 4 && (marker & 3) < 2 && (one & 0x7f || two & 0x7f)) pairs.push([marker & 3, one, two]);
    }
  }
}

/** Sees a segment of fragmented MP4 that the browser is given. */
export class Mp4Tap {
  /** @param {(timeS: number, pairs: Pairs) => void} found `timeS`: of the media */
  constructor(found) {
    /** @private */
    this.found = found;
    /** @private bytes that are not read yet @type {Uint8Array[]} */
    this.parts = [];
    /** @private their number, and how many of them the next step needs */
    this.have = 0;
    /** @private */
    this.need = 8;
    /** @private where those begin, from the beginning of the segment */
    this.at = 0;
    /** @private bytes that are of no interest */
    this.skipping = 0;
    /** @private the end of the box with the pictures, when its beginning was read; else 0 */
    this.end = 0;
    /** @private the pictures of the present fragment whose bytes are still to come, with their places in the segment
     * @type {{at: number, size: number, timeS: number}[]} */
    this.samples = [];
  }

  /**
   * Take bytes of a segment.
   * @param {Uint8Array} data
   * @param {import("./containers.js").Track[]} tracks
   */
  push(data, tracks) {
    const pictures = tracks.filter(({ codec }) => /^(avc|hvc|hev)/.test(codec));
    this.parts.push(data);
    this.have += data.length;
    while (this.have >= (this.skipping ? 1 : Math.max(1, this.need))) {
      if (this.skipping) this.drop(Math.min(this.skipping, this.have));
      else this.step(this.joined(), pictures);
    }
  }

  /** @private */
  joined() {
    const all = this.parts.length === 1 && this.parts[0] ? this.parts[0] : joined(this.parts);
    this.parts = [all];
    return all;
  }

  /** @private @param {Uint8Array} all @param {import("./containers.js").Track[]} pictures */
  step(all, pictures) {
    const sample = this.samples[0];
    if (this.end) {
      if (!sample || sample.at > this.at) {
        this.skipping = Math.min(sample?.at ?? this.end, this.end) - this.at;
        if (!sample || sample.at >= this.end) this.end = 0;
        return;
      }
      const length = Math.min(HEAD, sample.size);
      this.need = length;
      if (all.length < length) return;
      this.samples.shift();
      this.need = 8;
      const isHevc = !/^avc/.test(pictures[0]?.codec ?? "");
      const pairs = sample.at === this.at ? pairsOf(unitsOfSample(all.subarray(0, length)), isHevc) : [];
      if (pairs.length) this.found(sample.timeS, pairs);
      this.skipping = Math.max(0, sample.at + sample.size - this.at);
      return;
    }
    const view = new DataView(all.buffer, all.byteOffset, all.length);
    const small = view.getUint32(0);
    const type = String.fromCharCode(...all.subarray(4, 8));
    this.need = small === 1 ? 16 : type === "moof" && small <= MAX_BOX ? Math.max(8, small) : 8;
    if (all.length < this.need) return;
    const size = Math.max(8, small === 1 ? Number(view.getBigUint64(8)) : small || Infinity);
    if (type === "moof" && size <= MAX_BOX) this.samples = samplesOf(all.subarray(0, size), this.at, pictures);
    if (type === "mdat" && this.samples.length) this.end = this.at + size;
    this.skipping = type === "mdat" && this.samples.length ? this.need : size;
    this.need = 8;
  }

  /** @private @param {number} bytes */
  drop(bytes) {
    this.at += bytes;
    this.have -= bytes;
    this.skipping -= bytes;
    while (bytes > 0) {
      const first = /** @type {Uint8Array} */ (this.parts[0]);
      if (first.length > bytes) this.parts[0] = first.subarray(bytes);
      else this.parts.shift();
      bytes -= Math.min(bytes, first.length);
    }
  }
}

/**
 * The pictures of a fragment, with their places in the segment.
 * @param {Uint8Array} moof
 * @param {number} start where it begins in the segment
 * @param {import("./containers.js").Track[]} tracks of pictures
 */
function samplesOf(moof, start, tracks) {
  const view = new DataView(moof.buffer, moof.byteOffset, moof.length);
  /** @type {{at: number, size: number, timeS: number}[]} */
  const samples = [];
  for (const { track, has, count, first, size, defaultDuration, defaultSize, dataAt, time } of runs(moof, tracks)) {
    if (time === null || dataAt === null) continue;
    let at = start + dataAt;
    let ticks = time;
    for (let n = 0; n < count && first + n * size + size <= moof.length; n += 1) {
      let field = first + n * size;
      const duration = has & 0x100 ? view.getUint32((field += 4) - 4) : defaultDuration ?? 0;
      const bytes = has & 0x200 ? view.getUint32((field += 4) - 4) : defaultSize ?? 0;
      if (has & 0x400) field += 4;
      const later = has & 0x800 ? view.getInt32(field) : 0;
      samples.push({ at, size: bytes, timeS: (ticks + later) / track.timescale });
      at += bytes;
      ticks += duration;
    }
  }
  return samples;
}

/** Sees the packets of a segment of MPEG-TS that the browser is given. */
export class TsTap {
  /** @param {(ticks: number, pairs: Pairs) => void} found `ticks`: of 90 kHz */
  constructor(found) {
    /** @private */
    this.found = found;
    /** @private the beginning of a picture; null: nothing more of it is looked at @type {Uint8Array[] | null} */
    this.head = null;
    /** @private bytes of it */
    this.have = 0;
    /** @private its time */
    this.ticks = 0;
  }

  /**
   * Take whole packets.
   * @param {Uint8Array} packets
   * @param {{id: number, type: number} | null} pictures the stream of pictures
   */
  push(packets, pictures) {
    if (!pictures) return;
    for (let at = 0; at + PACKET <= packets.length; at += PACKET) {
      const packet = packets.subarray(at, at + PACKET);
      const [, one = 0, two = 0, flags = 0] = packet;
      if ((((one & 0x1f) << 8) | two) !== pictures.id || !(flags & 0x10)) continue;
      let payload = packet.subarray(flags & 0x20 ? 5 + (packet[4] ?? 0) : 4);
      if (one & 0x40) {
        this.end(pictures);
        if (payload.length < 14 || !((payload[7] ?? 0) & 0x80)) continue;
        const [a = 0, b = 0, c = 0, d = 0, e = 0] = payload.subarray(9, 14);
        this.ticks = (a & 0x0e) * 2 ** 29 + (b << 22) + ((c >> 1) << 15) + (d << 7) + (e >> 1);
        payload = payload.subarray(9 + (payload[8] ?? 0));
        [this.head, this.have] = [[], 0];
      }
      if (!this.head) continue;
      this.head.push(payload);
      this.have += payload.length;
      if (this.have >= HEAD) this.end(pictures);
    }
  }

  /** No more of a picture comes, or none that matters. @param {{type: number} | null} pictures the stream of pictures */
  end(pictures) {
    if (!this.head) return;
    const pairs = pairsOf(unitsOfStream(joined(this.head)), pictures?.type === HEVC);
    this.head = null;
    if (pairs.length) this.found(this.ticks, pairs);
  }
}

/** Seconds between two times of MPEG-TS, whose 33 bits wrap. @param {number} ticks @param {number} baseS */
export function sinceTs(ticks, baseS) {
  const passed = (((ticks - baseS * TS_CLOCK_HZ) % TS_WRAP) + TS_WRAP) % TS_WRAP;
  return (passed > TS_WRAP / 2 ? passed - TS_WRAP : passed) / TS_CLOCK_HZ;
}

/** Draws the captions of one media element. */
export class Captions {
  /** @param {HTMLVideoElement} video @param {HTMLElement} screen lies over it, and is as large */
  constructor(video, screen) {
    this.video = video;
    this.screen = screen;
    /** The channel that the viewer wants, such as `CC1`; empty: none. */
    this.chosen = "";
    /** @private of pictures with captions, in the order in which they are shown @type {{atS: number, pairs: Pairs}[]} */
    this.kept = [];
    /** @private how many of them are decoded */
    this.next = 0;
    /** @private the time of the picture that is shown */
    this.shownS = -Infinity;
    /** @private what is drawn: the channel, its version, and the size of the picture */
    this.drawn = "";
    /** @private */
    this.decoder = new Cea608();
  }

  /** Another time line begins. */
  reset() {
    this.kept = [];
    this.next = 0;
    this.shownS = -Infinity;
    this.begin();
    this.draw();
  }

  /** What was decoded counts no more. @private */
  begin() {
    this.decoder = new Cea608();
    this.drawn = "";
  }

  /** The channels that have had captions. */
  get channels() {
    return this.decoder.used;
  }

  /**
   * A picture has captions.
   * @param {number} atS its time on the element's time line
   * @param {Pairs} pairs
   */
  add(atS, pairs) {
    let place = this.kept.length;
    while (place > this.next && (this.kept[place - 1]?.atS ?? 0) > atS) place -= 1;
    this.kept.splice(place, 0, { atS, pairs });
    if (this.kept.length <= MOST_KEPT) return;
    const old = this.kept.length - MOST_KEPT / 2;
    this.kept.splice(0, old);
    this.next = Math.max(0, this.next - old);
  }

  /** The picture of this time is shown. @param {number} timeS */
  show(timeS) {
    if (timeS < this.shownS) {
      // The viewer went back: the screen of that time is made of what came before it.
      this.next = 0;
      this.begin();
    }
    this.shownS = timeS;
    for (; this.next < this.kept.length; this.next += 1) {
      const one = this.kept[this.next];
      if (!one || one.atS > timeS + 0.001) break;
      for (const [field, first, second] of one.pairs) this.decoder.push(field, first, second);
    }
    this.draw();
  }

  /** Draw the rows of the chosen channel, also after the viewer has chosen another one or the element has another size. */
  draw() {
    const channel = this.decoder.channels[this.chosen];
    const { clientWidth, clientHeight, videoWidth, videoHeight } = this.video;
    const scale = Math.min(clientWidth / (videoWidth || 1), clientHeight / (videoHeight || 1));
    const [width, height] = [videoWidth * scale, videoHeight * scale];
    const wanted = [this.chosen, channel?.version, width, height].join();
    if (wanted === this.drawn) return;
    this.drawn = wanted;
    // The rows lie in the middle 80 % of the picture (47 CFR 15.119 (d)).
    const [row, column] = [(0.8 * height) / 15, (0.8 * width) / 32];
    const [left, top] = [(clientWidth - width) / 2 + 0.1 * width, (clientHeight - height) / 2 + 0.1 * height];
    this.screen.replaceChildren(
      ...(channel?.runs ?? []).map((run) => {
        const line = element("span", {}, run.text);
        Object.assign(line.style, {
          left: `${left + run.column * column}px`,
          top: `${top + (run.row - 1) * row}px`,
          height: `${row}px`,
          fontSize: `${Math.min(0.75 * row, 1.6 * column)}px`,
          lineHeight: `${row}px`,
          color: run.look.colour,
          fontStyle: run.look.isItalic ? "italic" : "normal",
          textDecoration: run.look.isUnderlined ? "underline" : "none",
        });
        return line;
      }),
    );
  }
}
