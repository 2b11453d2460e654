/** The page of one channel: plays its media at the live edge, or shows its messages. */

import { copy, copyable } from "./copyable.js";
import { byId, channel, channelUrl, element, icon, signIn, token } from "./session.js";
import { containerOf, joined } from "./media/containers.js";
import { LiveEdge } from "./media/live.js";
import { Messages } from "./media/messages.js";
import { MseSink, Unplayable } from "./media/mse.js";
import { pause, Reader } from "./media/trickle.js";
import { TsSink } from "./media/ts.js";

/** Bytes that decide the container of a segment: two packets of MPEG-TS. Of a shorter segment, all bytes decide. */
const PROBE_BYTES = 2 * 188;
/** A reader that is further behind the publisher goes on at the live edge. */
const MAX_BEHIND_S = 3;
/** A paused player reads on until it has this many seconds of media, and then stops reading. */
const PAUSED_S = 20;
const QUIET_MS = 3000;
const IDLE_MS = 2500;
const RATE_WINDOW_MS = 4000;
/** How long a word about an action stays, in milliseconds. */
const SAID_MS = 2500;
/** Anchors of segments that are kept, to tell which one is shown. */
const MAX_ANCHORS = 64;

const url = channelUrl(channel);
const video = byId("video");
const player = /** @type {HTMLVideoElement} */ (video);
const stage = byId("stage");
const edge = new LiveEdge(player);
const messages = new Messages(byId("messages-list"));

/** @type {Reader | null} */
let reader = null;
/** @type {MseSink | TsSink | Messages | null} takes the segments; null until their container is known */
let sink = null;
/** Why nothing arrives; empty while something does. */
let trouble = { title: `Looking for ${channel}`, text: "", busy: true };
let firstFrame = false; // a picture was shown
let contentType = ""; // of the present segment, like seq
let seq = 0;
let gaps = 0; // segments that were missed
let truncations = 0; // segments that were cut short
let lastChunkAt = 0;
let segmentS = 1; // mean time from segment to segment, in seconds
let segmentAt = 0; // when the present segment began
/** Where segments begin on the player's time line, in seconds. @type {{seq: number, atS: number}[]} */
let anchors = [];
/** Mean time from picture to picture, in seconds, and the media time of the newest one. */
let frameS = 1 / 25;
let frameAt = NaN;
/** Bytes that arrived lately, for the bitrate. @type {{at: number, bytes: number}[]} */
let arrivals = [];

// Reading.

/** Ends the reader. */
let stop = new AbortController();

/** The moment that the address names, of `Share`: a segment, and seconds in it. */
const asked = new URLSearchParams(location.search);
const sharedSeq = /^\d{1,15}$/.test(asked.get("segment") ?? "") ? Number(asked.get("segment")) : null;
const sharedS = Math.min(600, Number(asked.get("s")) || 0);
edge.behind = sharedSeq !== null;
edge.from = sharedS;

async function follow() {
  for (;;) {
    stop = new AbortController();
    const from = edge.behind && sharedSeq !== null ? { from: sharedSeq } : {};
    reader = new Reader(url, { token: token() ?? "", signal: stop.signal, ...from });
    try {
      const denied = await consume(reader);
      if (!denied) return;
      if (denied.status === 401) {
        show("This channel asks for a token", "Sign in to watch it.");
        if (!(await signIn(token() ? "The server does not accept this token." : ""))) return;
      } else {
        show("You may not watch this channel", denied.text);
        return;
      }
    } catch (error) {
      if (error instanceof Unplayable) return cannotPlay(error.message);
      // The browser's decoder gave up: begin anew, with the next segment.
      console.info("The player begins anew:", error);
      closeSink();
      await pause(1, stop.signal);
    } finally {
      stop.abort();
    }
  }
}

/**
 * Hand the reader's events to the sink.
 * @param {Reader} source
 * @returns {Promise<{status: number, text: string} | null>} the refusal that ended it
 */
