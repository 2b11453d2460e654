/**
 * Keeps a media element at the live edge.
 *
 * It measures the *reserve*: the least media that was buffered ahead of the playback position in the last second or so.
 * The reserve does not depend on how media arrive: one by one from `tricklecast publish`, or in lumps of half a second
 * from a page that publishes. If the reserve is larger than wanted, the element plays a little faster. If it is smaller,
 * a little slower. If it is more than 2 s too large, the position jumps. After a stall the wanted reserve grows; while
 * nothing stalls it shrinks again.
 */

const LEAST_RESERVE_S = 0.08;
const MOST_RESERVE_S = 2;
const JUMP_S = 2;
/** The element plays at most this much faster or slower: less than people hear in speech. */
const FASTER = 0.12;
const SLOWER = 0.05;
/** A difference below this changes nothing. */
const TOLERANCE_S = 0.04;
const TICK_MS = 100;
/** The first stalls tell how the media arrives, not that the network is bad. */
const SETTLING_MS = 3000;
/** After a stall that lasts longer, the publisher was away, and a larger reserve would not have helped. */
const AWAY_MS = 2500;
/** Segments that are published when they are complete arrive in lumps that are as long as they are. */
const LONGEST_LUMP_MS = 12_000;
const CALM_MS = 10_000;

/** Where playback is to begin may not be there yet; if nothing comes for this time, it begins before that. */
const FROM_MS = 1000;

const MAX_ANCHORS = 64;

/** Tells when a picture was made, from the times that the producer wrote at the beginning of each segment. */
export class ProducerClock {
  constructor() {
    /** @private media times, with milliseconds since 1970 @type {{atS: number, ms: number}[]} */
    this.anchors = [];
  }

  /**
   * A segment begins.
   * @param {number} atS its first picture's time on the element's time line
   * @param {number} ms when that was made, in milliseconds since 1970
   */
  note(atS, ms) {
    this.anchors.push({ atS, ms });
    if (this.anchors.length > MAX_ANCHORS) this.anchors.shift();
  }

  /**
   * When the picture at this time was made, in milliseconds since 1970; null if the producer does not tell.
   * @param {number} timeS
   */
  at(timeS) {
    const anchor = this.anchors.findLast(({ atS }) => atS <= timeS + 0.001);
    return anchor ? anchor.ms + (timeS - anchor.atS) * 1000 : null;
  }
}

