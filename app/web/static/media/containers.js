// Reads media containers as far as a page needs it: the container's kind, the codecs' names for Media Source Extensions,
// the beginning of a segment on its time line, and the producer's clock (docs/reference/test-source.md). Not a demuxer:
// the browser and mpegts.js read the media themselves.

/**
 * @typedef {'mp4' | 'webm' | 'mpegts' | 'aac' | 'mp3' | 'text' | 'bytes'} Container
 * @typedef {{type: string, start: number, end: number, body: number}} Box `body`: where its content begins
 * @typedef {{id: number, timescale: number, kind: 'video' | 'audio' | 'other', codec: string, language?: string, width?: number, height?: number}} Track
 *   `language`: three letters (ISO 639-2); empty or left out if it is not known. `width`, `height`: of a picture, in MP4
 * @typedef {{mime: string, tracks: Track[]}} Init the content of an init segment
 * @typedef {{startS: number | null, producerMs: number | null}} SegmentTimes `startS`: when the segment's first frame
 *   is shown, on the media's time line; `producerMs`: when it was captured, in milliseconds since 1970
 */

const NTP_EPOCH_S = 2_208_988_800;
const TS_PACKET = 188;
const TS_CLOCK_HZ = 90_000;

/** @param {Uint8Array} data */
function viewOf(data) {
  return new DataView(data.buffer, data.byteOffset, data.byteLength);
}

/**
 * @param {Uint8Array} data
 * @param {number} at
 * @param {number} length
 */
function ascii(data, at, length) {
  return String.fromCharCode(...data.subarray(at, at + length));
}

/** @param {number} value @param {number} digits */
const hex = (value, digits = 2) => value.toString(16).padStart(digits, '0');

/**
 * Join arrays of bytes.
 * @param {Uint8Array[]} parts
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function joined(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/**
 * The container of a segment.
 * @param {string} contentType of the answer
 * @param {Uint8Array} head the segment's first bytes
 * @returns {Container}
 */
export function containerOf(contentType, head) {
  const type = contentType.split(';')[0].trim().toLowerCase();
  const box = head.length >= 8 ? ascii(head, 4, 4) : '';
  if (['ftyp', 'styp', 'moov', 'moof', 'sidx', 'prft', 'emsg'].includes(box)) return 'mp4';
  if (head.length >= 4 && viewOf(head).getUint32(0) === EBML) return 'webm';
  if (head[0] === 0x47 && (head.length <= TS_PACKET || head[TS_PACKET] === 0x47)) return 'mpegts';
  if (type === 'audio/aac' || type === 'audio/aacp') return 'aac';
  if (type === 'audio/mpeg' || type === 'audio/mp3') return 'mp3';
  if (type.startsWith('text/') || /[/+]json$|ndjson|jsonl|json-seq/.test(type)) return 'text';
  if (type === '' || type === 'application/octet-stream') return looksLikeText(head) ? 'text' : 'bytes';
  return 'bytes';
}

/** @param {Uint8Array} head */
function looksLikeText(head) {
  if (head.length === 0) return false;
  try {
    // The head may end inside a character.
    const text = new TextDecoder('utf-8', { fatal: true }).decode(head.subarray(0, 512), { stream: true });
    return !/[\0-\x08\x0e-\x1a\x1c-\x1f]/.test(text);
  } catch {
    return false;
  }
}

const CODEC_NAMES = /** @type {Record<string, string>} */ ({
  avc1: "H.264",
  avc3: "H.264",
  hvc1: "H.265",
  hev1: "H.265",
  av01: "AV1",
  vp09: "VP9",
  vp9: "VP9",
  vp8: "VP8",
  mp4a: "AAC",
  alac: "ALAC",
  "ac-3": "AC-3",
  "ec-3": "E-AC-3",
  dtsc: "DTS",
  opus: "Opus",
  flac: "FLAC",
  mp3: "MP3",
  vorbis: "Vorbis",
});

/**
 * The codecs of a media type, as people call them.
 * @param {string} mime such as `video/mp4; codecs="avc1.64001f,opus"`
 */
export function codecNames(mime) {
  const codecs = /codecs="?([^"]+)/.exec(mime)?.[1] ?? "";
  return codecs
    .split(",")
    .map((codec) => CODEC_NAMES[codec.trim().split(".")[0] ?? ""] ?? codec.trim())
    .join(", ");
}

