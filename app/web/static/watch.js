/** The page of one channel: plays its media at the live edge, or shows its messages. */

import { copy, copyable } from "./copyable.js";
import { byId, channel, channelUrl, element, icon, kept, signIn, token } from "./session.js";
import { Captions } from "./media/captions.js";
import { containerOf, joined } from "./media/containers.js";
import { LiveEdge } from "./media/live.js";
import { Messages } from "./media/messages.js";
import { MseSink, Unplayable } from "./media/mse.js";
import { RecordingReader } from "./media/recording.js";
import { Past } from "./media/seek.js";
import { LIVE, pause, Reader } from "./media/trickle.js";
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
/** The server is asked what it keeps when the controls are shown, and not more often than this, in milliseconds. */
const LOOK_MS = 10_000;
/** As long as nothing is known. */
const FIRST_LOOK_MS = 2000;
/** A shorter past has no seek bar; nearer to its end than this is live. Both in milliseconds. */
const SHORTEST_PAST_MS = 4000;
const LIVE_MS = 2500;
/** What the arrow keys go back and forward, in milliseconds. */
const SKIP_MS = 10_000;
/** How often the page asks for the recording of a channel that is not there. */
const RECORDING_LOOKS = 3;

const url = channelUrl(channel);
const video = byId("video");
const player = /** @type {HTMLVideoElement} */ (video);
const stage = byId("stage");
const edge = new LiveEdge(player);
const messages = new Messages(byId("messages-list"));
const captions = new Captions(player, byId("captions"));
const past = new Past(url, () => token() ?? "");
const seekBar = /** @type {HTMLInputElement} */ (byId("seek"));

/** @type {Reader | RecordingReader | null} */
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
/**
 * Where segments begin on the player's time line, in seconds, and when they were published, in milliseconds since 1970
 * (of a recording: since its beginning).
 * @type {{seq: number, atS: number, ms: number}[]}
 */
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
edge.behind = sharedSeq !== null;
edge.from = Math.min(600, Number(asked.get("s")) || 0);

/** The segment that the user wants to begin with, until it has begun; null: any. */
let wantedSeq = sharedSeq;
/** The recording that is played; null: the channel. @type {import("./media/recording.js").Piece[] | null} */
let pieces = null;
/** Whether the reader that ends is followed by another one. */
let again = false;
/** Aborted when the user goes elsewhere. */
let moved = new AbortController();

async function follow() {
  for (;;) {
    stop = new AbortController();
    again = false;
    const options = { token: token() ?? "", signal: stop.signal };
    if (pieces) reader = new RecordingReader(pieces, options);
    else reader = new Reader(url, { ...options, ...(edge.behind && wantedSeq !== null && { from: wantedSeq }) });
    try {
      const denied = await consume(reader);
      if (again) {
        closeSink();
        continue;
      }
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
      if (edge.behind) [wantedSeq, edge.from] = [seq + 1, 0];
      await pause(1, stop.signal);
    } finally {
      stop.abort();
    }
  }
}

/**
 * Hand the reader's events to the sink.
 * @param {Reader | RecordingReader} source
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
          await new Promise((resolve) => {
            player.addEventListener("play", resolve, { once: true, signal: moved.signal });
            moved.signal.addEventListener("abort", resolve, { once: true });
          });
        } else if (!edge.behind && event.behind * segmentS > MAX_BEHIND_S) source.jump();
        if (event.restarted && sink && !(sink instanceof Messages)) sink.restart();
        break;
      case "chunk": {
        lastChunkAt = performance.now();
        [isOffered, recordingLooks] = [false, 0];
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
        if (head?.length && event.truncated !== "skipped") await begin(joined(head));
        head = null;
        const whole = sink instanceof Messages ? sink.end(event.truncated) : sink?.end();
        if (event.truncated !== "skipped" && (event.truncated || whole === false)) truncations += 1;
        break;
      }
      case "gap":
        gaps += event.to - event.from;
        if (sink instanceof Messages) sink.note(`${event.to - event.from} segments are missing from ${event.from} on`);
        break;
      case "wait":
        if (!pieces && edge.behind && !anchors.length) leaveBehind(); // the address names a segment that was never there
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

/** @param {{seq: number, type: string, behind: number, openedMs: number}} event */
function noteSegment(event) {
  const now = performance.now();
  if (segmentAt && event.behind === 0) segmentS = 0.7 * segmentS + 0.3 * Math.min(10, (now - segmentAt) / 1000);
  segmentAt = now;
  ({ seq, type: contentType } = event);
  if (wantedSeq !== null && !pieces && edge.behind && seq !== wantedSeq) leaveBehind();
  wantedSeq = null;
  // The head of a segment is where the buffer ends, as long as nothing was left out.
  anchors.push({ seq, atS: edge.newest, ms: publishedMs(event) });
  if (anchors.length > MAX_ANCHORS) anchors.shift();
}

