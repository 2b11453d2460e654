/**
 * How many pictures a segment has in a second, and, of H.264 in MPEG-TS, how large they are, from the first bytes of a
 * segment. In MP4 and WebM the init segment has the size.
 *
 * The rate is that of the median of the pictures' durations: a picture that is missing, or the last one of a fragment,
 * changes nothing. Media of which too little is there have no rate.
 */

import { CLUSTER, SIMPLE_BLOCK, boxes, elements, runs } from "./containers.js";

const TS_PACKET = 188;
const TS_CLOCK_HZ = 90_000;
/** Pictures from which a rate is told. */
const LEAST = 4;
/** Bytes of a stream of pictures in which its parameters are looked for. */
const MOST = 4096;
const TIMESTAMP = 0xe7;

/** @typedef {import("./containers.js").Track} Track */
/** @typedef {{ rate: number, width: number, height: number }} Picture 0: not known */

/** @param {Uint8Array} data */
const viewOf = (data) => new DataView(data.buffer, data.byteOffset, data.byteLength);

/** @param {number[]} numbers */
const median = (numbers) => numbers.sort((one, other) => one - other)[numbers.length >> 1] ?? 0;

/** Differences of times that follow each other, in any order. @param {number[]} times */
function steps(times) {
  const sorted = [...new Set(times)].sort((one, other) => one - other);
  return sorted.slice(1).map((time, at) => time - (sorted[at] ?? 0));
}

/** Pictures in a second of fragmented MP4; 0 if nobody can tell. @param {Uint8Array} data @param {Track[]} tracks */
export function mp4Rate(data, tracks) {
  const view = viewOf(data);
  /** @type {Map<number, number>} the duration that samples of a track have if nothing else is said */
  const usual = new Map();
  for (const moov of boxes(data)) {
    if (moov.type !== "moov") continue;
    for (const mvex of boxes(data, moov.body, moov.end)) {
      if (mvex.type !== "mvex") continue;
      for (const trex of boxes(data, mvex.body, mvex.end)) {
        if (trex.type === "trex") usual.set(view.getUint32(trex.body + 4), view.getUint32(trex.body + 12));
      }
    }
  }
  /** @type {number[]} */
  const durations = [];
  let timescale = 0;
  for (const { track, has, count, first, size, defaultDuration } of runs(data, tracks)) {
    if (track.kind !== "video") continue;
    timescale = track.timescale;
    for (let at = 0; at < count; at++) {
      durations.push(has & 0x100 ? view.getUint32(first + at * size) : defaultDuration ?? usual.get(track.id) ?? 0);
    }
  }
  const each = durations.length < LEAST ? 0 : median(durations);
  return each ? timescale / each : 0;
}

/** Pictures in a second of WebM, whose times are whole milliseconds. @param {Uint8Array} data @param {Track[]} tracks */
export function webmRate(data, tracks) {
  const view = viewOf(data);
  const video = tracks.find(({ kind }) => kind === "video");
  /** @type {number[]} */
  const times = [];
  let cluster = NaN;
  for (const { id, body, end } of elements(data)) {
    if (id === CLUSTER) cluster = NaN;
    if (id === TIMESTAMP && end <= data.length) cluster = data.subarray(body, end).reduce((sum, byte) => sum * 256 + byte, 0);
    if (id !== SIMPLE_BLOCK || body + 3 > data.length || (data[body] ?? 0) !== (0x80 | (video?.id ?? 0))) continue;
    times.push(cluster + view.getInt16(body + 1));
  }
  if (times.length < LEAST || !video || !times.every(Number.isFinite)) return 0;
  const whole = Math.max(...times) - Math.min(...times);
  return whole > 0 ? Math.round(((times.length - 1) * video.timescale) / whole) : 0;
}

