"""The memory of one entry of each table, with all texts as long as allowed, and the limit of each table."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.app.memory_bound import (
    ADDRESS_BYTES,
    BUCKET_BYTES,
    CHANNEL_BYTES,
    DECISION_BYTES,
    QUESTION_BYTES,
    RECORD_BYTES,
    TOKEN_BYTES,
    TOMBSTONE_BYTES,
)
from tricklecast.app.access import webhook as webhooks
from tricklecast.app.access.rights import MAX_SUBJECT, Claims, Rights
from tricklecast.app.access.tokens import TokenVerifier
from tricklecast.app.access.webhook import MAX_CACHED, MAX_WAITING, Webhook
from tricklecast.app.access_log import AccessLog
from tricklecast.app.core.limits import Clients, Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.storm_guard import ReplyKind, StormGuard
from tricklecast.app.data_plane.client_address import MAX_TEXT
from tricklecast.trickle.paths import MAX_NAME_BYTES
from tricklecast.trickle.records import AccessRecord

Fill = Callable[[], Callable[[], int]]

ENTRIES = 1000
TOO_MANY = 100


def name(number: int) -> str:
    """The longest name of a channel."""
    return f"{number:0{MAX_NAME_BYTES}}"


def channels() -> Callable[[], int]:
    registry = Registry(Limits(channels=ENTRIES), autocreate=True)
    for number in range(ENTRIES + TOO_MANY):
        registry.create(name(number), "", 0.0, resumed=True)  # it may use the reserve
    return lambda: len(registry.channels)


def tombstones() -> Callable[[], int]:
    registry = Registry(Limits(tombstones=ENTRIES, channel_drain_s=0.0), autocreate=True)
    for number in range(ENTRIES + TOO_MANY):
        registry.create(name(number), "", 0.0)
        registry.end(name(number), 0.0)
    return lambda: len(registry._tombstones)


def buckets() -> Callable[[], int]:
    guard = StormGuard(ENTRIES)
    for number in range(ENTRIES + TOO_MANY):
        guard.hold(2**60 + number, name(number), ReplyKind.SAME, 1000 + number, 0.0, many=False)
    return lambda: len(guard)


def addresses() -> Callable[[], int]:
    clients = Clients(ENTRIES)
    for number in range(ENTRIES + TOO_MANY):
        clients.release(clients.hold(f"2001:0db8:ffff:{number:04}::/64"))
    return lambda: len(clients)


def webhook() -> Webhook:
    return Webhook("http://127.0.0.1/", secret=None, timeout_s=1, concurrency=1, cache_s=1)


def decisions() -> Callable[[], int]:
    asked = webhook()
    for number in range(MAX_CACHED + TOO_MANY):
        asked._decisions[sha256(b"%d" % number).digest()] = webhooks.TimedDecision(200, 60.0 + number)
    return lambda: len(asked._decisions)


def questions() -> Callable[[], int]:
    asked = webhook()
    taken = [asked.ask(b"%01500d" % number, lambda status: None) for number in range(MAX_WAITING + TOO_MANY)]
    assert taken == [True] * MAX_WAITING + [False] * TOO_MANY
    return lambda: asked.waiting


def tokens() -> Callable[[], int]:
    known = TokenVerifier((), size=ENTRIES)._remembered
    for number in range(ENTRIES + TOO_MANY):
        rights = Rights.parse({"publish": [f"camera-{number}"], "subscribe": ["*"]})
        known[sha256(b"%d" % number).digest()] = Claims(f"{number:0{MAX_SUBJECT}}", rights, float(number))
    return lambda: len(known)


def records() -> Callable[[], int]:
    log = AccessLog(Path("unused"), node="here", max_bytes=1, max_age_s=1, files=1, queue=ENTRIES)
    for number in range(10**6, 10**6 + ENTRIES + TOO_MANY):
        record = AccessRecord(
            10**15 + number,
            node="here",
            method="GET",
            path=f"{number:0{2 * MAX_TEXT}}",
            channel=name(number),
            client=f"{number:0{MAX_TEXT}}",
            ua=f"{number:0{MAX_TEXT}}",
            ip=f"2001:0db8:ffff:ffff:ffff:ffff:ffff:{number % 10_000:04}",
            trace=f"{number:032}",
            seq=number,
            rseq=number + 1,
            next_seq=number + 2,
            bytes_out=number + 3,
            dur_us=number + 4,
            wait_us=number + 5,
        )
        log.put(record)
    assert log.dropped == TOO_MANY
    return lambda: log.queued


@pytest.mark.parametrize(
    ("fill", "entries", "at_most"),
    [
        (channels, ENTRIES, CHANNEL_BYTES),
        (tombstones, ENTRIES, TOMBSTONE_BYTES),
        (buckets, ENTRIES, BUCKET_BYTES),
        (addresses, ENTRIES, ADDRESS_BYTES),
        (decisions, MAX_CACHED, DECISION_BYTES),
        (questions, MAX_WAITING, QUESTION_BYTES),
        (tokens, ENTRIES, TOKEN_BYTES),
        (records, ENTRIES, RECORD_BYTES),
    ],
)
def test_a_full_table_takes_what_the_page_says(
    fill: Callable[[], Callable[[], int]], entries: int, at_most: int
) -> None:
    """More is put in than it holds. What the page says is measured: an entry takes no more, nor less than a third."""
    # The least of three: what other threads of the tests take meanwhile is counted, too.
    taken = min(memory_of(fill, entries) for _ in range(3))
    assert at_most / 3 <= taken / entries <= at_most


def memory_of(fill: Callable[[], Callable[[], int]], entries: int) -> int:
    """Bytes of a table that is full."""
    gc.collect()
    tracemalloc.start()
    try:
        size = fill()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size() == entries
    return taken
