/**
 * Charts on canvases: the timeline of a channel's segments, and small curves. Each state of a segment has a colour and a
 * shape of its own, so that it can be told without colours.
 */

import { element } from "../session.js";
import { bytes, duration } from "./format.js";
import { SEGMENT_STATES } from "./model.js";

/** @typedef {import("./model.js").Segment} Segment */

const COLOURS = /** @type {const} */ ({
  line: "--line", faint: "--faint", accent: "--accent", soft: "--accent-soft", text: "--text",
  complete: "--complete", open: "--open", truncated: "--bad", skipped: "--warn", terminated: "--faint",
});

/** @type {Record<keyof typeof COLOURS, string>} */
let colours = readColours();

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const found = Object.entries(COLOURS).map(([name, variable]) => [name, style.getPropertyValue(variable).trim()]);
  return /** @type {Record<keyof typeof COLOURS, string>} */ (Object.fromEntries(found));
}

/** Call back when the colours have changed, because the system has become dark or light. @param {() => void} redraw */
export function onColours(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours = readColours();
    redraw();
  });
}

/** Read the colours again. Call it when the style sheets have been loaded. */
export function refreshColours() {
  colours = readColours();
}

/**
 * A canvas's context, in CSS pixels and empty.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
function cleared(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser has no canvas");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** The x of the first bar, and the width of one, so that the newest ones end at the right edge. */
const layout = (/** @type {number} */ count, /** @type {number} */ width, /** @type {number} */ bar) => {
  const shown = Math.min(count, Math.floor(width / bar));
  return { shown, left: width - shown * bar };
};

/**
 * Draw segments as bars, as high as they are large; the newest ones stand at the right edge.
 * @param {HTMLCanvasElement} canvas
 * @param {Segment[]} segments ascending
 * @param {{ width: number, height: number, bar: number, picked?: number }} options CSS pixels; the seq that is picked
 */
export function timeline(canvas, segments, { width, height, bar, picked }) {
  const context = cleared(canvas, width, height);
  const { shown, left } = layout(segments.length, width, bar);
  const first = segments.length - shown;
  let largest = 1;
  for (let at = first; at < segments.length; at++) largest = Math.max(largest, segments[at]?.size ?? 0);
  context.fillStyle = colours.line;
  context.fillRect(0, height - 1, width, 1);
  const gap = bar > 6 ? 2 : 1;
  for (let at = first; at < segments.length; at++) {
    const segment = segments[at];
    if (!segment) continue;
    const x = left + (at - first) * bar;
    const high = Math.max(4, Math.round((height - 3) * (0.15 + (0.85 * segment.size) / largest)));
    drawBar(context, segment.state, x, bar - gap, height - 1, high);
    if (segment.seq === picked) {
      context.fillStyle = colours.text;
      context.fillRect(x, height - 1, bar - gap, 1);
      context.strokeStyle = colours.text;
      context.lineWidth = 1;
      context.strokeRect(x - 0.5, 0.5, bar - gap + 1, height - 1);
    }
  }
}

/**
 * One bar of a timeline.
 * @param {CanvasRenderingContext2D} context
 * @param {number} state
 * @param {number} x
 * @param {number} width
 * @param {number} bottom
 * @param {number} high
 */
function drawBar(context, state, x, width, bottom, high) {
  const top = bottom - high;
  switch (SEGMENT_STATES[state]) {
    case "waiting": // a frame of dots
      context.fillStyle = colours.faint;
      for (let y = bottom - 3; y > bottom - 15; y -= 4) context.fillRect(x + width / 2 - 1, y, 2, 2);
      break;
    case "open": // hollow
      context.strokeStyle = colours.open;
      context.lineWidth = 1.5;
      context.strokeRect(x + 0.75, top + 0.75, Math.max(1, width - 1.5), high - 0.75);
      break;
    case "complete":
      context.fillStyle = colours.complete;
      context.fillRect(x, top, width, high);
      break;
    case "empty": // a line on the ground
      context.fillStyle = colours.faint;
      context.fillRect(x, bottom - 3, width, 3);
      break;
    case "truncated": // cut off slantwise
      context.fillStyle = colours.truncated;
      context.beginPath();
      context.moveTo(x, top + Math.min(6, high / 2));
      context.lineTo(x + width, Math.max(0, top - 1));
      context.lineTo(x + width, bottom);
      context.lineTo(x, bottom);
      context.fill();
      break;
    case "skipped": // a cross
      context.strokeStyle = colours.skipped;
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(x, bottom - width - 2);
      context.lineTo(x + width, bottom - 2);
      context.moveTo(x + width, bottom - width - 2);
      context.lineTo(x, bottom - 2);
      context.stroke();
      break;
    case "terminated": // striped
      context.fillStyle = colours.terminated;
      for (let y = bottom - 2; y > top; y -= 4) context.fillRect(x, y, width, 2);
      break;
  }
}