/**
 * When a segment was published. One that is still being written is the newest, or follows those before it.
 * @param {{seq: number, behind: number, openedMs: number}} event
 */
function publishedMs(event) {
  if (pieces) return (pieces[event.seq]?.atS ?? 0) * 1000;
  if (!Number.isNaN(event.openedMs)) return event.openedMs;
  const last = anchors.at(-1);
  const follows = last ? last.ms + (edge.newest - last.atS) * 1000 : NaN;
  return event.behind || Number.isNaN(past.edgeMs) ? follows : past.edgeMs;
}

/** The moment of the address is not there: go on at the live edge. */
function leaveBehind() {
  edge.behind = false;
  wantedSeq = null;
  reader?.jump();
  say("That moment is not kept: this is live");
}

/** Read no further than some seconds ahead of what lies behind and is played. */
async function roomBehind() {
  const { signal } = moved;
  while (edge.behind && edge.ahead > PAUSED_S && !stop.signal.aborted && !signal.aborted) await pause(0.2, stop.signal);
}

// The past.

/** From when until when there is something to see, in milliseconds as the anchors have them. */
function pastEnds() {
  const last = pieces?.at(-1);
  return last ? [0, (last.atS + last.lengthS) * 1000] : [past.oldestMs, past.edgeMs];
}

/** When the picture that is shown was published; NaN if that is not known. */
function positionMs() {
  const anchor = anchors.findLast(({ atS }) => atS <= player.currentTime + 0.001);
  return anchor ? anchor.ms + (player.currentTime - anchor.atS) * 1000 : NaN;
}

/**
 * Begin with another segment, on a new time line.
 * @param {number} at its seq; of a recording, which piece it is
 * @param {number} seconds in it
 */
function beginAt(at, seconds) {
  [edge.behind, edge.from] = [at !== LIVE, seconds];
  wantedSeq = at === LIVE || pieces ? null : at;
  if (sink && !(sink instanceof Messages)) sink.anew();
  reader?.go(at);
  moved.abort();
  moved = new AbortController();
  if (!edge.behind && edge.paused) togglePlay();
}

/** Counts the times that the user has chosen: the last one holds. */
let choices = 0;
/** The time that was chosen, until its picture is there; NaN: none. */
let chosenMs = NaN;
let isMoving = false; // the time line of the time that was chosen has not begun

/** Show what was published at this time. @param {number} ms */
async function seekTo(ms) {
  const [first = NaN, last = NaN] = pastEnds();
  if (!(last - first > SHORTEST_PAST_MS)) return;
  choices += 1;
  if (!pieces && ms > last - LIVE_MS) return goLive();
  const wanted = Math.max(first, Math.min(ms, last - 500));
  const anchor = anchors.findLast((one) => one.ms <= wanted);
  const at = anchor ? anchor.atS + (wanted - anchor.ms) / 1000 : NaN;
  const { buffered } = player;
  for (let range = 0; range < buffered.length; range += 1) {
    if (!(at >= buffered.start(range) && at <= buffered.end(range))) continue;
    edge.behind = true;
    chosenMs = NaN;
    player.currentTime = at;
    return;
  }
  const choice = choices;
  [chosenMs, isMoving] = [wanted, true];
  const found = pieces ? pieceAt(pieces, wanted / 1000) : await past.find(wanted);
  if (choice !== choices) return;
  if (found) beginAt(found.seq, found.s);
  else chosenMs = NaN;
}

