/**
 * The wall: a picture of each channel, made anew as segments come.
 *
 * The dashboard's feed tells which channels there are, and when a segment has ended. The page asks for the beginning of
 * such a segment, and the browser makes a picture of it. It does so for tiles in view only, at most three at a
 * time, and for each tile at most once in two seconds; those whose picture is oldest come first.
 */

import { Name } from "./name.js";
import { byId, channelUrl, element, icon, request, signIn, token } from "./session.js";
import { link } from "./dashboard/cluster.js";
import { Feed } from "./dashboard/feed.js";
import { count } from "./dashboard/format.js";
import { Model, STATES } from "./dashboard/model.js";
import { NoPicture, Thumbnailer, Unplayable } from "./media/thumbnail.js";

/** @typedef {import("./dashboard/model.js").Channel} Channel */

/** Pictures that are made at a time. A browser has six connections to a server, and the feed has one of them. */
const DECODERS = 3;
/** The shortest time from picture to picture of one tile, in milliseconds. */
const EVERY_MS = 2_000;
/** A picture that takes longer is given up. */
const GIVE_UP_MS = 8_000;
/** After the server has refused, or nothing could be decoded, the tile waits this long. */
const AGAIN_MS = 15_000;
/** An older picture is said to be old. */
const OLD_MS = 15_000;
const TICK_MS = 250;
/** How often the page looks which other nodes of a cluster have channels. */
const NODES_MS = 5_000;
/** Tiles at most. Of more channels the first ones are shown: the filter finds the others. */
const MOST_TILES = 400;
/** The smallest width of a tile, on a wide window and on a telephone; the height of its name, in one line and in two; the
 * gap. Pixels. */
const LEAST = 200;
const LEAST_NARROW = 150;
const LINE = 30;
const TWO_LINES = 42;
const GAP = 8;
/** A character of a name is about so wide; so much of a line is for other things. Pixels. */
const CHARACTER = 8;
const BESIDE = 40;
const MOST_PIXELS = 1280;

const COMPLETE = 2;
const ICONS = { idle: "idle", live: "live", stalled: "warning", draining: "ended" };

const model = new Model();
const tiles = byId("tiles");
const notice = byId("notice");
const told = byId("told");
const elsewhere = byId("elsewhere");
const filter = /** @type {HTMLInputElement} */ (byId("filter"));

/** The picture of one channel. */
class Tile {
  /** @param {Channel} channel */
  constructor(channel) {
    this.channel = channel;
    this.inView = false;
    this.shown = -1; // the segment whose picture is shown
    this.madeAt = -Infinity; // when that was made
    this.notBefore = -Infinity; // when the next one may be made
    this.busy = false;
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.why = element("span", { className: "why" });
    this.badge = element("span", { className: "state" });
    this.name = new Name();
    this.name.show(channel.name);
    this.age = element("span", { className: "age num" });
    this.link = element("a", { href: `/watch/${encodeURIComponent(channel.name)}`, title: channel.name },
      element("span", { className: "picture" }, this.canvas, this.why),
      element("span", { className: "line" }, this.badge, this.name.box, this.age));
    this.box = element("li", { className: "tile" }, this.link);
    this.state = -1;
  }

  /** The newest finished segment; -1 if there is none. */
  get newest() {
    return this.channel.segments.findLast(({ state, size }) => state === COMPLETE && size > 0)?.seq ?? -1;
  }

  /** Whether another picture can be made now. @param {number} now */
  wants(now) {
    return this.inView && !this.busy && now >= this.notBefore && this.newest > this.shown;
  }

  update() {
    const { channel } = this;
    if (this.state !== channel.state) {
      this.state = channel.state;
      const state = STATES[channel.state] ?? "idle";
      this.badge.className = `state ${state}`;
      this.badge.replaceChildren(icon(ICONS[state]), element("span", { className: "visually-hidden" }, state));
      this.box.classList.toggle("over", channel.rank > 0);
    }
    const old = performance.now() - this.madeAt;
    const age = this.shown >= 0 && old > OLD_MS ? `${count(Math.round(old / 1000))} s old` : "";
    if (this.age.textContent !== age) this.age.textContent = age;
  }

  /** Begin with a picture of another epoch. @param {Channel} channel */
  follow(channel) {
    if (channel === this.channel) return;
    this.channel = channel;
    this.shown = -1;
  }

