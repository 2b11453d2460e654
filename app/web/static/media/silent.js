/**
 * Takes sound out of media: that which a browser cannot decode, so that the pictures are shown, and of several tracks
 * all but the one that the user hears, since a browser plays one.
 *
 * Nothing is moved: what is about the sound gets a type that players skip. In MP4 (ISO/IEC 14496-12) the boxes of the
 * track become `free` boxes. In MPEG-TS (ISO/IEC 13818-1) its stream gets a type that nobody knows.
 */

import { boxes, joined } from "./containers.js";

const PACKET = 188;
/** A longer `moov` or `moof` is none, and is left as it is. */
const MAX_BOX = 1 << 20;
const UNKNOWN = 0x7f;
/** Types of streams of sound: MPEG-1 and 2, AAC, AC-3, DTS; private data, if a descriptor says that it is sound. */
const SOUND = new Set([0x03, 0x04, 0x0f, 0x11, 0x81, 0x82, 0x87, 0xc1, 0xc2]);
const PRIVATE = 0x06;
/** Types of streams of pictures: H.264, HEVC. */
const PICTURES = new Set([0x1b, 0x24]);
/** Descriptors of sound: AC-3, Enhanced AC-3, DTS, AAC, and those that name a format (Opus, AC-3). */
const SOUND_DESCRIPTORS = new Set([0x6a, 0x7a, 0x7b, 0x7c]);
const REGISTRATION = 0x05;
const LANGUAGE = 0x0a;
const NONE = -1;

/** @param {Uint8Array} data @param {number} at */
const u32 = (data, at) => new DataView(data.buffer, data.byteOffset).getUint32(at);

/** @param {Uint8Array} data @param {number} at */
const four = (data, at) => String.fromCharCode(...data.subarray(at, at + 4));

/** Takes tracks out of fragmented MP4 that comes in pieces. */
export class SilentMp4 {
  /** @param {number[]} tracks their ids */
  constructor(tracks) {
    /** @private */
    this.tracks = new Set(tracks);
    /** @private @type {Uint8Array} the beginning of a box that must be whole */
    this.rest = new Uint8Array();
    /** @private bytes of a box that is left as it is */
    this.passing = 0;
  }

  /** A segment begins. */
  begin() {
    this.rest = new Uint8Array();
    this.passing = 0;
  }

  /**
   * Take bytes; returns those that can be given on now.
   * @param {Uint8Array} data
   */
  push(data) {
    const all = joined([this.rest, data]);
    const out = all.slice();
    let at = 0;
    while (at < all.length) {
      if (this.passing) {
        const step = Math.min(this.passing, all.length - at);
        this.passing -= step;
        at += step;
        continue;
      }
      if (at + 8 > all.length) break;
      const size = u32(all, at);
      const type = four(all, at + 4);
      if ((type !== "moov" && type !== "moof") || size < 8 || size > MAX_BOX) {
        if (size === 1 && at + 16 > all.length) break;
        this.passing = size === 1 ? u32(all, at + 8) * 2 ** 32 + u32(all, at + 12) : size || Infinity;
        if (this.passing < 8) this.passing = Infinity;
        continue;
      }
      if (at + size > all.length) break;
      this.change(out, at + 8, at + size);
      at += size;
    }
    this.rest = all.slice(at);
    return out.subarray(0, at);
  }

  /**
   * @private
   * @param {Uint8Array} data
   * @param {number} from
   * @param {number} to
   */
  change(data, from, to) {
    for (const box of [...boxes(data, from, to)]) {
      if (box.type === "mvex") this.change(data, box.body, box.end);
      if (this.trackOf(data, box) !== null) data.set([0x66, 0x72, 0x65, 0x65], box.start + 4); // free
    }
  }

  /**
   * The unwanted track that a box is about; null if it is about none.
   * @private
   * @param {Uint8Array} data
   * @param {import("./containers.js").Box} box
   */
  trackOf(data, box) {
    let id = -1;
    if (box.type === "trex") id = u32(data, box.body + 4);
    for (const inner of boxes(data, box.body, box.end)) {
      if (box.type === "trak" && inner.type === "tkhd") id = u32(data, inner.body + (data[inner.body] ? 20 : 12));
      if (box.type === "traf" && inner.type === "tfhd") id = u32(data, inner.body + 4);
    }
    return this.tracks.has(id) ? id : null;
  }
}

