/**
 * The list of channels: any number of them, of which only the visible rows are elements. Rows are reused while the user
 * scrolls. The keyboard moves a selection; the list itself has the focus.
 *
 * At first, channels with something going on are on top, and those that have ended below: a channel changes its place
 * when it begins, falls idle or ends, and not with each byte.
 */

import { Name } from "../name.js";
import { element, icon } from "../session.js";
import { curve, segmentAt, segmentText, timeline } from "./charts.js";
import { bitrate, bytes, count, plain } from "./format.js";
import { STATES } from "./model.js";

/** @typedef {import("./model.js").Channel} Channel */
/** @typedef {import("./model.js").Model} Model */

/** The width of a bar where a text of the usual size has 16 pixels. */
const BAR = 7;
const AHEAD = 4;

/** @type {Record<string, { title: string, by: (channel: Channel, model: Model) => number | string, falls?: boolean }>} */
const COLUMNS = {
  title: { title: "Channel", by: (channel) => channel.name },
  publisher: { title: "Publisher", by: (channel) => channel.publisher },
  readers: { title: "Readers", by: (channel) => channel.readers, falls: true },
  lag: { title: "Lag", by: (channel) => channel.lag, falls: true },
  received: { title: "In", by: (channel) => channel.rateIn, falls: true },
  sent: { title: "Out", by: (channel) => channel.rateOut, falls: true },
  segments: { title: "Segments", by: (channel) => channel.head, falls: true },
  window: { title: "Window", by: (channel, model) => channel.fill(model.server), falls: true },
};

/** The order in which no column is marked. */
const LIVE_FIRST = { column: "", falls: false };

const ICONS = { idle: "idle", live: "live", stalled: "warning", draining: "ended" };

/** One row's elements. */
class Row {
  /** @param {number} index */
  constructor(index) {
    /** @type {Channel | null} */
    this.channel = null;
    this.drawn = -1;
    this.name = new Name();
    this.type = element("span", { className: "type faint" });
    this.badge = element("span", { className: "state" });
    this.publisher = element("span", { className: "cell publisher", role: "gridcell", dir: "auto" });
    this.readers = element("span", { className: "cell num readers", role: "gridcell" });
    this.lag = element("span", { className: "cell num lag", role: "gridcell" });
    this.curve = element("canvas", { className: "curve", "aria-hidden": "true" });
    this.rate = element("span", { className: "num rate" });
    this.sent = element("span", { className: "cell num sent", role: "gridcell" });
    this.chart = element("canvas", { className: "timeline", role: "img" });
    this.fill = element("span", { className: "fill-bar" }, element("i"));
    this.fillText = element("span", { className: "num faint" });
    const cell = (/** @type {string} */ name, /** @type {Node[]} */ ...children) =>
      element("span", { className: `cell ${name}`, role: "gridcell" }, ...children);
    this.box = element("div", { className: "row", role: "row", id: `row-${index}`, hidden: true },
      cell("title", this.badge, element("span", { className: "names" }, this.name.box, this.type)),
      this.publisher, this.readers, this.lag,
      cell("received", this.curve, this.rate), this.sent,
      cell("segments", this.chart), cell("window", this.fill, this.fillText),
    );
    this.state = -1;
  }
}

/** Set a text only if it differs, since each change costs a layout. @param {HTMLElement} box @param {string} text */
function set(box, text) {
  if (box.textContent !== text) box.textContent = text;
}

export class List {
  /**
   * @param {Model} model
   * @param {import("./charts.js").Tooltip} tooltip
   * @param {(channel: Channel) => void} onOpen
   */
  constructor(model, tooltip, onOpen) {
    this.model = model;
    this.onOpen = onOpen;
    this.query = "";
    /** @type {string} */
    this.state = "all";
    this.sort = LIVE_FIRST;
    /** @type {Channel[]} */
    this.shown = [];
    /** @type {Channel | null} */
    this.selected = null;
    this.changes = this.moves = -1;
    /** @type {Row[]} */
    this.rows = [];
    this._drawing = 0;
    this._sizes = { chart: [0, 0], curve: [0, 0], bar: BAR };

    this.spacer = element("div", { className: "spacer" });
    this.header = element("div", { className: "head", role: "row" }, ...Object.entries(COLUMNS).map(([name, column]) => {
      const button = element("button", { type: "button", className: "quiet" }, column.title);
      button.title = `Sort by ${column.title.toLowerCase()}; the third click puts live channels first again`;
      button.addEventListener("click", () => this.sortBy(name));
      return element("span", { className: `cell ${name}`, role: "columnheader", "data-column": name }, button);
    }));
    // The header is a sticky row of the same box, so its columns are exactly as wide as those of the rows.
    this.scroller = element("div", {
      className: "rows", role: "grid", tabIndex: 0, "aria-label": "Channels",
    }, this.header, this.spacer);
    this.box = element("div", { className: "list paper" }, this.scroller);
    this.scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    this.scroller.addEventListener("keydown", (event) => this._key(event));
    this.scroller.addEventListener("click", (event) => {
      const row = this._rowOf(event);
      if (row?.channel) {
        this.select(row.channel);
        onOpen(row.channel);
      }
    });
    this.scroller.addEventListener("pointermove", (event) => {
      const row = this._rowOf(event);
      if (row?.channel && event.target === row.chart) {
        const options = { width: this._sizes.chart[0] ?? 0, bar: this._sizes.bar };
        const segment = segmentAt(row.channel.segments, event.offsetX, options);
        if (segment) {
          tooltip.show(segmentText(segment, this.model.server.ms), event.clientX, event.clientY);
          return;
        }
      }
      tooltip.hide();
    });
    this.scroller.addEventListener("pointerleave", () => tooltip.hide());
    new ResizeObserver(() => this._measure()).observe(this.scroller);
    this._markSort();
  }

