"""A server is killed or stopped under 20 publishers with 10 subscribers each, and started again on the same port.

All of them come back by themselves, every gap is told, and the successor is not run over: clients that were cut off
together must not come back together.

What is measured does not depend on how fast the machine is. The steady rate is not taken from a clock but from the
schedule: requests per segment, as the first server's log has them, times segments per second. And the publishers are
live ones, which leave out what they had no time for: a machine that stands still for a second makes no backlog that
would then look like a rush.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import pytest

from tests.support.certificates import make_certificate
from tests.support.fixtures import servers_are_forks
from tests.support.waiting import until
from tricklecast.publisher import Publisher
from tricklecast.subscriber import Subscriber
from tricklecast.testing import TestServer, server
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.records import AccessRecord, Op, Reason

PUBLISHERS: Final = 20
SUBSCRIBERS: Final = 10
EVERY_S: Final = 1.0
BEFORE: Final = 4
"""So many segments everybody has before the server goes."""

AFTER: Final = 3
"""So many new ones everybody has to get from its successor."""

PEAK: Final = 3.0
"""Requests in the busiest second after the restart, in units of the steady rate."""

WINDOW_S: Final = 1.0
"""What a second is. A server that stands still for as long sees twice the steady rate when it goes on: that still
fits."""

LIMIT_S: Final = 180.0

SLACK_US: Final = 50_000
"""Records have the server's wall clock, and clients count from when they have read the answer."""


@dataclass
class Feed:
    """One channel as its publisher saw it.

    Attributes:
        name: the channel.
        stored: seqs that the server has confirmed.
        resumed: the first of them that the successor has confirmed.
        restarted: the successor runs.
    """

    name: str
    stored: list[int] = field(default_factory=list)
    resumed: int | None = None
    restarted: bool = False

    async def publish(self, base: str, offset_s: float, over: anyio.Event) -> None:
        """Publish live until it is over: a slot whose time has passed is left out."""
        async with Publisher(f"{base}/{self.name}", start=0) as publisher:
            due = anyio.current_time() + offset_s
            while not over.is_set():
                await anyio.sleep_until(due)
                try:
                    async with publisher.segment() as segment:
                        await segment.write(bytes(1000))
                        await anyio.sleep(EVERY_S / 2)  # so that many are open whenever the server goes
                        await segment.write(bytes(1000))
                    self._confirm(segment.receipt.seq)
                except TrickleError:
                    if publisher.error is not None:
                        raise
                missed = max(0, int((anyio.current_time() - due) / EVERY_S))
                due += EVERY_S * (missed + 1)

    def _confirm(self, seq: int) -> None:
        self.stored.append(seq)
        if self.restarted and self.resumed is None:
            self.resumed = seq


@dataclass
class Reader:
    """One subscriber.

    Attributes:
        feed: whom it reads.
        seqs: what came, in this order.
        gaps: seqs that the library said were missed.
    """

    feed: Feed
    seqs: list[int] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)

    async def read(self, base: str) -> None:
        """Read to the channel's end."""
        told = 0
        async with Subscriber(f"{base}/{self.feed.name}", start=0, wait_for_channel_s=10) as subscriber:
            async for segment in subscriber:
                told += segment.gap
                self.gaps += range(segment.seq - segment.gap, segment.seq)
                async for _ in segment:
                    pass
                if segment.bytes_read:
                    self.seqs.append(segment.seq)
                elif not segment.restarted:
                    self.gaps.append(segment.seq)  # it came without a byte: cut or skipped, and that was said
        self.gaps += range(self.seqs[-1] + 1, self.seqs[-1] + 1 + subscriber.statistics().missed - told)

    @property
    def is_back(self) -> bool:
        """Whether it has as many segments of the successor as are asked for."""
        return self.feed.resumed is not None and self.seqs[-1] >= self.feed.resumed + AFTER - 1


@dataclass
class Outage:
    """What came of it: both sides' accounts, and what the servers' access logs say.

    Attributes:
        before, after: requests to the first server, and to its successor.
    """

    feeds: list[Feed]
    readers: list[Reader]
    before: list[AccessRecord]
    after: list[AccessRecord]