/** @param {import("./media/recording.js").Piece[]} all @param {number} s */
function pieceAt(all, s) {
  const seq = Math.max(0, all.findLastIndex(({ atS }) => atS <= s));
  return { seq, s: s - (all[seq]?.atS ?? 0) };
}

/** @param {number} ms */
function skip(ms) {
  const [, last = NaN] = pastEnds();
  const at = Number.isNaN(chosenMs) ? positionMs() : chosenMs;
  seekTo((Number.isNaN(at) ? last : at) + ms);
}

let recordingLooks = 0;
let isOffered = false; // there is a recording, which the button plays; it is shown when nothing plays

/** The channel is not there: there may be a recording of it, which the user may watch. */
async function lookForRecording() {
  if (pieces || isOffered || recordingLooks >= RECORDING_LOOKS) return;
  recordingLooks += 1;
  const found = await RecordingReader.find(url, token() ?? "");
  const last = found?.at(-1);
  if (!last || pieces) return;
  const button = byId("recording");
  button.textContent = `Watch the recording (${clockText(last.atS + last.lengthS)})`;
  isOffered = true;
  button.onclick = () => {
    [pieces, isOffered] = [found, false];
    [edge.behind, edge.from, again] = [true, 0, true];
    stop.abort();
  };
}

/** @param {number} seconds */
function clockText(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

/** Whether the user holds the handle of the seek bar. */
let isSeeking = false;

/** Show where in the past the picture is. */
function showSeek() {
  const [first = NaN, last = NaN] = pastEnds();
  const isThere = Number.isNaN(chosenMs);
  const known = last - first > SHORTEST_PAST_MS && (firstFrame || !isThere);
  byId("past").hidden = !known && seekBar !== document.activeElement;
  if (!known || isSeeking) return;
  const isLive = !edge.behind && !edge.paused;
  const at = isThere ? positionMs() : chosenMs;
  seekBar.max = String(Math.round((last - first) / 1000));
  seekBar.value = isLive || Number.isNaN(at) ? seekBar.max : String((at - first) / 1000);
  tellSeek();
}

/** Say in words what the handle of the seek bar is at. */
function tellSeek() {
  const [first = 0, last = 0] = pastEnds();
  const ms = first + seekBar.valueAsNumber * 1000;
  const behindS = (last - ms) / 1000;
  const isLive = !pieces && behindS * 1000 < LIVE_MS && (isSeeking || !edge.behind);
  const time = pieces ? "" : new Date(ms).toLocaleTimeString();
  const text = pieces ? `${clockText(ms / 1000)} / ${clockText(last / 1000)}` : isLive ? "Live" : `−${clockText(behindS)}`;
  setText("seek-text", isSeeking && time && !isLive ? `${text} · ${time}` : text);
  const words = pieces ? text.replace("/", "of") : isLive ? "Live" : `${clockText(behindS)} behind live, ${time}`;
  if (seekBar.getAttribute("aria-valuetext") !== words) seekBar.setAttribute("aria-valuetext", words);
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
    else {
      sink = container === "mpegts" ? new TsSink(player, reset) : new MseSink(player, container, reset);
      sink.captions = captions;
    }
  }
  if (sink instanceof Messages) sink.begin(seq, contentType);
  else sink.begin();
  await sink.push(start);
}

