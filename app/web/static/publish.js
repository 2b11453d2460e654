/** The page that publishes the camera, the screen or a test picture to a channel. */

import { copyable } from "./copyable.js";
import { codecNames } from "./media/containers.js";
import { Mp4Cutter, WebmCutter } from "./media/cutter.js";
import { TestPicture } from "./media/picture.js";
import { letters, Publisher } from "./media/publisher.js";
import { byId, channelUrl, element, signIn, token } from "./session.js";

/** Recording types, the best one first. MP4 comes before WebM, since HLS has no WebM. */
const TYPES = [
  "video/mp4;codecs=avc1.42E01F,mp4a.40.2",
  "video/mp4;codecs=avc1.42E01F,opus",
  "video/mp4",
  "video/webm;codecs=vp8,opus",
  "video/webm",
];
const QUALITY = /** @type {Record<string, {width: number, bits: number}>} */ ({
  360: { width: 640, bits: 800_000 },
  720: { width: 1280, bits: 2_500_000 },
  1080: { width: 1920, bits: 5_000_000 },
});
const SOUND_BITS = 96_000;
/** A segment lasts from one keyframe to the next. */
const SEGMENT_MS = 500;
/** The recorder hands over its bytes at least this often. */
const SLICE_MS = 20;
const LAST_S = 5;
const UPDATE_MS = 500;

const form = /** @type {HTMLFormElement} */ (byId("setup"));
const field = /** @type {HTMLInputElement} */ (byId("channel"));
const preview = /** @type {HTMLVideoElement} */ (byId("preview"));

/**
 * @typedef {{stream: MediaStream, picture: TestPicture | null, recorder: MediaRecorder, publisher: Publisher,
 *   startedMs: number}} Session
 */

/** The present broadcast. @type {Session | null} */
let session = null;
let lastBytes = 0;
let trouble = "";
/**
 * What is shown before the start, opened for pictures of this width.
 * @type {{ source: string, width: number, stream: MediaStream, picture: TestPicture | null } | null}
 */
let shown = null;
let looks = 0; // counts attempts to show something before the start

function choices() {
  const values = new FormData(form);
  const quality = QUALITY[String(values.get("quality"))] ?? { width: 1280, bits: 2_500_000 };
  const sound = /** @type {HTMLInputElement} */ (byId("sound")).checked;
  return { source: String(values.get("source")), name: field.value.trim(), quality, sound };
}

/**
 * Show the source that is chosen, before anything is published. The browser asks the user for a camera or a screen.
 * @param {boolean} byUser whether the user has chosen it just now; else only what needs no permission is shown
 */
async function look(byUser) {
  if (session) return;
  const look = ++looks;
  const { source, name, quality } = choices();
  if (source === shown?.source && !needsAnother(shown, quality.width)) return;
  unlook();
  try {
    if (source === "picture") {
      const picture = new TestPicture(quality.width, Math.round((quality.width * 9) / 16), name, true);
      shown = { source, width: quality.width, stream: picture.stream, picture };
    } else if (byUser) {
      const opened = await inTurn(async () => {
        if (look !== looks) return null;
        const found = await open(choices());
        if (look === looks && !session) return found;
        close(found.stream, null);
        return null;
      });
      if (!opened) return;
      shown = { source, width: quality.width, stream: opened.stream, picture: null };
      const [track] = opened.stream.getVideoTracks();
      track?.addEventListener("ended", () => shown?.stream === opened.stream && unlook());
    } else return;
    if (byUser) say("");
  } catch (error) {
    if (look === looks) say(whyNoSource(error), true);
    return;
  }
  preview.srcObject = shown.stream;
  preview.play().catch(() => {});
  byId("nothing").hidden = true;
}

/**
 * Whether a source must be opened anew for pictures of this width. A screen has the size that it has, and the user would
 * have to choose it again.
 * @param {{ source: string, width: number }} one
 * @param {number} width
 */
function needsAnother(one, width) {
  return one.source === "picture" || (one.source === "camera" && one.width !== width);
}

/** Show nothing any more. */
function unlook() {
  if (shown) close(shown.stream, shown.picture);
  shown = null;
  preview.srcObject = null;
  byId("nothing").hidden = false;
}

/**
 * The source that is looked at, if it is the one that is to be published; else another one, and this one is closed.
 * @param {ReturnType<typeof choices>} wanted
 * @returns {Promise<{ stream: MediaStream, picture: TestPicture | null }>}
 */
async function taken(wanted) {
  looks += 1;
  const here = shown;
  const lacksSound = wanted.sound && here?.source === "camera" && !here.stream.getAudioTracks().length;
  if (!here || here.source !== wanted.source || lacksSound || needsAnother(here, wanted.quality.width)) {
    unlook();
    return inTurn(() => open(wanted));
  }
  shown = null;
  if (!wanted.sound) {
    for (const track of here.stream.getAudioTracks()) {
      track.stop();
      here.stream.removeTrack(track);
    }
  }
  return here;
}