// MP4 (ISO/IEC 14496-12).

/**
 * The whole boxes from `from` to `to`.
 * @param {Uint8Array} data
 * @param {number} from
 * @param {number} to
 * @returns {Generator<Box, void, void>}
 */
export function* boxes(data, from = 0, to = data.length) {
  const view = viewOf(data);
  for (let at = from; at + 8 <= to; ) {
    let size = view.getUint32(at);
    let body = at + 8;
    if (size === 1) {
      if (at + 16 > to) return;
      size = Number(view.getBigUint64(at + 8));
      body = at + 16;
    }
    if (size < body - at || at + size > to) return;
    yield { type: ascii(data, at + 4, 4), start: at, end: at + size, body };
    at += size;
  }
}

/**
 * @param {Uint8Array} data
 * @param {Box | null} parent
 * @param {string} type
 * @returns {Box | null}
 */
function child(data, parent, type) {
  if (!parent) return null;
  for (const box of boxes(data, parent.body, parent.end)) if (box.type === type) return box;
  return null;
}

/**
 * The name of a track's codec as Media Source Extensions want it (RFC 6381), from its sample entry.
 * @param {Uint8Array} data
 * @param {Box} entry
 */
function mp4Codec(data, entry) {
  // The fixed part of an entry of sound has 28 bytes, that of pictures 78.
  const inside = (/** @type {string} */ type, /** @type {number} */ fixed) => {
    for (const box of boxes(data, entry.body + fixed, entry.end)) if (box.type === type) return box;
    return null;
  };
  const { type } = entry;
  if (type === 'avc1' || type === 'avc3') {
    const at = inside('avcC', 78)?.body;
    return at === undefined ? type : `${type}.${hex(data[at + 1])}${hex(data[at + 2])}${hex(data[at + 3])}`;
  }
  if (type === 'hvc1' || type === 'hev1') {
    const at = inside('hvcC', 78)?.body;
    if (at === undefined) return type;
    const space = ['', 'A', 'B', 'C'][data[at + 1] >> 6];
    let flags = viewOf(data).getUint32(at + 2);
    let reversed = 0;
    for (let bit = 0; bit < 32; bit += 1, flags >>>= 1) reversed = ((reversed << 1) | (flags & 1)) >>> 0;
    const limits = [...data.subarray(at + 6, at + 12)];
    while (limits.at(-1) === 0) limits.pop();
    const tier = data[at + 1] & 0x20 ? 'H' : 'L';
    const rest = limits.map((byte) => `.${byte.toString(16)}`).join('');
    return `${type}.${space}${data[at + 1] & 0x1f}.${reversed.toString(16)}.${tier}${data[at + 12]}${rest}`;
  }
  if (type === 'av01') {
    const at = inside('av1C', 78)?.body;
    if (at === undefined) return type;
    const depth = data[at + 2] & 0x40 ? (data[at + 2] & 0x20 ? 12 : 10) : 8;
    const level = String(data[at + 1] & 0x1f).padStart(2, '0');
    return `av01.${data[at + 1] >> 5}.${level}${data[at + 2] & 0x80 ? 'H' : 'M'}.${String(depth).padStart(2, '0')}`;
  }
  if (type === 'vp09') {
    const at = inside('vpcC', 78)?.body;
    const two = (/** @type {number} */ value) => String(value).padStart(2, '0');
    return at === undefined ? type : `vp09.${two(data[at + 4])}.${two(data[at + 5])}.${two(data[at + 6] >> 4)}`;
  }
  if (type === 'mp4a') {
    const box = inside('esds', 28);
    return box ? mp4aCodec(data.subarray(box.body + 4, box.end)) : 'mp4a.40.2';
  }
  return { Opus: 'opus', fLaC: 'flac' }[type] ?? type;
}

/**
 * From the descriptors of an esds box (ISO/IEC 14496-1, 7.2.6): the object type, and for AAC the kind of it.
 * @param {Uint8Array} descriptors
 */