  /** Draw the picture, as large as the tile shows it. @param {HTMLVideoElement} video */
  draw(video) {
    const { canvas } = this;
    const wide = Math.min(MOST_PIXELS, video.videoWidth, Math.ceil(canvas.clientWidth * devicePixelRatio) || 320);
    canvas.width = wide;
    canvas.height = Math.round((wide * video.videoHeight) / video.videoWidth);
    canvas.getContext("2d")?.drawImage(video, 0, 0, canvas.width, canvas.height);
    this.say("");
  }

  /** @param {string} text */
  say(text) {
    if (this.why.textContent !== text) this.why.textContent = text;
  }

  /** Give the memory of a picture back that is not in view. */
  forget() {
    this.canvas.width = this.canvas.height = 0;
    this.shown = -1;
    this.madeAt = this.notBefore = -Infinity;
  }
}

/** @type {Map<string, Tile>} */
const shown = new Map();
/** @type {Tile[]} in their order */
let order = [];
let columns = 1;

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const tile = order.find(({ box }) => box === target);
    if (!tile) continue;
    tile.inView = isIntersecting;
    if (!isIntersecting) tile.forget();
  }
  work();
}, { rootMargin: "100px" });

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/** The channels have changed, or the filter: put the tiles in order. */
function arrange() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = [...model.channels.values()]
    .filter((channel) => channel.head > 0 && words.every((word) => channel.text.includes(word)))
    .sort((one, other) => one.rank - other.rank || collator.compare(one.name, other.name));
  const kept = wanted.slice(0, MOST_TILES);
  const names = new Set(kept.map(({ name }) => name));
  for (const [name, tile] of shown) {
    if (names.has(name)) continue;
    observer.unobserve(tile.box);
    tile.box.remove();
    shown.delete(name);
  }
  order = kept.map((channel) => {
    let tile = shown.get(channel.name);
    if (!tile) {
      tile = new Tile(channel);
      shown.set(channel.name, tile);
      observer.observe(tile.box);
    }
    tile.follow(channel);
    return tile;
  });
  order.forEach(({ box }, at) => {
    if (tiles.children[at] !== box) tiles.insertBefore(box, tiles.children[at] ?? null);
  });
  const total = model.channels.size;
  told.textContent = !model.frame ? "Loading the channels…"
    : !total ? "No channels. A picture appears here as soon as somebody publishes."
      : !wanted.length ? (words.length ? "No channel matches the filter." : "No channel has got anything yet.")
        : wanted.length > kept.length ? `The first ${count(kept.length)} of ${count(wanted.length)} channels: the filter finds the others.`
          : "";
  told.hidden = !told.textContent;
  measure();
}

/** Choose the number of columns so that all tiles fit, if they do not become too small. */
function measure() {
  const { clientWidth: width } = tiles;
  const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
  const height = window.innerHeight - tiles.getBoundingClientRect().top - window.scrollY - 2 * GAP;
  const most = Math.max(1, Math.floor((width + GAP) / ((width < 700 ? LEAST_NARROW : LEAST) * scale + GAP)));
  const longest = Math.max(0, ...order.map(({ channel }) => channel.name.length));
  const wideOf = (/** @type {number} */ tried) => (width - GAP * (tried - 1)) / tried;
  const isLong = (/** @type {number} */ wide) => longest * CHARACTER * scale > wide - BESIDE * scale;
  columns = most;
  for (let tried = 1; tried < most; tried++) {
    const wide = wideOf(tried);
    const high = (wide * 9) / 16 + (isLong(wide) ? TWO_LINES : LINE) * scale + GAP;
    if (Math.ceil(order.length / tried) * high <= height) {
      columns = tried;
      break;
    }
  }
  tiles.classList.toggle("long", isLong(wideOf(columns)));
  tiles.style.setProperty("--columns", String(columns));
}

// Pictures.

const idle = Array.from({ length: DECODERS }, () => new Thumbnailer());

/** Let each decoder that has nothing to do make the picture that is due longest. A server that is away is not asked. */
function work() {
  if (document.hidden || feed.status.state !== "live") return;
  const now = performance.now();
  while (idle.length) {
    let next = null;
    for (const tile of order) if (tile.wants(now) && (!next || tile.madeAt < next.madeAt)) next = tile;
    const decoder = next && idle.pop();
    if (!next || !decoder) return;
    void make(next, decoder).finally(() => {
      idle.push(decoder);
      work();
    });
  }
}