/** Over when no source is being opened. @type {Promise<unknown>} */
let turn = Promise.resolve();

/**
 * Open one source after the other: a camera that is open for somebody who no longer wants it keeps the size of that one.
 * @template T
 * @param {() => Promise<T>} work
 * @returns {Promise<T>}
 */
function inTurn(work) {
  const done = turn.then(work);
  turn = done.catch(() => {});
  return done;
}

/** @param {ReturnType<typeof choices>} wanted */
async function open({ source, name, quality, sound }) {
  const height = Math.round((quality.width * 9) / 16);
  if (source === "picture") {
    const picture = new TestPicture(quality.width, height, name);
    if (sound) picture.addTone();
    return { stream: picture.stream, picture };
  }
  const video = { width: { ideal: quality.width }, height: { ideal: height }, frameRate: { ideal: 25, max: 30 } };
  const devices = navigator.mediaDevices;
  const stream =
    source === "camera"
      ? await devices.getUserMedia({ video, audio: sound })
      : await devices.getDisplayMedia({ video: { ...video, width: { max: 1920 }, height: { max: 1080 } }, audio: sound });
  return { stream, picture: null };
}

/** @param {unknown} error */
function whyNoSource(error) {
  const name = error instanceof DOMException ? error.name : "";
  if (name === "NotAllowedError") return "The browser did not allow it: it asks you, or its settings forbid it.";
  if (name === "NotFoundError") return "There is no such device.";
  if (name === "NotReadableError") return "Another program uses the device.";
  return `The source cannot be opened: ${error instanceof Error ? error.message : error}`;
}

async function start() {
  const wanted = choices();
  say("");
  busy(true);
  /** @type {Awaited<ReturnType<typeof open>>} */
  let source;
  try {
    source = await taken(wanted);
  } catch (error) {
    busy(false);
    return say(whyNoSource(error), true);
  }
  try {
    await publish(wanted, source.stream, source.picture);
  } catch (error) {
    close(source.stream, source.picture);
    busy(false);
    await look(false);
    say(error instanceof Error ? error.message : String(error), true);
  }
}

/**
 * @param {ReturnType<typeof choices>} wanted
 * @param {MediaStream} stream
 * @param {TestPicture | null} picture
 */
async function publish(wanted, stream, picture) {
  const hasSound = stream.getAudioTracks().length > 0;
  const types = hasSound ? TYPES : TYPES.map((type) => type.replace(/,(mp4a.*|opus)$/, ""));
  const type = types.find((one) => MediaRecorder.isTypeSupported(one));
  if (!type) throw new Error("This browser can record neither MP4 nor WebM.");
  const isMp4 = type.startsWith("video/mp4");
  const url = channelUrl(wanted.name);
  const publisher = new Publisher(url, isMp4 ? "video/mp4" : "video/webm", () => token() ?? "", hear);
  trouble = "";
  const began = await publisher.begin();
  if (!began) {
    if (trouble === "denied" && (await signIn(token() ? "The server does not accept this token." : ""))) {
      return publish(wanted, stream, picture);
    }
    throw new Error(trouble === "denied" ? "The server asks for a token." : trouble);
  }
  // Not yet among TypeScript's types: Media Capture, "MediaStream Recording", videoKeyFrameIntervalDuration.
  const options = { mimeType: type, videoBitsPerSecond: wanted.quality.bits, audioBitsPerSecond: SOUND_BITS };
  const recorder = new MediaRecorder(stream, Object.assign(options, { videoKeyFrameIntervalDuration: SEGMENT_MS }));
  const cutter = isMp4 ? new Mp4Cutter() : new WebmCutter();
  const now = { stream, picture, recorder, publisher, startedMs: Date.now() };
  session = now;
  lastBytes = 0;

  // Blobs are read one after the other.
  let reading = Promise.resolve();
  recorder.addEventListener("dataavailable", ({ data }) => {
    const atMs = Date.now();
    reading = reading.then(async () => {
      const bytes = new Uint8Array(await data.arrayBuffer());
      for (const segment of cutter.push(bytes, atMs)) publisher.push(segment);
    });
  });
  recorder.addEventListener("stop", async () => {
    await reading;
    for (const segment of cutter.end()) publisher.push(segment);
    await finish(now);
  });
  recorder.addEventListener("error", () => say("The browser's recorder has failed.", true));
  for (const track of stream.getTracks()) track.addEventListener("ended", stop);
  recorder.start(SLICE_MS);

  preview.srcObject = stream;
  preview.play().catch(() => {});
  byId("nothing").hidden = true;
  byId("on-air").hidden = false;
  byId("stop").hidden = false;
  byId("watch").hidden = false;
  byId("start").hidden = true;
  byId("sent").hidden = false;
  showLinks(wanted.name, url);
  say("");
  update();
  // On a telephone the button is below the picture and the figures.
  if (byId("sent").getBoundingClientRect().top < 0) document.querySelector(".preview")?.scrollIntoView();
}