async def live_through(
    running: TestServer,
    stop: Callable[[TestServer], object],
    publishers: int = PUBLISHERS,
    subscribers: int = SUBSCRIBERS,
) -> Outage:
    """Publish and subscribe, take the server away, bring it back, and go on until everybody has new segments."""
    feeds = [Feed(f"cam{number}") for number in range(publishers)]
    readers = [Reader(feed) for feed in feeds for _ in range(subscribers)]
    over = anyio.Event()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as clients:
            for number, feed in enumerate(feeds):
                clients.start_soon(feed.publish, running.base, number * EVERY_S / publishers, over)
            for reader in readers:
                clients.start_soon(reader.read, running.base)
            await until(lambda: all(len(reader.seqs) >= BEFORE for reader in readers))
            await anyio.to_thread.run_sync(stop, running)
            gone_us = time.time_ns() // 1000
            await anyio.to_thread.run_sync(running.restart)
            for feed in feeds:
                feed.restarted = True
            await until(lambda: all(reader.is_back for reader in readers))
            over.set()
    records = running.records()
    before = [record for record in records if record.ts_us < gone_us]
    return Outage(feeds, readers, before, [record for record in records if record.ts_us >= gone_us])


def steady_rate(records: Iterable[AccessRecord]) -> float:
    """Requests per second while nothing happens, as the schedule has it."""
    quiet = range(1, BEFORE - 1)  # not the first segment, for which everybody joins, nor those that the end cut off
    asked = [record for record in records if record.op in (Op.PUBLISH, Op.READ) and record.rseq in quiet]
    return len(asked) / len(quiet) / EVERY_S


def peak_rate(records: Iterable[AccessRecord]) -> float:
    """Requests per second in the busiest window, wherever it begins."""
    times = sorted(record.ts_us / 1e6 for record in records)
    first = busiest = 0
    for number, at in enumerate(times):
        while times[first] <= at - WINDOW_S:
            first += 1
        busiest = max(busiest, number - first + 1)
    return busiest / WINDOW_S


def impatient(records: Iterable[AccessRecord]) -> list[tuple[AccessRecord, AccessRecord]]:
    """Who was sent away, and asked again before it was told to: that answer, and that request.

    A publisher that was sent away with one segment may still announce the next one, once.
    """
    told: dict[tuple[str | None, str | None], AccessRecord] = {}
    found = []
    for record in sorted(records, key=lambda record: record.ts_us):
        who = (record.client, record.path if record.op == Op.PUBLISH else record.op)
        if (answer := told.get(who)) is not None:
            gone_us = answer.ts_us + (answer.dur_us or 0)
            if gone_us < record.ts_us < gone_us + 1000 * (answer.retry_after_ms or 0) - SLACK_US:
                found.append((answer, record))
        if record.status == 503 and record.reason == "shutdown":
            told[who] = record
    return found


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(TestServer.kill, id="killed"),
        pytest.param(TestServer.stop, id="stopped", marks=pytest.mark.long),
    ],
)
def test_everybody_comes_back_and_nobody_rushes(stop: Callable[[TestServer], object]) -> None:
    """All publishers go on, all subscribers receive what they publish, gaps are told, and the peak stays below 3 x.

    The server is no fork, which would be back before anybody has waited twice: then nothing spreads them.
    """
    with server(shutdown_drain_s=1, shutdown_deadline_s=2) as running:
        outage = anyio.run(live_through, running, stop)
    check_accounts(outage)
    steady, peak = steady_rate(outage.before), peak_rate(outage.after)
    print(f"steady {steady:.0f}/s, peak {peak:.0f}/s: {peak / steady:.2f} times")
    assert peak < PEAK * steady


def test_everybody_comes_back_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain sends away whom it also sends away without TLS, each connection ends in order, and all are taken back."""
    certificate, key = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setattr(f"{__name__}.BEFORE", 2)
    monkeypatch.setattr(f"{__name__}.AFTER", 1)
    hurried = {"shutdown_drain_s": 0.5, "shutdown_deadline_s": 1, "shutdown_restart_s": 0}
    with servers_are_forks(), server(**hurried, tls_cert=certificate, tls_key=key) as running:
        assert running.base.startswith("https://")
        outage = anyio.run(live_through, running, TestServer.stop, 2, 3)
    check_accounts(outage)
    assert {record.reason for record in outage.before if record.status == 503} == {Reason.SHUTDOWN}
    assert not [record for record in outage.before if record.reason in (Reason.ERROR, Reason.HANDSHAKE)]


def check_accounts(outage: Outage) -> None:
    """What everybody has fits together, and nobody was in a hurry."""
    for feed in outage.feeds:
        assert feed.stored == sorted(set(feed.stored)), "a publisher keeps its numbering"
    for reader in outage.readers:
        last = max(reader.seqs[-1], reader.feed.stored[-1])
        assert reader.seqs == sorted(set(reader.seqs)), "a subscriber gets nothing twice, and nothing too late"
        assert sorted(reader.seqs + reader.gaps) == list(range(last + 1)), "it has a segment, or knows that it has not"
    assert impatient([*outage.before, *outage.after]) == [], "nobody comes back sooner than it was told to"