/**
 * The segment below a place of a timeline.
 * @param {Segment[]} segments
 * @param {number} x CSS pixels from the left
 * @param {{ width: number, bar: number }} options as drawn
 */
export function segmentAt(segments, x, { width, bar }) {
  const { shown, left } = layout(segments.length, width, bar);
  const at = Math.floor((x - left) / bar);
  return at >= 0 && at < shown ? segments[segments.length - shown + at] : undefined;
}

/**
 * Describes a segment in words.
 * @param {Segment} segment
 * @param {number} nowMs of the server, as frames count
 */
export function segmentText(segment, nowMs) {
  const state = SEGMENT_STATES[segment.state] ?? "gone";
  const parts = [`segment ${segment.seq}`, state];
  if (segment.size) parts.push(bytes(segment.size));
  if (state === "open") parts.push(`for ${duration(Math.max(0, nowMs - segment.ms))}`);
  else if (segment.ms) parts.push(duration(segment.ms));
  return parts.join(" · ");
}

/**
 * Draw a small curve with its area.
 * @param {HTMLCanvasElement} canvas
 * @param {import("./model.js").Series} series
 * @param {{ width: number, height: number }} size CSS pixels
 */
export function curve(canvas, series, { width, height }) {
  const context = cleared(canvas, width, height);
  const values = [...series];
  const largest = Math.max(...values, 1e-9);
  const step = width / (series.values.length - 1);
  const left = width - (values.length - 1) * step;
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(0, height - 0.5);
  context.lineTo(width, height - 0.5);
  context.stroke();
  if (values.length < 2 || largest <= 1e-9) return;
  context.beginPath();
  values.forEach((value, at) => {
    const y = height - 1.5 - (height - 4) * (value / largest);
    if (at) context.lineTo(left + at * step, y);
    else context.moveTo(left, y);
  });
  context.strokeStyle = colours.accent;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.stroke();
  context.lineTo(width, height - 1);
  context.lineTo(left, height - 1);
  context.fillStyle = colours.soft;
  context.globalAlpha = 0.6;
  context.fill();
  context.globalAlpha = 1;
}

/** The legend of timelines: one entry for each state. */
export function legend() {
  const list = element("ul", { className: "legend", "aria-label": "States of segments" });
  const canvases = SEGMENT_STATES.map((name, state) => {
    const canvas = element("canvas", { className: "key", "aria-hidden": "true" });
    list.append(element("li", {}, canvas, name));
    return /** @type {const} */ ([canvas, state]);
  });
  const draw = () => {
    for (const [canvas, state] of canvases) {
      drawBar(cleared(canvas, 10, 16), state, 1, 8, 15, 14);
    }
  };
  draw();
  return { list, draw };
}

/** A text that follows the pointer over a chart. */
export class Tooltip {
  constructor() {
    this.box = element("div", { className: "tooltip", role: "tooltip", hidden: true });
    document.body.append(this.box);
  }

  /**
   * @param {string} text
   * @param {number} x
   * @param {number} y
   */
  show(text, x, y) {
    this.box.textContent = text;
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = Math.max(4, Math.min(x - width / 2, window.innerWidth - width - 4));
    const top = y - height - 12 > 0 ? y - height - 12 : y + 20;
    this.box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  hide() {
    this.box.hidden = true;
  }
}
