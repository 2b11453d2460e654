/** One channel in full: its timeline, publisher, readers and window, commands to copy, and two actions. */

import { channelUrl, element, hasTokens, icon, problem, request } from "../session.js";
import { ask, copyLine } from "./parts.js";
import { aboutMedia } from "./media.js";
import { Readers } from "./readers.js";
import { curve, legend, segmentAt, segmentText, timeline } from "./charts.js";
import { bitrate, bytes, count, duration, percent, plain, time } from "./format.js";
import { KEPT_IN_FULL, SEGMENT_STATES, STATES } from "./model.js";

/** @typedef {import("./model.js").Channel} Channel */
/** @typedef {import("./model.js").Segment} Segment */

/** The width of a bar where a text of the usual size has 16 pixels. */
const BAR = 9;
const OPEN = 1;

/** Segments that are asked for when a channel is opened. */
const ASKED = 200;

export class Detail {
  /**
   * @param {import("./model.js").Model} model
   * @param {import("./charts.js").Tooltip} tooltip
   * @param {() => void} onClose
   */
  constructor(model, tooltip, onClose) {
    this.model = model;
    this.name = "";
    /** @type {number | undefined} */
    this.picked = undefined;
    this._asked = 0;
    this._looked = false; // at the channel's media
    this._bar = BAR;

    const close = element("button", { type: "button", className: "quiet close", "aria-label": "Close the details" },
      icon("close"));
    close.addEventListener("click", onClose);
    this.title = element("h2", { tabIndex: -1, dir: "auto", id: "detail-title" });
    this.state = element("span", { className: "chip" });
    this.chart = element("canvas", { className: "large", tabIndex: 0, role: "img" });
    this.picking = element("p", { className: "picked num" });
    this.closeSegment = element("button", { type: "button", className: "danger", hidden: true }, "Close segment");
    this.closeSegment.addEventListener("click", () => this._closeSegment());
    this.rate = element("canvas", { className: "large", role: "img", "aria-label": "Bytes published per second" });
    this.legend = legend();
    /** @type {Record<string, HTMLElement>} */
    this.figures = {};
    const figure = (/** @type {string} */ name, /** @type {string} */ title) => {
      this.figures[name] = element("dd", { className: "num", dir: "auto" });
      return [element("dt", {}, title), this.figures[name]];
    };
    this.watch = element("a", { className: "button primary" }, icon("play"), "Watch");
    this.end = element("button", { type: "button", className: "danger" }, "End channel");
    this.end.addEventListener("click", () => this._end());
    this.readers = new Readers();
    this.commands = element("div", { className: "commands" });
    this.missing = element("p", { className: "notice warn", hidden: true },
      "This channel is not on the server now. The panel fills as soon as it is.");
    this.body = element("div", { className: "detail-body" },
      element("div", { className: "actions" }, this.watch, this.end),
      element("section", { "aria-label": "Segments" },
        element("h3", {}, "Segments"), this.chart,
        element("div", { className: "picking" }, this.picking, this.closeSegment), this.legend.list),
      element("section", { "aria-label": "Published" }, element("h3", {}, "Published, last minute"), this.rate),
      element("dl", { className: "facts" },
        ...figure("publisher", "Publisher"), ...figure("readers", "Readers"), ...figure("lag", "Greatest lag"),
        ...figure("in", "In"), ...figure("out", "Out"), ...figure("head", "Next segment"),
        ...figure("window", "Window"), ...figure("type", "Content type"), ...figure("media", "Media"),
        ...figure("created", "Created"),
        ...figure("epoch", "Epoch")),
      this.readers.box,
      this.commands,
    );
    this.box = element("aside", { className: "detail paper", "aria-labelledby": "detail-title", hidden: true },
      element("header", {}, this.title, this.state, close), this.missing, this.body);

    this.chart.addEventListener("pointermove", (event) => {
      const segment = this._at(event.offsetX);
      if (segment) tooltip.show(segmentText(segment, model.server.ms), event.clientX, event.clientY);
      else tooltip.hide();
    });
    this.chart.addEventListener("pointerleave", () => tooltip.hide());
    this.chart.addEventListener("click", (event) => {
      this.picked = this._at(event.offsetX)?.seq;
      this.update();
    });
    this.chart.addEventListener("keydown", (event) => this._key(event));
    new ResizeObserver(() => this.update()).observe(this.box);
  }

