"""The healthy fleet around the scenes: channels that begin and end, audiences that come and go, machines that probe.

Everything here comes in the order of time, a slice at a time, and forgets what it has written: memory does not grow
with the length of the log.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.channels import LiveChannel
from tricklecast.analytics.simulate.entries import Entry, entry_of, line_of
from tricklecast.analytics.simulate.people import Client, behind_nat, make_client
from tricklecast.analytics.simulate.plan import Outage
from tricklecast.trickle.records import AccessRecord, Op, Reason

CADENCES_S: Final = ((0.2, 3), (0.5, 7), (1.0, 20), (2.0, 45), (4.0, 15), (6.0, 10))
"""How often channels begin a segment, and how many of a hundred do."""

STAY_S: Final = 600.0
"""How long a reader stays, on average. Seconds."""

LIFE_S: Final = (600.0, 3600.0)
"""How long a channel lives, from and to. Seconds."""

DAY_SWING: Final = 0.4
"""How far the audience rises above and falls below its mean over a day. A share, 0 to 1."""

PROBES: Final = (
    ("/healthz", 10.0, "kube-probe/1.31"),
    ("/metrics", 15.0, "Prometheus/3.5.0"),
    ("/api/v1/channels", 30.0, "dashboard/2.3"),
)
"""What machines ask each server: path, how often (seconds), user agent."""

IDLE_SHARE: Final = 0.05
"""Share of channels that exist, have readers, and send nothing."""

NAT_SHARE: Final = 0.03
"""Share of readers that come as a group behind one address."""


def swing(at_us: int) -> float:
    """The audience at an hour of the day, as a multiple of its mean: largest at 20:00 UTC."""
    day = at_us / micros(86_400)
    return 1 + DAY_SWING * math.cos(2 * math.pi * (day - 20 / 24))


@dataclass(slots=True)
class Show:
    """One channel after the other at one place of the fleet, each with its audience.

    Attributes:
        rng: the only source of chance.
        node: the server; outages: when it is away, in order.
        audience: readers in the mean; cadence_us: of its segments; at_us: when the log begins.
        idle: nothing is ever sent.
    """

    rng: random.Random
    node: str
    outages: list[Outage]
    audience: float
    cadence_us: int
    at_us: int
    idle: bool = False
    live: LiveChannel = field(init=False)
    _ends_us: int = field(init=False)
    _counted_us: int = field(init=False)

    def __post_init__(self) -> None:
        self._begin(self.at_us + int(self.rng.random() * self.cadence_us))
        self.live.head = self.rng.randrange(5000)  # it was there before the log began

    def advance(self, until_us: int, out: list[Entry]) -> None:
        """Everything that begins before a moment."""
        while True:
            outage_us = self.outages[0].from_us if self.outages else until_us
            stop = min(until_us, self._ends_us, outage_us)
            self._turnover(min(stop, self.live.next_us), out)
            if self.idle:
                self.live.wait(stop, out)
            else:
                self.live.advance(stop, out)
            if stop >= until_us:
                return
            if stop == outage_us:
                self._interrupt(self.outages.pop(0), out)
            else:
                self.live.end(stop, out)
                self._begin(stop + micros(self.rng.uniform(3, 40)))
                self.live.create(out)

    def _begin(self, at_us: int) -> None:
        rng = self.rng
        publisher = make_client(rng, named=rng.random() < 0.7)
        name = f"{rng.choice(('show', 'cam', 'room', 'feed', 'desk'))}-{rng.getrandbits(40):010x}"
        size = int(rng.lognormvariate(12.0, 0.8) * self.cadence_us / 2e6) + 2000
        self.live = LiveChannel(rng, self.node, name, publisher, self.cadence_us, at_us + self.cadence_us, size=size)
        self._ends_us = at_us + micros(rng.uniform(*LIFE_S))
        self._counted_us = at_us
        self._welcome(at_us)

    def _turnover(self, at_us: int, out: list[Entry]) -> None:
        """Readers leave after their time, and others come until the audience is as large as it should be."""
        rng, live, passed = self.rng, self.live, at_us - self._counted_us
        if passed < micros(1):
            return
        self._counted_us = at_us
        share = min(0.5, passed / micros(STAY_S))
        for reader in [reader for reader in live.readers if rng.random() < share]:
            live.leave(reader, out)
        self._welcome(at_us)

    def _welcome(self, at_us: int) -> None:
        target = int(self.audience * swing(at_us) + self.rng.random())
        while len(self.live.readers) < target:
            for client in self._guests(target - len(self.live.readers)):
                self.live.join(client)

    def _guests(self, missing: int) -> list[Client]:
        if missing > 3 and self.rng.random() < NAT_SHARE:
            return behind_nat(self.rng, self.rng.randint(2, min(missing, 30)))
        return [make_client(self.rng)]

    def _interrupt(self, outage: Outage, out: list[Entry]) -> None:
        """The server goes: everybody is told when to come back, and does so, spread over some seconds."""
        rng, live = self.rng, self.live
        if outage.from_us > self._ends_us - micros(30):
            self._ends_us += micros(120)
        everybody = [live.publisher, *(reader.client for reader in live.readers)]
        out += [self._sent_away(client, outage.from_us + int(rng.random() * 1_500_000)) for client in everybody]
        # A server that begins again knows no channels; this publisher goes on with its numbering.
        back = outage.until_us + micros(rng.uniform(0.3, 3))
        live.last_us, live.next_us = back, back + live.cadence_us
        live.create(out)
        for reader in live.readers:
            reader.fresh = True
            returns = outage.until_us + micros(rng.uniform(0.5, 8))
            if returns < back:
                out.append(self._too_early(reader.client, returns))

    def _sent_away(self, client: Client, at: int) -> Entry:
        live = self.live
        publishes = client is live.publisher
        record = live.record(client, Op.PUBLISH if publishes else Op.READ, reason=Reason.SHUTDOWN, rseq=live.head)
        record.ts_us, record.status, record.seq, record.next_seq = at - 900_000, 503, live.head, live.head
        record.wait_us, record.dur_us, record.bytes_out = 900_000, 900_040, 13
        record.path, record.conn = f"/trickle/{live.name}/{live.head}", client.conn()
        record.retry_after_ms = 1000 + self.rng.randrange(4000)
        return entry_of(record)

    def _too_early(self, client: Client, at: int) -> Entry:
        live = self.live
        record = live.record(client, Op.READ, reason=Reason.NOT_FOUND, rseq=None, next_seq=None, epoch=None)
        record.ts_us, record.status, record.seq, record.bytes_out = at, 404, -1, 16
        record.path, record.conn = f"/trickle/{live.name}/-1", client.conn()
        record.wait_us, record.dur_us = 120, 130
        return entry_of(record)


@dataclass(slots=True)
class Probe:
    """A machine that asks the control plane of one server at fixed times."""

    line: dict[str, object]
    every_us: int
    next_us: int
    outages: list[Outage]

    def advance(self, until_us: int, out: list[Entry]) -> None:
        """All of its requests before a moment; a server that is away writes nothing."""
        while self.next_us < until_us:
            at, self.next_us = self.next_us, self.next_us + self.every_us
            while self.outages and self.outages[0].until_us <= at:
                self.outages.pop(0)
            if not self.outages or at < self.outages[0].from_us:
                out.append((at + 900, self.line | {"ts_us": at}))


def probes(node: str, seed: int, start_us: int, outages: Sequence[Outage]) -> list[Probe]:
    """Who probes a server."""
    rng = random.Random(f"{seed}/{node}/probes")
    found = []
    for path, every_s, ua in PROBES:
        client = make_client(rng, ua=ua, named=False)
        record = AccessRecord(0, node=node, op=Op.API, method="GET", path=path, status=200, reason=Reason.COMPLETE)
        record.bytes_out, record.wait_us, record.dur_us = 15 * len(path), 800, 900
        record.client, record.ip, record.conn, record.ua = client.key, client.ip, client.conn(), ua
        record.release, record.attempt = client.release, 1
        mine = [outage for outage in outages if outage.node == node]
        found.append(Probe(line_of(record), micros(every_s), start_us + int(rng.random() * micros(every_s)), mine))
    return found
