"""Calls whose options are wrong. They never run: mypy says that each is an error, and fails if one is none."""

from __future__ import annotations

from tricklecast import Publisher, Subscriber, sync
from tricklecast.subscriber import json_lines, json_messages, record

URL = "http://127.0.0.1:2939/trickle/words"


async def misspelt() -> None:
    """There is no such option."""
    Publisher(URL, tranport=None)  # type: ignore[call-arg]
    Subscriber(URL, strat="earliest")  # type: ignore[call-arg]
    json_messages(URL, strat="earliest")  # type: ignore[call-arg]
    json_lines(URL, limits=5)  # type: ignore[call-arg]
    sync.Publisher(URL, tranport=None)  # type: ignore[call-arg]
    sync.Subscriber(URL, strat="earliest")  # type: ignore[call-arg]
    await record(URL, "words", keep=5)  # type: ignore[call-arg]


async def mistyped() -> None:
    """The option wants another type."""
    json_messages(URL, start=1.5)  # type: ignore[arg-type]
    json_lines(URL, headers=["X"])  # type: ignore[arg-type]
    sync.Subscriber(URL, reconnect_s="30 s")  # type: ignore[arg-type]
    await record(URL, "words", refresh_s="30")  # type: ignore[arg-type]