function mp4aCodec(descriptors) {
  let at = 0;
  const open = () => {
    const tag = descriptors[at++];
    while (at < descriptors.length && descriptors[at++] & 0x80);
    return tag;
  };
  if (open() !== 3) return 'mp4a.40.2';
  const flags = descriptors[at + 2];
  at += 3 + (flags & 0x80 ? 2 : 0) + (flags & 0x40 ? 1 + descriptors[at + 3] : 0) + (flags & 0x20 ? 2 : 0);
  if (open() !== 4) return 'mp4a.40.2';
  const kind = descriptors[at];
  if (kind !== 0x40) return kind === 0x6b || kind === 0x69 ? 'mp3' : `mp4a.${hex(kind)}`;
  at += 13;
  if (open() !== 5) return 'mp4a.40.2';
  const object = descriptors[at] >> 3;
  return `mp4a.40.${object === 31 ? 32 + (((descriptors[at] & 7) << 3) | (descriptors[at + 1] >> 5)) : object}`;
}

/**
 * Reads the init segment of an MP4; null until it is whole.
 * @param {Uint8Array} head
 * @returns {Init | null}
 */
export function readMp4Init(head) {
  let moov = null;
  for (const box of boxes(head)) if (box.type === 'moov') moov = box;
  if (!moov) return null;
  /** @type {Track[]} */
  const tracks = [];
  const view = viewOf(head);
  for (const trak of boxes(head, moov.body, moov.end)) {
    if (trak.type !== 'trak') continue;
    const tkhd = child(head, trak, 'tkhd');
    const mdia = child(head, trak, 'mdia');
    const mdhd = child(head, mdia, 'mdhd');
    const hdlr = child(head, mdia, 'hdlr');
    const stsd = child(head, child(head, child(head, mdia, 'minf'), 'stbl'), 'stsd');
    if (!tkhd || !mdhd || !hdlr || !stsd) continue;
    const [entry] = boxes(head, stsd.body + 8, stsd.end);
    if (!entry) continue;
    const handler = ascii(head, hdlr.body + 8, 4);
    const size = handler === 'vide' ? { width: view.getUint16(entry.body + 24), height: view.getUint16(entry.body + 26) } : {};
    tracks.push({
      ...size,
      id: view.getUint32(tkhd.body + (head[tkhd.body] ? 20 : 12)),
      timescale: view.getUint32(mdhd.body + (head[mdhd.body] ? 20 : 12)),
      kind: handler === 'vide' ? 'video' : handler === 'soun' ? 'audio' : 'other',
      codec: mp4Codec(head, entry),
      language: language(view.getUint16(mdhd.body + (head[mdhd.body] ? 32 : 20))),
    });
  }
  return { mime: mimeOf('mp4', tracks), tracks };
}

/**
 * The language of a track (8.4.2): three letters of five bits each; empty if it says that it has none.
 * @param {number} packed
 */
function language(packed) {
  const letters = [10, 5, 0].map((shift) => String.fromCharCode(0x60 + ((packed >> shift) & 31))).join('');
  return /^[a-z]{3}$/.test(letters) && letters !== 'und' ? letters : '';
}

/**
 * Where an MP4 segment begins, and when its first frame was made (a `prft` box, 8.16.5); null until its first `moof` is
 * whole.
 * @param {Uint8Array} head
 * @param {Track[]} tracks
 * @returns {SegmentTimes | null}
 */
export function readMp4Times(head, tracks) {
  const view = viewOf(head);
  let producerMs = null;
  for (const box of boxes(head)) {
    if (box.type === 'prft' && box.end - box.body >= 20) producerMs = ntpMs(view.getBigUint64(box.body + 8));
    if (box.type !== 'moof') continue;
    const starts = [];
    for (const traf of boxes(head, box.body, box.end)) {
      const tfhd = traf.type === 'traf' ? child(head, traf, 'tfhd') : null;
      const tfdt = traf.type === 'traf' ? child(head, traf, 'tfdt') : null;
      const track = tfhd && tracks.find(({ id }) => id === view.getUint32(tfhd.body + 4));
      if (!tfdt || !track) continue;
      starts.push(decodeTime(view, tfdt) / track.timescale);
    }
    return { startS: starts.length ? Math.min(...starts) : null, producerMs };
  }
  return null;
}

/** When the first sample of a fragment is decoded (8.8.12). @param {DataView} view @param {Box} tfdt */
function decodeTime(view, tfdt) {
  return view.getUint8(tfdt.body) ? Number(view.getBigUint64(tfdt.body + 4)) : view.getUint32(tfdt.body + 4);
}

