/** The nodes of a cluster, and the channels that other nodes have. */

import { element, problem, request } from "../session.js";
import { count, plain, time } from "./format.js";

/** How often the page looks, while it is visible. */
const EVERY_MS = 3_000;

/** Channels of other nodes, and moves, that are listed. */
const CHANNELS = 500;
const MOVES = 20;

/**
 * @typedef {{ name: string, url: string, state: string, reachable: boolean, this: boolean, load: number,
 *   version: string, channels: number }} Node
 * @typedef {{ name: string, node: string, state: string, readers: number }} Channel
 */

export class Cluster {
  constructor() {
    /** Nodes that do not work. @type {import("./alerts.js").Alert[]} */
    this.alerts = [];
    this.body = element("tbody");
    const heads = ["Node", "State", "Channels", "Load", "Version"];
    this.failed = element("p", { className: "notice warn", role: "alert", hidden: true });
    this.elsewhere = element("tbody");
    this.summary = element("span", { className: "faint num" });
    this.moves = element("ul", { className: "moves" });
    this.details = element("details", {}, element("summary", {}, "Channels at other nodes ", this.summary),
      this.moves, element("table", {}, element("thead", {}, row("th", ["Channel", "Node", "State", "Readers"])), this.elsewhere));
    this.details.addEventListener("toggle", () => void this.update());
    this.box = element("section", { className: "workers paper", hidden: true, tabIndex: 0, "aria-label": "Nodes" },
      this.failed, element("table", {}, element("thead", {}, row("th", heads)), this.body), this.details);
    /** @type {Map<string, string> | null} the node of each channel, when they were last looked at */
    this.places = null;
    if (document.documentElement.dataset.cluster === undefined) return;
    this.timer = setInterval(() => void this.update(), EVERY_MS);
    void this.update();
  }

  /** Look for news. */
  async update() {
    if (document.hidden || this.timer === undefined) return;
    try {
      const response = await request("/api/v1/nodes");
      if (response.status === 403) { // a token for some channels shows no nodes
        clearInterval(this.timer);
        return;
      }
      if (!response.ok) throw new Error(await problem(response));
      const { nodes, degraded } = await response.json();
      this._fillNodes(nodes);
      this._fail(degraded ? `This node can decide nothing about channels now: ${plain(degraded)}` : "");
      if (this.details.open) await this._fillChannels(nodes);
    } catch (error) {
      this._fail(`The nodes cannot be read: ${error instanceof Error ? error.message : error}`);
    }
    this.box.hidden = false;
  }

  /** @param {string} why */
  _fail(why) {
    this.failed.textContent = why;
    this.failed.hidden = !why;
  }

  /** @param {Node[]} nodes */
  _fillNodes(nodes) {
    const lost = nodes.filter(isBad);
    this.alerts = lost.length ? [{
      tone: "bad", text: lost.length === 1 ? "A node of the cluster does not answer" : `${count(lost.length)} nodes of the cluster do not answer`,
      why: lost.slice(0, 5).map(({ name }) => plain(name, 40)).join(", "),
    }] : [];
    this.body.replaceChildren(...nodes.map((one) => {
      const bad = isBad(one);
      const state = bad && one.state !== "deposed" ? "unreachable" : one.state;
      const name = one.this ? `${plain(one.name)} (this one)` : link(one);
      const line = row("td", [state, count(one.channels), String(one.load), plain(one.version)]);
      line.prepend(element("th", { scope: "row" }, name));
      line.className = bad ? "bad" : "";
      return line;
    }));
  }

  /** @param {Node[]} nodes */
  async _fillChannels(nodes) {
    const response = await request("/api/v1/channels");
    if (!response.ok) throw new Error(await problem(response));
    const { channels, unreachable } = /** @type {{ channels: Channel[], unreachable: string[] }} */ (await response.json());
    const mine = nodes.find((one) => one.this)?.name;
    const shown = channels.filter(({ name }) => !name.startsWith("_"));
    const places = new Map(shown.map(({ name, node }) => [name, node]));
    for (const [name, node] of places) {
      const before = this.places?.get(name);
      if (before === undefined || before === node) continue;
      const text = `${time(Date.now() / 1000)} ${plain(name)}: ${plain(before)} → ${plain(node)}`;
      this.moves.prepend(element("li", { dir: "auto" }, text));
    }
    while (this.moves.children.length > MOVES) this.moves.lastElementChild?.remove();
    this.places = places;
    const others = shown.filter(({ node }) => node !== mine);
    this.summary.textContent = count(others.length) + (unreachable.length ? `, without those of ${plain(unreachable.join(", "))}` : "");
    this.elsewhere.replaceChildren(...others.slice(0, CHANNELS).map(
      ({ name, node, state, readers }) => row("td", [plain(name), plain(node), plain(state), count(readers)])));
    if (others.length > CHANNELS) {
      this.elsewhere.append(element("tr", {}, element("td", { colSpan: 4 }, `and ${count(others.length - CHANNELS)} more`)));
    }
  }
}

/** @param {Node} one */
const isBad = ({ state, reachable }) => state === "deposed" || (!reachable && state !== "left");

/** A link to a page of another node. @param {Node} one @param {string} path */
export function link({ name, url }, path = "/") {
  if (!/^https?:\/\//.test(url)) return plain(name);
  return element("a", { href: new URL(path, url).href, rel: "noreferrer" }, plain(name));
}

/** @param {"td" | "th"} kind @param {string[]} texts */
function row(kind, texts) {
  return element("tr", {}, ...texts.map((text) => element(kind, kind === "th" ? { scope: "col" } : { dir: "auto" }, text)));
}