  get channel() {
    return this.model.byName.get(this.name);
  }

  /** Show a channel by its name, as soon as it exists. @param {string} name */
  open(name) {
    this.name = name;
    this.picked = undefined;
    this.title.textContent = plain(name, 200);
    this.title.title = name;
    this._asked = 0;
    this.watch.href = `/watch/${encodeURIComponent(name)}`;
    this._fillCommands(name);
    this.readers.open(name);
    this.box.hidden = false;
    this.update();
    this.title.focus({ preventScroll: true });
  }

  close() {
    this.name = "";
    this.readers.open("");
    this.box.hidden = true;
  }

  /** A frame has come, or the panel has another size. */
  update() {
    if (!this.name) return;
    const { channel, model } = this;
    this.missing.hidden = channel !== undefined || !model.frame;
    this.body.hidden = !channel;
    if (!channel) {
      this.state.hidden = true;
      return;
    }
    if (this._asked !== channel.number) {
      this._asked = channel.number;
      channel.most = KEPT_IN_FULL;
      this._looked = false;
      this._set("media", "–");
      void this._ask(channel);
    }
    if (!this._looked && channel.head > 0) {
      this._looked = true;
      void this._look(channel);
    }
    const state = STATES[channel.state] ?? "idle";
    this.state.hidden = false;
    this.state.className = `chip ${state}`;
    this.state.textContent = state;
    this.end.hidden = state === "draining";
    const limits = model.server.limits_of_window;
    const publisher = channel.writing ? "writing" : channel.orphaned ? "gone, may come back"
      : channel.preconnected ? "connected" : channel.present ? "between two segments" : "not connected";
    this._set("publisher", `${channel.publisher ? plain(channel.publisher) : "unnamed"} · ${publisher}`);
    this._set("readers", count(channel.readers));
    this._set("lag", channel.lag ? bytes(channel.lag) : "none");
    this._set("in", bitrate(channel.rateIn));
    this._set("out", bitrate(channel.rateOut));
    this._set("head", count(channel.head));
    this._set("window", limits ? `${count(channel.kept)} of ${count(limits.segments)} segments, `
      + `${bytes(channel.keptBytes)} of ${bytes(limits.bytes)} (${percent(channel.fill(model.server))})` : "–");
    this._set("type", channel.type ? plain(channel.type) : "not known yet");
    this._set("created", `${time(channel.created)}, ${duration(1000 * Math.max(0, Math.round(model.server.time - channel.created)))} ago`);
    this._set("epoch", count(channel.epoch));
    this._draw(channel);
  }

  /** Draw again, since the colours have changed. */
  redraw() {
    this.legend.draw();
    this.update();
  }

  /** @param {Channel} channel */
  _draw(channel) {
    const { clientWidth: width, clientHeight: height } = this.chart;
    this._bar = Math.round((BAR * parseFloat(getComputedStyle(document.documentElement).fontSize)) / 16);
    timeline(this.chart, channel.segments, { width, height, bar: this._bar, picked: this.picked });
    curve(this.rate, channel.received, { width: this.rate.clientWidth, height: this.rate.clientHeight });
    const segment = channel.segments.find((one) => one.seq === this.picked);
    const shown = segment ?? channel.segments.at(-1);
    const text = shown ? segmentText(shown, this.model.server.ms) : "no segments yet";
    this.picking.textContent = segment ? text : `newest: ${text}`;
    this.chart.setAttribute("aria-label", `Timeline of segments; ${text}. Arrow keys pick a segment.`);
    this.closeSegment.hidden = segment === undefined || segment.state > OPEN;
  }