/** Follows the end of what a media element has buffered. */
export class LiveEdge {
  /** @param {HTMLMediaElement} video */
  constructor(video) {
    this.video = video;
    /** The wanted reserve, in seconds. */
    this.wanted = LEAST_RESERVE_S;
    /** How often playback had to wait for data, and how often it jumped. */
    this.stalls = 0;
    this.jumps = 0;
    /** Whether the user has stopped it, or the browser lets nothing play before the user does something. */
    this.paused = false;
    this.blocked = false;
    /** Whether it plays what lies behind, and does not follow the live edge. */
    this.behind = false;
    /** Where it begins to play what lies behind, in seconds from the beginning of what is buffered. */
    this.from = 0;
    /** @private buffered seconds ahead of the position, of the last moments @type {{at: number, ahead: number}[]} */
    this.samples = [];
    /** @private when the oldest sample since the last reset was taken */
    this.sampledFrom = 0;
    /** @private the end of the buffer, in seconds of media */
    this.end = 0;
    /** @private when the buffer last grew */
    this.grown = 0;
    /** @private the longest time between two arrivals of late, in milliseconds */
    this.interval = 0;
    /** @private when the last long time between two arrivals was over */
    this.awayUntil = -Infinity;
    /** @private when the present time line began to play; 0: not yet */
    this.began = 0;
    /** @private when the present stall began; 0: there is none */
    this.stalledAt = 0;
    /** @private since when nothing has stalled, or the wanted reserve was last made smaller */
    this.calmSince = performance.now();
    this.stop = new AbortController();
    const options = { signal: this.stop.signal };
    video.addEventListener("waiting", () => this.stalled(), options);
    video.addEventListener("playing", () => this.resumed(), options);
    const timer = setInterval(() => this.tick(), TICK_MS);
    this.stop.signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** Stop following the element. */
  close() {
    this.stop.abort();
  }

  /** The element begins anew, with another time line. */
  reset() {
    this.samples = [];
    this.began = 0;
    this.end = 0;
    this.grown = 0;
  }

  /** Seconds of media between the playback position and the newest byte. */
  get ahead() {
    const { buffered, currentTime } = this.video;
    return buffered.length ? Math.max(0, buffered.end(buffered.length - 1) - currentTime) : 0;
  }

  /** The end of what is buffered, in seconds of media. */
  get newest() {
    const { buffered } = this.video;
    return buffered.length ? buffered.end(buffered.length - 1) : 0;
  }

  /** Go to the newest picture. */
  jump() {
    const { buffered } = this.video;
    if (!buffered.length) return;
    const last = buffered.length - 1;
    // What is there must last until the next lump.
    const reserve = this.wanted + Math.max(0, this.interval - (performance.now() - this.grown)) / 1000;
    this.video.currentTime = Math.max(buffered.start(last), buffered.end(last) - reserve);
    this.samples = [];
    this.jumps += 1;
  }

  /** Stop and go on, as the user wishes; it goes on at the live edge. */
  toggle() {
    this.paused = !this.paused;
    this.blocked = false;
    if (this.paused) return this.video.pause();
    if (!this.behind) this.jump();
    this.play();
  }

  /** Stop, and show the picture before or after the present one. @param {number} seconds */
  step(seconds) {
    if (!this.paused) this.toggle();
    const { buffered, currentTime } = this.video;
    for (let at = 0; at < buffered.length; at += 1) {
      const [first, last] = [buffered.start(at), buffered.end(at) - 0.001];
      if (currentTime < first || currentTime > last + 0.001) continue;
      this.video.currentTime = Math.max(first, Math.min(last, currentTime + seconds));
    }
  }

  /** @private */
  play() {
    this.video.play().catch((error) => {
      if (error.name === "NotAllowedError") this.paused = this.blocked = true;
    });
  }

  /** @private */
  stalled() {
    if (this.video.seeking || this.stalledAt || !this.began) return;
    this.stalledAt = performance.now();
  }

  /** @private */
  resumed() {
    const now = performance.now();
    const lasted = now - this.stalledAt;
    if (!this.stalledAt) return;
    this.stalledAt = 0;
    if (now - this.began < SETTLING_MS) return;
    this.stalls += 1;
    this.calmSince = now;
    this.samples = [];
    if (lasted < AWAY_MS) this.wanted = Math.min(MOST_RESERVE_S, this.wanted * 1.3 + Math.min(0.2, lasted / 1000));
  }

  /** @private */
  tick() {
    const { video } = this;
    const { buffered } = video;
    const now = performance.now();
    if (!buffered.length) return;
    const last = buffered.length - 1;
    const end = buffered.end(last);
    if (!this.began) {
      // What lies behind begins where the user wants it to, if that comes soon.
      const wanted = buffered.start(last) + this.from;
      if (end > this.end) [this.end, this.grown] = [end, now];
      if (this.behind && end <= wanted && now - this.grown < FROM_MS) return;
      this.began = now;
      this.grown = now;
      this.end = end;
      const behind = Math.min(end, wanted);
      this.from = 0;
      video.currentTime = this.behind ? behind : Math.max(buffered.start(last), end - this.wanted);
      if (!this.paused) this.play();
      return;
    }
    if (end > this.end) {
      const interval = now - this.grown;
      const isAway = interval > AWAY_MS;
      // The publisher was away, or the media arrives in long lumps: then one follows the other.
      const counts = !isAway || (interval < LONGEST_LUMP_MS && now - this.awayUntil < 1.5 * interval);
      if (isAway) this.awayUntil = now;
      this.interval = Math.max(counts ? interval : 0, this.interval * 0.97);
      this.grown = now;
    }
    this.end = end;
    if (this.paused) return;
    // A gap in the channel has left a hole in the buffer, which will never be filled: play on behind it.
    if (last > 0 && video.readyState < 3 && video.currentTime < buffered.start(last)) {
      video.currentTime = buffered.start(last);
      return;
    }
    if (video.seeking) return;
    // At the end of a channel, to play would begin with the oldest picture that is kept. In a hidden tab, the browser
    // stops what has no sound.
    if (video.paused && !video.ended && !document.hidden) this.play();
    if (this.behind) {
      if (video.playbackRate !== 1) video.playbackRate = 1;
      return;
    }
    if (!this.samples.length) this.sampledFrom = now;
    this.samples.push({ at: now, ahead: end - video.currentTime });
    const windowMs = Math.max(1000, 1.5 * this.interval);
    while (this.samples[0] && this.samples[0].at < now - windowMs) this.samples.shift();
    const isKnown = now - this.sampledFrom >= windowMs;
    this.steer(Math.min(...this.samples.map(({ ahead }) => ahead)), isKnown ? windowMs / 1000 : Infinity, now);
  }

  /**
   * @private
   * @param {number} reserve
   * @param {number} windowS the time that it was measured over; Infinity as long as it may turn out to be less
   * @param {number} now
   */
  steer(reserve, windowS, now) {
    if (now - this.calmSince > CALM_MS) {
      this.calmSince = now;
      this.wanted = Math.max(LEAST_RESERVE_S, this.wanted * 0.85);
    }
    const surplus = reserve - this.wanted;
    if (windowS < Infinity && surplus > JUMP_S) return this.jump();
    let rate = 1;
    // Not so fast that all of it is used up before it is measured again.
    if (surplus > TOLERANCE_S) rate = 1 + Math.min(FASTER, Math.max(0.02, surplus * 0.3), surplus / windowS);
    else if (surplus < -TOLERANCE_S && this.video.readyState >= 3) rate = 1 - SLOWER;
    if (Math.abs(this.video.playbackRate - rate) > 0.005) this.video.playbackRate = rate;
  }
}
