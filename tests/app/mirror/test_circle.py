"""Mirrors of mirrors: a chain of servers, and circles, which are refused."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.app.mirror.pair import durable, film
from tests.app.mirror.test_service import asked, base, copied, publish, read, stack
from tests.support.local import LocalServer
from tests.support.peers import run
from tests.support.waiting import eventually
from tricklecast.app.mirror import destination as destinations
from tricklecast.app.mirror.circle import OriginModel, circle, overlap
from tricklecast.app.mirror_cli import mirror, promote
from tricklecast.trickle.errors import TrickleError

__all__ = ["stack"]


@pytest.fixture
def chain(stack: ExitStack, tmp_path: Path) -> list[LocalServer]:
    """Three servers, of which the second one mirrors the first, and the third one the second."""
    servers = [stack.enter_context(durable(tmp_path / name)) for name in "abc"]
    publish(servers[0], *range(6))
    for source, target in pairwise(servers):
        mirror(base(source), base(target), detach=True)
    return servers


def test_a_mirror_is_mirrored(chain: list[LocalServer]) -> None:
    """History and what comes, byte by byte while it is written, in the epoch and the numbers of the first server."""
    first, second, third = chain
    copied(second, 6)
    copied(third, 6)
    upload, _ = film(first).started(6, b"half")
    middle = film(third).arrived(6, b"half")
    upload.chunk(b", whole").stored()
    middle.ends(b", whole")
    copied(third, 7)
    publish(first, 7)
    eventually(lambda: read(third, 7) == (200, b"film 7"), what="the next one")
    for seq in range(6):
        assert read(third, seq) == (200, f"film {seq}".encode())
    answer = httpx.get(f"{base(third)}/film/7")
    there = httpx.get(f"{base(first)}/film/7")
    for field in ("Lp-Trickle-Epoch", "Lp-Trickle-Seq", "Lp-Trickle-Latest"):
        assert answer.headers[field] == there.headers[field], field
    assert [len(one["channels"]) for one in asked(first, route="/origins")["origins"]] == [0]
    assert [len(one["channels"]) for one in asked(third, route="/origins")["origins"]] == [1, 1, 0]
    httpx.delete(f"{base(first)}/film").raise_for_status()
    eventually(lambda: asked(third)["channels"] == {"deleted": 1}, what="its end")


def test_history_that_comes_to_the_middle_later_goes_on(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last server has looked before the middle one had it, and looks again."""
    monkeypatch.setattr(destinations, "FILLED_S", 0.2)
    first, second, third = (stack.enter_context(durable(tmp_path / name)) for name in "abc")
    publish(first, *range(8))
    mirror(base(first), base(second), max_rate="1", detach=True)
    eventually(lambda: asked(second)["live"] == 1, what="the feed of the middle one")
    mirror(base(second), base(third), detach=True)
    eventually(lambda: asked(third)["complete"], what="all that the middle one has")
    assert read(third, 0)[0] != 200
    mirror(base(first), base(second), detach=True)
    copied(second, 8)
    copied(third, 8)
    assert read(third, 0) == (200, b"film 0")


def test_a_chain_whose_first_server_is_away(stack: ExitStack, tmp_path: Path) -> None:
    """The middle one goes on with its copies, and those who follow it too; then all go on."""
    second, third = (stack.enter_context(durable(tmp_path / name)) for name in "bc")
    with durable(tmp_path / "a") as first:
        publish(first, *range(4))
        mirror(base(first), base(second), detach=True)
        mirror(base(second), base(third), detach=True)
        copied(third, 4)
        port = first.port
    eventually(lambda: asked(second)["state"] == "unreachable", what="the first one is away")
    assert asked(third)["complete"]
    first = stack.enter_context(durable(tmp_path / "a", port=port))
    publish(first, 4)
    eventually(lambda: read(third, 4) == (200, b"film 4"), what="it goes on")
    copied(third, 5)


