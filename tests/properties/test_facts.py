"""Facts and bytes rebuild a channel; the walk of the registry's machine compares after each step (:mod:`.twin`)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.machine import CI, RegistryMachine
from tests.properties.model import World
from tricklecast.app.core.facts import KINDS, Fact
from tricklecast.app.core.limits import Limits
from tricklecast.trickle.errors import LocalProtocolError


def history(world: World) -> None:
    """A history in which every kind of fact happens, and second holders are compared after each step."""
    world.create("a", "", force=True)
    world.create("b", "text/plain", force=True)

    def publish(seq: int, *, reset: bool = False, end: bool = True) -> None:
        world.reserve("a", seq, content_type="video/mp2t", reset=reset, key=f"k{seq}")
        world.check()
        (world.finish if end else world.append)(world.posts[-1], [3])
        world.check()

    publish(0)
    world.mark_playlist("a", "1 is next")
    world.check()
    world.reserve("a", 1, content_type="", reset=False, key=None)
    world.abort(world.posts[-1])
    world.check()
    publish(2, end=False)
    world.pass_time(world.limits.overtaking_grace_s, expire=True)
    world.check()
    publish(9, reset=True)
    world.end("a", force=False)
    world.check()


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_each_kind_of_fact_is_needed(kind: type[Fact] | None) -> None:
    """A second holder that is not told of one kind answers otherwise than the owner; one that is told all does not."""
    world = World(Limits(window_segments=2), autocreate=True, leave_out=kind)
    if kind is None:
        history(world)
    else:
        with pytest.raises((AssertionError, LocalProtocolError)):
            history(world)


@pytest.mark.long
def test_facts_rebuild_a_channel_after_any_history() -> None:
    """A hundred thousand walks, each step of which is a prefix of a history."""
    run_state_machine_as_test(RegistryMachine, settings=settings(CI, max_examples=100_000))
