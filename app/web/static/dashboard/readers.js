/** The readers of the channel that is shown in full: a list that is asked for while it is open, and the end of one. */

import { element, problem, request } from "../session.js";
import { ask } from "./parts.js";
import { bytes, count, plain, time } from "./format.js";

const EVERY_MS = 3_000;

/**
 * @typedef {{ client: string | null, address: string | null, program: string | null, seq: number, waits: boolean,
 *   lag: number, since: string, connections: number[] }} Row
 */

export class Readers {
  constructor() {
    this.name = "";
    this.list = element("ul", { className: "readers-list" });
    this.about = element("p", { className: "faint", role: "status" });
    this.box = element("details", { className: "readers-box" },
      element("summary", {}, element("h3", {}, "Who reads")), this.about, this.list);
    this.box.addEventListener("toggle", () => void this.update());
    setInterval(() => void this.update(), EVERY_MS);
  }

  /** Show the readers of another channel. @param {string} name */
  open(name) {
    if (name === this.name) return;
    this.name = name;
    this.list.replaceChildren();
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
      element("b", { dir: "auto" }, who), element("span", { className: "num lag" }, row.lag ? `${bytes(row.lag)} behind` : "in time"),
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