  /** @param {number} x */
  _at(x) {
    return this.channel && segmentAt(this.channel.segments, x, { width: this.chart.clientWidth, bar: this._bar });
  }

  /** @param {string} name @param {string} text */
  _set(name, text) {
    const box = this.figures[name];
    if (box && box.textContent !== text) box.textContent = text;
  }

  /** Tell what the channel carries. @param {Channel} channel */
  async _look(channel) {
    const text = await aboutMedia(channel.name, channel.head).catch(() => "");
    if (text && this.name === channel.name) this._set("media", plain(text));
  }

  /** Fetch segments from before the page was opened. @param {Channel} channel */
  async _ask(channel) {
    const first = Math.max(0, channel.head - ASKED);
    const url = `/api/v1/channels/${encodeURIComponent(channel.name)}/segments?from=${first}&limit=${ASKED}`;
    const response = await request(url).catch(() => null);
    if (!response?.ok) return; // the feed tells what there is from now on
    const { segments, epoch } = await response.json();
    if (epoch !== channel.epoch) return;
    const known = new Set(channel.segments.map((segment) => segment.seq));
    for (const { seq, state, size, opened_at, closed_at } of segments) {
      if (known.has(seq) || !closed_at) continue;
      const ms = Date.parse(closed_at) - Date.parse(opened_at);
      channel.put({ seq, state: SEGMENT_STATES.indexOf(state), size, ms });
    }
    this.update();
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const segments = this.channel?.segments ?? [];
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || !segments.length) return;
    const at = segments.findIndex((segment) => segment.seq === this.picked);
    const to = at < 0 ? segments.length - 1 : Math.max(0, Math.min(segments.length - 1, at + step));
    this.picked = segments[to]?.seq;
    this.update();
    event.preventDefault();
  }

  /** @param {string} name */
  _fillCommands(name) {
    const url = channelUrl(name);
    const token = hasTokens ? "TRICKLECAST_TOKEN=… " : "";
    const page = new URL(`/watch/${encodeURIComponent(name)}`, location.origin).href;
    const lines = /** @type {const} */ ([
      ["Publish a test picture", `${token}tricklecast publish ${quoted(url)} testsrc`],
      ["Watch with ffplay", `${token}tricklecast subscribe ${quoted(url)} -o - | ffplay -`],
      ["Open in mpv, ffplay or VLC", `${url}/stream`],
      ["HLS, for Safari and others", `${url}/index.m3u8`],
      ["Page to watch and to share", page],
    ]);
    this.commands.replaceChildren(element("h3", {}, "Publish and watch"),
      ...lines.map(([title, text]) => copyLine(title, text)));
  }

  async _end() {
    const { name } = this;
    const channel = this.channel;
    const readers = channel?.readers ? ` Its ${count(channel.readers)} readers are told that it is over.` : "";
    await ask({
      title: "End this channel?",
      text: `“${plain(name, 80)}” takes no more segments.${readers} What it has stays readable for a few seconds. `
        + "A publisher that goes on may create it again.",
      action: "End channel",
      run: async () => {
        const response = await request(`/api/v1/channels/${encodeURIComponent(name)}`, { method: "DELETE" });
        return response.ok ? "" : problem(response);
      },
    });
  }

  async _closeSegment() {
    const { name, picked } = this;
    await ask({
      title: `Close segment ${picked}?`,
      text: "If it has bytes it closes as truncated, otherwise as empty. Its publisher is told, and goes on with "
        + "another segment.",
      action: "Close segment",
      run: async () => {
        const url = `/api/v1/channels/${encodeURIComponent(name)}/segments/${picked}`;
        const response = await request(url, { method: "DELETE" });
        return response.ok ? "" : problem(response);
      },
    });
  }
}

/** Quote a word for a shell. @param {string} word */
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
