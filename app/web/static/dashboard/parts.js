/** Small parts of the page: a question before an action, a line to copy, the list of events, the server's figures. */

import { copy } from "../copyable.js";
import { element, icon } from "../session.js";
import { curve } from "./charts.js";
import { bitrate, bytes, count, duration, percent, plain, time } from "./format.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Happened} Happened */

/**
 * Ask the user before an action, carry it out, and show the error if it fails.
 * @param {{ title: string, text: string, action: string, run: () => Promise<string> }} question `run` gives why it
 *   failed; empty if it did not
 */
export function ask({ title, text, action, run }) {
  const cancel = element("button", { type: "button", autofocus: true }, "Cancel");
  const go = element("button", { type: "submit", className: "danger" }, action);
  const failed = element("p", { className: "notice bad", role: "alert", hidden: true });
  const form = element("form", { method: "dialog" },
    element("h2", { id: "question" }, title), element("p", {}, text), failed,
    element("div", { className: "actions" }, cancel, go));
  const dialog = element("dialog", { "aria-labelledby": "question" }, form);
  document.body.append(dialog);
  return new Promise((resolve) => {
    cancel.addEventListener("click", () => dialog.close());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      const why = await run().catch((error) => `The server does not answer: ${error.message}`);
      go.disabled = false;
      if (!why) dialog.close();
      failed.textContent = why;
      failed.hidden = !why;
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(undefined);
    });
    dialog.showModal();
  });
}

/**
 * A line of text with a button that copies it.
 * @param {string} title
 * @param {string} text
 */
