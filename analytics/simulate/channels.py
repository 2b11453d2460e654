"""A channel that lives: one publisher, its readers at the live edge, and the mishaps of a healthy day.

Readers ask for the next segment while the present one is being served (protocol, section 4), so that nearly every line
is a long-poll: it arrives one segment early and is written when its segment ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

from tricklecast.analytics.simulate.clients import Client
from tricklecast.analytics.simulate.lines import Line, TimedLine, entry, event, micros
from tricklecast.trickle.records import Event, Reason

MISHAPS: Final = 0.002
"""Share of reads that end badly: cut and asked for again, truncated, or too slow; 0 to 1."""

FOLLOWS_HEAD: Final = 0.08
"""Share of readers that ask for -1 each time instead of counting; 0 to 1."""

RENEWAL_US: Final = 20_000_000
"""Go's subscriber gives up a wait and renews it after so long (protocol, section 4). Microseconds."""


@dataclass(slots=True)
class Reader:
    """A client while it reads one channel.

    Attributes:
        line: what all of its lines have in common.
        lag_us: its network's delay.
        asked: the seq that it asks for: -1, or 0 for counting on.
        fresh: its next request is its first.
        since_us: when its present wait began; 0 if it does not wait in vain.
    """

    client: Client
    line: Line
    lag_us: int
    asked: int
    fresh: bool = True
    since_us: int = 0