/** Another time line begins. */
function reset() {
  firstFrame = isMoving = false;
  anchors = anchors.slice(-1).map((one) => ({ ...one, atS: 0 }));
  edge.reset();
  captions.reset();
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
  if (why === "missing" || why === "ended") lookForRecording();
  const again = `Next attempt in ${Math.max(1, Math.round(seconds))} s.`;
  if (why === "missing") show("Nobody publishes here yet", "It begins as soon as somebody publishes to this channel.", true);
  else if (why === "ended" && pieces) show("The recording is over", "");
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
  if (firstFrame && !isMoving) chosenMs = NaN;
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
  byId("recording").hidden = playing || !isOffered;
  showSounds();
  showCaptions();
  byId("share").hidden = pieces !== null;
  if (!pieces && firstFrame && !stage.classList.contains("idle")) past.look(past.isKnown ? LOOK_MS : FIRST_LOOK_MS);
  showSeek();
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

/** Names of languages in the language of the page. */
const languages = new Intl.DisplayNames("en", { type: "language" });
let soundsShown = "";

/** Show the menu of the tracks of sound, if there are several. */
function showSounds() {
  const sounds = sink && !(sink instanceof Messages) ? sink.sounds : [];
  const all = sounds.map(({ id, language }) => `${id} ${language}`).join();
  if (all === soundsShown) return;
  soundsShown = all;
  const menu = /** @type {HTMLSelectElement} */ (byId("sounds"));
  const before = menu.value;
  menu.hidden = !sounds.length;
  menu.replaceChildren(
    ...sounds.map(({ id, language }, at) => {
      const isAlone = language && sounds.filter((one) => one.language === language).length === 1;
      const name = language ? languages.of(language) ?? language : "Sound";
      return element("option", { value: String(id) }, isAlone ? name : `${name} ${at + 1}`);
    }),
  );
  if (sounds.some(({ id }) => String(id) === before)) menu.value = before;
}

/** Where the browser keeps which channel of captions the viewer wants; empty: none. */
const CHOICE = "tricklecast.captions";
let captionsShown = "";

/** Show the menu of captions, if there are any. */
function showCaptions() {
  const names = captions.channels;
  if (names.join() === captionsShown) return;
  captionsShown = names.join();
  const menu = /** @type {HTMLSelectElement} */ (byId("subtitles"));
  menu.hidden = !names.length;
  menu.replaceChildren(
    element("option", { value: "" }, "No captions"),
    ...names.map((name) => element("option", { value: name }, names.length === 1 ? "Captions" : `Captions ${name}`)),
  );
  menu.value = names.includes(captions.chosen) ? captions.chosen : "";
}

/** Show the captions of a channel, now and on later visits. @param {string} name empty: none */
function chooseCaptions(name) {
  captions.chosen = name;
  captions.draw();
  /** @type {HTMLSelectElement} */ (byId("subtitles")).value = name;
  kept.setItem(CHOICE, name);
}

function toggleCaptions() {
  const [first = ""] = captions.channels;
  if (!first) return say("This channel has no captions");
  chooseCaptions(captions.chosen ? "" : first);
  say(captions.chosen ? "Captions are shown" : "Captions are not shown");
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
  chosenMs = NaN;
  if (pieces) {
    [pieces, edge.behind, again] = [null, false, true];
    stop.abort();
    return;
  }
  if (edge.behind) return beginAt(LIVE, 0);
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
  captions.show(mediaTime);
  player.requestVideoFrameCallback(noteFrame);
}

const KEYS = /** @type {Record<string, () => void>} */ ({
  " ": togglePlay,
  k: togglePlay,
  m: toggleSound,
  f: toggleFull,
  i: toggleFigures,
  c: toggleCaptions,
  l: goLive,
  p: togglePip,
  s: share,
  ",": () => edge.step(-frameS),
  ".": () => edge.step(frameS),
  arrowleft: () => skip(-SKIP_MS),
  arrowright: () => skip(SKIP_MS),
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
  byId("sounds").addEventListener("change", (event) => {
    if (sink && !(sink instanceof Messages)) sink.choose(Number(/** @type {HTMLSelectElement} */ (event.target).value));
  });
  byId("subtitles").addEventListener("change", (event) => {
    chooseCaptions(/** @type {HTMLSelectElement} */ (event.target).value);
  });
  new ResizeObserver(() => captions.draw()).observe(player);
  seekBar.addEventListener("input", () => {
    isSeeking = true;
    tellSeek();
  });
  seekBar.addEventListener("change", () => {
    isSeeking = false;
    const [first = NaN, last = NaN] = pastEnds();
    seekTo(seekBar.value === seekBar.max ? last : first + seekBar.valueAsNumber * 1000);
  });
  document.addEventListener("keydown", (event) => {
    const at = event.target instanceof Element ? event.target : document.body;
    const isTyping =
      at.closest("input:not([type=range]), textarea, select, dialog") ||
      (event.key === " " && at.closest("button, a")) ||
      (event.key.startsWith("Arrow") && at.closest("#volume"));
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
captions.chosen = kept.getItem(CHOICE) ?? "";
listen();
showLinks();
showSound();
stir();
setInterval(update, 250);
update();
follow();
