/**
 * Cuts the output of a MediaRecorder into segments that stand alone: an init segment, then media from a keyframe on.
 *
 * The recorder runs through, so that nothing is lost between two segments. Chromium writes one fragment (`moof`, `mdat`)
 * for each keyframe.
 */

import {
  boxes,
  CLUSTER,
  elements,
  joined,
  mendLastDuration,
  readMp4Init,
  readMp4Times,
  readWebmInit,
  SIMPLE_BLOCK,
  startsWithKeyframe,
} from "./containers.js";

const NTP_EPOCH_S = 2_208_988_800;

/**
 * Cuts fragmented MP4. Each segment gets a `prft` box (ISO/IEC 14496-12, 8.16.5) with the time of its first picture, so
 * that players can tell the latency.
 */
export class Mp4Cutter {
  constructor() {
    /** @private @type {Uint8Array} the beginning of a fragment that is not whole */
    this.rest = new Uint8Array();
    /** @private @type {Uint8Array} the init segment */
    this.init = new Uint8Array();
    /** @private of the init segment @type {import("./containers.js").Track[]} */
    this.tracks = [];
    /** @private @type {Uint8Array[]} the segment that is being gathered */
    this.parts = [];
    /** @private each fragment so far began with a keyframe, so each is a segment */
    this.oneEach = true;
    /** @private @type {number} Unix time at which the time line begins, in milliseconds: the earliest estimate */
    this.originMs = Infinity;
    /** @private when the last fragment begins on the media's time line */
    this.startS = 0;
  }

  /**
   * Take bytes of the recorder; returns the segments that they complete.
   * @param {Uint8Array} data
   * @param {number} nowMs Unix time of the recorder's event, in milliseconds
   * @returns {Uint8Array<ArrayBuffer>[]}
   */
  push(data, nowMs) {
    this.rest = joined([this.rest, data]);
    /** @type {Uint8Array<ArrayBuffer>[]} */
    const segments = [];
    let from = 0;
    for (const box of boxes(this.rest)) {
      if (box.type === "moov") {
        this.init = this.rest.slice(from, box.end);
        this.tracks = readMp4Init(this.init)?.tracks ?? [];
        from = box.end;
      } else if (box.type === "mdat") {
        segments.push(...this.fragment(this.rest.slice(from, box.end), nowMs));
        from = box.end;
      }
    }
    this.rest = this.rest.slice(from);
    return segments;
  }

  /** The recorder has ended: the last segment. */
  end() {
    const last = this.parts.length ? [joined(this.parts)] : [];
    this.parts = [];
    return last;
  }

  /**
   * @private
   * @param {Uint8Array} data
   * @param {number} nowMs
   */
  fragment(data, nowMs) {
    const startS = readMp4Times(data, this.tracks)?.startS ?? this.startS;
    // The recorder writes a fragment when its last picture is there; it is about as long as the one before.
    this.originMs = Math.min(this.originMs, nowMs - 1000 * (2 * startS - this.startS));
    this.startS = startS;
    mendLastDuration(data, this.tracks);
    const begins = startsWithKeyframe(data, this.tracks);
    this.oneEach &&= begins;
    const segments = begins ? this.end() : [];
    if (!this.parts.length) this.parts.push(this.init, this.time(startS));
    this.parts.push(data);
    return this.oneEach ? this.end() : segments;
  }

  /**
   * @private
   * @param {number} startS
   */
  time(startS) {
    const track = this.tracks.find(({ kind }) => kind === "video") ?? this.tracks[0];
    const box = new DataView(new ArrayBuffer(32));
    const ms = this.originMs + startS * 1000;
    box.setUint32(0, 32);
    box.setUint32(4, 0x70726674); // prft
    box.setUint32(8, 0x01000018); // version 1; the time is that of the capture
    box.setUint32(12, track?.id ?? 1);
    box.setUint32(16, Math.floor(ms / 1000) + NTP_EPOCH_S);
    box.setUint32(20, Math.floor(((ms % 1000) / 1000) * 2 ** 32));
    box.setBigUint64(24, BigInt(Math.round(startS * (track?.timescale ?? 1000))));
    return new Uint8Array(box.buffer);
  }
}

/** Cuts WebM. Chromium begins a Cluster with each keyframe and, between them, whenever one has lasted 100 ms. */
export class WebmCutter {
  constructor() {
    /** @private @type {Uint8Array} bytes of the segment that is not whole */
    this.rest = new Uint8Array();
    /** @private @type {Uint8Array | null} the init segment, once it is whole */
    this.init = null;
    /** @private @type {number | undefined} the number of the video track */
    this.picture = 0;
  }

  /**
   * @param {Uint8Array} data
   * @returns {Uint8Array<ArrayBuffer>[]}
   */
  push(data) {
    this.rest = joined([this.rest, data]);
    const { rest } = this;
    /** @type {Uint8Array<ArrayBuffer>[]} */
    const segments = [];
    let from = 0;
    let cluster = 0;
    for (const { id, start, body } of elements(rest)) {
      if (id === CLUSTER) {
        cluster = start;
        if (this.init) continue;
        this.init = rest.slice(0, start);
        this.picture = readWebmInit(this.init)?.tracks.find(({ kind }) => kind === "video")?.id;
        from = start;
      } else if (this.init && id === SIMPLE_BLOCK && cluster > from && body + 4 <= rest.length) {
        // The number of the track, a time of two bytes, and flags (RFC 9559, 10.2).
        if ((rest[body] & 0x7f) !== (this.picture ?? 1)) continue;
        if (rest[body + 3] & 0x80) {
          segments.push(joined([this.init, rest.subarray(from, cluster)]));
          from = cluster;
        }
        cluster = 0;
      }
    }
    this.rest = rest.slice(this.init ? from : 0);
    return segments;
  }

  end() {
    const last = this.init && this.rest.length ? [joined([this.init, this.rest])] : [];
    this.rest = new Uint8Array();
    return last;
  }
}