async function consume(source) {
  /** @type {Uint8Array[] | null} */
  let head = null;
  for await (const event of source.read()) {
    if (source.signal.aborted) break;
    switch (event.kind) {
      case "segment":
        head = [];
        noteSegment(event);
        await roomBehind();
        if (player.paused && edge.ahead > PAUSED_S) {
          source.jump();
          await new Promise((resolve) => player.addEventListener("play", resolve, { once: true }));
        } else if (!edge.behind && event.behind * segmentS > MAX_BEHIND_S) source.jump();
        if (event.restarted && sink && !(sink instanceof Messages)) sink.restart();
        break;
      case "chunk": {
        lastChunkAt = performance.now();
        arrivals.push({ at: lastChunkAt, bytes: event.data.length });
        trouble = { title: "", text: "", busy: false };
        if (!head) {
          await sink?.push(event.data);
          break;
        }
        head.push(event.data);
        const start = joined(head);
        if (start.length < PROBE_BYTES) break;
        head = null;
        await begin(start);
        break;
      }
      case "end": {
        if (head?.length) await begin(joined(head));
        head = null;
        const whole = sink instanceof Messages ? sink.end(event.truncated) : sink?.end();
        if (event.truncated || whole === false) truncations += 1;
        break;
      }
      case "gap":
        gaps += event.to - event.from;
        if (sink instanceof Messages) sink.note(`${event.to - event.from} segments are missing from ${event.from} on`);
        break;
      case "wait":
        if (edge.behind && !anchors.length) leaveBehind(); // the address names a segment that was never there
        if (event.why === "ended" && sink && !(sink instanceof Messages)) sink.finish();
        wait(event);
        break;
      default:
        if (event.kind === "denied") return event;
        show("The server refuses to show this channel", event.text);
        return null;
    }
  }
  return null;
}

/** @param {{seq: number, type: string, behind: number}} event */
function noteSegment(event) {
  const now = performance.now();
  if (segmentAt && event.behind === 0) segmentS = 0.7 * segmentS + 0.3 * Math.min(10, (now - segmentAt) / 1000);
  segmentAt = now;
  ({ seq, type: contentType } = event);
  if (edge.behind && sharedSeq !== null && !anchors.length && seq !== sharedSeq) {
    leaveBehind();
  }
  // The head of a segment is where the buffer ends, as long as nothing was left out.
  anchors.push({ seq, atS: edge.newest });
  if (anchors.length > MAX_ANCHORS) anchors.shift();
}

/** The moment of the address is not there: go on at the live edge. */
function leaveBehind() {
  edge.behind = false;
  reader?.jump();
  say("That moment is not kept: this is live");
}

/** Read no further than some seconds ahead of what lies behind and is played. */
async function roomBehind() {
  while (edge.behind && edge.ahead > PAUSED_S && !stop.signal.aborted) await pause(0.2, stop.signal);
}

/**
 * The beginning of a segment is known: give it to the sink for its container.
 * @param {Uint8Array} start
 */
async function begin(start) {
  const container = containerOf(contentType, start);
  const isText = container === "text";
  if (sink && (sink instanceof Messages ? !isText : sink.container !== container)) closeSink();
  if (container === "bytes") throw new Unplayable(`It carries ${contentType || "bytes"}.`);
  if (!sink) {
    byId("messages").hidden = !isText;
    stage.hidden = isText;
    if (isText) sink = messages;
    else if (typeof MediaSource === "undefined") return hls();
    else sink = container === "mpegts" ? new TsSink(player, reset) : new MseSink(player, container, reset);
  }
  if (sink instanceof Messages) sink.begin(seq, contentType);
  else sink.begin();
  await sink.push(start);
}

/** Another time line begins. */
function reset() {
  firstFrame = false;
  anchors = anchors.slice(-1).map((one) => ({ ...one, atS: 0 }));
  edge.reset();
}

function closeSink() {
  if (sink && !(sink instanceof Messages)) sink.close();
  sink = null;
  reset();
}

/** Without Media Source Extensions (iPhones), the browser plays HLS by itself. */
function hls() {
  if (!player.canPlayType("application/vnd.apple.mpegurl")) {
    throw new Unplayable("This browser has no Media Source Extensions.");
  }
  if (!player.src) {
    player.src = `${url}/index.m3u8`;
    player.play().catch(() => {});
  }
}

