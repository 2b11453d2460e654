/**
 * What is wrong now, as the page can tell from the server's frames: parts of the server that do not work, refusals of
 * the last minute, channels without a publisher, readers that are late, sources that have failed.
 *
 * An alert is there while its cause is. It is red if something does not work, and yellow if something may soon not, or
 * is a client's own fault. The list always has room for one line, so that it moves nothing when it fills or empties.
 */

import { element, icon } from "../session.js";
import { bytes, count, duration, percent, plain } from "./format.js";
import { STATES } from "./model.js";
import { NEAR, fragment, limitName, why } from "./parts.js";

/** @typedef {import("./model.js").Channel} Channel */
/** @typedef {import("./model.js").Model} Model */
/**
 * @typedef {{ tone: "bad" | "warn", text: string, why?: string, channels?: string[] }} Alert
 * `channels`: that it is about, the first ones of which are links
 */

/** What a client did, or the server, counts as now for so long, in seconds. */
const RECENT_S = 60;

/** A reader is late if three frames in a row say that it lacks the last two seconds, and at least 64 KiB. */
const LATE_S = 2;
const LATE_BYTES = 64 << 10;
const LATE_FRAMES = 3;

/** The server is busy if three frames in a row say so: 85 % of a core, or a loop that is late by 100 ms. */
const BUSY_FRAMES = 3;
const BUSY_CPU = 0.85;
const BUSY_LAG_MS = 100;

/** A source may take so long to open its input, in seconds. */
const STARTS_S = 20;

/** Names in an alert, reasons of refusals, and alerts that are shown. */
const NAMES = 3;
const REASONS = 3;
const MOST = 12;

/** Parts of the server that may not work (docs/reference/dashboard-feed.md). @type {Record<string, string>} */
const PARTS = {
  storage: "The data directory cannot be written",
  access_log: "The access log cannot be written",
  memory: "The server has run out of memory",
  cluster: "This node can decide nothing about channels",
  descriptors: "The server has no free file descriptor",
  reload: "The last reload has failed",
  certificate: "The certificate needs to be renewed",
};

/** Of them, those that stop nobody yet. */
const MILD = new Set(["reload", "certificate"]);

export class Alerts {
  /** @param {Model} model @param {() => Alert[]} others those that other parts of the page know of */
  constructor(model, others) {
    this.model = model;
    this.others = others;
    /** @private frames in a row in which a channel's slowest reader was late @type {Map<string, number>} */
    this.late = new Map();
    /** @private */
    this.busy = 0;
    /** @private the lines, by what they show @type {Map<string, HTMLElement>} */
    this.lines = new Map();
    this.list = element("ul", { className: "alert-list" });
    this.calm = element("p", { className: "calm faint" }, icon("check"), "Nothing is wrong now.");
    this.sum = element("span", { className: "chip", role: "status" });
    this.box = element("section", { className: "alerts paper", tabIndex: 0, "aria-labelledby": "alerts-title" },
      element("h2", { id: "alerts-title" }, "Alerts"), this.sum, this.calm, this.list);
  }

  /** A frame has come. */
  update() {
    this._count();
    const found = [...this._server(), ...this._clients(), ...this._channels(), ...this._sources(), ...this.others()];
    found.sort((one, other) => Number(one.tone === "warn") - Number(other.tone === "warn"));
    const bad = found.filter(({ tone }) => tone === "bad").length;
    this.box.classList.toggle("bad", bad > 0);
    this.calm.hidden = found.length > 0;
    this.sum.hidden = !found.length;
    this.sum.className = `chip ${bad ? "bad" : "warn"}`;
    const sum = count(found.length);
    if (this.sum.textContent !== sum) this.sum.textContent = sum;
    const shown = found.slice(0, MOST);
    if (found.length > MOST) shown.push({ tone: "warn", text: `${count(found.length - MOST)} more` });
    /** @type {Map<string, HTMLElement>} */
    const lines = new Map();
    for (const alert of shown) {
      const key = JSON.stringify(alert);
      lines.set(key, this.lines.get(key) ?? line(alert));
    }
    // A line that stays as it is keeps its place under the pointer and the keyboard.
    if ([...lines.keys()].join() !== [...this.lines.keys()].join()) this.list.replaceChildren(...lines.values());
    this.lines = lines;
  }