  /** @param {Event} event */
  _rowOf(event) {
    const target = event.target instanceof Element ? event.target.closest(".row") : null;
    return this.rows.find((row) => row.box === target);
  }

  get rowHeight() {
    return parseFloat(getComputedStyle(this.box).getPropertyValue("--row")) || 44;
  }

  /** Make the scrolled box as high as all rows, although only the visible ones are elements. */
  _stretch() {
    const height = `${this.shown.length * (this._height ?? this.rowHeight)}px`;
    if (this.spacer.style.height !== height) this.spacer.style.height = height;
  }

  _measure() {
    this._height = this.rowHeight;
    this._stretch();
    this._view = this.scroller.clientHeight - this.header.offsetHeight;
    const first = this.rows[0];
    if (first) {
      const hidden = first.box.hidden;
      first.box.hidden = false;
      const bar = Math.round((BAR * parseFloat(getComputedStyle(document.documentElement).fontSize)) / 16);
      const [chart, curve] = [first.chart, first.curve].map(({ clientWidth, clientHeight }) => [clientWidth, clientHeight]);
      this._sizes = { chart: chart ?? [], curve: curve ?? [], bar };
      first.box.hidden = hidden;
      for (const row of this.rows) row.drawn = -1;
    }
    this.draw();
  }

  /** Sort by a column; the other way round at the second time; live channels first at the third. @param {string} column */
  sortBy(column) {
    const falls = COLUMNS[column]?.falls === true;
    if (this.sort.column !== column) this.sort = { column, falls };
    else this.sort = this.sort.falls === falls ? { column, falls: !falls } : LIVE_FIRST;
    this._markSort();
    this.update(true);
    this.scroller.scrollTop = 0;
  }