// Texts for the user.

/**
 * @param {string} title
 * @param {string} text
 * @param {boolean} busy whether the page goes on by itself
 */
function show(title, text, busy = false) {
  trouble = { title, text, busy };
  update();
}

/** @param {{why: string, text: string, seconds: number}} event */
function wait({ why, text, seconds }) {
  const again = `Next attempt in ${Math.max(1, Math.round(seconds))} s.`;
  if (why === "missing") show("Nobody publishes here yet", "It begins as soon as somebody publishes to this channel.", true);
  else if (why === "ended") show("The channel has ended", "It goes on as soon as somebody publishes to it again.", true);
  else if (why === "behind") show("Waiting for the publisher", "", true);
  else if (why === "offline") show("No connection to the server", again, true);
  else show("The server is busy", `${text}. ${again}`, true);
}

/** @param {string} what */
function cannotPlay(what) {
  stop.abort();
  closeSink();
  stage.hidden = false;
  byId("messages").hidden = true;
  show("This channel cannot be shown here", `${what} To get it: curl ${url}/-1`);
}

/** @param {number} seconds */
function duration(seconds) {
  return seconds < 9.95 ? `${seconds.toFixed(seconds < 1 ? 2 : 1)} s` : `${Math.round(seconds)} s`;
}

/** Seconds from the capture of the picture on the screen until now; null if the media does not tell. */
function latency() {
  const producer = sink && !(sink instanceof Messages) ? sink.producerMs : null;
  const seconds = producer === null ? NaN : (Date.now() - producer) / 1000;
  // Clocks differ, and a published file may be older.
  return seconds > -0.5 && seconds < 600 ? Math.max(0, seconds) : null;
}

function bitrate() {
  const from = performance.now() - RATE_WINDOW_MS;
  arrivals = arrivals.filter(({ at }) => at >= from);
  return (arrivals.reduce((sum, { bytes }) => sum + bytes, 0) * 8000) / RATE_WINDOW_MS;
}

/** @param {number} bits per second */
function rateText(bits) {
  return bits >= 1e6 ? `${(bits / 1e6).toFixed(1)} Mbit/s` : `${Math.round(bits / 1000)} kbit/s`;
}

function figures() {
  const quality = player.getVideoPlaybackQuality();
  const late = latency();
  const media = sink && !(sink instanceof Messages) ? sink.mime : contentType;
  const codecs = /codecs="?([^"]+)/.exec(media)?.[1] ?? media;
  return Object.entries({
    Latency: late === null ? "not told by the media" : duration(late),
    Buffer: duration(edge.ahead),
    Speed: `${player.playbackRate.toFixed(2)} ×`,
    Picture: player.videoWidth ? `${player.videoWidth} × ${player.videoHeight}` : "none",
    Codecs: `${codecs || "unknown"}${deaf() ? `, not ${deaf()}` : ""}`,
    Bitrate: rateText(bitrate()),
    Frames: `${quality.totalVideoFrames}, dropped ${quality.droppedVideoFrames}`,
    Stalls: `${edge.stalls}, jumps ${edge.jumps}`,
    Segment: `${seq}, missing ${gaps}, cut ${truncations}`,
  });
}

