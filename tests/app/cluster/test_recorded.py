"""A node remembers the recordings of other nodes for some time, and no more than a number of them."""

from __future__ import annotations

import asyncio

import pytest

from tricklecast.app.cluster import recorded as module
from tricklecast.app.cluster.peers import NodePlace
from tricklecast.app.cluster.recorded import FOUND_S, MISSED_S, Recorded
from tricklecast.app.cluster.view import Place

THERE = Place("b", "http://b/trickle", 1, True)


async def finds(channel: str) -> NodePlace | None:
    """Each channel whose name is ``film`` has a recording."""
    if channel == "broken":
        raise RuntimeError("a fault")
    return THERE if channel == "film" else None


def test_what_was_heard_counts_for_a_while() -> None:
    """For longer if there is a recording; nobody is known to have one before."""
    now = 10.0
    known = Recorded(lambda: now)
    asyncio.run(known.ask("film"))
    assert (known.place("film"), known.knows("film")) == (None, True)  # nobody can be asked
    known.find = finds
    for name, place, counts_s in (("film", THERE, FOUND_S), ("other", None, MISSED_S)):
        assert name == "film" or not known.knows(name)
        asyncio.run(known.ask(name))
        assert (known.knows(name), known.place(name)) == (True, place)
        now += counts_s
        assert (known.knows(name), known.place(name)) == (False, None)


def test_a_question_that_fails_is_not_asked_again_at_once() -> None:
    """Else each request would ask all nodes."""
    known = Recorded(lambda: 0.0)
    known.find = finds
    with pytest.raises(RuntimeError):
        asyncio.run(known.ask("broken"))
    assert (known.knows("broken"), known.place("broken")) == (True, None)


def test_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of which was heard first is forgotten."""
    monkeypatch.setattr(module, "MAX_KNOWN", 2)
    known = Recorded(lambda: 0.0)
    for name in ("a", "b", "a", "c"):
        asyncio.run(known.ask(name))
    assert [known.knows(name) for name in "abc"] == [True, False, True]
