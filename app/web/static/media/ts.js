/**
 * Plays MPEG-TS segments through mpegts.js (Apache-2.0, in `vendor/`), which turns them into fragmented MP4 for Media
 * Source Extensions. This module gives it the bytes, and begins a new time line when another publisher begins.
 */

import { sinceTs, TsTap } from "./captions.js";
import { codecNames, joined, readTsTimes, Whole } from "./containers.js";
import { ProducerClock } from "./live.js";
import { Unplayable, unsupported } from "./mse.js";
import { SilentTs } from "./silent.js";

const PACKET = 188;
/** The times of a segment stand in its first packets. */
const MAX_HEAD = PACKET * 64;
/** What came before the player finds out that it cannot decode the sound is given to the next one: this much. */
const MAX_KEPT = 8 << 20;
/** When it has played for so long, in seconds, it can decode the sound. */
const DECODES_S = 1;
/** A time line that goes back, or leaps by more than this, is another one. */
const LEAP_S = 10;

/** @type {Promise<Mpegts.Library> | null} */
let loading = null;

/** Load mpegts.js, once it is needed. */
function library() {
  loading ??= (async () => {
    const scope = /** @type {Record<string, unknown>} */ (/** @type {unknown} */ (globalThis));
    /** @type {Mpegts.Library | null} */
    let loaded = null;
    // The library is not an ES module. It registers with an AMD loader, if there is one: here is a small one. A script
    // element would need an exception from Trusted Types.
    const define = (/** @type {unknown} */ _, /** @type {() => Mpegts.Library} */ make) => (loaded = make());
    scope["define"] = Object.assign(define, { amd: true });
    try {
      await import(new URL("../mpegts.js/mpegts.js", import.meta.url).href);
    } finally {
      delete scope["define"];
    }
    if (!loaded) throw new Unplayable("mpegts.js cannot be loaded.");
    return /** @type {Mpegts.Library} */ (loaded);
  })();
  return loading;
}

/** Plays one channel in one media element; its methods are those of `MseSink`. */
export class TsSink {
  /**
   * @param {HTMLMediaElement} video
   * @param {() => void} onReset the time line begins anew
   */
  constructor(video, onReset) {
    this.video = video;
    this.onReset = onReset;
    this.container = "mpegts";
    this.mime = "";
    this.clock = new ProducerClock();
    this.whole = new Whole("mpegts");
    /** @private of the present time line @type {Mpegts.Player | null} */
    this.player = null;
    /** @private gives bytes to the player @type {((data: Uint8Array) => void) | null} */
    this.feed = null;
    /** @private the beginning of a segment, until its times are known @type {Uint8Array[] | null} */
    this.head = null;
    /** @private @type {Uint8Array} the beginning of a packet */
    this.rest = new Uint8Array();
    /** @private the media time at which the present time line begins */
    this.baseS = NaN;
    /** @private the media time at which the newest segment begins */
    this.newestS = NaN;
    /** Why nothing can be played. The player may find out long after it took the bytes. @type {Unplayable | null} */
    this.failure = null;
    /** The codec of the sound that is left out, since the browser cannot decode it; else empty. */
    this.deaf = "";
    /** Shows the captions in the pictures. @type {import("./captions.js").Captions | null} */
    this.captions = null;
    /** @private finds the captions of the present segment @type {TsTap | null} */
    this.tap = null;
    /** Takes out the sound that is not played: all but the first. */
    this.silencer = new SilentTs(null);
    /** @private all that the player was given; null: the next one does not need it @type {Uint8Array[] | null} */
    this.kept = null;
    /** @private bytes of that */
    this.keptBytes = 0;
    /** @private settled, but while another player takes over @type {Promise<void>} */
    this.ready = Promise.resolve();
    /** @private the player has failed. The next segment destroys it: it still runs while it reports the error. */
    this.broken = false;
  }

  begin() {
    this.head = [];
    this.rest = new Uint8Array();
    this.whole = new Whole("mpegts");
    this.tap = new TsTap((ticks, pairs) => this.captions?.add(sinceTs(ticks, this.baseS), pairs));
  }

  /**
   * @param {Uint8Array} data
   * @throws {Unplayable}
   */
  async push(data) {
    this.whole.push(data);
    await this.ready;
    if (!this.head) return this.give(data);
    this.head.push(data);
    const head = joined(this.head);
    const times = readTsTimes(head);
    if (!times && head.length < MAX_HEAD) return;
    this.head = null;
    const startS = times?.startS ?? NaN;
    const leap = startS - this.newestS;
    if (!this.player || this.broken || this.video.error || leap < -1 || leap > LEAP_S) await this.open(startS);
    this.newestS = startS;
    if (times && times.producerMs !== null) {
      this.clock.note(startS - this.baseS, times.producerMs);
    }
    this.give(head);
  }

