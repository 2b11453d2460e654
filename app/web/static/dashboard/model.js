/**
 * The page's copy of the server's state: channels by their numbers. Each frame of the feed brings it up to date
 * (docs/reference/dashboard-feed.md).
 */

/** States of a channel, by their codes. */
export const STATES = /** @type {const} */ (["idle", "live", "stalled", "draining"]);

/** States of a segment, by their codes. A code beyond these takes the segment away. */
export const SEGMENT_STATES = /** @type {const} */ ([
  "waiting", "open", "complete", "empty", "truncated", "skipped", "terminated",
]);

/** Places in the list, by the codes of states: one that stalls for a moment does not leave its place. */
const RANKS = [1, 0, 0, 2];

const OPEN = 1;
const WRITING = 1;
const PRECONNECTED = 2;
const ORPHANED = 4;

/** The number of figures before a row's segments. */
const FIGURES = 10;

/** Segments that are kept: of each channel, as many as a row of the list shows; of the channel that is shown in full. */
const KEPT = 64;
export const KEPT_IN_FULL = 240;

/** Frames whose rates are kept. */
const RATES = 60;

/** Events that are kept. */
const EVENTS = 300;

/** How long a refusal counts as one of now, in seconds; and the most moments of that time that are kept. */
const RECENT_S = 60;
const MOMENTS = 200;

/** Frames over which a shown rate is averaged, since publishers write in bursts. */
const SMOOTH = 3;

/**
 * @typedef {{ seq: number, state: number, size: number, ms: number }} Segment
 * Bytes; milliseconds that it took, or, while it is open, when it opened.
 * @typedef {{ number: number, time: number, kind: string, why: string, channel: string, client: string,
 *   seq: number | null, count: number }} Happened
 * @typedef {[name: string, used: number, most: number | null, joinable: boolean]} Limit
 * @typedef {{ worker: number, up: boolean, cpu?: number, memory?: number | null, loop_lag_ms?: number,
 *   connections?: number, readers?: number, channels?: number }} Load
 * @typedef {{ at: number, channel: string, error: string }} Trouble
 * @typedef {{ state: string, problem: string, plain: string, successor: string, complete: boolean, last_contact: number | null,
 *   setting: { source: string, channels: string[] } | null, channels: Record<string, number>,
 *   segments: Record<string, number>, verified: number, live: number, rate: number, remaining_s: number | null,
 *   lag: { segments: number, bytes: number, seconds: number | null }, errors: Trouble[] }} Mirror
 * @typedef {{ name: string, url: string, when: "always" | "demand", state: string, since: number, pid: number | null,
 *   retry_at: number | null, restarts: number, error: string }} Source
 * @typedef {{ time: number, ms: number, instance?: string, version?: string, node?: string | null, base_path?: string,
 *   limits_of_window?: { segments: number, bytes: number, age_s: number }, cpu?: number, memory?: number | null,
 *   loop_lag_ms?: number, connections?: number, readers?: number, dashboards?: number, bytes_in?: number,
 *   bytes_out?: number, limits?: Limit[], counters?: Record<string, number>, draining?: boolean,
 *   workers?: Load[], mirror?: Mirror | null, sources?: Source[], troubles?: [name: string, why: string][] }} Server
 * @typedef {[number: number, name: string, epoch: number, type: string, publisher: string, created: number]} About
 * @typedef {{ frame: number, server: Server, about: About[], rows: number[][], gone: number[], events: Happened[] }}
 *   Frame
 */

/** A short series of numbers: the newest replace the oldest. */
export class Series {
  /** @param {number} length */
  constructor(length) {
    this.values = new Float64Array(length);
    this.count = 0;
  }

  /** @param {number} value */
  push(value) {
    this.values[this.count++ % this.values.length] = value;
  }

  /** The values, oldest first. */
  *[Symbol.iterator]() {
    const length = this.values.length;
    for (let at = Math.max(0, this.count - length); at < this.count; at++) yield this.values[at % length] ?? 0;
  }

  /**
   * The mean of the newest values.
   * @param {number} count
   */
  mean(count) {
    const used = Math.min(count, this.count, this.values.length);
    let sum = 0;
    for (let back = 1; back <= used; back++) sum += this.values[(this.count - back) % this.values.length] ?? 0;
    return used ? sum / used : 0;
  }
}

