/**
 * Decodes captions of CEA-608 (ANSI/CTA-608-E; 47 CFR 15.119): pairs of bytes become a screen of 15 rows of 32 columns.
 *
 * A decoder has four channels: CC1 and CC2 in the first field, CC3 and CC4 in the second. Codes change the screen at
 * once, and the page asks for it at each picture. Libraries for this tell a caption when it is over, so that they know
 * its end; here the viewer is a fifth of a second behind the speaker.
 */

const ROWS = 15;
const COLUMNS = 32;
const COLOURS = ["white", "lime", "#7a7aff", "cyan", "#ff6b6b", "yellow", "magenta"];
const ITALICS = 7;
/** The row of a preamble code, by its first byte; the second one has a bit for the next row (table 53). */
const PREAMBLE_ROWS = /** @type {Record<number, number>} */ ({
  0x10: 11, 0x11: 1, 0x12: 3, 0x13: 12, 0x14: 14, 0x15: 5, 0x16: 7, 0x17: 9,
});
/** Characters that are not those of ASCII. */
const BASIC = /** @type {Record<number, string>} */ ({
  0x27: "’", 0x2a: "á", 0x5c: "é", 0x5e: "í", 0x5f: "ó", 0x60: "ú", 0x7b: "ç", 0x7c: "÷", 0x7d: "Ñ", 0x7e: "ñ", 0x7f: "█",
});
const SPECIAL = "®°½¿™¢£♪à\u00a0èâêîôû";
/** Of the two sets of extended characters, from 0x20 on. */
const EXTENDED = ["ÁÉÓÚÜü‘¡*'—©℠•“”ÀÂÇÈÊËëÎÏïÔÙùÛ«»", "ÃãÍÌìÒòÕõ{}\\^_|~ÄäÖöß¥¤¦ÅåØø┌┐└┘"];

/** How characters look. @typedef {{colour: string, isItalic: boolean, isUnderlined: boolean}} Look */
/** A character at its place; null: nothing, and the picture is seen. @typedef {{text: string, look: Look} | null} Cell */
/** Characters of one look, which follow one another. @typedef {{row: number, column: number, text: string, look: Look}} Run */

/** @returns {Cell[][]} */
const empty = () => Array.from({ length: ROWS + 1 }, () => Array(COLUMNS).fill(null));

/** @type {Look} */
const PLAIN = { colour: "white", isItalic: false, isUnderlined: false };

/** One channel of captions. */
class Channel {
  constructor() {
    /** @private what is shown, and what is written while that is shown; rows count from 1 */
    this.shown = empty();
    /** @private */
    this.hidden = empty();
    /** @private how the text comes: all at once, row by row, or letter by letter @type {"" | "pop" | "roll" | "paint"} */
    this.mode = "";
    /** @private text that is no caption (TR, RTD) is left out, until a caption begins */
    this.isText = false;
    /** @private rows of text that rolls */
    this.depth = 2;
    /** @private the place of the next character */
    this.row = ROWS;
    /** @private */
    this.column = 0;
    /** @private @type {Look} */
    this.look = PLAIN;
    /** Whether there has been a caption. */
    this.isUsed = false;
    /** Counts the changes of what is shown. */
    this.version = 0;
  }

  /** @private the rows that are written */
  get target() {
    return this.mode === "pop" ? this.hidden : this.shown;
  }

  /** @private */
  changed() {
    if (this.mode !== "pop") this.version += 1;
  }

  /** Write a character. @param {string} text */
  write(text) {
    if (this.isText || !this.mode) return;
    const row = this.target[this.row];
    if (row) row[this.column] = { text, look: this.look };
    this.column = Math.min(COLUMNS - 1, this.column + 1);
    this.changed();
  }

  /** A character that stands in place of the one before it, for decoders that do not know it. @param {string} text */
  replace(text) {
    this.back();
    this.write(text);
  }

  /** @private */
  back() {
    if (this.isText || !this.mode) return;
    this.column = Math.max(0, this.column - 1);
    const row = this.target[this.row];
    if (row) row[this.column] = null;
    this.changed();
  }

  /** A code in the middle of a row: it takes the place of a space. @param {number} low */
  midRow(low) {
    const kind = (low >> 1) & 7;
    const isItalic = kind === ITALICS;
    this.write(" ");
    const colour = isItalic ? this.look.colour : COLOURS[kind] ?? "white";
    this.look = { colour, isItalic, isUnderlined: Boolean(low & 1) };
  }

  /** A preamble: the row and the look of what follows. @param {number} first @param {number} low */
  preamble(first, low) {
    if (this.isText || !this.mode) return;
    const row = (PREAMBLE_ROWS[first] ?? ROWS) + (low & 0x20 && first !== 0x10 ? 1 : 0);
    if (this.mode === "roll" && row !== this.row) this.move(Math.max(row, this.depth));
    this.row = this.mode === "roll" ? Math.max(row, this.depth) : row;
    const kind = (low >> 1) & 7;
    const isIndent = Boolean(low & 0x10);
    this.column = isIndent ? kind * 4 : 0;
    const isItalic = !isIndent && kind === ITALICS;
    const colour = isIndent ? "white" : COLOURS[kind] ?? "white";
    this.look = { colour, isItalic, isUnderlined: Boolean(low & 1) };
  }