export function copyLine(title, text) {
  const button = element("button", { type: "button", className: "quiet", "aria-label": `Copy: ${title}` }, icon("copy"));
  const said = element("span", { className: "visually-hidden", role: "status" });
  button.addEventListener("click", async () => {
    const copied = await copy(text);
    button.replaceChildren(icon(copied ? "check" : "warning"));
    said.textContent = copied ? "Copied" : "Cannot copy: select the text";
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return element("div", { className: "copy-line" },
    element("span", { className: "faint" }, title), element("code", { tabIndex: 0 }, text), button, said);
}

/** @type {Record<string, [icon: string, tone: string, text: string]>} */
const KINDS = {
  refused: ["stop", "bad", "refused"],
  held: ["pause", "warn", "held back by the storm guard"],
  cut_off: ["cut", "bad", "reader cut off"],
  evicted: ["warning", "warn", "segments evicted"],
  truncated: ["cut", "warn", "truncated"],
  skipped: ["warning", "warn", "skipped"],
  created: ["live", "good", "created"],
  ended: ["ended", "faint", "ended"],
};

/** Texts for the server's reasons whose word alone is not clear. @type {Record<string, string>} */
const REASONS = {
  lag_bytes: "too far behind", lag_s: "too late", standing_still: "does not read", memory: "memory was needed",
  storage: "storage could not follow", total_bytes: "memory was short", deleted: "by request", idle: "nothing published",
  fault: "a fault of the server", worker_lost: "its worker died", ahead: "asks for segments that are not there yet",
  missing: "asks for a channel that is not there", refused: "repeats a refused request", ended: "asks for an ended channel",
  known: "asks again and again", gone: "asks for segments that have left", closed: "publishes a closed segment again",
  empty: "asks for an empty segment again", same: "reads one segment again and again",
};

/** An event that is older is over, and has no colour any more, in seconds. */
const RECENT_S = 60;

/** The newest events. */
export class Events {
  /** @param {Model} model @param {(name: string) => void} onOpen */
  constructor(model, onOpen) {
    this.model = model;
    this.newest = 0;
    this.onOpen = onOpen;
    this.list = element("ol", { className: "events", tabIndex: 0, "aria-label": "Events, newest first" });
    this.none = element("p", { className: "faint none" }, "Nothing has been refused, cut off or truncated.");
    this.box = element("section", { className: "happened paper", "aria-labelledby": "events-title" },
      element("h2", { id: "events-title" }, "Events"), this.none, this.list);
  }

  update() {
    const { events } = this.model;
    const newest = events[0]?.number ?? 0;
    this.none.hidden = events.length > 0;
    this._age();
    if (newest === this.newest) return;
    if (newest < this.newest) this.list.replaceChildren();
    const fresh = newest < this.newest ? events : events.filter((event) => event.number > this.newest);
    this.newest = newest;
    this.list.prepend(...fresh.map((event) => this._entry(event)));
    while (this.list.children.length > events.length) this.list.lastElementChild?.remove();
  }

  /** Take the colour from events that have become old: they are below those that have not. */
  _age() {
    const since = this.model.server.time - RECENT_S;
    for (let at = this.list.childElementCount - 1; at >= 0; at--) {
      const entry = this.list.children[at];
      if (!(entry instanceof HTMLElement) || Number(entry.dataset.time) > since) break;
      if (entry.className === "faint") continue;
      entry.className = "faint";
    }
  }

  /** @param {Happened} event */
  _entry(event) {
    const [name, tone, text] = KINDS[event.kind] ?? ["info", "faint", event.kind];
    const parts = element("span", { className: "what" });
    if (event.channel) {
      const link = element("a", { href: fragment(event.channel), dir: "auto" }, plain(event.channel, 60));
      parts.append(link, " ");
    }
    if (event.seq !== null) parts.append(`segment ${event.seq} `);
    parts.append(element("b", {}, text));
    if (event.why) parts.append(`: ${why(event.why)}`);
    if (event.client) parts.append(" · ", element("span", { className: "faint", dir: "auto" }, plain(event.client, 60)));
    if (event.count > 1) parts.append(" ", element("span", { className: "times num" }, `× ${count(event.count)}`));
    const old = event.time <= this.model.server.time - RECENT_S;
    return element("li", { className: old ? "faint" : tone, "data-time": event.time }, icon(name), parts,
      element("time", { className: "num faint", dateTime: new Date(1000 * event.time).toISOString() }, time(event.time)));
  }
}

/** A reason of the server in words. @param {string} reason */
export function why(reason) {
  if (reason.startsWith("limit:")) return `limit ${reason.slice(6)}`;
  if (reason.startsWith("token:")) return `token ${reason.slice(6)}`;
  return REASONS[reason] ?? reason.replaceAll("_", " ");
}

/** The fragment of a channel's details. @param {string} name */
export const fragment = (name) => `#/channel/${encodeURIComponent(name)}`;

/** The load of each worker, if the server has several. */
export class Workers {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    this.body = element("tbody");
    const heads = ["Worker", "CPU", "Loop lag", "Memory", "Connections", "Readers", "Channels"];
    const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
    this.box = element("section", { className: "workers paper", hidden: true, tabIndex: 0, "aria-label": "Workers" },
      element("table", {}, element("thead", {}, head), this.body));
  }

  update() {
    const { workers } = this.model.server;
    this.box.hidden = !workers;
    this.body.replaceChildren(...(workers ?? []).map((one) => {
      const name = element("th", { scope: "row", className: "num" }, String(one.worker));
      if (!one.up) return element("tr", { className: "bad" }, name, element("td", { colSpan: 6 }, "does not answer"));
      const texts = [percent(one.cpu), duration(one.loop_lag_ms ?? 0), bytes(one.memory), count(one.connections),
        count(one.readers), count(one.channels)];
      return element("tr", {}, name, ...texts.map((text) => element("td", { className: "num" }, text)));
    }));
  }
}

/** From this share of a limit on the server refuses new clients, and the page shows the limit as nearly reached. */
export const NEAR = 0.8;

/** The server's figures, and the use of its limits. */
export class Strip {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {Record<string, HTMLElement>} */
    this.values = {};
    this.curves = /** @type {const} */ ([
      [element("canvas", { "aria-hidden": "true" }), model.cpu],
      [element("canvas", { "aria-hidden": "true" }), model.received],
      [element("canvas", { "aria-hidden": "true" }), model.sent],
    ]);
    const [cpu, received, sent] = this.curves;
    const tile = (/** @type {string} */ name, /** @type {string} */ title, /** @type {Node[]} */ ...more) => {
      this.values[name] = element("b", { className: "num" }, "–");
      return element("div", { className: `tile ${name}` },
        element("span", { className: "faint" }, title), this.values[name], ...more);
    };
    this.limits = element("ul", { className: "limits" });
    this.worst = element("b", { className: "num" }, "–");
    this.worstName = element("span", { className: "faint" });
    const summary = element("summary", { className: "tile" },
      element("span", { className: "faint" }, "Fullest limit"),
      element("span", { className: "fullest" }, this.worst, " ", this.worstName));
    this.details = element("details", { className: "limits-box" }, summary, this.limits);
    this.box = element("section", { className: "strip", "aria-label": "Server" },
      tile("cpu", "CPU", cpu[0]), tile("in", "In", received[0]), tile("out", "Out", sent[0]),
      tile("lag", "Loop lag"), tile("memory", "Memory"), tile("connections", "Connections"), tile("readers", "Readers"),
      tile("refused", "Refused/min"), tile("held", "Held/min"),
      this.details);
  }

  update() {
    const { server } = this.model;
    this.box.hidden = server.cpu === undefined; // a token for some channels shows no figures of the server
    if (this.box.hidden) return;
    const { lastMinute } = this.model;
    const [refused, held] = [lastMinute.growth("refused"), lastMinute.growth("held")];
    const lag = server.loop_lag_ms ?? 0;
    const busiest = Math.max(...(server.workers ?? [server]).map(({ cpu }) => cpu ?? 0)); // of those that have one core each
    this._set("cpu", percent(server.cpu), busiest > 0.85);
    this._set("in", bitrate(server.bytes_in ?? 0));
    this._set("out", bitrate(server.bytes_out ?? 0));
    this._set("lag", duration(lag), lag >= 100);
    this._set("memory", bytes(server.memory));
    this._set("connections", count(server.connections));
    this._set("readers", count(server.readers));
    this._set("refused", count(refused), refused > 0);
    this._set("held", count(held), held > 0);
    this._total("refused", server.counters?.refused);
    this._total("held", server.counters?.held);
    const uses = (server.limits ?? []).filter(([, , most]) => most);
    const shares = uses.map(([name, used, most, joinable]) =>
      ({ name, used, most: most ?? 1, joinable, share: used / (most ?? 1) }));
    shares.sort((one, other) => other.share - one.share);
    const [worst] = shares;
    this.worst.textContent = percent(worst?.share ?? 0);
    this.worstName.textContent = worst && worst.share >= 0.0005 ? limitName(worst.name) : "";
    this.worst.classList.toggle("bad", Boolean(worst && (worst.share >= NEAR || !worst.joinable)));
    const size = (/** @type {string} */ name, /** @type {number} */ value) =>
      name.endsWith("bytes") ? bytes(value) : count(value);
    this.limits.replaceChildren(...shares.map(({ name, used, most, joinable, share }) => {
      const bar = element("i");
      bar.style.transform = `scaleX(${Math.min(1, share).toFixed(3)})`;
      const full = share >= NEAR || !joinable;
      return element("li", { className: full ? "bad" : "" },
        element("span", {}, limitName(name)), element("span", { className: "fill-bar" }, bar),
        element("span", { className: "num" }, `${size(name, used)} of ${size(name, most)}`,
          joinable ? "" : ": no new clients"));
    }));
    this.draw();
  }

  draw() {
    for (const [canvas, series] of this.curves) {
      if (canvas.clientWidth) curve(canvas, series, { width: canvas.clientWidth, height: 18 });
    }
  }

  /** @param {string} name @param {number | undefined} sum since the server's start */
  _total(name, sum) {
    const box = this.values[name];
    const text = `${count(sum)} since the server's start`;
    if (box && box.title !== text) box.title = text;
  }

  /** @param {string} name @param {string} text @param {boolean} [bad] */
  _set(name, text, bad = false) {
    const box = this.values[name];
    if (!box) return;
    if (box.textContent !== text) box.textContent = text;
    box.classList.toggle("bad", bad);
  }
}

/** What people call a limit. @param {string} name */
export const limitName = (name) => (name === "total_bytes" ? "memory" : name.replaceAll("_", " "));