/**
 * Counters of the server that only grow, as they were in the last minute.
 * @typedef {{ time: number, refused: number, held: number, faults: number }} Moment
 */
class LastMinute {
  constructor() {
    /** @type {Moment[]} oldest first; the first one is the newest that is older than a minute, if there is any */
    this.moments = [];
  }

  /**
   * Begin anew, with what the events tell of the minute before.
   * @param {Server} server
   * @param {Happened[]} events oldest first
   */
  begin(server, events) {
    const recent = events.filter(({ time }) => time > server.time - RECENT_S);
    const now = counters(server);
    /** @type {Moment[]} */
    const moments = [];
    for (const { kind, time, count } of recent.reverse()) {
      if (kind !== "refused" && kind !== "held") continue;
      moments.unshift({ time, ...now });
      now[kind] -= count;
    }
    this.moments = [{ time: -Infinity, ...now }, ...moments];
    this.push(server);
  }

  /** @param {Server} server */
  push(server) {
    const { moments } = this;
    moments.push({ time: server.time, ...counters(server) });
    while (moments.length > MOMENTS || (moments[1]?.time ?? Infinity) <= server.time - RECENT_S) moments.shift();
  }

  /** How much a counter has grown in the last minute. @param {"refused" | "held" | "faults"} name */
  growth(name) {
    // It becomes smaller when a worker has died, whose successor begins at 0.
    return Math.max(0, (this.moments.at(-1)?.[name] ?? 0) - (this.moments[0]?.[name] ?? 0));
  }
}

/** @param {Server} server */
const counters = ({ counters: now }) => ({ refused: now?.refused ?? 0, held: now?.held ?? 0, faults: now?.faults ?? 0 });

export class Channel {
  /** @param {number} number */
  constructor(number) {
    this.number = number;
    this.name = "";
    this.epoch = 0;
    this.type = "";
    this.publisher = "";
    this.created = 0;
    /** The text that the filter searches: name, content type and publisher, in lower case. */
    this.text = "";
    this.state = 0;
    this.head = 0;
    this.readers = 0;
    this.lag = 0;
    this.kept = 0;
    this.keptBytes = 0;
    this.bits = 0;
    /** @type {Segment[]} ascending */
    this.segments = [];
    this.most = KEPT;
    this.received = new Series(RATES);
    this.sent = new Series(RATES);
    /** @type {number} */
    this.in = 0;
    this.out = 0;
  }

  get writing() {
    return (this.bits & WRITING) > 0;
  }

  get preconnected() {
    return (this.bits & PRECONNECTED) > 0;
  }

  get orphaned() {
    return (this.bits & ORPHANED) > 0;
  }

  /** Whether a publisher is connected, or was a moment ago: one that sends whole segments comes and goes. */
  get present() {
    return this.writing || this.preconnected || STATES[this.state] === "live";
  }

  /** Its place in the list: those with something going on are first, and those that have ended are last. */
  get rank() {
    return RANKS[this.state] ?? 0;
  }

  /** How full its window is, 0 to 1, by the limit that is closest. @param {Server} server */
  fill(server) {
    const limits = server.limits_of_window;
    return limits ? Math.min(1, Math.max(this.kept / limits.segments, this.keptBytes / limits.bytes)) : 0;
  }

  /** @param {About} about */
  describe(about) {
    [, this.name, this.epoch, this.type, this.publisher, this.created] = about;
    this.text = `${this.name}\n${this.type}\n${this.publisher}`.toLowerCase();
  }

  /** @param {number[]} row */
  take(row) {
    const at = (/** @type {number} */ place) => row[place] ?? 0;
    this.state = at(1);
    this.head = at(2);
    this.readers = at(3);
    this.lag = at(4);
    this.in = at(5);
    this.out = at(6);
    this.kept = at(7);
    this.keptBytes = at(8);
    this.bits = at(9);
    for (let place = FIGURES; place < row.length; place += 4) {
      this.put({ seq: at(place), state: at(place + 1), size: at(place + 2), ms: at(place + 3) });
    }
    const surplus = this.segments.length - this.most;
    if (surplus > 0) this.segments.splice(0, surplus);
  }

