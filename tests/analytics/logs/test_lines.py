"""A record as a line for people: what matters, and nothing that harms a terminal; and which records are wanted."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import duckdb
import pytest

from tricklecast.analytics.lines import Reading, recognise
from tricklecast.analytics.lines.embedded import ChunkReader
from tricklecast.analytics.logs.lines import readable
from tricklecast.analytics.logs.tail import Record, Wanted, statuses


def line(**fields: Any) -> bytes:
    """A line with these fields."""
    return json.dumps({"v": 1, "kind": "exchange", "ts_us": 1_760_000_000_250_000} | fields).encode()


@cache
def reader() -> ChunkReader:
    """Reads our own log."""
    return ChunkReader(duckdb.connect(), recognise("some.log", [], "tricklecast"), Reading(details=True))


def record(text: bytes) -> Record:
    """The record of a line."""
    (row,) = reader().read([text]).to_pylist()
    return {**row, "line": text}


def test_an_exchange_and_an_event() -> None:
    """One glance tells when, where, who asked for what, and what became of it."""
    exchange = line(
        **{"node": "edge-1", "op": "read", "method": "GET", "path": "/trickle/film/-1", "status": 200},
        **{"channel": "film", "seq": -1, "rseq": 12, "reason": "complete", "bytes_out": 65_536, "dur_us": 1_190_000},
        **{"client": "5d41402abc4b2a76", "release": "player/2.1"},
    )
    assert readable(record(exchange), colour=False) == (
        "2025-10-09 08:53:20.250 edge-1 200 read    film/-1=12 complete 65.5 kB 1.19 s 5d41402abc4b2a76 player/2.1"
    )
    event = line(kind="event", node="edge-1", event="channel_end", channel="film", detail="deleted")
    assert readable(record(event), colour=False) == "2025-10-09 08:53:20.250 edge-1 -- channel_end -- film deleted"
    event = line(kind="event", node="edge-1", worker=1, event="server_stop")
    assert readable(record(event), colour=False) == "2025-10-09 08:53:20.250 edge-1 -- server_stop -- worker 1"


def test_what_a_client_did_and_was_told() -> None:
    """Repeated attempts and the wait that was asked for stand at the end."""
    shown = readable(record(line(status=503, op="read", attempt=3, retry_after_ms=1500, dur_us=700)), colour=False)
    assert shown.endswith("503 read    0.7 ms attempt 3, told to wait 1500 ms")


HOSTILE: list[bytes] = [
    b"\x1b]0;owned\x07",
    b"\xff" * 5000,
    b"[1]",
    b"{}",
    b"[" * 100_000,
    line(channel="\x1b[2J\u202e<b>", client="\x00", reason="\n", op="\r", node="x" * 5000),
    line(ts_us="soon", status="OK", seq=[1], bytes_out=-5, dur_us=True, attempt=10**30, retry_after_ms={}),
    line(seq=[1], epoch={}, attempt=10**30, retry_after_ms=-1, next_seq=True),
    line(ts_us=-1, status=None, bytes_out=1.5, dur_us=float("inf")),
    line(kind="event", event=5, channel={"a": 1}, detail=["b"]),
    line(kind=["event"], event=None),
]


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_anything_is_shown_and_nothing_obeyed(number: int, colour: bool) -> None:
    """Whatever the line: it becomes one short line of visible characters."""
    shown = readable(record(HOSTILE[number]), colour=colour)
    if colour:
        for code in ("2", "31", "32", "33", "36", "0"):
            shown = shown.replace(f"\x1b[{code}m", "")
    assert shown.isprintable()
    assert len(shown) < 400


WANTED: list[tuple[Wanted, list[int]]] = [
    (Wanted(), [0, 1, 2, 3, 4]),
    (Wanted({"channel": ["fi*"]}), [0, 1]),
    (Wanted({"channel": ["film", "news"], "client": []}), [0, 1, 2]),
    (Wanted({"status": statuses(["5xx"])}), [1]),
    (Wanted({"status": statuses(["404", "2XX"])}), [0, 2]),
    (Wanted(failures=True), [1, 2]),
    (Wanted({"client": ["a"]}, failures=True), [1]),
    (Wanted({"op": ["channel_end"]}), [3]),
    (Wanted({"reason": ["limit:*"]}), [1]),
]


@pytest.mark.parametrize("number", range(len(WANTED)))
def test_filters(number: int) -> None:
    """All filters must be met, each by one of its values; broken lines are shown only if nothing is looked for."""
    wanted, shown = WANTED[number]
    lines = [
        line(channel="film", status=200, client="a", op="read"),
        line(channel="film", status=503, client="a", op="read", reason="limit:readers"),
        line(channel="news", status=404, client="b", op="read"),
        line(kind="event", event="channel_end", channel="other"),
        b"broken",
    ]
    assert [place for place, text in enumerate(lines) if wanted(record(text))] == shown
