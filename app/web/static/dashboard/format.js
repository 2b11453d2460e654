/** Figures as people read them. An unknown figure is a dash. */

const UNITS = ["", "k", "M", "G", "T"];

/**
 * @param {number} value
 * @param {number} base
 * @param {string} unit
 */
function scaled(value, base, unit) {
  let at = 0;
  while (value >= base && at < UNITS.length - 1) {
    value /= base;
    at++;
  }
  const digits = value < 10 && at ? 1 : 0;
  return `${value.toFixed(digits)} ${UNITS[at]}${base === 1024 && at ? "i" : ""}${unit}`.replace("ki", "Ki");
}

/** Bytes. @param {number | null | undefined} value */
export const bytes = (value) => (value == null ? "–" : scaled(value, 1024, "B"));

/** Turn bytes per second into a text in bits per second. @param {number} value */
export const bitrate = (value) => (value ? scaled(8 * value, 1000, "bit/s") : "–");

const grouped = new Intl.NumberFormat("en").format;

/** A count. @param {number | null | undefined} value */
export const count = (value) => (value == null ? "–" : grouped(value));

/** A share of one. @param {number | undefined} value */
export const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`);

/** Milliseconds. @param {number | undefined} value */
export function duration(value) {
  if (value == null) return "–";
  if (value < 1000) return `${value < 10 && value % 1 ? value.toFixed(1) : Math.round(value)} ms`;
  const seconds = value / 1000;
  if (seconds < 60) return `${seconds % 1 ? seconds.toFixed(seconds < 10 ? 2 : 1) : seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** Turn seconds since 1970 into a time of day. @param {number} seconds */
export const time = (seconds) => clock.format(new Date(1000 * seconds));

/** Cut a text of a client, without characters that reverse or hide the text behind them. @param {string} text */
export function plain(text, most = 120) {
  const clean = text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, "\ufffd");
  return clean.length > most ? `${clean.slice(0, most - 1)}…` : clean;
}
