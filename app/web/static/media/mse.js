/**
 * Plays segments of fragmented MP4 and WebM, and of AAC and MP3, through Media Source Extensions (W3C).
 *
 * All segments lie on one time line without holes, whatever their own times are: after a gap, or when another publisher
 * begins, the first segment is put where the buffer ends (`timestampOffset`).
 */

import { Mp4Tap } from "./captions.js";
import { codecNames, joined, mimeOf, readMp4Init, readMp4Times, readWebmInit, readWebmTimes, Whole } from "./containers.js";
import { ProducerClock } from "./live.js";
import { SilentMp4 } from "./silent.js";

/** Deviations of a segment's time from the end of the buffer below this are the media's own. */
const CONTINUES_S = 0.5;
/** Media behind the playback position is kept for this time, and removed in steps. */
const KEPT_S = 15;
const TRIM_S = 10;
/** A segment's beginning that is longer than this and has no init segment is none that can be played. */
const MAX_HEAD = 1 << 20;
/** A beginning of more than this is looked at again only when it has grown by a quarter: the work stays linear. */
const EAGER_HEAD = 64 << 10;

/** The browser cannot play this media; the message says what it is. */
export class Unplayable extends Error {}

/** @param {string} mime the type for which the browser has no decoder */
export function unsupported(mime) {
  return new Unplayable(`This browser cannot play ${codecNames(mime)} (${mime}).`);
}

/** Plays one channel in one media element. */
export class MseSink {
  /**
   * @param {HTMLMediaElement} video
   * @param {import("./containers.js").Container} container
   * @param {() => void} onReset the time line begins anew
   */
  constructor(video, container, onReset) {
    this.video = video;
    this.container = container;
    this.onReset = onReset;
    /** The media's type with its codecs, as `video/mp4; codecs="avc1.64001f,mp4a.40.2"`. */
    this.mime = "";
    this.clock = new ProducerClock();
    /** @private null until the first segment is known @type {MediaSource | null} */
    this.source = null;
    /** @private takes the bytes; null until the first segment is known @type {SourceBuffer | null} */
    this.buffer = null;
    /** @private of the newest init segment @type {import("./containers.js").Track[]} */
    this.tracks = [];
    /** @private the beginning of a segment, until its times are known @type {Uint8Array[] | null} */
    this.head = null;
    /** @private size of the beginning, in bytes */
    this.headBytes = 0;
    /** @private the beginning is not looked at before it has this size */
    this.lookAt = 0;
    /** Whether the sound is not wanted. */
    this.isMute = false;
    /** The codec of the sound that is left out, since the browser cannot decode it; else empty. */
    this.deaf = "";
    /** The tracks of sound, if the user may choose among several. @type {import("./containers.js").Track[]} */
    this.sounds = [];
    /** @private the id of the track that the user has chosen */
    this.chosen = 0;
    /** @private takes the sound out @type {SilentMp4 | null} */
    this.silencer = null;
    this.whole = new Whole(container);
    /** Shows the captions in the pictures of MP4. @type {import("./captions.js").Captions | null} */
    this.captions = null;
    /** @private finds the captions of the present segment @type {Mp4Tap | null} */
    this.tap = null;
    /** @private the last segment was not whole: the buffer must drop the rest of its last box */
    this.broken = false;
    /** @private whether the next segment begins a new time line */
    this.isFresh = false;
    /** @private whether the present time line has a segment */
    this.placed = false;
    /** @private of the media source, for the element */
    this.url = "";
  }

  /** A segment begins. */
  begin() {
    this.head = [];
    this.headBytes = this.lookAt = 0;
    this.silencer?.begin();
    this.tap = new Mp4Tap((timeS, pairs) => this.captions?.add(timeS + (this.buffer?.timestampOffset ?? 0), pairs));
    this.whole = new Whole(this.container);
  }