def test_the_middle_one_stops(stack: ExitStack, tmp_path: Path) -> None:
    """It does not wait for publishers of the first one; those who follow it come back."""
    first, third = (stack.enter_context(durable(tmp_path / name)) for name in "ac")
    with durable(tmp_path / "b") as second:
        mirror(base(first), base(second), detach=True)
        mirror(base(second), base(third), detach=True)
        upload, _ = film(first).started(0, b"half")
        middle = film(third).arrived(0, b"half")
        port = second.port
    assert second.record(op="feed", status=101).reason == "shutdown"
    stack.enter_context(durable(tmp_path / "b", port=port))
    upload.chunk(b", whole").stored()
    eventually(lambda: read(third, 0) == (200, b"half, whole"), what="the segment")
    middle.abort()


def test_the_middle_one_is_promoted(chain: list[LocalServer]) -> None:
    """The last one copies its next epoch."""
    _, second, third = chain
    copied(third, 6)
    run(promote(base(second)))
    publish(second, 6)
    eventually(lambda: read(third, 6) == (200, b"film 6"), what="what it publishes")
    assert httpx.get(f"{base(third)}/film/6").headers["Lp-Trickle-Epoch"] == "2"
    copied(third, 13)  # 6 of the first epoch, 7 of the second one


def test_circles_are_refused(stack: ExitStack, tmp_path: Path) -> None:
    """With a line that says why; servers that mirror different channels of each other are none."""
    first, second, third = (stack.enter_context(durable(None)) for _ in "abc")
    with pytest.raises(TrickleError, match="does not mirror itself"):
        mirror(base(first), base(first), detach=True)
    mirror(base(first), base(second), channel=["a*"], detach=True)
    mirror(base(second), base(third), channel=["*"], detach=True)
    with pytest.raises(TrickleError, match="copies this server: neither"):
        mirror(base(second), base(first), channel=["ab"], detach=True)
    with pytest.raises(TrickleError, match="copies this server, by way of 1 other server:"):
        mirror(base(third), base(first), channel=["ab"], detach=True)
    assert asked(first)["state"] == "none"
    replacing = {"source": base(second), "channels": ["b*"], "replace": True}
    assert "Promote it first" in asked(first, "PUT", body=replacing)["detail"]
    mirror(base(second), base(first), channel=["b*"], detach=True)
    eventually(lambda: asked(first)["state"] == "following", what="no circle")


def test_a_circle_is_found_when_its_servers_answer_again(stack: ExitStack, tmp_path: Path) -> None:
    """It was closed while the source was away: one of them copies nothing, and its status says why."""
    first = stack.enter_context(durable(tmp_path / "a"))
    with durable(tmp_path / "b") as second:
        mirror(base(first), base(second), detach=True)
        port = second.port
    mirror(f"http://127.0.0.1:{port}/trickle", base(first), detach=True)
    second = stack.enter_context(durable(tmp_path / "b", port=port))
    both = first, second
    eventually(lambda: any("copies this server" in asked(one)["problem"] for one in both), what="the problem")


def test_patterns_that_overlap() -> None:
    """A name can match both."""
    for one, other in (("*", "a"), ("a*", "ab*"), ("*a", "b*"), ("a*b", "a*c*b"), ("a", "a"), ("a*x*c", "ab*bc")):
        assert overlap(one, other), (one, other)
        assert overlap(other, one), (other, one)
    for one, other in (("a", "b"), ("a*", "b*"), ("*a", "*b"), ("a*b", "ab*c"), ("a*", "b"), ("cam", "cam*1")):
        assert not overlap(one, other), (one, other)
        assert not overlap(other, one), (other, one)


def test_a_server_that_tells_no_instance_is_nobody() -> None:
    """It can mirror nothing, so it closes no circle."""
    assert not circle([OriginModel(instance="", channels=[])], "", ["*"], replaces=True)
