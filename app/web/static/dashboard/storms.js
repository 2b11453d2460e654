/**
 * Retry storms: the open alerts of `tricklecast storms watch`, and the newest report of `tricklecast storms`. The report
 * is shown in a frame of its own origin, without scripts.
 */

import { element, icon, problem, request } from "../session.js";
import { bytes, count, plain, time } from "./format.js";

/** How often the page looks for news, while it is visible. */
const EVERY_MS = 10_000;

/**
 * @typedef {{ id: string, status: string, severity: string, storm: string, clients: string[], channels: string[],
 *   requests: number | null, told: number }} Open
 * @typedef {{ name: string, modified: number, size: number, url: string }} Report
 */

export class Storms {
  constructor() {
    /** The storms that go on, for the alerts. @type {import("./alerts.js").Alert[]} */
    this.alerts = [];
    this.incidents = element("ul", { className: "incidents" });
    this.calm = element("p", { className: "faint", hidden: true }, "No storm is going on.");
    this.failed = element("p", { className: "notice warn", role: "alert", hidden: true });
    this.frame = element("iframe", { title: "Storm report", sandbox: "", referrerPolicy: "no-referrer", hidden: true });
    this.about = element("p", { className: "faint" });
    this.summary = element("span", { className: "chip" });
    const show = element("button", { type: "button" }, "Show the report");
    show.addEventListener("click", () => this._show());
    this.report = element("div", { className: "report", hidden: true }, this.about, show, this.frame);
    this.box = element("details", { className: "storms paper", hidden: true },
      element("summary", {}, element("h2", {}, "Retry storms"), this.summary),
      this.failed, this.calm, this.incidents, this.report);
    if (document.documentElement.dataset.reports === undefined) return;
    this.box.hidden = false;
    setInterval(() => void this.update(), EVERY_MS);
    void this.update();
  }

  /** Look for news. @returns {Promise<Report | null>} the newest report */
  async update() {
    if (document.hidden) return null;
    try {
      const response = await request("/api/v1/reports");
      if (!response.ok) throw new Error(await problem(response));
      const { report, open, watched, problems } = await response.json();
      this._fill(report, open, watched);
      this._fail(problems.join("; "));
      return report;
    } catch (error) {
      this._fail(`Reports cannot be read: ${error instanceof Error ? error.message : error}`);
      return null;
    }
  }

  /** @param {string} why */
  _fail(why) {
    this.failed.textContent = why;
    this.failed.hidden = !why;
  }

  /**
   * @param {Report | null} report
   * @param {Open[]} open
   * @param {boolean} watched whether there is a file of alerts
   */
  _fill(report, open, watched) {
    const bad = open.some((one) => one.severity === "critical");
    this.summary.className = `chip ${open.length ? (bad ? "bad" : "warn") : watched ? "good" : ""}`;
    this.summary.textContent = open.length ? `${count(open.length)} going on` : watched ? "calm" : "not watched";
    this.calm.hidden = open.length > 0 || !watched;
    this.alerts = open.length ? [{
      tone: bad ? "bad" : "warn", text: open.length === 1 ? "A retry storm goes on" : `${count(open.length)} retry storms go on`,
      why: open.slice(0, 2).map((one) => `${plain(one.storm.replaceAll("_", " "), 40)} of ${named(one.clients)}`).join(", "),
    }] : [];
    this.incidents.replaceChildren(...open.map((one) => element("li", { className: one.severity },
      icon("warning"), element("b", {}, plain(one.storm.replaceAll("_", " "), 40)), ` · ${plain(one.severity, 20)} · `,
      element("span", { dir: "auto" }, named(one.clients)), " on ", element("span", { dir: "auto" }, named(one.channels)),
      one.requests ? `, ${count(one.requests)} requests` : "",
      element("span", { className: "faint num" }, ` · ${time(one.told)} · ${plain(one.id, 20)}`))));
    this.report.hidden = !report;
    if (report) {
      this.about.textContent = `${plain(report.name, 80)}, ${bytes(report.size)}, `
        + `made ${new Date(1000 * report.modified).toLocaleString()}`;
    }
  }

  /** Load the newest report: its URL is good for a minute. */
  async _show() {
    const report = await this.update();
    if (!report) return;
    this.frame.src = report.url;
    this.frame.hidden = false;
    this.report.scrollIntoView(); // the report begins with its timeline, which is to be in view
  }
}

/** @param {string[]} names */
const named = (names) => (names.length ? `${plain(names[0] ?? "", 60)}${names.length > 1 ? ` and ${names.length - 1} more` : ""}` : "?");