@dataclass(slots=True)
class LiveChannel:
    """One life of a channel.

    Attributes:
        rng: the only source of chance.
        node, name, epoch: where it is. publisher: its client.
        cadence_us: a segment begins so often. next_us: when the next one begins; last_us: when the latest did.
        head: seq of the next segment. size: mean bytes of a segment.
        mishaps: share of reads that end badly.
    """

    rng: random.Random
    node: str
    name: str
    publisher: Client
    cadence_us: int
    next_us: int
    epoch: int = 1
    head: int = 0
    size: int = 250_000
    mishaps: float = MISHAPS
    readers: list[Reader] = field(default_factory=list)
    last_us: int = 0
    _post: Line = field(init=False)

    def __post_init__(self) -> None:
        self.last_us = self.next_us - self.cadence_us
        self._post = self._entry(self.publisher, 0, "posted", 0)[1]

    def _entry(self, client: Client, ts: int, answer: str, seq: int | None, **fields: Any) -> TimedLine:
        where: dict[str, Any] = {"node": self.node, "channel": self.name, "epoch": self.epoch, "next_seq": self.head}
        return entry(client, ts, answer, seq=seq, **where | fields)

    def create(self, out: list[TimedLine]) -> None:
        """The channel begins: an event, and the request that did it."""
        out.append(event(self.last_us, Event.CHANNEL_CREATE, self.node, self.name, epoch=self.epoch))
        out.append(self._entry(self.publisher, self.last_us - 200, "created", None))

    def join(self, client: Client) -> None:
        """A reader comes; its first request is answered with the next segment."""
        line = self._entry(client, 0, "served", 0)[1]
        lag = min(int(self.rng.lognormvariate(9.3, 0.8)), 400_000)
        self.readers.append(Reader(client, line, lag, -1 if self.rng.random() < FOLLOWS_HEAD else 0))

    def leave(self, reader: Reader, out: list[TimedLine]) -> None:
        """A reader goes while it waits: nothing was answered."""
        self.readers.remove(reader)
        out.append(self._given_up(reader, self.last_us + reader.lag_us, self.next_us))

    def advance(self, until_us: int, out: list[TimedLine]) -> None:
        """All segments that begin before a moment."""
        while self.next_us < until_us:
            self._segment(out)

    def _segment(self, out: list[TimedLine]) -> None:
        """The next segment: its POST, and one GET of each reader."""
        rng, at, seq, before = self.rng, self.next_us, self.head, self.last_us
        chance = rng.random
        following = at + int(self.cadence_us * (0.97 + 0.06 * chance()))
        done = at + int((following - at) * 0.96)
        size = int(self.size * (0.6 + 0.8 * chance()))
        self.head, self.last_us, self.next_us = seq + 1, at, following
        path = f"/trickle/{self.name}/{seq}"
        arrived = min(at - 1, before + int(5000 * chance()))
        post = self._post.copy()
        post.update(ts_us=arrived, path=path, seq=seq, rseq=seq, next_seq=seq + 1, conn=self.publisher.conn())
        post.update(bytes_in=size, wait_us=done - arrived, dur_us=done - arrived + 40)
        out.append((done + 40, post))
        for reader in self.readers:
            luck = chance()
            if reader.fresh:
                self._first(reader, at, done, size, out)
                continue
            if luck < self.mishaps:
                self._mishap(reader, at, done, size, out)
                continue
            # Nearly all lines of a log are made here: a copy with its numbers, and no calls.
            lag = reader.lag_us
            ts = before + lag + int(luck * 4000)
            ts = ts if ts < done else done - 100
            line = reader.line.copy()
            line["ts_us"] = ts
            line["seq"] = reader.asked or seq
            line["path"] = path if not reader.asked else f"/trickle/{self.name}/-1"
            line["rseq"] = seq
            line["next_seq"] = self.head
            line["bytes_out"] = size
            line["wait_us"] = at - ts if at > ts else 90
            line["dur_us"] = done - ts + (lag >> 3)
            line["conn"] = reader.client.conn()
            out.append((done + (lag >> 3), line))

    def _first(self, reader: Reader, at: int, done: int, size: int, out: list[TimedLine]) -> None:
        """A late joiner: asks for the current segment, or for the next."""
        reader.fresh = False
        asked = self.rng.choice((-1, -2, -2, -1))
        ts = at - int(self.rng.uniform(0, min(self.cadence_us, 2_000_000))) if asked == -1 else at + 3000
        out.append(self._read(reader, ts, at, max(done, ts + 900), size, asked=asked))

    def _mishap(self, reader: Reader, at: int, done: int, size: int, out: list[TimedLine]) -> None:
        ts = max(self.last_us - self.cadence_us + reader.lag_us, at - self.cadence_us)
        half = at + (done - at) // 2
        match self.rng.randrange(4):
            case 0:  # the connection broke in the middle of the segment, and it is asked for again
                out.append(self._read(reader, ts, at, half, size // 2, reason=Reason.CLIENT_GONE))
                back, attempt = half + 40_000, 2 if reader.client.says_attempt else 1
                out.append(self._read(reader, back, back + 100, max(done, back + 50_000), size, attempt=attempt))
            case 1:
                out.append(self._read(reader, ts, at, half, size // 2, reason=Reason.TRUNCATED))
            case 2:  # too slow for the server: cut off, and back at the live edge
                out.append(self._read(reader, ts, at, half, size // 3, reason=Reason.EVICTED))
                reader.fresh = True
            case _:  # fell out of the window: told so once, and jumps
                told = 800 + self.rng.randrange(700)
                gone = max(0, self.head - 300)
                out.append(self._entry(reader.client, at + 500, "missing", gone, retry_after_ms=told))
                out.append(self._read(reader, at + 30_000, at + 30_100, done + 30_200, size))

    def _read(self, reader: Reader, ts: int, at: int, end: int, size: int, **more: Any) -> TimedLine:
        """A read of the latest segment that began at a moment, and its end."""
        more = {"asked": reader.asked or None, "wait_us": max(90, at - ts), "dur_us": max(100, end - ts)} | more
        return self._entry(reader.client, ts, "served", self.head - 1, bytes_out=size, **more)

    def _given_up(self, reader: Reader, ts: int, end: int) -> TimedLine:
        ts, end = min(ts, end - 1000), min(end, ts + RENEWAL_US)
        return self._entry(reader.client, ts, "abandoned", self.head, dur_us=end - ts)

    def wait(self, until_us: int, out: list[TimedLine]) -> None:
        """Nothing comes: everybody's wait is given up and renewed every 20 s."""
        for reader in self.readers:
            reader.since_us = reader.since_us or self.last_us + int(self.rng.random() * RENEWAL_US)
            while (end := reader.since_us + RENEWAL_US) < until_us:
                out.append(self._given_up(reader, reader.since_us, end))
                reader.since_us = end + 300
        self.last_us, self.next_us = max(self.last_us, until_us - self.cadence_us), max(self.next_us, until_us)

    def end(self, at: int, out: list[TimedLine], *, curious: float = 0.1) -> None:
        """The publisher DELETEs the channel: whoever waits is told once, and some ask once more when it is forgotten.

        Args:
            at: when, microseconds; not before the latest segment.
            curious: share of readers that ask once more.
        """
        at = max(at, self.last_us + 1000)
        ends = {"epoch": self.epoch, "next_seq": self.head, "detail": "deleted"}
        out.append(event(at + 90, Event.CHANNEL_END, self.node, self.name, **ends))
        out.append(self._entry(self.publisher, at, "deleted", None))
        for reader in self.readers:
            ts = min(at - 500, self.last_us + reader.lag_us)
            waited = {"wait_us": at - ts + 100, "dur_us": at - ts + 120}
            out.append(self._entry(reader.client, ts, "ended", self.head, **waited))
            if self.rng.random() < curious:
                asked_at = at + micros(self.rng.uniform(10.2, 25))
                told = {"epoch": self.epoch, "eos": True if self.rng.random() < 0.7 else None}
                out.append(self._entry(reader.client, asked_at, "not_found", self.head, **told))
        self.readers.clear()
