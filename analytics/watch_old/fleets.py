"""Storms that no single client makes, while they happen: :mod:`analytics.fleet` for each node's last two
minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import orjson

from tricklecast.analytics.answers import FAILURES, Answer
from tricklecast.analytics.durations import SECOND_US, micros
from tricklecast.analytics.fleet import Fleet
from tricklecast.analytics.own_time import own_us
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.watch_old.figures import Figures
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.seconds import Asking, Second, early_requests
from tricklecast.analytics.watch_old.signals import Signal


@dataclass(frozen=True, slots=True)
class Gathering:
    """A stretch of time in which many clients failed together.

    Attributes:
        kind, node: of what, where; from_us, to_us: its first and last full second.
        figures: what its members' requests add up to; clients, channels: requests of each.
        pairs: how many pairs of a client and a channel there are.
        at_once: they came within a moment, on several channels, and most of them again too early.
        insistent: most of it is of clients that ask more often than now and then, none of them for long.
    """

    kind: Fleet
    node: str | None
    from_us: int
    to_us: int
    figures: Figures
    clients: Counter[str]
    channels: Counter[str | None]
    pairs: int
    at_once: bool
    insistent: bool


class NodeFleet:
    """The failures of one node, second by second."""

    def __init__(self, node: str | None, params: StormParams, limits: WatchLimits) -> None:
        """
        Args:
            node: which; params: what makes a fleet; limits: how long seconds are remembered.
        """
        self._node = node
        self._params = params
        self._limits = limits
        self._seconds: dict[int, Second] = {}
        self._latest: dict[Asking, int] = {}

    def put(self, rows: Iterable[Signal]) -> None:
        """Adds rows, in the order of time, and forgets what is too long ago."""
        touched: set[int] = set()
        for row in rows:
            asking = (row.client or "", row.channel, row.answer.value)
            second = self._seconds.setdefault(row.bucket_us, Second())
            known = second.rows.get((asking, row.cell))
            second.rows[asking, row.cell] = (row, known[1] if known else self._latest.get(asking))
            self._latest[asking] = row.last_us + round((row.guard_ms or 0) * 1000 / row.n)
            touched.add(row.bucket_us)
        self._trim()
        for bucket in touched & self._seconds.keys():
            self._seconds[bucket].count(self._params)

    def _trim(self) -> None:
        oldest = max(self._seconds, default=0) - self._limits.fleet_s * SECOND_US
        for bucket in [bucket for bucket in self._seconds if bucket < oldest]:
            del self._seconds[bucket]
        if len(self._latest) > self._limits.islands:
            self._latest = {asking: last for asking, last in self._latest.items() if last >= oldest}

    def is_hot(self) -> bool:
        """Whether one of its latest seconds is full of early retries: a storm of the fleet may be coming."""
        newest = max(self._seconds, default=0)
        recent = (newest, newest - SECOND_US)
        return any(self._seconds[bucket].is_hot(self._params) for bucket in recent if bucket in self._seconds)

    def overload(self) -> Gathering | None:
        """The latest stretch of amplified overload."""
        hot = sorted(bucket for bucket, second in self._seconds.items() if second.is_hot(self._params))
        stretch = _latest_stretch(hot, micros(self._params.gap_s))
        if not stretch:
            return None
        refused = sum(self._seconds[bucket].refused for bucket in stretch)
        enough = len(stretch) >= self._params.amplified_s and refused >= self._params.warn_hits_alone
        # However short, if it would be a storm of each.
        each = max(self._seconds[bucket].early_clients for bucket in stretch)
        if not enough and refused < self._params.warn_hits * each:
            return None
        return self._gathering(Fleet.OVERLOAD, stretch[0], stretch[-1])

    def herd(self, known_s: float) -> Gathering | None:
        """The latest stretch in which a herd came, and came again.

        Args:
            known_s: how long its failures would have been seen, had there been any. Seconds.
        """
        params = self._params
        waves = {bucket: wave for bucket in self._seconds if (wave := self._wave(bucket))[0] >= params.herd_clients}
        if not waves:
            return None
        # In clients: one client's hot loop makes no second unusual for a crowd.
        least = params.herd_ratio * self._usual(known_s)
        stretch = _latest_stretch(sorted(b for b, wave in waves.items() if wave[0] >= least), micros(params.herd_gap_s))
        if not stretch:
            return None
        # Who still comes at the same rate after so long has been polling.
        usual = median_low(self._seconds[bucket].n for bucket in stretch)
        if len(stretch) > params.herd_waves_s and max(waves[b][1] for b in stretch) < params.herd_ratio * usual:
            return None
        found = self._gathering(Fleet.HERD, stretch[0], stretch[-1])
        again = found.figures.n >= params.amplification * found.pairs
        # Where most of it is the loops of single clients, those are told, each for itself.
        return found if again and 2 * self._looping(found) < found.figures.n else None

    def _usual(self, known_s: float) -> float:
        """Clients that fail in its usual second; 1 where most of its seconds have none."""
        span = (max(self._seconds) - min(self._seconds)) / SECOND_US + 1
        if 2 * len(self._seconds) <= max(span, min(known_s, self._limits.fleet_s)):
            return 1
        return median_low(len(second.clients) for second in self._seconds.values())

    def _wave(self, bucket: int) -> tuple[int, int]:
        """Clients and requests of a second; with those of the second before, if all of them came within one, or if the
        halves on either side of their border have more clients."""
        second, before = self._seconds[bucket], self._seconds.get(bucket - SECOND_US)
        if before is None:
            return len(second.clients), second.n
        if second.last_us - before.first_us <= SECOND_US:
            return len(second.clients | before.clients), second.n + before.n
        return max(len(second.clients), len(second.in_first_half(bucket) | before.in_last_half(bucket))), second.n

    def _members(self, kind: Fleet, from_us: int, to_us: int) -> Iterator[tuple[Signal, int | None]]:
        # A second on either side too: a wave begins and ends within seconds that are not full enough to be seen.
        for bucket in sorted(self._seconds):
            if from_us - SECOND_US <= bucket <= to_us + SECOND_US:
                for row, before in self._seconds[bucket].rows.values():
                    if kind is Fleet.HERD or row.answer is Answer.OVERLOAD:
                        yield row, before

    def _gathering(self, kind: Fleet, from_us: int, to_us: int) -> Gathering:
        figures, clients, channels = Figures(), Counter[str](), Counter[str | None]()
        arrivals: dict[tuple[str, str | None], int] = {}
        early = 0
        for row, before in self._members(kind, from_us, to_us):
            figures.add(row, None)
            early += early_requests(row, before, self._params)
            clients[row.client or ""] += row.n
            channels[row.channel] += row.n
            arrivals.setdefault((row.client or "", row.channel), row.first_us)
        # They hold one client each, while the others go on.
        figures.guard_ms = 0
        in_stretch = [second for bucket, second in self._seconds.items() if from_us <= bucket <= to_us]
        figures.peak_rps = max(
            (float(each.refused if kind is Fleet.OVERLOAD else each.n) for each in in_stretch), default=0.0
        )
        times = sorted(arrivals.values())
        spread = times[int(len(times) * self._params.herd_arrival_share) - 1] - times[0] if times else 0
        together = len(channels) >= self._params.herd_channels and spread <= micros(self._params.herd_arrival_s)
        # Who waits as long as it was told is no herd because it came with others, unless there was a cue for all.
        rude = 2 * early >= figures.n - self._params.amplification * len(clients)
        at_once, insistent = together and rude, 2 * self._insisting(kind, from_us, to_us) >= figures.n
        return Gathering(
            kind, self._node, from_us, to_us, figures, clients, channels, len(arrivals), at_once, insistent
        )

    def _paces(self, kind: Fleet, from_us: int, to_us: int) -> Iterator[tuple[int, float]]:
        """Requests of each member, and in how many seconds of its own, at least 1, it sent them."""
        parts: dict[tuple[str, str | None], list[int]] = {}
        for row, _ in self._members(kind, from_us, to_us):
            part = parts.setdefault((row.client or "", row.channel), [0, row.first_us, row.last_us, 0])
            part[0] += row.n
            part[2] = max(part[2], row.last_us)
            part[3] += row.guard_ms or 0
        for n, first_us, last_us, held_ms in parts.values():
            yield n, max(1.0, own_us(last_us - first_us, held_ms, n) / 1e6)

    def _looping(self, found: Gathering) -> int:
        """Requests of those members whose part in it is a storm of its own."""
        params = self._params
        paces = self._paces(found.kind, found.from_us, found.to_us)
        quick, alone = params.warn_hits, params.warn_hits_alone
        return sum(n for n, own_s in paces if n >= alone or (n >= quick and n / own_s >= params.warn_rps))

    def _insisting(self, kind: Fleet, from_us: int, to_us: int) -> int:
        """Requests of those members that ask more often than now and then."""
        params, paces = self._params, self._paces(kind, from_us, to_us)
        return sum(n for n, s in paces if n >= params.herd_insists and (n - 1) / s >= params.herd_insists_rps)

    def as_json(self) -> list[orjson.Fragment]:
        """For the ledger: its rows, second by second."""
        return [second.as_json() for second in self._seconds.values()]


class Fleets:
    """All nodes' fleets."""

    def __init__(self, params: StormParams, limits: WatchLimits) -> None:
        """
        Args:
            params, limits: of every node.
        """
        self._params = params
        self._limits = limits
        self._nodes: dict[str | None, NodeFleet] = {}

    def put(self, rows: Iterable[Signal]) -> list[NodeFleet]:
        """Adds failures, in the order of time, and returns the fleets of the nodes that they came from."""
        by_node: dict[str | None, list[Signal]] = {}
        for row in rows:
            if row.answer in FAILURES and row.client is not None:
                by_node.setdefault(row.node, []).append(row)
        for node, failures in by_node.items():
            self._nodes.setdefault(node, NodeFleet(node, self._params, self._limits)).put(failures)
        return [self._nodes[node] for node in by_node]

    def is_hot(self, node: str | None) -> bool:
        """Whether a storm of that node's fleet may be coming."""
        return node in self._nodes and self._nodes[node].is_hot()

    def as_json(self) -> list[orjson.Fragment]:
        """For the ledger."""
        return [second for node in self._nodes.values() for second in node.as_json()]

    def load(self, values: list[Any]) -> None:
        """What :meth:`as_json` gave."""
        rows = [Signal.from_row(row) for second in values for row in second]
        self.put(sorted(rows, key=lambda row: row.first_us))


def _latest_stretch(buckets: list[int], gap_us: int) -> list[int]:
    """The last of the buckets, and those before it with no longer pause between them."""
    for place in range(len(buckets) - 1, 0, -1):
        if buckets[place] - buckets[place - 1] > gap_us:
            return buckets[place:]
    return buckets
