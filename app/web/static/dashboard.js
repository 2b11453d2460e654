/** The dashboard: the list of all channels, one channel in full, and the events of the server. */

import { byId, channelUrl, element, hasTokens, icon, signIn, token } from "./session.js";
import { Alerts } from "./dashboard/alerts.js";
import { Tooltip, onColours, refreshColours } from "./dashboard/charts.js";
import { Cluster } from "./dashboard/cluster.js";
import { Detail } from "./dashboard/detail.js";
import { Feed } from "./dashboard/feed.js";
import { count, duration, time } from "./dashboard/format.js";
import { List } from "./dashboard/list.js";
import { Mirror } from "./dashboard/mirror.js";
import { Model, STATES } from "./dashboard/model.js";
import { Events, Strip, Workers, copyLine, fragment } from "./dashboard/parts.js";
import { Sources } from "./dashboard/sources.js";
import { Storms } from "./dashboard/storms.js";

const model = new Model();
const tooltip = new Tooltip();
const strip = new Strip(model);
const workers = new Workers(model);
const cluster = new Cluster();
const mirror = new Mirror(model);
const sources = new Sources(model);
const events = new Events(model, open);
const list = new List(model, tooltip, (channel) => open(channel.name));
const detail = new Detail(model, tooltip, close);
const storms = new Storms();
const alerts = new Alerts(model, () => [...cluster.alerts, ...storms.alerts]);

// The toolbar.

const search = element("input", {
  type: "search", id: "filter", placeholder: "Filter channels", "aria-label": "Filter channels by name, type or publisher",
  autocomplete: "off", spellcheck: false,
});
const shown = element("span", { className: "faint num shown", role: "status" });
/** @type {Map<string, HTMLButtonElement>} */
const chips = new Map();
for (const state of ["all", "live", "stalled", "idle", "draining"]) {
  const chip = element("button", { type: "button", className: `chip ${state}`, "aria-pressed": state === "all" });
  chip.addEventListener("click", () => narrow(search.value, state));
  chips.set(state, chip);
}
const toolbar = element("div", { className: "toolbar" },
  element("label", { className: "search", htmlFor: "filter" }, icon("search"), search, element("kbd", {}, "/")),
  element("div", { className: "chips", role: "group", "aria-label": "State" }, ...chips.values()), shown);

/** Show only channels with these words and in this state. @param {string} words @param {string} state */
function narrow(words, state) {
  search.value = words;
  for (const [name, chip] of chips) chip.setAttribute("aria-pressed", String(name === state));
  list.filter(words, state);
  update();
}

search.addEventListener("input", () => narrow(search.value, list.state));
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === "ArrowDown") {
    list.select(list.selected && list.shown.includes(list.selected) ? list.selected : list.shown[0] ?? null);
    list.scroller.focus();
    event.preventDefault();
  }
});

// No channels at all: commands for the first one.

const example = channelUrl("cam");
const credentials = hasTokens ? "TRICKLECAST_TOKEN=… " : "";
const empty = element("div", { className: "empty card", hidden: true },
  element("h2", {}, "No channels"),
  element("p", {}, "A channel appears here as soon as somebody publishes to it. Begin in this browser, or in a terminal:"),
  element("p", {}, element("a", { className: "button primary", href: "/publish" }, icon("play"), "Publish from this browser")),
  copyLine("Publish a test picture", `${credentials}tricklecast publish ${example} testsrc`),
  copyLine("Publish a film", `${credentials}tricklecast publish ${example} film.mp4`),
  copyLine("Watch it", `${credentials}tricklecast subscribe ${example} -o - | ffplay -`));
const unfilter = element("button", { type: "button" }, "Show all channels");
unfilter.addEventListener("click", () => {
  narrow("", "all");
  search.focus();
});
const whyNone = element("p", {});
const nothing = element("div", { className: "nothing card", hidden: true },
  element("h2", {}, "No channel matches the filter."), whyNone, unfilter);

// Whether the server is there.

const status = element("div", { className: "status connecting", role: "status" });
const lost = element("div", { className: "notice bad lost", role: "alert", hidden: true });
let clock = 0;

/** @param {import("./dashboard/feed.js").Status} now */
function showStatus(now) {
  clearInterval(clock);
  const texts = { connecting: "Connecting…", live: "Live", lost: "No connection", refused: "Not allowed" };
  status.className = `status ${now.state}`;
  status.replaceChildren(element("i"), texts[now.state]);
  main.classList.toggle("stale", now.state === "lost" || now.state === "refused");
  lost.hidden = now.state !== "lost" && now.state !== "refused";
  loading.hidden = model.frame > 0 || !lost.hidden;
  if (lost.hidden) return;
  const since = element("b", {});
  const wait = element("span", { className: "num" });
  const button = element("button", { type: "button" }, "Try now");
  button.addEventListener("click", async () => {
    if (now.state !== "refused" || (await signIn())) feed.hurry();
  });
  if (now.state === "refused") button.textContent = token() ? "Use another token" : "Sign in";
  const why = now.why ? `${now.why.charAt(0).toUpperCase()}${now.why.slice(1)}. ` : "";
  lost.replaceChildren(icon("warning"), element("span", {}, since, " ", why, wait), button);
  const tick = () => {
    const ago = `${time(now.since / 1000)} (${duration(1000 * Math.round((Date.now() - now.since) / 1000))} ago)`;
    since.textContent = now.state === "refused" ? "The server does not show its channels:"
      : model.frame ? `The server has not answered since ${ago}; what you see is from then.`
        : why ? "The server shows no channels now:" : "The server does not answer.";
    const left = now.again ? Math.max(0, Math.ceil((now.again - Date.now()) / 1000)) : 0;
    wait.textContent = left === Infinity ? "" : left ? `Next attempt in ${left} s.` : "Trying…";
  };
  tick();
  clock = window.setInterval(tick, 1000);
}