function update() {
  const now = performance.now();
  if (sink instanceof TsSink && sink.failure) return cannotPlay(sink.failure.message);
  if (sink instanceof Messages) {
    const stopped = messages.paused ? "Paused. " : "";
    byId("messages-state").textContent = trouble.title || `${stopped}${messages.count} message${messages.count === 1 ? "" : "s"}`;
    return;
  }
  const isDry = player.readyState < 3 || player.ended;
  const isQuiet = lastChunkAt > 0 && now - lastChunkAt > QUIET_MS;
  firstFrame ||= player.readyState >= 2;
  let said = trouble;
  if (edge.blocked) said = { title: "Press play", text: "This browser plays nothing before you do something.", busy: false };
  else if (isQuiet && !said.title) {
    said = { title: "Waiting for the publisher", text: "Nothing new has come for a while.", busy: true };
  } else if (!firstFrame && !said.title) said = { title: "Loading", text: "", busy: true };
  const playing = !player.paused && firstFrame && !isDry;
  const state = byId("state");
  // A short stall needs no text.
  state.hidden = playing || (edge.paused && !edge.blocked) || !said.title;
  state.classList.toggle("busy", said.busy);
  setText("state-title", said.title);
  setText("state-text", said.text);
  showPlay();
  byId("sound-only").hidden = !firstFrame || player.videoWidth > 0;
  const late = latency();
  byId("live").classList.toggle("on", playing && !edge.behind);
  setText("live-text", edge.behind ? "Go to live" : playing ? (late === null ? "Live" : `Live · ${duration(late)}`) : edge.paused ? "Go to live" : "Waiting");
  if (!byId("figures").hidden) {
    const rows = figures();
    const list = byId("figures");
    if (list.childElementCount !== 2 * rows.length) {
      list.replaceChildren(...rows.flatMap(([name]) => [element("dt", {}, name), element("dd", {})]));
    }
    rows.forEach(([, value], at) => {
      const cell = list.children[2 * at + 1];
      if (cell && cell.textContent !== value) cell.textContent = value;
    });
  }
  const parts = player.videoWidth ? [`${player.videoWidth} × ${player.videoHeight}`] : [];
  if (arrivals.length) parts.push(rateText(bitrate()));
  if (deaf()) parts.push(`without sound: this browser cannot play ${deaf()}`);
  setText("summary", parts.join(" · "));
}

/** The codec of the sound that is left out, since this browser cannot decode it. */
function deaf() {
  return sink && !(sink instanceof Messages) ? sink.deaf : "";
}

let saidTimer = 0;

/** Say what an action has done. @param {string} text */
function say(text) {
  setText("said", text);
  clearTimeout(saidTimer);
  saidTimer = window.setTimeout(() => setText("said", ""), SAID_MS);
}

/**
 * @param {string} id
 * @param {string} text
 */
function setText(id, text) {
  const found = byId(id);
  if (found.textContent !== text) found.textContent = text;
}

// The user's actions.

function toggleSound() {
  player.muted = !player.muted;
  if (!player.muted && player.volume === 0) player.volume = 1;
  showSound();
}

function showSound() {
  const on = !player.muted && player.volume > 0;
  byId("mute").replaceChildren(icon(on ? "sound" : "muted"));
  byId("mute").setAttribute("aria-label", on ? "Turn the sound off" : "Turn the sound on");
  byId("unmute").hidden ||= on;
  byId("controls").classList.toggle("silent", !byId("unmute").hidden);
}

function togglePlay() {
  edge.toggle();
  update();
}

function showPlay() {
  const label = edge.paused ? "Play" : "Pause";
  if (byId("play").getAttribute("aria-label") === label) return;
  byId("play").replaceChildren(icon(edge.paused ? "play" : "pause"));
  byId("play").setAttribute("aria-label", label);
}

function goLive() {
  if (edge.behind) {
    edge.behind = false;
    reader?.jump();
    if (edge.paused) togglePlay();
    return;
  }
  if (edge.paused) return togglePlay();
  edge.jump();
}

function toggleFigures() {
  const list = byId("figures");
  list.hidden = !list.hidden;
  byId("info").setAttribute("aria-expanded", String(!list.hidden));
  update();
}

function toggleFull() {
  if (document.fullscreenElement) document.exitFullscreen();
  else stage.requestFullscreen().catch(() => {});
}

/** Show the player in a window of its own above all others, or here again. */
async function togglePip() {
  try {
    if (document.pictureInPictureElement) await document.exitPictureInPicture();
    else await player.requestPictureInPicture();
  } catch {
    say("There is no picture that a window of its own could show");
  }
}

/** Copy an address that begins at the picture that is shown, as long as the server keeps it. */
async function share() {
  const at = player.currentTime;
  const anchor = anchors.findLast(({ atS }) => atS <= at + 0.001);
  const page = new URL(`/watch/${encodeURIComponent(channel)}`, location.origin);
  if (anchor) {
    page.searchParams.set("segment", String(anchor.seq));
    page.searchParams.set("s", (at - anchor.atS).toFixed(2));
  }
  say((await copy(page.href)) ? "The address of this moment is copied" : "The browser does not copy");
}