  /** @private Count for how many frames something has gone on that is nothing if it is short. */
  _count() {
    const { server, channels } = this.model;
    const cpu = Math.max(...(server.workers ?? [server]).map((one) => one.cpu ?? 0));
    this.busy = cpu > BUSY_CPU || (server.loop_lag_ms ?? 0) >= BUSY_LAG_MS ? this.busy + 1 : 0;
    const late = new Map();
    for (const channel of channels.values()) {
      if (channel.lag >= LATE_BYTES && channel.lag >= LATE_S * channel.rateIn) {
        late.set(channel.name, (this.late.get(channel.name) ?? 0) + 1);
      }
    }
    this.late = late;
  }

  /** @private @returns {Generator<Alert>} */
  *_server() {
    const { server, lastMinute } = this.model;
    if (server.draining) yield { tone: "warn", text: "The server is shutting down", why: "it takes no new clients" };
    for (const [name, reason] of server.troubles ?? []) {
      yield { tone: MILD.has(name) ? "warn" : "bad", text: PARTS[name] ?? name.replaceAll("_", " "), why: plain(reason, 200) };
    }
    for (const { worker, up } of server.workers ?? []) {
      if (!up) yield { tone: "bad", text: `Worker ${worker} does not answer`, why: "its channels cannot be reached" };
    }
    const faults = lastMinute.growth("faults");
    if (faults) yield { tone: "bad", text: `${times(faults, "fault")} of the server in the last minute`, why: "its log has them" };
    const { mirror } = server;
    const failed = (mirror?.channels.failed ?? 0) + (mirror?.segments.failed ?? 0);
    if (mirror?.state === "unreachable" || mirror?.problem) {
      yield { tone: "bad", text: mirror.state === "stopped" ? "The mirror has stopped" : "The mirror's source cannot be read", why: plain(mirror.problem, 200) };
    } else if (mirror?.state === "stopped") {
      yield { tone: "warn", text: "The mirror is stopped", why: "nothing more is copied" };
    } else if (failed) {
      yield { tone: "warn", text: `The mirror has failed to make ${times(failed, "copy", "copies")}`, why: "its panel has the newest errors" };
    }
    for (const [name, used, most, joinable] of server.limits ?? []) {
      const share = most ? used / most : 0;
      const figures = name.endsWith("bytes") ? `${bytes(used)} of ${bytes(most)}` : `${count(used)} of ${count(most)}`;
      // The windows use up their memory: then the oldest segments leave, as they should.
      if (!joinable) yield { tone: "bad", text: `Limit ${limitName(name)} is reached: new clients are refused`, why: figures };
      else if (share >= NEAR && name !== "total_bytes") yield { tone: "warn", text: `Limit ${limitName(name)} is nearly reached`, why: figures };
    }
    if (this.busy >= BUSY_FRAMES) {
      const cpu = Math.max(...(server.workers ?? [server]).map((one) => one.cpu ?? 0));
      yield { tone: "warn", text: "The server has more to do than it can", why: cpu > BUSY_CPU ? `${percent(cpu)} of a core` : `timers are late by ${duration(server.loop_lag_ms)}` };
    }
  }

  /** @private What clients met in the last minute. @returns {Generator<Alert>} */
  *_clients() {
    const { lastMinute, server } = this.model;
    const refused = this._recent("refused");
    // A follower who may not see the server has no counters, and the events of its channels alone.
    const all = server.counters ? lastMinute.growth("refused") : refused.sum;
    if (all) {
      // A limit keeps good clients out. All other refusals are a client's own fault.
      const tone = refused.reasons.some(([reason]) => reason.startsWith("limit:")) ? "bad" : "warn";
      yield { tone, text: `${times(all, "request")} refused in the last minute`, why: refused.text };
    }
    const held = server.counters ? lastMinute.growth("held") : this._recent("held").sum;
    if (held) yield { tone: "warn", text: `${times(held, "answer")} held back by the storm guard in the last minute`, why: this._recent("held").text };
    const cut = this._recent("cut_off", (reason) => reason !== "deleted");
    if (cut.sum) yield { tone: "warn", text: `${times(cut.sum, "reader")} cut off in the last minute`, why: cut.text };
    const evicted = this._recent("evicted");
    if (evicted.sum) yield { tone: "warn", text: `${times(evicted.sum, "segment")} evicted early in the last minute`, why: "memory is short" };
  }

