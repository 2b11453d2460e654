/** The mirror of this server: which server it copies, how far that is, and what goes wrong. */

import { element, icon } from "../session.js";
import { bitrate, bytes, count, duration, plain, time } from "./format.js";
import { copyLine } from "./parts.js";

/** @typedef {import("./model.js").Model} Model */

/** States in which copies are made; the tone of their chips. @type {Record<string, string>} */
const TONES = { following: "good", looking: "warn", unreachable: "bad" };

/** What the others mean. @type {Record<string, string>} */
const MEANINGS = {
  stopped: "Nothing more is copied. The copies can be read, and take no publishers.",
  promoted: "The copies are channels of this server now, and take publishers.",
  deposed: "Another server has this one's place: publishers are refused.",
};

export class Mirror {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {unknown} what is shown */
    this.shown = null;
    this.state = element("span", { className: "chip" });
    this.about = element("span", { dir: "auto" });
    this.bar = element("progress", { "aria-label": "Copied" });
    this.done = element("span", { className: "num" });
    this.figures = element("span", { className: "faint num" });
    this.problem = element("p", { className: "notice warn", role: "alert", hidden: true });
    this.errors = element("ul", { className: "incidents", "aria-label": "What has gone wrong, newest first" });
    this.progress = element("p", {}, this.bar, " ", this.done, " ", this.figures);
    const how = element("details", {}, element("summary", {}, "Commands"),
      copyLine("What would be lost without the source", `tricklecast mirror status ${location.origin} --for-promotion`),
      copyLine("Take the source's place", `tricklecast mirror promote ${location.origin}`),
      element("p", { className: "faint" }, "The documentation's page “Mirror to another site” has the whole way; ",
        element("a", { href: "/docs" }, "the API"), " has the same requests."));
    this.box = element("section", { className: "mirror paper", hidden: true, tabIndex: 0, "aria-labelledby": "mirror-title" },
      element("div", { className: "title" }, element("h2", { id: "mirror-title" }, "Mirror"), this.state, this.about),
      this.progress, this.problem, this.errors, how);
  }

  update() {
    const { mirror } = this.model.server;
    if (mirror === this.shown) return;
    this.shown = mirror;
    this.box.hidden = !mirror;
    if (!mirror) return;
    const { state, setting, channels, segments, lag } = mirror;
    const copies = state in TONES || state === "stopped";
    const failed = (channels.failed ?? 0) + (segments.failed ?? 0);
    this.state.className = `chip ${mirror.problem ? "bad" : failed ? "warn" : TONES[state] ?? ""}`;
    this.state.textContent = mirror.complete ? `${state}, complete` : failed ? `${state}, ${count(failed)} failed` : state;
    const source = setting ? `from ${plain(setting.source)}, ${plain(setting.channels.join(" "), 60)}` : "";
    this.about.textContent = [source, MEANINGS[state], plain(mirror.plain), plain(mirror.successor)].filter(Boolean).join(" · ");
    this.progress.hidden = !copies;
    const [here, all] = [(channels.synced ?? 0) + (segments.synced ?? 0), total(channels) + total(segments)];
    this.bar.max = Math.max(1, all);
    this.bar.value = all || mirror.last_contact === null ? here : 1; // none of none is all
    const beyond = segments.beyond ? ` (${count(segments.beyond)} beyond the retention here)` : "";
    this.done.textContent = `${part(channels)} channels, ${part(segments)} segments${beyond}`;
    const late = lag.seconds === null ? "–" : `${duration(1000 * Math.round(lag.seconds))}`;
    const left = mirror.remaining_s === null ? ", – left" : mirror.remaining_s ? `, ${duration(1000 * Math.ceil(mirror.remaining_s))} left` : "";
    this.figures.textContent = mirror.last_contact === null ? "· the source has not answered yet"
      : `· behind ${late}, ${count(lag.segments)} segments (${bytes(lag.bytes)}) · ${bitrate(mirror.rate)}${left}`
        + ` · ${count(mirror.live)} live · ${count(mirror.verified)} verified · last heard at ${time(mirror.last_contact)}`;
    this.problem.textContent = plain(mirror.problem, 300);
    this.problem.hidden = !mirror.problem;
    this.errors.replaceChildren(...[...mirror.errors].reverse().map(({ at, channel, error }) => element("li", { dir: "auto" },
      icon("warning"), element("span", { className: "faint num" }, `${time(at)} `), plain(channel, 60), channel ? ": " : "", plain(error, 200))));
  }
}

/** How many there will be; what has ended, or would not be kept here, does not count. @param {Record<string, number>} rows */
const total = (rows) => Object.values(rows).reduce((sum, n) => sum + n, 0) - (rows.deleted ?? 0) - (rows.beyond ?? 0);

/** How many of them are here. @param {Record<string, number>} rows */
const part = (rows) => `${count(rows.synced ?? 0)} of ${count(total(rows))}`;
