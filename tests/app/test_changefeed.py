"""The changefeed: what came and went, in order, one JSON object a segment."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.app.core.support import owned
from tests.support.local import local_server
from tricklecast.app.changefeed import MAX_NAMES, start_changefeed
from tricklecast.app.changes import Changes
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.encoding import encode
from tricklecast.app.tools.conformance.connection import RawConnection


class Bench:
    """A registry with a changefeed, and the functions that were put off."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.registry = Registry(Limits(), autocreate=True)
        changes = Changes(self.registry, defer=lambda function: self.later.append(function))
        self.registry.create("early", "", 0.0)
        start_changefeed(changes, self.registry, lambda: 1.0)
        self.run()

    def run(self) -> None:
        later, self.later = self.later, []
        for function in later:
            function()

    @property
    def channel(self) -> OwnedChannel:
        return owned(self.registry, "_changes")

    def published(self) -> list[Any]:
        kept = self.channel.segments.values()
        return [json.loads(b"".join(segment.frames).split(b"\r\n")[1]) for segment in kept]


def test_the_channel_is_there_from_the_start() -> None:
    """A first reader can wait on it; its own creation is no change."""
    bench = Bench()
    bench.run()
    assert (bench.channel.content_type, bench.published()) == ("application/json", [])


def test_changes_are_published_after_the_change_in_order() -> None:
    """Those of one moment share a segment, unless a channel has come and gone; none is published in the middle of a
    change, and segments are no change."""
    bench = Bench()
    bench.registry.create("a", "", 0.0)
    bench.registry.create("b", "", 0.0)
    bench.registry.publish_own("a", "", b"x", 0.0)
    bench.registry.end("a", 0.0)
    assert bench.published() == []
    assert len(bench.later) == 1
    bench.run()
    assert bench.published() == [{"added": ["a", "b"]}, {"removed": ["a"]}]
    bench.registry.end("b", 0.0)
    for name in ("c", "b"):
        bench.registry.create(name, "", 0.0)
    bench.run()
    assert bench.published()[2:] == [{"removed": ["b"]}, {"added": ["c", "b"]}]


def test_many_changes_of_one_moment_are_told_in_few_segments() -> None:
    """Each has a bounded number of names."""
    bench = Bench()
    names = [f"c{number}" for number in range(2 * MAX_NAMES + 1)]
    for name in names:
        bench.registry.create(name, "", 0.0)
    bench.run()
    told = [segment["added"] for segment in bench.published()]
    assert [len(some) for some in told] == [MAX_NAMES, MAX_NAMES, 1]
    assert [name for some in told for name in some] == names


def test_a_change_without_memory_is_told_and_the_next_one_is_announced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that cannot be encoded keeps none of the others from its readers."""

    def short_of_memory(change: dict[str, list[str]]) -> bytes:
        if change == {"added": ["a"]}:
            raise MemoryError
        return encode(change)

    monkeypatch.setattr("tricklecast.app.changefeed.encode", short_of_memory)
    bench = Bench()
    for name in ("a", "b"):
        bench.registry.create(name, "", 0.0)
        bench.run()
    assert bench.published() == [{"added": ["b"]}]
    assert "a change was not announced on _changes: {'added': ['a']}" in caplog.text


def test_names_of_the_server_are_no_change() -> None:
    """A channel whose name begins with _ is not announced."""
    bench = Bench()
    bench.registry.create("_own", "", 0.0, force=True)
    assert bench.later == []


def test_a_reader_follows_the_changes() -> None:
    """Over the wire: each change is one segment of one chunk, to be waited for like any other."""
    with local_server() as server, server.client() as target:
        connection: RawConnection = target.send("GET", "/trickle/_changes/0")
        target.settle()
        assert target.ask("POST", "/trickle/a", body=b"").status == 200
        response = connection.response()
        assert (response.get("Content-Type"), response.chunks) == ("application/json", [b'{"added":["a"]}'])
        connection.request("GET", "/trickle/_changes/-1")
        target.settle()
        target.ask("DELETE", "/trickle/a")
        response = connection.response()
        assert (response.get("Lp-Trickle-Seq"), response.body) == ("1", b'{"removed":["a"]}')
        assert target.ask("POST", "/trickle/_changes/2", body=b"x").status == 403
        assert target.ask("DELETE", "/trickle/_changes").status == 403