  /**
   * Take bytes of the segment. Resolves when the browser has taken them.
   * @param {Uint8Array} data
   * @throws {Unplayable}
   */
  async push(data) {
    this.whole.push(data);
    if (!this.head) return this.append(data);
    this.head.push(data);
    this.headBytes += data.length;
    if (this.headBytes < this.lookAt) return;
    this.lookAt = this.headBytes > EAGER_HEAD ? this.headBytes * 1.25 : 0;
    const head = joined(this.head);
    const isMp4 = this.container === "mp4";
    if (isMp4 || this.container === "webm") {
      const init = isMp4 ? readMp4Init(head) : readWebmInit(head);
      const tracks = init?.tracks ?? this.tracks;
      const times = isMp4 ? readMp4Times(head, tracks) : readWebmTimes(head, tracks);
      if (times ? !tracks.length : head.length > MAX_HEAD) {
        throw new Unplayable("The segments do not begin with an init segment.");
      }
      if (!times) return;
      this.head = null;
      await this.prepare(init?.mime ?? this.mime, tracks, times.startS, times.producerMs);
    } else {
      this.head = null;
      await this.prepare(this.container === "aac" ? "audio/aac" : "audio/mpeg", [], null, null);
    }
    await this.append(head);
  }

  /** The segment is over; returns whether its media is whole. */
  end() {
    const { isWhole } = this.whole;
    this.broken ||= !isWhole || (this.head !== null && this.head.length > 0);
    this.head = null;
    return isWhole;
  }

  /** Another publisher begins. */
  restart() {
    this.broken = true;
  }

  /** Play this track of sound from the next segment on. @param {number} id */
  choose(id) {
    this.chosen = id;
  }

  /** The user has chosen another time: the next segment begins a new time line. */
  anew() {
    this.isFresh = true;
  }

  /** The channel has ended: the browser need not wait for more, and shows the last pictures. */
  finish() {
    if (this.source?.readyState !== "open" || this.buffer?.updating) return;
    if (this.broken) this.buffer?.abort();
    this.source.endOfStream();
  }

  /** When the picture that is shown was made, in milliseconds since 1970; null if the media does not tell. */
  get producerMs() {
    return this.clock.at(this.video.currentTime);
  }

  /** Let the element go. */
  close() {
    this.buffer = null;
    this.source = null;
    if (this.url) URL.revokeObjectURL(this.url);
    this.video.removeAttribute("src");
    this.video.load();
  }

  /**
   * @private
   * @param {string} mime
   * @param {import("./containers.js").Track[]} tracks
   * @param {number | null} startS
   * @param {number | null} producerMs
   */
  async prepare(mime, tracks, startS, producerMs) {
    if (tracks !== this.tracks) [mime, tracks] = this.playable(mime, tracks);
    const kinds = (/** @type {import("./containers.js").Track[]} */ list) => list.map(({ kind }) => kind).join();
    if (!this.buffer || this.isFresh || this.video.error || kinds(tracks) !== kinds(this.tracks)) {
      await this.open(mime);
    } else if (this.broken || this.container === "webm") {
      // A source that was ended opens again, which `abort` needs.
      if (this.source?.readyState === "ended") this.buffer.timestampOffset += 0;
      // What is left of a box that broke off must not be read as the beginning of the next one. Nothing tells that a
      // WebM segment is not whole.
      this.buffer.abort();
    }
    const buffer = /** @type {SourceBuffer} */ (this.buffer);
    if (mime !== this.mime && this.mime) {
      if (!MediaSource.isTypeSupported(mime)) throw unsupported(mime);
      buffer.changeType(mime);
    }
    this.mime = mime;
    this.tracks = tracks;
    this.broken = false;
    if (startS === null) return;
    const { buffered } = buffer;
    const end = buffered.length ? buffered.end(buffered.length - 1) : 0;
    // As long as one of the tracks has nothing yet, nothing counts as buffered.
    const leap = buffered.length ? Math.abs(startS + buffer.timestampOffset - end) : 0;
    if (!this.placed || leap > CONTINUES_S) buffer.timestampOffset = end - startS;
    this.placed = true;
    if (producerMs === null) return;
    this.clock.note(startS + buffer.timestampOffset, producerMs);
  }