  /**
   * Events of one kind in the last minute: how many, by which reasons, those first that happened most.
   * @private
   * @param {string} kind
   * @param {(reason: string) => boolean} [wanted]
   */
  _recent(kind, wanted = () => true) {
    const since = this.model.server.time - RECENT_S;
    /** @type {Map<string, number>} */
    const found = new Map();
    let sum = 0;
    for (const event of this.model.events) {
      if (event.time <= since) break;
      if (event.kind !== kind || !wanted(event.why)) continue;
      sum += event.count;
      if (event.why) found.set(event.why, (found.get(event.why) ?? 0) + event.count);
    }
    const reasons = [...found].sort((one, other) => other[1] - one[1]);
    const text = reasons.slice(0, REASONS).map(([reason, n]) => `${why(reason)} × ${count(n)}`).join(", ");
    return { sum, reasons, text: reasons.length > REASONS ? `${text}, …` : text };
  }

  /** @private @returns {Generator<Alert>} */
  *_channels() {
    /** @type {Channel[]} */
    const gone = [], silent = [], waiting = [], late = [];
    for (const channel of this.model.channels.values()) {
      const state = STATES[channel.state];
      if (channel.orphaned) gone.push(channel);
      else if (state === "stalled") silent.push(channel);
      else if (state === "idle" && channel.readers && !channel.present) waiting.push(channel);
      if ((this.late.get(channel.name) ?? 0) >= LATE_FRAMES) late.push(channel);
    }
    const one = (/** @type {Channel[]} */ found, /** @type {string} */ single, /** @type {string} */ many) =>
      (found.length === 1 ? single : many.replace("#", count(found.length)));
    const names = (/** @type {Channel[]} */ found) => found.map(({ name }) => name);
    if (gone.length) {
      yield { tone: "bad", text: one(gone, "A publisher has left in the middle of a segment", "# publishers have left in the middle of a segment"), channels: names(gone) };
    }
    if (silent.length) {
      yield { tone: "warn", text: one(silent, "A connected publisher sends nothing", "# connected publishers send nothing"), channels: names(silent) };
    }
    if (waiting.length) {
      yield { tone: "warn", text: one(waiting, "A channel has readers and no publisher", "# channels have readers and no publisher"), channels: names(waiting) };
    }
    if (late.length) {
      late.sort((a, b) => b.lag - a.lag);
      yield { tone: "warn", text: one(late, "A channel has a late reader", "# channels have late readers"), why: `the slowest one lacks ${bytes(late[0]?.lag)}`, channels: names(late) };
    }
  }

  /** @private @returns {Generator<Alert>} */
  *_sources() {
    const { sources, time } = this.model.server;
    for (const { name, state, since, error } of sources ?? []) {
      // Its process is started again, and fails again: that it starts for a moment is no news.
      if (state === "failed" || (state === "starting" && error)) yield { tone: "bad", text: "A source has failed, and is started again", why: plain(error, 200), channels: [name] };
      else if (state === "starting" && time - since > STARTS_S) yield { tone: "warn", text: "A source has published nothing yet", channels: [name] };
    }
  }
}

/** @param {number} n @param {string} one @param {string} [many] */
const times = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** @param {Alert} alert */
function line({ tone, text, why: reason, channels }) {
  const parts = element("span", { dir: "auto" }, element("b", {}, text));
  if (reason) parts.append(`: ${reason}`);
  channels?.slice(0, NAMES).forEach((name, at) => {
    parts.append(at ? ", " : reason ? " · " : ": ", element("a", { href: fragment(name), dir: "auto" }, plain(name, 60)));
  });
  if ((channels?.length ?? 0) > NAMES) parts.append(` and ${count((channels?.length ?? 0) - NAMES)} more`);
  return element("li", { className: tone }, icon(tone === "bad" ? "stop" : "warning"), parts);
}
