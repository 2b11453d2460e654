/**
 * What a channel carries: container, codecs, size of the picture, and pictures in a second, from the first bytes of one
 * of its segments. The page reads them when the user opens a channel, so nothing of it costs the list anything.
 */

import { channelUrl, token } from "../session.js";

const LOOK_BYTES = 256 << 10;
const LOOK_MS = 5000;

const H264 = 0x1b;
/** Types of streams of MPEG-TS (ISO/IEC 13818-1, table 2-34), as people call them. */
const TS_TYPES = /** @type {Record<number, string>} */ ({
  0x02: "MPEG-2 video",
  0x03: "MPEG audio",
  0x04: "MPEG audio",
  0x0f: "AAC",
  0x11: "AAC",
  0x1b: "H.264",
  0x24: "H.265",
  0x81: "AC-3",
  0x87: "E-AC-3",
});

/**
 * A line about the media of a channel; empty if there are none, or the user may not read them.
 * @param {string} name
 * @param {number} head the channel's next segment
 */
export async function aboutMedia(name, head) {
  const stop = AbortSignal.timeout(LOOK_MS);
  const sent = token();
  const headers = new Headers({ Range: `bytes=0-${LOOK_BYTES - 1}` });
  if (sent) headers.set("Authorization", `Bearer ${sent}`);
  // The newest segment that has ended; one that is still being written is sent until this page has enough.
  const response = await fetch(channelUrl(name, Math.max(0, head - 2)), { headers, cache: "no-store", signal: stop });
  if (!response.ok || !response.body) return "";
  const [media, rates] = await Promise.all([import("../media/containers.js"), import("../media/rate.js")]);
  const reader = response.body.getReader();
  /** @type {Uint8Array[]} */
  const parts = [];
  let size = 0;
  while (size < LOOK_BYTES) {
    const { value, done } = await reader.read();
    if (done) break;
    parts.push(value);
    size += value.length;
  }
  void reader.cancel().catch(() => {});
  const data = media.joined(parts);
  const container = media.containerOf(response.headers.get("Content-Type") ?? "", data);
  if (container === "mpegts") {
    const { SilentTs } = await import("../media/silent.js");
    const streams = new SilentTs();
    streams.push(data);
    const { rate, width, height } = rates.tsPicture(data, streams.types.includes(H264));
    const types = new Set(streams.types.map((type) => TS_TYPES[type] ?? "other streams"));
    return ["MPEG-TS", ...types, ...shown(width, height, rate)].join(" · ");
  }
  const init = container === "mp4" ? media.readMp4Init(data) : container === "webm" ? media.readWebmInit(data) : null;
  if (!init) return "";
  const picture = init.tracks.find(({ width }) => width);
  const rate = container === "mp4" ? rates.mp4Rate(data, init.tracks) : rates.webmRate(data, init.tracks);
  const told = shown(picture?.width ?? 0, picture?.height ?? 0, rate);
  return [container === "mp4" ? "MP4" : "WebM", media.codecNames(init.mime), ...told].join(" · ");
}

/**
 * Size and rate of the picture, as far as they are known.
 * @param {number} width @param {number} height @param {number} rate
 */
const shown = (width, height, rate) => [width ? `${width} × ${height}` : "", rate ? `${Number(rate.toFixed(2))} fps` : ""].filter(Boolean);