/**
 * The runs of samples (`trun`, 8.8.8) of an MP4 fragment. `defaultFlags`: of a sample that has none of its own; `first`:
 * where the first sample stands, `size`: bytes of each; `defaultDuration`, `defaultSize`: left out if the fragment does
 * not say one; `time`: of the first sample (`tfdt`); `dataAt`: where its bytes are, from the beginning of the `moof`. Both
 * are null if the fragment does not say so.
 * @param {Uint8Array} data
 * @param {Track[]} tracks
 */
export function* runs(data, tracks) {
  const view = viewOf(data);
  for (const moof of boxes(data)) {
    if (moof.type !== "moof") continue;
    for (const traf of boxes(data, moof.body, moof.end)) {
      const tfhd = traf.type === "traf" ? child(data, traf, "tfhd") : null;
      const trun = traf.type === "traf" ? child(data, traf, "trun") : null;
      const track = tfhd && tracks.find(({ id }) => id === view.getUint32(tfhd.body + 4));
      if (!tfhd || !trun || !track) continue;
      const tfdt = child(data, traf, "tfdt");
      const given = view.getUint32(tfhd.body);
      // Before the default flags stand an offset of 8 bytes, and three numbers of 4.
      const before = (given & 0x1 ? 8 : 0) + (given & 0x2 ? 4 : 0) + (given & 0x8 ? 4 : 0) + (given & 0x10 ? 4 : 0);
      const has = view.getUint32(trun.body);
      const size = [0x100, 0x200, 0x400, 0x800].reduce((sum, flag) => sum + (has & flag ? 4 : 0), 0);
      yield {
        track,
        has,
        count: view.getUint32(trun.body + 4),
        defaultDuration: given & 0x8 ? view.getUint32(tfhd.body + 8 + (given & 0x1 ? 8 : 0) + (given & 0x2 ? 4 : 0)) : undefined,
        defaultSize: given & 0x10 ? view.getUint32(tfhd.body + 4 + before) : undefined,
        time: tfdt && decodeTime(view, tfdt),
        dataAt: has & 0x1 && !(given & 0x1) ? view.getInt32(trun.body + 8) : null,
        defaultFlags: given & 0x20 ? view.getUint32(tfhd.body + 8 + before) : 0,
        first: trun.body + 8 + (has & 0x1 ? 4 : 0) + (has & 0x4 ? 4 : 0),
        size,
      };
    }
  }
}

/**
 * Whether the pictures of an MP4 fragment begin with a keyframe (8.8.3.1); a fragment of sound alone begins everywhere.
 * @param {Uint8Array} data
 * @param {Track[]} tracks
 */
export function startsWithKeyframe(data, tracks) {
  const view = viewOf(data);
  for (const { track, has, first, defaultFlags } of runs(data, tracks)) {
    if (track.kind !== "video") continue;
    let flags = defaultFlags;
    if (has & 0x4) flags = view.getUint32(first - 4);
    else if (has & 0x400) flags = view.getUint32(first + (has & 0x100 ? 4 : 0) + (has & 0x200 ? 4 : 0));
    return !(flags & 0x10000);
  }
  return true;
}

/**
 * Give the last sound of an MP4 fragment the duration of the one before it. Chromium's recorder writes a third of it, and
 * its player then takes the next fragment for a leap in time, and drops the pictures up to the next keyframe.
 * @param {Uint8Array} data changed in place
 * @param {Track[]} tracks
 */
export function mendLastDuration(data, tracks) {
  const view = viewOf(data);
  for (const { track, has, count, first, size } of runs(data, tracks)) {
    if (track.kind !== "audio" || !(has & 0x100) || count < 2) continue;
    const last = first + (count - 1) * size;
    view.setUint32(last, Math.max(view.getUint32(last), view.getUint32(last - size)));
  }
}

/** @param {bigint} ntp 64 bits: seconds, which wrap in 2036, and a binary fraction (RFC 4330, section 3) */
function ntpMs(ntp) {
  let seconds = Number(ntp >> 32n);
  if (seconds < 2 ** 31) seconds += 2 ** 32;
  return (seconds - NTP_EPOCH_S) * 1000 + (Number(ntp & 0xffff_ffffn) * 1000) / 2 ** 32;
}

/**
 * @param {'mp4' | 'webm'} container
 * @param {Track[]} tracks
 */