/** Measure the time from picture to picture, for steps. @type {VideoFrameRequestCallback} */
function noteFrame(_, { mediaTime }) {
  const passed = mediaTime - frameAt;
  if (passed > 0.004 && passed < 0.25 && !player.paused) frameS = 0.8 * frameS + 0.2 * passed;
  frameAt = mediaTime;
  player.requestVideoFrameCallback(noteFrame);
}

const KEYS = /** @type {Record<string, () => void>} */ ({
  " ": togglePlay,
  k: togglePlay,
  m: toggleSound,
  f: toggleFull,
  i: toggleFigures,
  l: goLive,
  p: togglePip,
  s: share,
  ",": () => edge.step(-frameS),
  ".": () => edge.step(frameS),
});

function listen() {
  byId("play").addEventListener("click", togglePlay);
  byId("mute").addEventListener("click", toggleSound);
  byId("unmute").addEventListener("click", toggleSound);
  byId("live").addEventListener("click", goLive);
  byId("info").addEventListener("click", toggleFigures);
  byId("full").addEventListener("click", toggleFull);
  byId("share").addEventListener("click", share);
  byId("pip").addEventListener("click", togglePip);
  byId("pip").hidden = !document.pictureInPictureEnabled;
  player.requestVideoFrameCallback?.(noteFrame);
  const volume = /** @type {HTMLInputElement} */ (byId("volume"));
  volume.addEventListener("input", () => {
    player.volume = volume.valueAsNumber;
    player.muted = player.volume === 0;
    showSound();
  });
  document.addEventListener("keydown", (event) => {
    const at = event.target instanceof Element ? event.target : document.body;
    const isTyping = at.closest("input, textarea, select, dialog") || (event.key === " " && at.closest("button, a"));
    const act = KEYS[event.key.toLowerCase()];
    if (!act || isTyping || event.ctrlKey || event.metaKey || event.altKey || stage.hidden) return;
    event.preventDefault();
    act();
    stir();
  });
  player.addEventListener("volumechange", showSound);
  player.addEventListener("click", togglePlay);
  player.addEventListener("loadeddata", () => {
    byId("unmute").hidden = !player.muted || Boolean(deaf());
    showSound();
  });
  byId("messages-clear").addEventListener("click", () => messages.clear());
  byId("messages-pause").addEventListener("click", () => {
    messages.paused = !messages.paused;
    byId("messages-pause").setAttribute("aria-pressed", String(messages.paused));
    update();
  });
  window.addEventListener("online", () => reader?.hurry());
  for (const kind of ["pointermove", "pointerdown", "focusin"]) stage.addEventListener(kind, stir);
}

let idleTimer = 0;

/** Show the controls, and hide them when the user does nothing for a while. */
function stir() {
  stage.classList.remove("idle");
  clearTimeout(idleTimer);
  idleTimer = window.setTimeout(() => stage.classList.add("idle"), IDLE_MS);
}

// Below the stage.

function showLinks() {
  const page = `${location.origin}/watch/${encodeURIComponent(channel)}`;
  const frame = `<iframe src="${page}?embed" width="640" height="360" allow="autoplay; fullscreen" title="Live"></iframe>`;
  byId("links").replaceChildren(
    ...copyable("In your own page", frame),
    ...copyable("mpv, ffplay, VLC (MPEG-TS)", `${url}/stream`),
    ...copyable("HLS: Safari, hls.js, TVs", `${url}/index.m3u8`),
    ...copyable("A terminal", `tricklecast subscribe ${url} -o - | ffplay -`),
  );
}

const isEmbedded = new URLSearchParams(location.search).has("embed") || window.self !== window.top;
document.documentElement.classList.toggle("embed", isEmbedded);
byId("own").hidden = !isEmbedded;
listen();
showLinks();
showSound();
stir();
setInterval(update, 250);
update();
follow();
