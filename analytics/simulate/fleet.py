"""The healthy fleet around the scenes: channels that begin and end, audiences that come and go, machines that probe.

Everything here comes in the order of time, a slice at a time, and forgets what it has written: memory does not grow
with the length of the log.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tricklecast.analytics.simulate import lines
from tricklecast.analytics.simulate.channels import LiveChannel
from tricklecast.analytics.simulate.clients import Client, behind_nat, make_client
from tricklecast.analytics.simulate.lines import Line, TimedLine, micros
from tricklecast.analytics.simulate.plan import CADENCES_S, PROBES, Outage, Sizes
from tricklecast.trickle.records import Op, Reason

STAY_S: Final = 600.0
"""How long a reader stays, on average. Seconds."""

LIFE_S: Final = (600.0, 3600.0)
"""How long a channel lives, from and to. Seconds."""

DAY_SWING: Final = 0.4
"""How far the audience rises above and falls below its mean over a day. A share, 0 to 1."""

IDLE_SHARE: Final = 0.05
"""Share of channels that exist, have readers, and send nothing."""

NAT_SHARE: Final = 0.03
"""Share of readers that come as a group behind one address."""


def swing(at_us: int) -> float:
    """The audience at an hour of the day, as a multiple of its mean: largest at 20:00 UTC."""
    return 1 + DAY_SWING * math.cos(2 * math.pi * (at_us / micros(86_400) - 20 / 24))


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

    def advance(self, until_us: int, out: list[TimedLine]) -> None:
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

    def _turnover(self, at_us: int, out: list[TimedLine]) -> None:
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
        rng, readers = self.rng, self.live.readers
        target = int(self.audience * swing(at_us) + rng.random())
        while (lacking := target - len(readers)) > 0:
            group = lacking > 3 and rng.random() < NAT_SHARE
            for client in behind_nat(rng, rng.randint(2, min(lacking, 30))) if group else [make_client(rng)]:
                self.live.join(client)

    def _interrupt(self, outage: Outage, out: list[TimedLine]) -> None:
        """The server goes: everybody is told when to come back, and does so, spread over some seconds."""
        rng, live = self.rng, self.live
        if outage.from_us > self._ends_us - micros(30):
            self._ends_us += micros(120)
        for client in (live.publisher, *(reader.client for reader in live.readers)):
            sends = {"op": Op.PUBLISH, "method": "POST"} if client is live.publisher else {}
            told = {"retry_after_ms": 1000 + rng.randrange(4000), "reason": Reason.SHUTDOWN, **sends}
            at = outage.from_us + int(rng.random() * 1_500_000) - 900_000
            out.append(self._entry(client, at, "refused", live.head, wait_us=900_000, dur_us=900_040, **told))
        # A server that begins again knows no channels; this publisher goes on with its numbering.
        back = outage.until_us + micros(rng.uniform(0.3, 3))
        live.last_us, live.next_us = back, back + live.cadence_us
        live.create(out)
        for reader in live.readers:
            reader.fresh = True
            returns = outage.until_us + micros(rng.uniform(0.5, 8))
            if returns < back:
                out.append(self._entry(reader.client, returns, "not_found", -1))

    def _entry(self, client: Client, ts: int, answer: str, seq: int, **fields: Any) -> TimedLine:
        return lines.entry(client, ts, answer, node=self.node, channel=self.live.name, seq=seq, **fields)


@dataclass(slots=True)
class Probe:
    """A machine that asks the control plane of one server at fixed times."""

    node: str
    line: Line
    every_us: int
    next_us: int
    outages: list[Outage]

    def advance(self, until_us: int, out: list[TimedLine]) -> None:
        """All of its requests before a moment; a server that is away writes nothing."""
        while self.next_us < until_us:
            at, self.next_us = self.next_us, self.next_us + self.every_us
            while self.outages and self.outages[0].until_us <= at:
                self.outages.pop(0)
            if not self.outages or at < self.outages[0].from_us:
                out.append((at + 900, self.line | {"ts_us": at}))


def probes(node: str, seed: int, start_us: int, outages: Sequence[Outage]) -> list[Probe]:
    """The machines that probe a server."""
    rng = random.Random(f"{seed}/{node}/probes")
    found = []
    for path, every_s, ua in PROBES:
        client = make_client(rng, ua=ua, named=False)
        api: dict[str, Any] = {"op": Op.API, "path": path, "epoch": None, "bytes_out": 15 * len(path)}
        line = lines.entry(client, 0, "other", node=node, channel=None, wait_us=800, dur_us=900, **api)[1]
        mine = [outage for outage in outages if outage.node == node]
        found.append(Probe(node, line, micros(every_s), start_us + int(rng.random() * micros(every_s)), mine))
    return found


def shows(size: Sizes, seed: int, start_us: int, nodes: list[str], outages: list[Outage], planted: int) -> list[Show]:
    """The fleet's channels, with audiences such that the log gets as many lines as it should.

    Args:
        planted: lines of the scenes.
    """
    rng = random.Random(f"{seed}/shows")
    cadences = rng.choices([every for every, _ in CADENCES_S], [share for _, share in CADENCES_S], k=size.channels)
    # A few channels have most of the audience.
    weights = [1 / (rank + 1) ** 0.7 for rank in range(size.channels)]
    rng.shuffle(weights)
    idle = [rng.random() < IDLE_SHARE and size.channels > 3 for _ in cadences]
    seconds = size.duration_us / 1e6
    paces = [1 / 20 if still else 1 / every for every, still in zip(cadences, idle, strict=True)]
    posts = sum(pace for pace, still in zip(paces, idle, strict=True) if not still) * seconds
    reads = sum(pace * weight for pace, weight in zip(paces, weights, strict=True)) * seconds
    usual = sum(swing(start_us + size.duration_us * part // 12) for part in range(13)) / 13
    scale = max(0.0, size.lines - planted - size.probed - posts) / (reads * usual)
    found = []
    for number, (every, weight, still) in enumerate(zip(cadences, weights, idle, strict=True)):
        node = nodes[number % len(nodes)]
        mine = [outage for outage in outages if outage.node == node]
        own = random.Random(f"{seed}/show/{number}")
        found.append(Show(own, node, mine, weight * scale, micros(every), start_us, idle=still))
    return found