/** The pictures of MPEG-TS. @param {Uint8Array} data @param {boolean} isH264 @returns {Picture} */
export function tsPicture(data, isH264) {
  const view = viewOf(data);
  /** @type {number[]} */
  const times = [];
  /** @type {number[]} */
  const stream = [];
  let pid = -1;
  for (let at = 0; at + TS_PACKET <= data.length && data[at] === 0x47; at += TS_PACKET) {
    const flags = data[at + 3] ?? 0;
    let from = at + 4 + (flags & 0x20 ? 1 + (data[at + 4] ?? 0) : 0);
    const end = at + TS_PACKET;
    const id = view.getUint16(at + 1) & 0x1fff;
    if (!(flags & 0x10) || from + 14 > end) continue;
    if ((data[at + 1] ?? 0) & 0x40) {
      const isVideo = view.getUint32(from) >>> 4 === 0x1e; // 00 00 01 E0 to EF
      if (!isVideo || (pid >= 0 && id !== pid)) continue;
      pid = id;
      if ((data[from + 7] ?? 0) & 0x80) {
        const p = from + 9;
        times.push(((data[p] ?? 0) & 0x0e) * 2 ** 29 + (view.getUint16(p + 1) >> 1) * 2 ** 15 + (view.getUint16(p + 3) >> 1));
      }
      from += 9 + (data[from + 8] ?? 0);
    }
    if (id === pid && stream.length < MOST) stream.push(...data.subarray(Math.min(from, end), end));
  }
  const each = times.length < LEAST ? 0 : median(steps(times));
  return { rate: each ? TS_CLOCK_HZ / each : 0, ...(isH264 ? h264Size(stream) : { width: 0, height: 0 }) };
}

/** The size in the parameters of H.264 (ITU-T H.264, 7.3.2.1.1). @param {number[]} stream */
function h264Size(stream) {
  const none = { width: 0, height: 0 };
  let at = stream.findIndex((byte, i) => byte === 1 && !stream[i - 1] && !stream[i - 2] && ((stream[i + 1] ?? 0) & 0x1f) === 7);
  if (at < 2) return none;
  at += 2;
  /** @type {number[]} */
  const bytes = [];
  for (; at < stream.length && bytes.length < 64; at++) {
    // A byte of 3 behind two zeros keeps the rest from looking like a beginning.
    if (stream[at] === 3 && !stream[at - 1] && !stream[at - 2]) continue;
    bytes.push(stream[at] ?? 0);
  }
  let place = 24; // behind the profile and the level
  const bit = () => ((bytes[place >> 3] ?? 0) >> (7 - (place++ & 7))) & 1;
  const number = () => {
    let zeros = 0;
    while (!bit()) if (++zeros > 31) return 0;
    let value = 1;
    for (let n = 0; n < zeros; n++) value = value * 2 + bit();
    return value - 1;
  };
  number();
  let chroma = 1;
  if ([100, 110, 122, 244, 44, 83, 86, 118, 128].includes(bytes[0] ?? 0)) {
    chroma = number();
    if (chroma === 3) bit();
    number();
    number();
    bit();
    if (bit()) return none; // it has matrices of its own
  }
  number();
  const order = number();
  if (order === 0) number();
  else if (order === 1) {
    bit();
    number();
    number();
    for (let n = number(); n > 0 && n < 256; n--) number();
  }
  number();
  bit();
  const wide = 16 * (number() + 1);
  const units = number() + 1;
  const frames = bit();
  if (!frames) bit();
  bit();
  const high = 16 * units * (frames ? 1 : 2);
  if (!bit()) return sane(wide, high);
  const [x, y] = [chroma === 1 || chroma === 2 ? 2 : 1, (chroma === 1 ? 2 : 1) * (frames ? 1 : 2)];
  const [left, right, top, bottom] = [number(), number(), number(), number()];
  return sane(wide - x * (left + right), high - y * (top + bottom));
}

/** @param {number} width @param {number} height */
const sane = (width, height) => (width > 0 && height > 0 && width <= 16384 && height <= 16384 ? { width, height } : { width: 0, height: 0 });
