/**
 * The readers of the channel that is shown in full: how late they are, a list that is asked for while it is open, and the
 * end of one.
 */

import { element, problem, request } from "../session.js";
import { ask } from "./parts.js";
import { bytes, count, duration, plain, time } from "./format.js";

const EVERY_MS = 3_000;

/** Bounds of the bars that show how late readers are, in seconds. */
const LATE_S = [0, 0.5, 1, 2, 5, 10];

/**
 * @typedef {{ client: string | null, address: string | null, program: string | null, seq: number, waits: boolean,
 *   lag: number, late_s: number, since: string, connections: number[] }} Row
 */

export class Readers {
  constructor() {
    this.name = "";
    this.list = element("ul", { className: "readers-list" });
    this.about = element("p", { className: "faint", role: "status" });
    this.bars = element("ul", { className: "lateness", "aria-label": "How late readers are", hidden: true });
    this.box = element("details", { className: "readers-box" },
      element("summary", {}, element("h3", {}, "Who reads")), this.bars, this.about, this.list);
    this.box.addEventListener("toggle", () => void this.update());
    setInterval(() => void this.update(), EVERY_MS);
  }

  /** Show the readers of another channel. @param {string} name */
  open(name) {
    if (name === this.name) return;
    this.name = name;
    this.list.replaceChildren();
    this.bars.hidden = true;
    this.about.textContent = "";
    void this.update();
  }

  /** Ask for the list, if somebody looks at it. */
  async update() {
    const { name } = this;
    // Not while a dialog asks about a row, or the keyboard is on a row's button, which would lose its place.
    const busy = document.querySelector("dialog[open]") !== null || this.list.contains(document.activeElement);
    if (!name || !this.box.open || document.hidden || busy || !this.box.isConnected) return;
    try {
      const response = await request(`/api/v1/channels/${encodeURIComponent(name)}/readers`);
      if (!response.ok) throw new Error(await problem(response));
      const { readers, others } = await response.json();
      if (name === this.name) this._fill(readers, others);
    } catch (error) {
      this.about.textContent = `The readers cannot be listed: ${error instanceof Error ? error.message : error}`;
    }
  }

  /** @param {Row[]} readers @param {number} others */
  _fill(readers, others) {
    const more = others ? `${count(others)} more: players of HLS, or beyond what is listed` : "";
    this.about.textContent = readers.length ? more : more || "Nobody reads this channel.";
    this.bars.hidden = !readers.length;
    this.bars.replaceChildren(...lateness(readers));
    this.list.replaceChildren(...readers.map((row) => this._row(row)));
  }

  /** @param {Row} row */
  _row(row) {
    const who = plain(row.client ?? row.address ?? "unknown", 60);
    const end = element("button", { type: "button", className: "quiet", "aria-label": `End ${who}` }, "End");
    end.addEventListener("click", () => void this._end(row, who));
    const facts = [
      row.client && row.address ? plain(row.address, 60) : "", row.program ? plain(row.program, 60) : "",
      row.waits ? `waits for segment ${count(row.seq)}` : `segment ${count(row.seq)}`, `asked at ${time(Date.parse(row.since) / 1000)}`,
    ];
    return element("li", { className: row.lag ? "late" : "" },
      element("b", { dir: "auto" }, who), element("span", { className: "num lag" }, row.lag ? `${bytes(row.lag)}, ${seconds(row.late_s)} behind` : "in time"),
      end, element("span", { className: "faint num", dir: "auto" }, facts.filter(Boolean).join(" · ")));
  }

  /** @param {Row} row @param {string} who */
  async _end(row, who) {
    const { name } = this;
    await ask({
      title: "End this reader?",
      text: `The connections of “${who}” break, in the middle of a segment if it reads one. A client that retries comes back.`,
      action: "End reader",
      run: async () => {
        const url = `/api/v1/channels/${encodeURIComponent(name)}/readers/`;
        const answers = await Promise.all(row.connections.map((one) => request(url + one, { method: "DELETE" })));
        const failed = answers.every(({ ok }) => !ok) ? answers[0] : undefined;
        return failed ? problem(failed) : "";
      },
    });
    if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
    await this.update();
  }
}

/** @param {number} late */
const seconds = (late) => duration(Math.round(1000 * late));

/** A histogram: a bar for each span of time by which readers are late. @param {Row[]} readers */
function lateness(readers) {
  const counts = LATE_S.map(() => 0).concat(0);
  for (const { late_s } of readers) {
    const at = LATE_S.findIndex((bound) => late_s <= bound);
    const place = at < 0 ? LATE_S.length : at;
    counts[place] = (counts[place] ?? 0) + 1;
  }
  const most = Math.max(...counts);
  return counts.map((n, at) => {
    const text = !at ? "in time" : at < LATE_S.length ? `up to ${seconds(LATE_S[at] ?? 0)} late` : "more";
    const bar = element("i");
    bar.style.transform = `scaleX(${(n / most).toFixed(3)})`;
    return element("li", { className: at > 2 && n ? "late" : "" },
      element("span", {}, text), element("span", { className: "fill-bar" }, bar), element("span", { className: "num" }, count(n)));
  });
}