  /** The rows that roll stand elsewhere from now on. @private @param {number} row the last one */
  move(row) {
    const rows = this.shown.slice(this.row - this.depth + 1, this.row + 1);
    this.shown = empty();
    rows.forEach((cells, at) => (this.shown[row - rows.length + 1 + at] = cells));
    this.changed();
  }

  /** @param {number} columns */
  tab(columns) {
    this.column = Math.min(COLUMNS - 1, this.column + columns);
  }

  /** @param {number} low the second byte of a code that is about all of the screen */
  control(low) {
    if (low === 0x2a || low === 0x2b) this.isText = true; // TR, RTD
    else if (low === 0x20) this.enter("pop"); // RCL
    else if (low === 0x29) this.enter("paint"); // RDC
    else if (low >= 0x25 && low <= 0x27) this.roll(low - 0x23); // RU2, RU3, RU4
    else if (low === 0x2c) this.erase(); // EDM
    else if (low === 0x2e) this.hidden = empty(); // ENM
    else if (low === 0x2f) this.flip(); // EOC
    else if (low === 0x21) this.back(); // BS
    else if (low === 0x24) this.eraseRest(); // DER
    else if (low === 0x2d) this.newLine(); // CR
  }

  /** @private @param {"pop" | "roll" | "paint"} mode */
  enter(mode) {
    this.mode = mode;
    this.isText = false;
    this.isUsed = true;
  }

  /** @private @param {number} depth */
  roll(depth) {
    if (this.mode !== "roll") {
      this.erase();
      this.hidden = empty();
      this.row = ROWS;
      this.column = 0;
      this.look = PLAIN;
    }
    this.enter("roll");
    this.depth = depth;
    this.row = Math.max(this.row, depth);
  }

  /** @private */
  erase() {
    this.shown = empty();
    this.version += 1;
  }

  /** @private */
  flip() {
    [this.shown, this.hidden] = [this.hidden, this.shown];
    this.enter("pop");
    this.version += 1;
  }

  /** @private */
  eraseRest() {
    if (this.isText || !this.mode) return;
    this.target[this.row]?.fill(null, this.column);
    this.changed();
  }

  /** @private */
  newLine() {
    if (this.isText || this.mode !== "roll") return;
    const rows = this.shown.slice(this.row - this.depth + 2, this.row + 1);
    this.shown = empty();
    rows.forEach((cells, at) => (this.shown[this.row - rows.length + at] = cells));
    this.column = 0;
    this.look = PLAIN;
    this.changed();
  }

  /** What is shown now. @returns {Run[]} */
  get runs() {
    /** @type {Run[]} */
    const runs = [];
    this.shown.forEach((cells, row) => {
      /** @type {Run | null} */
      let run = null;
      cells.forEach((cell, column) => {
        if (!cell) run = null;
        else if (run && run.look === cell.look) run.text += cell.text;
        else runs.push((run = { row, column, text: cell.text, look: cell.look }));
      });
    });
    return runs;
  }
}

/** Decodes the captions of one program. */
export class Cea608 {
  constructor() {
    /** The channels, by name. @type {Record<string, Channel>} */
    this.channels = { CC1: new Channel(), CC2: new Channel(), CC3: new Channel(), CC4: new Channel() };
    /** @private by field: the channel that characters belong to; null: none yet, or data that are no captions */
    this.present = /** @type {(Channel | null)[]} */ ([null, null]);
    /** @private by field: the code that came last, which is sent twice */
    this.last = [0, 0];
  }

  /** The names of the channels that have had captions. */
  get used() {
    return Object.keys(this.channels).filter((name) => this.channels[name]?.isUsed);
  }

  /**
   * Take a pair of bytes.
   * @param {number} field 0 or 1
   * @param {number} one with its bit of parity, as the other
   * @param {number} two
   */
  push(field, one, two) {
    const [first, second] = [one & 0x7f, two & 0x7f];
    if (!first && !second) return;
    const code = (first << 8) | second;
    const isAgain = first >= 0x10 && first < 0x20 && code === this.last[field];
    // The second of two is the same one; a third one counts.
    this.last[field] = first >= 0x10 && first < 0x20 && !isAgain ? code : 0;
    if (isAgain) return;
    if (first < 0x10) {
      // Extended data services, which belong to no channel, until a code of captions.
      this.present[field] = null;
    } else if (first < 0x20) this.control(field, first, second);
    else {
      this.present[field]?.write(BASIC[first] ?? String.fromCharCode(first));
      if (second >= 0x20) this.present[field]?.write(BASIC[second] ?? String.fromCharCode(second));
    }
  }

  /** @private @param {number} field @param {number} first @param {number} second */
  control(field, first, second) {
    const name = `CC${1 + 2 * field + (first & 0x08 ? 1 : 0)}`;
    const channel = /** @type {Channel} */ (this.channels[name]);
    const kind = first & ~0x08;
    this.present[field] = channel;
    if (second >= 0x40) channel.preamble(kind, second);
    else if (kind === 0x11 && second >= 0x30) channel.write(SPECIAL[second - 0x30] ?? " ");
    else if (kind === 0x11 && second >= 0x20) channel.midRow(second);
    else if ((kind === 0x12 || kind === 0x13) && second >= 0x20) {
      channel.replace(EXTENDED[kind - 0x12]?.[second - 0x20] ?? " ");
    } else if ((kind === 0x14 || kind === 0x15) && second >= 0x20 && second < 0x30) channel.control(second);
    else if (kind === 0x17 && second > 0x20 && second < 0x24) channel.tab(second - 0x20);
  }
}
