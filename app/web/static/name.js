/**
 * The name of a channel where there is little room: it takes a second line before anything of it is left out, and its
 * end is always shown, since names of many cameras differ there alone.
 *
 * It consists of a first half, and of a second half whose last characters stand for themselves. The halves share a line
 * if they fit, and each has an ellipsis of its own (style.css).
 */

import { plain } from "./dashboard/format.js";
import { element } from "./session.js";

/** Bytes of the longest name. */
const MOST = 255;

/** Characters of a name's end that are always shown. */
const TAIL = 9;

export class Name {
  constructor() {
    this.front = element("span", {});
    this.middle = element("span", {});
    this.end = element("span", { className: "end" });
    this.rest = element("span", { className: "rest" }, this.middle, this.end);
    this.box = element("b", { className: "name", dir: "auto" }, this.front, this.rest);
    /** @private */
    this.text = "";
  }

  /** @param {string} name */
  show(name) {
    if (this.text === name) return;
    this.text = name;
    const text = plain(name, MOST);
    const [cut, tail] = parts(text);
    this.front.className = cut < text.length ? "front" : "whole";
    this.front.textContent = text.slice(0, cut);
    this.middle.textContent = text.slice(cut, tail);
    this.end.textContent = text.slice(tail);
    this.rest.hidden = cut === text.length;
    this.box.title = name;
  }
}

/** Where the second half of a name begins, and its end; its length if it stays whole. @param {string} name */
function parts(name) {
  const { length } = name;
  // Letters that join each other, and those written from right to left, are not taken apart.
  if (length <= 2 * TAIL || !/^[ -~]+$/.test(name)) return [length, length];
  const half = Math.floor(length / 2);
  let cut = half;
  // A half ends with a word, if one ends near by.
  for (let off = 0; off < length / 4; off++) {
    const near = [half - off, half + off].find((at) => /[^0-9A-Za-z]/.test(name[at - 1] ?? ""));
    if (near === undefined) continue;
    cut = near;
    break;
  }
  return [cut, Math.max(cut, length - TAIL)];
}