// The page.

const tabs = element("div", { className: "tabs", role: "group", "aria-label": "View" });
for (const [name, text] of [["channels", "Channels"], ["events", "Events"]]) {
  const button = element("button", { type: "button", "aria-pressed": name === "channels" }, text ?? "");
  button.addEventListener("click", () => {
    main.dataset.view = name ?? "";
    for (const other of tabs.children) other.setAttribute("aria-pressed", String(other === button));
    list.draw();
  });
  tabs.append(button);
}
const main = byId("main");
const loading = element("p", { className: "loading faint" }, "Loading the channels…");
byId("status").append(status);
const board = element("div", { className: "board" },
  strip.box, alerts.box, workers.box, cluster.box, mirror.box, sources.box, lost, toolbar, tabs,
  element("div", { className: "columns" },
    element("div", { className: "left" }, loading, empty, nothing, list.box),
    element("div", { className: "right" }, detail.box, events.box)),
  storms.box);

/** Show the board, as soon as there is something to show. */
function begin() {
  if (board.isConnected) return;
  main.append(board);
  refreshColours();
}

function update() {
  const { channels } = model;
  const counts = [0, 0, 0, 0];
  for (const channel of channels.values()) counts[channel.state] = (counts[channel.state] ?? 0) + 1;
  chips.get("all")?.replaceChildren("all ", element("b", { className: "num" }, count(channels.size)));
  STATES.forEach((state, code) => {
    const chip = chips.get(state);
    chip?.replaceChildren(`${state} `, element("b", { className: "num" }, count(counts[code])));
    chip?.classList.toggle("none", !counts[code]);
  });
  const narrowed = list.query !== "" || list.state !== "all";
  shown.textContent = narrowed ? `${count(list.shown.length)} of ${count(channels.size)} shown` : "";
  const none = !channels.size && model.frame > 0;
  loading.hidden = model.frame > 0;
  empty.hidden = !none;
  toolbar.hidden = none;
  nothing.hidden = none || list.shown.length > 0 || !model.frame;
  list.box.hidden = none || loading.hidden === false || !nothing.hidden;
  const words = list.query ? `with “${list.query}” in its name, type or publisher` : "";
  const state = list.state === "all" ? "" : `that is ${list.state}`;
  whyNone.textContent = `The server has ${count(channels.size)} channel${channels.size === 1 ? "" : "s"}, none ${
    [words, state].filter(Boolean).join(" and ")}.`;
}

/** @param {string} name */
function open(name) {
  location.hash = fragment(name);
}

function close() {
  // Without a fragment, and without a step back out of the page.
  if (location.hash) history.pushState(null, "", location.pathname + location.search);
  route();
  list.scroller.focus({ preventScroll: true });
}

function route() {
  const [, encoded] = /^#\/channel\/(.+)$/.exec(location.hash) ?? [];
  let name = "";
  try {
    name = decodeURIComponent(encoded ?? "");
  } catch {
    // Not a fragment of this page: it names no channel.
  }
  main.classList.toggle("detailed", name !== "");
  if (!name) {
    detail.close();
    return;
  }
  begin();
  list.select(model.byName.get(name) ?? null);
  if (detail.name !== name) detail.open(name);
}

window.addEventListener("hashchange", route);
window.addEventListener("popstate", route);
document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement;
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !document.querySelector("dialog[open]")) {
    search.focus();
    search.select();
    event.preventDefault();
  } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (strip.details.open) {
      strip.details.open = false;
      strip.details.querySelector("summary")?.focus();
    } else if (typing && search.value) {
      narrow("", list.state);
    } else if (detail.name) {
      close();
    } else if (typing) {
      list.scroller.focus();
    }
  }
});
document.addEventListener("pointerdown", (event) => {
  if (!(event.target instanceof Node && strip.details.contains(event.target))) strip.details.open = false;
});
onColours(() => {
  model.frame += 0.5; // rows are drawn anew
  list.draw();
  strip.draw();
  detail.redraw();
});

const feed = new Feed("/api/v1/dashboard", (frame, whole) => {
  begin();
  model.take(frame, whole);
  list.update();
  update();
  strip.update();
  workers.update();
  mirror.update();
  sources.update();
  alerts.update();
  events.update();
  detail.update();
  if (whole) route();
}, (now) => {
  if (now.state !== "connecting") begin();
  showStatus(now);
});

showStatus(feed.status);
route();
void feed.run();