  /**
   * Hand over whole packets. Half a packet, left by a segment that was cut short, would shift all later ones.
   * @private
   * @param {Uint8Array} data
   */
  give(data) {
    const all = joined([this.rest, data]);
    const whole = all.length - (all.length % PACKET);
    this.rest = all.subarray(whole);
    if (!whole) return;
    const packets = all.subarray(0, whole);
    if (this.kept) {
      this.keptBytes += whole;
      this.kept.push(packets);
      if (this.keptBytes > MAX_KEPT || this.video.currentTime > DECODES_S) this.kept = null;
    }
    this.feed?.(this.silencer.push(packets));
    if (this.captions) this.tap?.push(packets, this.silencer.pictures);
  }

  /** The tracks of sound, if the user may choose among several. */
  get sounds() {
    return this.deaf || this.silencer.sounds.length < 2 ? [] : this.silencer.sounds;
  }

  /** Play this track of sound from the next segment on. @param {number} id */
  choose(id) {
    this.silencer = new SilentTs(id);
    this.broken = true; // the player may not see that another stream begins
  }

  /**
   * Play all that has come once more, without its sound.
   * @private
   * @param {Uint8Array[]} packets
   */
  async again(packets) {
    await new Promise((resolve) => setTimeout(resolve)); // the player still runs while it reports the error
    await this.open(this.baseS);
    for (const one of packets) this.feed?.(this.silencer.push(one));
  }

  end() {
    if (this.head?.length) this.give(joined(this.head));
    this.head = null;
    this.tap?.end(this.silencer.pictures);
    return this.whole.isWhole;
  }

  restart() {
    this.destroy();
  }

  anew() {
    this.destroy();
  }

  finish() {}

  get producerMs() {
    return this.clock.at(this.video.currentTime);
  }

  close() {
    this.destroy();
    this.video.removeAttribute("src");
    this.video.load();
  }

  /** @private */
  destroy() {
    this.player?.destroy();
    this.player = null;
    this.feed = null;
    this.kept = null;
  }

  /**
   * @private
   * @param {number} startS
   */
  async open(startS) {
    const mpegts = await library();
    mpegts.LoggingControl.enableAll = false;
    if (!mpegts.isSupported()) throw new Unplayable("This browser has no Media Source Extensions.");
    this.destroy();
    this.broken = false;
    if (!this.deaf) [this.kept, this.keptBytes] = [[], 0];
    this.onReset();
    this.baseS = startS;
    this.clock = new ProducerClock();
    this.mime = "";
    /** @type {(feed: (data: Uint8Array) => void) => void} */
    let opened = () => {};
    const isOpen = new Promise((/** @type {(feed: (data: Uint8Array) => void) => void} */ resolve) => (opened = resolve));

    class Loader extends mpegts.BaseLoader {
      constructor() {
        super("trickle");
        this.received = 0;
      }

      get needStashBuffer() {
        return false;
      }

      open() {
        this._status = mpegts.LoaderStatus.kBuffering;
        opened((data) => {
          // The player keeps the array.
          const own = data.slice().buffer;
          this.received += own.byteLength;
          this._onDataArrival?.(own, this.received - own.byteLength, this.received);
        });
      }

      abort() {
        this._status = mpegts.LoaderStatus.kComplete;
      }
    }

    const player = mpegts.createPlayer(
      { type: "mpegts", isLive: true, url: "trickle:" },
      {
        customLoader: Loader,
        enableStashBuffer: false,
        deferLoadAfterSourceOpen: false,
        lazyLoad: false,
        autoCleanupSourceBuffer: true,
        autoCleanupMaxBackwardDuration: 25,
        autoCleanupMinBackwardDuration: 15,
      },
    );
    this.player = player;
    player.on(mpegts.Events.MEDIA_INFO, (info) => {
      if (this.player === player) this.mime = info.mimeType ?? "";
    });
    player.on(mpegts.Events.ERROR, (kind, detail, info) => {
      if (this.player !== player) return;
      const cannot = kind === mpegts.ErrorTypes.MEDIA_ERROR && /codec|format/i.test(detail);
      const mime = (info?.code === DOMException.NOT_SUPPORTED_ERR && /'([^']*codecs[^']*)'/.exec(info.msg)?.[1]) || "";
      if (mime.startsWith("audio/") && !this.deaf) {
        // Another player is given all of it without the sound, or what comes from the next segment on. If there is
        // nothing else, that one plays nothing.
        this.deaf = codecNames(mime);
        this.silencer = new SilentTs();
        if (this.kept) this.ready = this.again(this.kept);
        else this.broken = true;
      } else if (mime) this.failure = unsupported(mime);
      else if (cannot) this.failure = new Unplayable(`This browser cannot play this MPEG-TS: ${info?.msg ?? detail}.`);
      else this.broken = true; // the next segment opens another one
    });
    player.attachMediaElement(this.video);
    player.load();
    this.feed = await isOpen;
  }
}