  /** Put a segment in its place, or take it away. @param {Segment} segment */
  put(segment) {
    const all = this.segments;
    let at = all.length;
    while (at > 0 && (all[at - 1]?.seq ?? -1) > segment.seq) at--;
    const known = at > 0 && all[at - 1]?.seq === segment.seq;
    if (segment.state >= SEGMENT_STATES.length) {
      if (known) all.splice(at - 1, 1);
    } else if (known) {
      all[at - 1] = segment;
    } else {
      all.splice(at, 0, segment);
    }
  }

  /** Fill the rates of the time before the page was opened from the segments that there are. */
  recall() {
    for (const { state, size, ms } of this.segments) {
      if (state <= OPEN || ms < 1) continue;
      const seconds = Math.min(10, Math.max(1, Math.round(ms / 1000)));
      for (let second = 0; second < seconds; second++) this.received.push((1000 * size) / Math.max(ms, 1000));
    }
  }

  /** A frame has come: remember the rates. */
  tick() {
    this.received.push(this.in);
    this.sent.push(this.out);
  }

  /** Bytes per second in and out, averaged over a few frames. */
  get rateIn() {
    return this.received.mean(SMOOTH);
  }

  get rateOut() {
    return this.sent.mean(SMOOTH);
  }
}

export class Model {
  constructor() {
    /** @type {Map<number, Channel>} */
    this.channels = new Map();
    /** @type {Map<string, Channel>} */
    this.byName = new Map();
    /** @type {Happened[]} newest first */
    this.events = [];
    /** @type {Server} */
    this.server = { time: 0, ms: 0 };
    this.cpu = new Series(RATES);
    this.received = new Series(RATES);
    this.sent = new Series(RATES);
    /** Counts changes of the set of channels, and of the texts that the filter searches. */
    this.changes = 0;
    /** Counts changes of channels' ranks. */
    this.moves = 0;
    this.lastMinute = new LastMinute();
    this.frame = 0;
  }

  /**
   * Take a frame.
   * @param {Frame} frame
   * @param {boolean} whole whether it is a snapshot
   */
  take(frame, whole) {
    const restarted = whole && this.server.instance !== undefined && frame.server.instance !== this.server.instance;
    if (whole) {
      const known = this.byName;
      this.channels = new Map();
      this.byName = new Map();
      this.changes++;
      this.events = [];
      for (const [number, name, epoch] of frame.about) {
        // A channel of the same epoch keeps its rates, and the segments that the snapshot does not have.
        const channel = restarted ? undefined : known.get(name);
        if (channel?.epoch === epoch) {
          channel.number = number;
          // An unclosed segment may have closed, or vanished, while no frame came.
          channel.segments = channel.segments.filter((segment) => segment.state > OPEN);
          this.channels.set(number, channel);
        }
      }
    }
    this.server = whole ? frame.server : { ...this.server, ...frame.server };
    this.frame = frame.frame;
    const fresh = [];
    for (const about of frame.about) {
      let channel = this.channels.get(about[0]);
      if (!channel) {
        channel = new Channel(about[0]);
        this.channels.set(about[0], channel);
        if (whole) fresh.push(channel);
      }
      channel.describe(about);
      this.byName.set(channel.name, channel);
      this.changes++;
    }
    for (const row of frame.rows) {
      const channel = this.channels.get(row[0] ?? 0);
      const rank = channel?.rank;
      channel?.take(row);
      if (channel?.rank !== rank) this.moves++;
    }
    for (const channel of fresh) channel.recall();
    for (const number of frame.gone) {
      const channel = this.channels.get(number);
      this.channels.delete(number);
      if (channel && this.byName.get(channel.name) === channel) this.byName.delete(channel.name);
      this.changes++;
    }
    if (!whole) {
      // A snapshot may be of the feed's first moment, when no rate is known yet.
      for (const channel of this.channels.values()) channel.tick();
      this.cpu.push(this.server.cpu ?? 0);
      this.received.push(this.server.bytes_in ?? 0);
      this.sent.push(this.server.bytes_out ?? 0);
    }
    if (whole) this.lastMinute.begin(this.server, frame.events);
    else this.lastMinute.push(this.server);
    this.events.unshift(...frame.events.reverse());
    this.events.length = Math.min(this.events.length, EVENTS);
  }
}