/** @param {Tile} tile @param {Thumbnailer} decoder */
async function make(tile, decoder) {
  const { channel, newest } = tile;
  const begun = performance.now();
  tile.busy = true;
  tile.notBefore = begun + EVERY_MS;
  try {
    const options = { token: token(), type: channel.type, signal: AbortSignal.timeout(GIVE_UP_MS) };
    // The browser may never open a media source: then the decoder is given up, too.
    const late = new Promise((_, reject) => options.signal.addEventListener("abort", () => reject(new NoPicture("no picture"))));
    const made = decoder.make(channelUrl(channel.name, newest), options, (video) => {
      if (!tile.inView) return;
      tile.draw(video);
      tile.shown = newest;
      tile.madeAt = begun;
    });
    await Promise.race([made, late]);
  } catch (error) {
    if (error instanceof Unplayable || (error instanceof NoPicture && error.status < 404)) {
      tile.say(error.message);
      tile.notBefore = begun + AGAIN_MS;
    } else if (!(error instanceof NoPicture)) {
      console.info(`No picture of ${channel.name}:`, error); // the segment has left, the server is away
    }
  } finally {
    tile.busy = false;
  }
}

// The other nodes of a cluster.

/** A node shows the channels that it has itself: name those that have others. Who may not see nodes sees no line. */
async function lookAround() {
  if (document.hidden) return;
  const response = await request("/api/v1/nodes").catch(() => null);
  if (!response?.ok) return;
  const { nodes } = /** @type {{ nodes: import("./dashboard/cluster.js").Node[] }} */ (await response.json());
  const others = nodes.filter((one) => !one.this && one.channels > 0);
  const links = others.flatMap((one) => [" ", link(one, "/wall"), ` (${count(one.channels)})`]);
  elsewhere.replaceChildren("Other nodes have channels, too:", ...links);
  elsewhere.hidden = !others.length;
  measure();
}

// The user's actions.

function toggleFull() {
  if (document.fullscreenElement) void document.exitFullscreen();
  else document.documentElement.requestFullscreen().catch(() => {});
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.target === filter) {
    if (event.key !== "Escape" && event.key !== "Enter") return;
    if (event.key === "Escape" && filter.value) {
      filter.value = "";
      arrange();
    } else order[0]?.link.focus();
    event.preventDefault();
    return;
  }
  const at = order.findIndex(({ link }) => link === document.activeElement);
  /** @type {Record<string, number>} */
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity };
  const step = steps[event.key];
  if (event.key === "f") toggleFull();
  else if (event.key === "/") filter.focus();
  else if (step !== undefined && order.length) {
    const to = at < 0 ? 0 : at + step;
    order[Math.max(0, Math.min(order.length - 1, to))]?.link.focus();
  } else return;
  event.preventDefault();
}

// Whether the server is there.

/** @param {import("./dashboard/feed.js").Status} now */
function showStatus(now) {
  notice.hidden = now.state !== "lost" && now.state !== "refused";
  tiles.classList.toggle("stale", !notice.hidden);
  if (notice.hidden) return;
  const button = element("button", { type: "button" }, now.state === "lost" ? "Try now" : token() ? "Use another token" : "Sign in");
  button.addEventListener("click", async () => {
    if (now.state === "lost" || (await signIn())) feed.hurry();
  });
  const text = now.state === "lost" ? "The server does not answer." : "The server does not show its channels:";
  notice.replaceChildren(icon("warning"), element("span", {}, `${text} ${now.why ?? ""}`), button);
}

const feed = new Feed("/api/v1/dashboard", (frame, whole) => {
  const { changes, moves } = model;
  model.take(frame, whole);
  if (whole || changes !== model.changes || moves !== model.moves || order.length < model.channels.size) arrange();
  for (const tile of order) tile.update();
  work();
}, showStatus);

filter.addEventListener("input", arrange);
document.addEventListener("keydown", onKey);
byId("full").addEventListener("click", toggleFull);
document.addEventListener("fullscreenchange", () => {
  document.documentElement.classList.toggle("full", document.fullscreenElement !== null);
  measure();
});
new ResizeObserver(measure).observe(document.body);
setInterval(work, TICK_MS);
arrange();
if (document.documentElement.dataset.cluster !== undefined) {
  setInterval(() => void lookAround(), NODES_MS);
  void lookAround();
}
void feed.run();