export function mimeOf(container, tracks) {
  const kind = tracks.some((track) => track.kind === 'video') ? 'video' : 'audio';
  return `${kind}/${container}; codecs="${tracks.map((track) => track.codec).join(',')}"`;
}

// WebM (RFC 8794, RFC 9559).

export const EBML = 0x1a45dfa3;
export const SEGMENT = 0x18538067;
export const CLUSTER = 0x1f43b675;
export const SIMPLE_BLOCK = 0xa3;
const INFO = 0x1549a966;
const TRACKS = 0x1654ae6b;
const TRACK_ENTRY = 0xae;
const TIMESTAMP_SCALE = 0x2ad7b1;
const TIMESTAMP = 0xe7;

const WEBM_CODECS = /** @type {Record<string, string>} */ ({
  V_VP8: 'vp8',
  V_VP9: 'vp9',
  V_AV1: 'av01.0.04M.08',
  A_OPUS: 'opus',
  A_VORBIS: 'vorbis',
});

/**
 * The elements from `from` to `to`, those whose end is not there yet included. The size of a live Segment or Cluster is
 * not known: its `end` is Infinity, and its children follow as if they were its siblings.
 * @param {Uint8Array} data
 * @param {number} from
 * @param {number} to
 * @returns {Generator<{id: number, start: number, body: number, end: number}, void, void>}
 */
export function* elements(data, from = 0, to = data.length) {
  for (let at = from; at < to; ) {
    const idBytes = Math.clz32(data[at]) - 23;
    if (idBytes > 4 || at + idBytes >= to) return;
    let id = 0;
    for (let i = 0; i < idBytes; i += 1) id = id * 256 + data[at + i];
    const sizeAt = at + idBytes;
    const sizeBytes = Math.clz32(data[sizeAt]) - 23;
    if (sizeBytes > 8 || sizeAt + sizeBytes > to) return;
    let size = data[sizeAt] & (0xff >> sizeBytes);
    let unknown = size === 0xff >> sizeBytes;
    for (let i = 1; i < sizeBytes; i += 1) {
      size = size * 256 + data[sizeAt + i];
      unknown &&= data[sizeAt + i] === 0xff;
    }
    const body = sizeAt + sizeBytes;
    yield { id, start: at, body, end: unknown ? Infinity : body + size };
    at = unknown || id === SEGMENT || id === CLUSTER ? body : body + size;
  }
}

/**
 * @param {Uint8Array} data
 * @param {number} from
 * @param {number} to
 */
function unsigned(data, from, to) {
  let value = 0;
  for (let at = from; at < to; at += 1) value = value * 256 + data[at];
  return value;
}

/**
 * Reads the init segment of a WebM; null until its tracks are whole.
 * @param {Uint8Array} head
 * @returns {Init | null}
 */
export function readWebmInit(head) {
  let scale = 1_000_000;
  for (const element of elements(head)) {
    if (element.end !== Infinity && element.end > head.length) continue;
    if (element.id === INFO) {
      for (const item of elements(head, element.body, element.end)) {
        if (item.id === TIMESTAMP_SCALE) scale = unsigned(head, item.body, item.end);
      }
    }
    if (element.id !== TRACKS) continue;
    /** @type {Track[]} */
    const tracks = [];
    for (const entry of elements(head, element.body, element.end)) {
      if (entry.id !== TRACK_ENTRY) continue;
      /** @type {Track} */
      const track = { id: 0, timescale: 1e9 / scale, kind: 'other', codec: '' };
      for (const item of elements(head, entry.body, entry.end)) {
        if (item.id === 0xd7) track.id = unsigned(head, item.body, item.end);
        if (item.id === 0x83) track.kind = head[item.body] === 1 ? 'video' : head[item.body] === 2 ? 'audio' : 'other';
        if (item.id === 0x86) track.codec = ascii(head, item.body, item.end - item.body);
      }
      track.codec = WEBM_CODECS[track.codec] ?? track.codec;
      tracks.push(track);
    }
    return { mime: mimeOf('webm', tracks), tracks };
  }
  return null;
}

/**
 * Where a WebM segment begins; null until its first cluster has begun.
 * @param {Uint8Array} head
 * @param {Track[]} tracks
 * @returns {SegmentTimes | null}
 */