/** A stream of sound of MPEG-TS. @typedef {{id: number, language: string}} Sound */

/** Takes streams of sound out of packets of MPEG-TS, which it changes. */
export class SilentTs {
  /** @param {number | null} keep the packets of the one that stays; null: the first one; left out: none */
  constructor(keep = NONE) {
    /** @private */
    this.keep = keep;
    /** The streams of sound that the media have. @type {Sound[]} */
    this.sounds = [];
    /** The types of all streams that the media have. @type {number[]} */
    this.types = [];
    /** The id and the type of the stream of pictures; null: there is none that the page can read captions of. @type {{id: number, type: number} | null} */
    this.pictures = null;
    /** @private packets with a table of streams @type {Set<number>} */
    this.tables = new Set();
  }

  /** @param {Uint8Array} packets whole ones */
  push(packets) {
    for (let at = 0; at + PACKET <= packets.length; at += PACKET) {
      const packet = packets.subarray(at, at + PACKET);
      const pid = (((packet[1] ?? 0) & 0x1f) << 8) | (packet[2] ?? 0);
      const begins = (packet[1] ?? 0) & 0x40;
      if (!begins || (pid !== 0 && !this.tables.has(pid))) continue;
      let from = 4;
      if ((packet[3] ?? 0) & 0x20) from += 1 + (packet[4] ?? 0);
      from += 1 + (packet[from] ?? 0);
      const end = Math.min(PACKET, from + 3 + ((((packet[from + 1] ?? 0) & 0x0f) << 8) | (packet[from + 2] ?? 0)) - 4);
      if (pid === 0) this.programs(packet, from, end);
      else this.streams(packet, from, end);
    }
    return packets;
  }

  /** @private @param {Uint8Array} packet @param {number} from @param {number} end */
  programs(packet, from, end) {
    this.tables.clear();
    for (let at = from + 8; at + 4 <= end; at += 4) {
      this.tables.add((((packet[at + 2] ?? 0) & 0x1f) << 8) | (packet[at + 3] ?? 0));
    }
  }

  /** @private @param {Uint8Array} packet @param {number} from @param {number} end */
  streams(packet, from, end) {
    /** @type {Sound[]} */
    const sounds = [];
    this.types = [];
    this.pictures = null;
    let at = from + 12 + ((((packet[from + 10] ?? 0) & 0x0f) << 8) | (packet[from + 11] ?? 0));
    while (at + 5 <= end) {
      const length = (((packet[at + 3] ?? 0) & 0x0f) << 8) | (packet[at + 4] ?? 0);
      const type = packet[at] ?? 0;
      this.types.push(type);
      const described = packet.subarray(at + 5, at + 5 + length);
      const id = (((packet[at + 1] ?? 0) & 0x1f) << 8) | (packet[at + 2] ?? 0);
      if (PICTURES.has(type)) this.pictures ??= { id, type };
      if (SOUND.has(type) || (type === PRIVATE && isSound(described))) {
        sounds.push({ id, language: languageOf(described) });
        if (id !== (this.keep ?? sounds[0]?.id)) packet[at] = UNKNOWN;
      }
      at += 5 + length;
    }
    this.sounds = sounds;
  }
}

/** Three letters; empty if nothing is told. @param {Uint8Array} descriptors */
function languageOf(descriptors) {
  for (let at = 0; at + 5 <= descriptors.length; at += 2 + (descriptors[at + 1] ?? 0)) {
    const code = String.fromCharCode(...descriptors.subarray(at + 2, at + 5));
    if (descriptors[at] === LANGUAGE && /^[a-z]{3}$/.test(code) && code !== "und") return code;
  }
  return "";
}

/** @param {Uint8Array} descriptors */
function isSound(descriptors) {
  for (let at = 0; at + 2 <= descriptors.length; at += 2 + (descriptors[at + 1] ?? 0)) {
    const tag = descriptors[at] ?? 0;
    if (SOUND_DESCRIPTORS.has(tag)) return true;
    if (tag === REGISTRATION && /^(Opus|AC-3|EAC3|DTS|BSSD)/.test(four(descriptors, at + 2))) return true;
  }
  return false;
}