function stop() {
  if (session?.recorder.state === "recording") session.recorder.stop();
}

/** @param {Session} ended */
async function finish(ended) {
  close(ended.stream, ended.picture);
  say(trouble, Boolean(trouble));
  await ended.publisher.end(LAST_S);
  update();
  if (session === ended) session = null;
  preview.srcObject = null;
  byId("nothing").hidden = false;
  byId("on-air").hidden = true;
  byId("stop").hidden = true;
  byId("watch").hidden = true;
  byId("start").hidden = false;
  byId("others").hidden = true;
  busy(false);
  void look(false); // a camera stays off
  if (!trouble) say(`Stopped. The channel has ended after ${clock(Date.now() - ended.startedMs)}.`);
}

/**
 * @param {MediaStream} stream
 * @param {TestPicture | null} picture
 */
function close(stream, picture) {
  picture?.close();
  for (const track of stream.getTracks()) track.stop();
}

/** @param {import("./media/publisher.js").Trouble} what */
function hear({ kind, text }) {
  if (kind === "denied") trouble = "denied";
  else if (kind === "fatal") trouble = text;
  else say(text, true);
  if (!session || (kind !== "fatal" && kind !== "denied")) return;
  if (kind === "denied") trouble = "The server does not accept the token any more. Sign in and start again.";
  stop();
}

// The page's texts and figures.

/**
 * @param {string} text
 * @param {boolean} bad
 */
function say(text, bad = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("bad", bad);
}

/** @param {boolean} on */
function busy(on) {
  for (const item of form.elements) {
    if (item.id !== "stop" && "disabled" in item) item.disabled = on || (item instanceof HTMLInputElement && isImpossible(item));
  }
}

/** @param {HTMLInputElement} input */
function isImpossible(input) {
  const devices = navigator.mediaDevices;
  if (input.value === "camera") return !devices?.getUserMedia;
  return input.value === "screen" && !devices?.getDisplayMedia;
}

/** @param {number} ms */
function clock(ms) {
  const seconds = Math.floor(ms / 1000);
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  return `${two(Math.floor(seconds / 3600))}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
}

/** @type {{at: number, bytes: number}[]} */
let history = [];

function update() {
  if (!session) return;
  const { publisher, startedMs, stream, recorder } = session;
  const at = performance.now();
  if (publisher.bytes < lastBytes) history = [];
  lastBytes = publisher.bytes;
  history = [...history.filter((one) => one.at > at - 5000), { at, bytes: publisher.bytes }];
  const [first] = history;
  const bits = first && at > first.at ? ((publisher.bytes - first.bytes) * 8000) / (at - first.at) : 0;
  const settings = stream.getVideoTracks()[0]?.getSettings();
  const rows = /** @type {[string, string, boolean?][]} */ ([
    ["Sent", `${publisher.sent} segments`],
    ["Bitrate", bits >= 1e6 ? `${(bits / 1e6).toFixed(1)} Mbit/s` : `${Math.round(bits / 1000)} kbit/s`],
    ["Picture", settings?.width ? `${settings.width} × ${settings.height}` : "none"],
    ["Codecs", codecNames(recorder.mimeType) || recorder.mimeType],
    ["Waiting", publisher.queue.length ? `${publisher.queue.length} segments` : "nothing", publisher.queue.length > 3],
    ["Round trip", Number.isNaN(publisher.roundTripMs) ? "–" : `${Math.round(publisher.roundTripMs)} ms`],
    ["Dropped", String(publisher.dropped), publisher.dropped > 0],
  ]);
  byId("figures").replaceChildren(
    ...rows.map(([name, value, bad]) =>
      element("div", {}, element("dt", {}, name), element("dd", { className: bad ? "bad" : "" }, value)),
    ),
  );
  byId("on-air-text").textContent = `On air ${clock(Date.now() - startedMs)}`;
}

/**
 * @param {string} name
 * @param {string} url
 */
function showLinks(name, url) {
  const page = `/watch/${encodeURIComponent(name)}`;
  /** @type {HTMLAnchorElement} */ (byId("watch")).href = page;
  byId("links").replaceChildren(
    ...copyable("The player's address", location.origin + page),
    ...copyable("mpv, ffplay", `${url}/stream`),
    ...copyable("A terminal", `tricklecast subscribe ${url} -o film.mp4`),
  );
  byId("others").hidden = false;
}

field.value = `browser-${letters(4)}`;
byId("insecure").hidden = window.isSecureContext;
busy(false);
void look(false);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
byId("stop").addEventListener("click", stop);
form.addEventListener("change", ({ target }) => {
  const chosen = target instanceof HTMLInputElement && target.name === "source";
  if (chosen || shown) void look(chosen || shown?.source === "camera");
});
window.addEventListener("pagehide", () => session?.publisher.leave());
setInterval(update, UPDATE_MS);