  _markSort() {
    for (const cell of this.header.children) {
      const mine = cell.getAttribute("data-column") === this.sort.column;
      if (mine) cell.setAttribute("aria-sort", this.sort.falls ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  /**
   * Show only channels with these words and in this state.
   * @param {string} query
   * @param {string} state of STATES, or `all`
   */
  filter(query, state) {
    this.query = query;
    this.state = state;
    this.update(true);
    this.scroller.scrollTop = 0;
  }

  /** A frame has come, or the filter or the order has changed. @param {boolean} [anew] */
  update(anew = false) {
    const { model } = this;
    const { column, falls } = this.sort;
    const still = column === "title" || column === "publisher" || (column === "" && this.moves === model.moves);
    if (anew || this.changes !== model.changes || !still || this.state !== "all") {
      this.changes = model.changes;
      this.moves = model.moves;
      const words = this.query.toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = /** @type {readonly string[]} */ (STATES).indexOf(this.state);
      const found = [];
      for (const channel of model.channels.values()) {
        if ((wanted < 0 || channel.state === wanted) && words.every((word) => channel.text.includes(word))) {
          found.push(channel);
        }
      }
      this.shown = sorted(found, column, falls, model);
      this._stretch();
      this.scroller.setAttribute("aria-rowcount", String(this.shown.length + 1));
    }
    this.draw();
  }

  /** Draw once, before the next repaint. */
  draw() {
    this._drawing ||= requestAnimationFrame(() => {
      this._drawing = 0;
      this._draw();
    });
  }

  _draw() {
    const height = (this._height ??= this.rowHeight);
    const view = (this._view ??= this.scroller.clientHeight - this.header.offsetHeight);
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / height) - AHEAD);
    const last = Math.min(this.shown.length, Math.ceil((this.scroller.scrollTop + view) / height) + AHEAD);
    const wanted = Math.ceil(view / height) + 2 * AHEAD + 1;
    const began = this.rows.length;
    while (this.rows.length < wanted) {
      const row = new Row(this.rows.length);
      this.rows.push(row);
      this.spacer.append(row.box);
    }
    if (!began && this.rows.length) {
      this._measure();
      return;
    }
    let active = "";
    for (let at = first; at < first + this.rows.length; at++) {
      const row = /** @type {Row} */ (this.rows[at % this.rows.length]);
      const channel = at < last ? this.shown[at] : undefined;
      row.box.hidden = !channel;
      if (!channel) {
        row.channel = null;
        continue;
      }
      const top = `translateY(${at * height}px)`;
      if (row.box.style.transform !== top) row.box.style.transform = top;
      row.box.setAttribute("aria-rowindex", String(at + 2));
      const picked = channel === this.selected;
      row.box.setAttribute("aria-selected", String(picked));
      if (picked) active = row.box.id;
      if (row.channel !== channel || row.drawn !== this.model.frame) this._fill(row, channel);
    }
    if (active) this.scroller.setAttribute("aria-activedescendant", active);
    else this.scroller.removeAttribute("aria-activedescendant");
  }

  /**
   * @param {Row} row
   * @param {Channel} channel
   */
  _fill(row, channel) {
    const other = row.channel !== channel;
    row.channel = channel;
    row.drawn = this.model.frame;
    if (other || row.state !== channel.state) {
      row.state = channel.state;
      const state = STATES[channel.state] ?? "idle";
      row.badge.className = `state ${state}`;
      row.badge.replaceChildren(icon(ICONS[state]), element("span", { className: "visually-hidden" }, state));
      row.badge.title = state;
    }
    row.name.show(channel.name);
    set(row.type, plain(channel.type, 40));
    set(row.publisher, channel.publisher ? plain(channel.publisher, 80) : "–");
    if (row.publisher.title !== channel.publisher) row.publisher.title = channel.publisher;
    row.publisher.classList.toggle("gone", !channel.present);
    set(row.readers, count(channel.readers));
    set(row.lag, channel.lag ? bytes(channel.lag) : "–");
    set(row.rate, bitrate(channel.rateIn));
    set(row.sent, bitrate(channel.rateOut));
    const fill = channel.fill(this.model.server);
    const inner = /** @type {HTMLElement} */ (row.fill.firstElementChild);
    inner.style.transform = `scaleX(${fill.toFixed(3)})`;
    set(row.fillText, `${count(channel.kept)} · ${bytes(channel.keptBytes)}`);
    const newest = channel.segments.at(-1);
    const label = newest ? `newest: ${segmentText(newest, this.model.server.ms)}` : "no segments";
    if (row.chart.getAttribute("aria-label") !== label) row.chart.setAttribute("aria-label", label);
    const { chart, curve: small, bar } = this._sizes;
    if (chart[0]) timeline(row.chart, channel.segments, { width: chart[0], height: chart[1] ?? 0, bar });
    if (small[0]) curve(row.curve, channel.received, { width: small[0], height: small[1] ?? 0 });
  }

  /** @param {Channel | null} channel */
  select(channel) {
    this.selected = channel;
    if (channel) {
      const at = this.shown.indexOf(channel);
      const height = this._height ?? this.rowHeight;
      const { scrollTop } = this.scroller;
      const view = this.scroller.clientHeight - this.header.offsetHeight;
      if (at >= 0) {
        if (at * height < scrollTop) this.scroller.scrollTop = at * height;
        else if ((at + 1) * height > scrollTop + view) this.scroller.scrollTop = (at + 1) * height - view;
      }
    }
    this.draw();
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / (this._height ?? this.rowHeight)) - 1);
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step !== undefined) {
      const at = this.selected ? this.shown.indexOf(this.selected) : -1;
      const to = at < 0 && Math.abs(step) === 1 ? 0 : at + step;
      this.select(this.shown[Math.max(0, Math.min(this.shown.length - 1, to))] ?? null);
    } else if (event.key === "Enter" && this.selected) {
      this.onOpen(this.selected);
    } else {
      return;
    }
    event.preventDefault();
  }
}

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/**
 * @param {Channel[]} channels
 * @param {string} column
 * @param {boolean} falls
 * @param {Model} model
 */
function sorted(channels, column, falls, model) {
  const by = COLUMNS[column]?.by ?? ((/** @type {Channel} */ channel) => channel.name);
  const sign = falls ? -1 : 1;
  const keyed = channels.map((channel) => ({ channel, key: by(channel, model), rank: column ? 0 : channel.rank }));
  keyed.sort((one, other) => {
    const [a, b] = [one.key, other.key];
    if (one.rank !== other.rank) return one.rank - other.rank;
    const order = typeof a === "number" ? a - Number(b) : collator.compare(a, String(b));
    return sign * order || one.channel.number - other.channel.number;
  });
  return keyed.map(({ channel }) => channel);
}

