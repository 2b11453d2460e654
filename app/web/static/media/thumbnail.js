/**
 * Makes one picture of a segment, in the browser: its first one, which is a key picture.
 *
 * A finished segment never changes, and the server gives a part of it (`Range`). So a picture costs the server one short
 * answer over a connection that stays open, and no byte of the rest; and the viewer's decoder one picture. If the first
 * bytes have no whole picture, more of them are asked for.
 */

import { element } from "../session.js";
import { containerOf } from "./containers.js";
import { MseSink, Unplayable } from "./mse.js";
import { SilentTs } from "./silent.js";
import { TsSink } from "./ts.js";

/** The first piece of a segment, and the most that is asked for, in bytes. */
const PIECE = 96 << 10;
const MOST = 3 << 20;
/** How long the browser has for a picture that it has all bytes of, in milliseconds; and how often the page looks. */
const DECODE_MS = 1500;
const LOOK_MS = 25;

/** What cannot be shown, in words for the user; `status`: of the server's answer, 0 if there is another reason. */
export class NoPicture extends Error {
  /** @param {string} text @param {number} status */
  constructor(text, status = 0) {
    super(text);
    this.status = status;
  }
}

/** A decoder: it makes one picture after the other. */
export class Thumbnailer {
  constructor() {
    /** @private */
    this.video = document.createElement("video");
    Object.assign(this.video, { muted: true, playsInline: true, preload: "auto" });
    const canvas = element("canvas", { width: 1, height: 1 });
    /** @private */
    this.probe = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
  }

  /**
   * Make the first picture of a finished segment, and hand it to `draw`.
   * @param {string} url the segment's
   * @param {{ token: string | null, type: string, signal: AbortSignal }} options `type`: the channel's content type
   * @param {(video: HTMLVideoElement) => void} draw
   * @throws {NoPicture | Unplayable}
   */
  async make(url, { token, type, signal }, draw) {
    /** @type {MseSink | TsSink | null} */
    let sink = null;
    try {
      for (let have = 0, total = Infinity; have < Math.min(total, MOST); ) {
        const piece = await this.piece(url, have, Math.max(PIECE, have), token, signal);
        total = piece.total;
        if (!sink) {
          sink = this.sinkFor(containerOf(piece.type || type, piece.data), type);
          sink.begin();
        }
        have += piece.data.length;
        await sink.push(piece.data);
        // The decoder may keep pictures until it knows that no earlier one follows.
        sink.finish();
        if (await this.decoded(sink, have >= total ? DECODE_MS : DECODE_MS / 3, signal)) {
          draw(this.video);
          return;
        }
      }
      throw new NoPicture("no picture");
    } finally {
      sink?.close();
    }
  }

  /**
   * @private
   * @param {string} url
   * @param {number} from
   * @param {number} length
   * @param {string | null} token
   * @param {AbortSignal} signal
   */
  async piece(url, from, length, token, signal) {
    /** @type {Record<string, string>} */
    const headers = { Range: `bytes=${from}-${from + length - 1}` };
    if (token) headers["Authorization"] = `Bearer ${token}`;
    const response = await fetch(url, { headers, cache: "no-store", signal });
    if (response.status !== 206) {
      await response.body?.cancel();
      const denied = response.status === 401 || response.status === 403;
      throw new NoPicture(denied ? "your token does not allow to watch it" : "no picture", response.status);
    }
    const total = Number(/\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "")?.[1] ?? from + length);
    const data = new Uint8Array(await response.arrayBuffer());
    if (!data.length) throw new NoPicture("no picture");
    return { data, total, type: response.headers.get("Content-Type") ?? "" };
  }

  /**
   * @private
   * @param {import("./containers.js").Container} container
   * @param {string} type
   */
  sinkFor(container, type) {
    if (container === "text") throw new NoPicture("messages");
    if (container === "aac" || container === "mp3") throw new NoPicture("sound only");
    if (container === "bytes") throw new NoPicture(type || "bytes");
    // Nobody hears a thumbnail, and the sound that belongs to the picture may stand behind it.
    if (container === "mpegts") return Object.assign(new TsSink(this.video, () => {}), { silencer: new SilentTs() });
    return Object.assign(new MseSink(this.video, container, () => {}), { isMute: true });
  }

  /** Whether the element has a picture to draw: it comes a moment after the element says so. @private */
  isPainted() {
    this.probe.clearRect(0, 0, 1, 1);
    this.probe.drawImage(this.video, 0, 0, 1, 1);
    return (this.probe.getImageData(0, 0, 1, 1).data[3] ?? 0) > 0;
  }

  /**
   * Wait for a picture; returns whether it is there.
   * @private
   * @param {MseSink | TsSink} sink
   * @param {number} ms
   * @param {AbortSignal} signal
   */
  async decoded(sink, ms, signal) {
    const { video } = this;
    for (let waited = 0; waited < ms; waited += LOOK_MS) {
      signal.throwIfAborted();
      if (sink instanceof TsSink && sink.failure) throw sink.failure;
      if (video.readyState >= 1 && !video.videoWidth) throw new NoPicture("sound only");
      if (video.readyState >= 2 && !video.seeking && this.isPainted()) return true;
      const { buffered } = video;
      if (buffered.length && video.currentTime < buffered.start(0)) video.currentTime = buffered.start(0);
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    return false;
  }
}

export { Unplayable };