export function readWebmTimes(head, tracks) {
  let inCluster = false;
  for (const element of elements(head)) {
    inCluster ||= element.id === CLUSTER;
    if (inCluster && element.id === TIMESTAMP && element.end <= head.length) {
      return { startS: unsigned(head, element.body, element.end) / (tracks[0]?.timescale ?? 1000), producerMs: null };
    }
  }
  return null;
}

// MPEG-TS (ISO/IEC 13818-1).

/**
 * When an MPEG-TS segment's first frame is shown (its PES header), and when it was made (a TEMI descriptor, Annex U);
 * null until the head holds such a time.
 * @param {Uint8Array} head
 * @returns {SegmentTimes | null}
 */
export function readTsTimes(head) {
  const view = viewOf(head);
  let producerMs = null;
  for (let at = 0; at + TS_PACKET <= head.length && head[at] === 0x47; at += TS_PACKET) {
    const adaptation = head[at + 3] & 0x20 ? head[at + 4] : -1;
    if (adaptation > 0 && head[at + 5] & 0x01) producerMs ??= readTemi(head, view, at + 5, at + 5 + adaptation);
    const payload = at + 5 + adaptation;
    const begins = head[at + 1] & 0x40 && head[at + 3] & 0x10;
    if (!begins || payload + 14 > at + TS_PACKET) continue;
    const isMedia = head[payload] === 0 && head[payload + 1] === 0 && head[payload + 2] === 1;
    if (!isMedia || !(head[payload + 7] & 0x80)) continue;
    const p = payload + 9;
    const ticks =
      (head[p] & 0x0e) * 2 ** 29 + (view.getUint16(p + 1) >> 1) * 2 ** 15 + (view.getUint16(p + 3) >> 1);
    return { startS: ticks / TS_CLOCK_HZ, producerMs };
  }
  return null;
}

/**
 * @param {Uint8Array} data
 * @param {DataView} view
 * @param {number} field where the flags of an adaptation field stand
 * @param {number} end its end
 */
function readTemi(data, view, field, end) {
  const flags = data[field];
  let at = field + 1 + (flags & 0x10 ? 6 : 0) + (flags & 0x08 ? 6 : 0) + (flags & 0x04 ? 1 : 0);
  if (flags & 0x02) at += 1 + data[at];
  const extension = data[at + 1];
  if (at + 2 > end || extension & 0x10) return null;
  const stop = Math.min(end, at + 1 + data[at]);
  at += 2 + (extension & 0x80 ? 2 : 0) + (extension & 0x40 ? 3 : 0) + (extension & 0x20 ? 5 : 0);
  for (; at + 2 <= stop; at += 2 + data[at + 1]) {
    if (data[at] !== 0x04 || data[at + 1] < 3 || !(data[at + 2] & 0x20)) continue;
    const ntp = at + 5 + [0, 8, 12, NaN][data[at + 2] >> 6];
    if (ntp + 8 <= stop) return ntpMs(view.getBigUint64(ntp));
  }
  return null;
}

/**
 * Follows a segment's bytes, to tell at its end whether it is whole. The server may cut a segment short while a page
 * reads it, and says so in a trailer, which a page cannot see. MP4 must end with a box, MPEG-TS with a packet. Segments
 * of other containers always count as whole.
 */
export class Whole {
  /** @param {Container} container */
  constructor(container) {
    this.container = container;
    /** @private bytes of the present box that are still to come */
    this.missing = 0;
    /** @private @type {Uint8Array} the beginning of a box header */
    this.rest = new Uint8Array();
  }

  /** @param {Uint8Array} data */
  push(data) {
    if (this.container === 'mpegts') this.missing = (this.missing + data.length) % TS_PACKET;
    if (this.container !== 'mp4') return;
    let at = 0;
    while (at < data.length) {
      if (this.missing > 0) {
        const step = Math.min(this.missing, data.length - at);
        this.missing -= step;
        at += step;
        continue;
      }
      const header = joined([this.rest, data.subarray(at, at + 16 - this.rest.length)]);
      const size = header.length >= 8 ? viewOf(header).getUint32(0) : 1;
      if (size === 1 && header.length < 16) {
        this.rest = header;
        return;
      }
      this.missing = (size === 1 ? Number(viewOf(header).getBigUint64(8)) : Math.max(size, 8)) - this.rest.length;
      this.rest = new Uint8Array();
    }
  }

  /** Whether the segment may end here. */
  get isWhole() {
    return this.missing === 0 && this.rest.length === 0;
  }
}
