"""A channel that lives: one publisher, its readers at the live edge, and the mishaps of a healthy day.

Readers ask for the next segment while the present one is being served (protocol, section 4), so that nearly every line
is a long-poll: it arrives one segment early and is written when its segment ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from tricklecast.analytics.simulate.entries import Entry, Line, entry_of, line_of
from tricklecast.analytics.simulate.people import Client
from tricklecast.trickle.records import AccessRecord, Event, Kind, Op, Reason

MISHAPS: Final = 0.002
"""Of so many reads one ends badly: cut and asked for again, truncated, or too slow. A share, 0 to 1."""

FOLLOWS_HEAD: Final = 0.08
"""This share of readers asks for -1 each time instead of counting."""

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
        node, name, epoch: where it is.
        publisher: who sends it.
        cadence_us: a segment begins so often.
        next_us: when the next segment begins; last_us: when the latest did.
        head: seq of the next segment.
        size: mean bytes of a segment.
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
        self._post = line_of(self.record(self.publisher, Op.PUBLISH, bytes_in=0, reason=Reason.COMPLETE))

    def record(self, client: Client, op: Op, **fields: object) -> AccessRecord:
        """A record of a client on this channel with all fields that an answer has; its numbers are to be filled in."""
        known: dict[str, object] = {
            "method": "GET" if op is Op.READ else "POST",
            "path": f"/trickle/{self.name}/{self.head}",
            "status": 200,
            "seq": 0,
            "rseq": 0,
            "next_seq": 0,
            "bytes_out": 0,
            "wait_us": 0,
            "dur_us": 0,
            "attempt": 1,
        }
        who = {"client": client.key, "ip": client.ip, "conn": 0, "ua": client.ua, "release": client.release}
        where = {"node": self.node, "channel": self.name, "epoch": self.epoch}
        return AccessRecord(0, op=op, **known | who | where | fields)  # type: ignore[arg-type]

    def create(self, out: list[Entry]) -> None:
        """The channel begins: an event, and the request that did it."""
        at = self.last_us
        event = AccessRecord(at, node=self.node, kind=Kind.EVENT, event=Event.CHANNEL_CREATE)
        event.channel, event.epoch = self.name, self.epoch
        record = self.record(self.publisher, Op.CREATE, seq=None, rseq=None, reason=Reason.COMPLETE)
        record.path = f"/trickle/{self.name}"
        record.ts_us, record.next_seq, record.wait_us, record.dur_us = at - 200, self.head, 190, 210
        record.conn = self.publisher.conn()
        out += (entry_of(event), entry_of(record))

    def join(self, client: Client, *, lag_us: int | None = None) -> None:
        """A reader comes; its first request is answered with the next segment."""
        line = line_of(self.record(client, Op.READ, reason=Reason.COMPLETE))
        lag = int(self.rng.lognormvariate(9.3, 0.8)) if lag_us is None else lag_us
        asked = -1 if self.rng.random() < FOLLOWS_HEAD else 0
        self.readers.append(Reader(client, line, min(lag, 400_000), asked))

    def leave(self, reader: Reader, out: list[Entry]) -> None:
        """A reader goes while it waits: nothing was answered."""
        self.readers.remove(reader)
        out.append(self._given_up(reader, self.last_us + reader.lag_us, self.next_us))

    def advance(self, until_us: int, out: list[Entry]) -> None:
        """All segments that begin before a moment."""
        while self.next_us < until_us:
            self.segment(out)

    def segment(self, out: list[Entry]) -> None:
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
        mishaps, append = self.mishaps, out.append
        for reader in self.readers:
            luck = chance()
            lag = reader.lag_us
            if reader.fresh:
                self._first(reader, at, done, size, out)
                continue
            if luck < mishaps:
                self._mishap(reader, at, done, size, out)
                continue
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
            append((done + (lag >> 3), line))

    def _first(self, reader: Reader, at: int, done: int, size: int, out: list[Entry]) -> None:
        """A late joiner: asks for the current segment, or for the next."""
        reader.fresh = False
        asked = self.rng.choice((-1, -2, -2, -1))
        ts = at - int(self.rng.uniform(0, min(self.cadence_us, 2_000_000))) if asked == -1 else at + 3000
        out.append(self._read(reader, ts, at, max(done, ts + 900), size, asked=asked))

    def _mishap(self, reader: Reader, at: int, done: int, size: int, out: list[Entry]) -> None:
        rng, ts = self.rng, max(self.last_us - self.cadence_us + reader.lag_us, at - self.cadence_us)
        half = at + (done - at) // 2
        match rng.randrange(4):
            case 0:  # the connection broke in the middle of the segment, and it is asked for again
                out.append(self._read(reader, ts, at, half, size // 2, reason=Reason.CLIENT_GONE.value))
                back, attempt = half + 40_000, 2 if reader.client.says_attempt else 1
                out.append(self._read(reader, back, back + 100, max(done, back + 50_000), size, attempt=attempt))
            case 1:
                out.append(self._read(reader, ts, at, half, size // 2, reason=Reason.TRUNCATED.value))
            case 2:  # too slow for the server: cut off, and back at the live edge
                out.append(self._read(reader, ts, at, half, size // 3, reason=Reason.EVICTED.value))
                reader.fresh = True
            case _:  # fell out of the window: told so once, and jumps
                missing = self.missing(reader.client, at + 500, max(0, self.head - 300))
                out += (entry_of(missing), self._read(reader, at + 30_000, at + 30_100, done + 30_200, size))

    def missing(self, client: Client, at: int, seq: int) -> AccessRecord:
        """470 for one seq, microseconds."""
        record = self.record(client, Op.READ, reason=Reason.AHEAD if seq >= self.head else Reason.GONE)
        record.ts_us, record.status, record.seq, record.rseq, record.next_seq = at, 470, seq, None, self.head
        record.path, record.bytes_out, record.wait_us, record.dur_us = f"/trickle/{self.name}/{seq}", 15, 180, 190
        record.retry_after_ms, record.conn = 800 + self.rng.randrange(700), client.conn()
        return record

    def _read(self, reader: Reader, ts: int, at: int, end: int, size: int, *, asked: int = 0, **more: object) -> Entry:
        line = reader.line.copy()
        seq = self.head - 1
        line.update(ts_us=ts, seq=asked or reader.asked or seq, rseq=seq, next_seq=self.head, bytes_out=size)
        line.update(path=f"/trickle/{self.name}/{line['seq']}", conn=reader.client.conn())
        line.update(wait_us=max(90, at - ts), dur_us=max(100, end - ts), **more)
        return max(end, ts + 100), line

    def _given_up(self, reader: Reader, ts: int, end: int) -> Entry:
        ts, end = min(ts, end - 1000), min(end, ts + RENEWAL_US)
        line = reader.line.copy()
        line.update(
            ts_us=ts, seq=self.head, rseq=self.head, next_seq=self.head, path=f"/trickle/{self.name}/{self.head}"
        )
        line.update(reason=Reason.CLIENT_GONE.value, dur_us=end - ts, conn=reader.client.conn())
        del line["status"], line["wait_us"]
        return end, line

    def wait(self, until_us: int, out: list[Entry]) -> None:
        """Nothing comes: everybody's wait is given up and renewed every 20 s."""
        for reader in self.readers:
            reader.since_us = reader.since_us or self.last_us + int(self.rng.random() * RENEWAL_US)
            while (end := reader.since_us + RENEWAL_US) < until_us:
                out.append(self._given_up(reader, reader.since_us, end))
                reader.since_us = end + 300
        self.last_us, self.next_us = max(self.last_us, until_us - self.cadence_us), max(self.next_us, until_us)

    def end(self, at: int, out: list[Entry], *, curious: float = 0.1) -> None:
        """The publisher DELETEs the channel: whoever waits is told once, and some ask once more when it is forgotten.

        Args:
            at: when, microseconds; not before the latest segment.
            curious: share of readers that ask once more.
        """
        at = max(at, self.last_us + 1000)
        event = AccessRecord(at + 90, node=self.node, kind=Kind.EVENT, event=Event.CHANNEL_END, detail="deleted")
        event.channel, event.epoch, event.next_seq = self.name, self.epoch, self.head
        deleted = self.record(self.publisher, Op.DELETE, seq=None, rseq=None, reason=Reason.COMPLETE, method="DELETE")
        deleted.path, deleted.ts_us, deleted.next_seq = f"/trickle/{self.name}", at, self.head
        deleted.wait_us, deleted.dur_us, deleted.conn = 160, 170, self.publisher.conn()
        out += (entry_of(event), entry_of(deleted))
        for reader in self.readers:
            out.append(self._told(reader, at))
            if self.rng.random() < curious:
                asked_at = at + int(self.rng.uniform(10.2, 25) * 1e6)
                out.append(self._forgotten(reader, asked_at))
        self.readers.clear()

    def _told(self, reader: Reader, at: int) -> Entry:
        ts = min(at - 500, self.last_us + reader.lag_us)
        line = reader.line.copy()
        line.update(
            ts_us=ts, seq=self.head, rseq=self.head, next_seq=self.head, path=f"/trickle/{self.name}/{self.head}"
        )
        line.update(reason=Reason.TERMINATED.value, wait_us=at - ts + 100, dur_us=at - ts + 120, eos=True)
        line["conn"] = reader.client.conn()
        return at + 120, line

    def _forgotten(self, reader: Reader, at: int) -> Entry:
        record = self.record(reader.client, Op.READ, reason=Reason.NOT_FOUND, rseq=None)
        record.ts_us, record.status, record.seq, record.next_seq = at, 404, self.head, self.head
        record.path = f"/trickle/{self.name}/{self.head}"
        record.bytes_out, record.wait_us, record.dur_us, record.conn = 16, 110, 120, reader.client.conn()
        record.eos = True if self.rng.random() < 0.7 else None
        return entry_of(record)