  /**
   * The media's type and tracks as the browser is given them: the pictures and one track of sound, or the pictures alone
   * if it can play no more.
   * @private
   * @param {string} mime
   * @param {import("./containers.js").Track[]} tracks
   * @returns {[string, import("./containers.js").Track[]]}
   */
  playable(mime, tracks) {
    this.silencer = null;
    this.deaf = "";
    this.sounds = [];
    if (this.container !== "mp4") return [mime, tracks];
    const pictures = tracks.filter(({ kind }) => kind === "video");
    const sounds = tracks.filter(({ kind }) => kind === "audio");
    const can = (/** @type {import("./containers.js").Track[]} */ some) =>
      MediaSource.isTypeSupported(mimeOf("mp4", some));
    const heard = [...sounds.filter(({ id }) => id === this.chosen), ...sounds].find((one) => can([...pictures, one]));
    let kept = [...pictures, ...(this.isMute ? [] : sounds)];
    if (sounds.length > 1 && heard && !this.isMute) {
      this.sounds = sounds.filter((one) => can([...pictures, one]));
      kept = [...pictures, heard];
    }
    if (pictures.length && !can(kept) && can(pictures)) kept = pictures;
    if (!can(kept)) return [mime, tracks];
    if (kept === pictures || this.isMute) this.deaf = sounds.length ? codecNames(mimeOf("mp4", sounds)) : "";
    // A browser takes no track of text, nor of anything else.
    const others = tracks.filter((one) => !kept.includes(one));
    if (others.length) this.silencer = new SilentMp4(others.map(({ id }) => id));
    return [mimeOf("mp4", kept), kept];
  }

  /**
   * Begin a new time line.
   * @private
   * @param {string} mime
   */
  async open(mime) {
    if (!MediaSource.isTypeSupported(mime)) throw unsupported(mime);
    if (this.url) URL.revokeObjectURL(this.url);
    const source = new MediaSource();
    const opened = new Promise((resolve) => source.addEventListener("sourceopen", resolve, { once: true }));
    this.url = URL.createObjectURL(source);
    this.video.src = this.url;
    this.onReset();
    await opened;
    this.source = source;
    this.buffer = source.addSourceBuffer(mime);
    if (this.container === "aac" || this.container === "mp3") this.buffer.mode = "sequence";
    source.duration = Infinity;
    this.placed = this.isFresh = false;
    this.clock = new ProducerClock();
    this.mime = "";
  }

  /**
   * @private
   * @param {Uint8Array} data
   */
  async append(data) {
    const { buffer } = this;
    const { source } = this;
    if (this.captions && this.container === "mp4") this.tap?.push(data, this.tracks);
    if (this.silencer) data = this.silencer.push(data);
    if (!data.length) return;
    if (!buffer || !source || source.readyState === "closed") return;
    for (let attempt = 1; ; attempt += 1) {
      try {
        buffer.appendBuffer(/** @type {Uint8Array<ArrayBuffer>} */ (data));
        break;
      } catch (error) {
        const isFull = error instanceof DOMException && error.name === "QuotaExceededError";
        if (!isFull || attempt > 1) throw error;
        await this.trim(1);
      }
    }
    await idle(buffer);
    // It may have been ended, which gave it a duration.
    if (source.readyState === "open" && source.duration !== Infinity) source.duration = Infinity;
    const { buffered } = buffer;
    if (buffered.length && this.video.currentTime - buffered.start(0) > KEPT_S + TRIM_S) await this.trim(KEPT_S);
  }

  /**
   * Remove what is further than this behind the playback position.
   * @private
   * @param {number} seconds
   */
  async trim(seconds) {
    const { buffer } = this;
    const until = this.video.currentTime - seconds;
    if (!buffer || until <= 0) return;
    buffer.remove(0, until);
    await idle(buffer);
  }
}

/**
 * Wait until the browser has done what it was asked for.
 * @param {SourceBuffer} buffer
 * @returns {Promise<void>}
 */
function idle(buffer) {
  return new Promise((resolve) => {
    if (buffer.updating) buffer.addEventListener("updateend", () => resolve(), { once: true });
    else resolve();
  });
}
