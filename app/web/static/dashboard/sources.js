/** The inputs that the server publishes itself (docs/how-to/pull-cameras.md), each with its state. */

import { element } from "../session.js";
import { count, duration, plain } from "./format.js";
import { fragment } from "./parts.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Source} Source */

/** What the states mean: the text, and the tone of the chip; a time follows it where one is known. `again`: starting, after it has failed. @type {Record<string, [text: string, tone: string]>} */
const STATES = {
  running: ["running", "good"],
  starting: ["starting", "warn"],
  failed: ["failed, starts again", "bad"],
  again: ["failed, is starting", "bad"],
};

export class Sources {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @private what is shown @type {Source[] | undefined} */
    this.shown = undefined;
    /** @private places with a time that goes on: the text before it, and that time; of `since`: none */
    this.ages = /** @type {[HTMLElement, string, number][]} */ ([]);
    this.body = element("tbody");
    const heads = ["Source", "State", "Since", "Restarts", "Input", "Last error"];
    const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
    this.box = element("section", { className: "workers sources paper", hidden: true, tabIndex: 0, "aria-label": "Sources" },
      element("table", {}, element("thead", {}, head), this.body));
  }

  update() {
    const { sources, time } = this.model.server;
    if (sources !== this.shown) {
      this.shown = sources;
      this.box.hidden = !sources?.length;
      this.ages = [];
      this.body.replaceChildren(...(sources ?? []).map((one) => this._line(one)));
    }
    for (const [cell, before, at] of this.ages) {
      const text = before + duration(1000 * Math.max(0, Math.round(before ? at - time : time - at)));
      if (cell.textContent !== text) cell.textContent = text;
    }
  }

  /** @private @param {Source} source */
  _line({ name, url, when, state, since, retry_at, restarts, error }) {
    const idle = when === "demand" ? "on demand, nobody reads" : "waiting";
    const known = STATES[state === "starting" && error ? "again" : state];
    const [text, tone] = known ?? [idle, ""];
    const age = element("td", { className: "num" });
    const chip = element("span", { className: `chip ${tone}` }, text);
    this.ages.push([age, "", since]);
    if (retry_at !== null) this.ages.push([chip, `${text} in `, retry_at]);
    return element("tr", {},
      element("th", { scope: "row" }, element("a", { href: fragment(name), dir: "auto" }, plain(name, 60))),
      element("td", {}, chip),
      age,
      element("td", { className: "num" }, count(restarts)),
      element("td", { dir: "auto", title: url }, plain(url, 80)),
      element("td", { dir: "auto" }, error ? plain(error, 200) : "–"));
  }
}
