"""The invariants hold for what the core does, and each one finds what it is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.app.core.support import Watcher, check_registry, grant, make_registry, owned, publish
from tricklecast.app.core.invariants import check_channel
from tricklecast.app.core.registry import Registry, Tombstone
from tricklecast.app.core.results import Ending
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import Segment, State


def busy() -> Registry:
    """Segments in every state: kept, orphaned, open, overtaken, preconnected and waited for; an ended channel;
    one that is read after its channel has begun anew.
    """
    registry, _ = make_registry(window_segments=3, window_bytes=100, total_bytes=10_000, segment_bytes=50, tombstones=1)
    publish(registry, "c", 0, b"abc")
    publish(registry, "c", 1, b"")
    for seq in (2, 3):
        writer = grant(registry, "c", seq)
        writer.channel.append(writer, [b"de"], 0.0)
    writer.channel.abort(writer, 0.0)
    grant(registry, "c", 5)
    beyond = grant(registry, "c", 5)
    beyond.channel.append(beyond, [b"f"], 0.0)
    grant(registry, "c", 4)
    grant(registry, "c", 6)
    resolution = registry.resolve("c", 6)
    segment = registry.channels["c"].segments[6]
    registry.attach(Watcher(segment), registry.channels["c"], segment)
    assert resolution is not None
    publish(registry, "old", 0)
    registry.end("old", 0.0)
    slow = publish(registry, "slow", 0)
    registry.attach(Watcher(slow), registry.channels["slow"], slow)
    registry.end("slow", 0.0)
    publish(registry, "slow", 0)
    registry.create("_own", "", 0.0, force=True)
    return registry


def channel(registry: Registry) -> OwnedChannel:
    return owned(registry, "c")


def segment(registry: Registry, state: State) -> Segment:
    return next(segment for segment in channel(registry).segments.values() if segment.state is state)


def orphan(registry: Registry) -> Segment:
    return channel(registry).segments[3]


def overtaken(registry: Registry) -> Segment:
    return channel(registry).segments[4]


def test_a_busy_registry_holds_them() -> None:
    """A registry with complete, empty, open and waiting segments passes every check."""
    registry = busy()
    assert [str(segment.state) for _, segment in sorted(channel(registry).segments.items())] == [
        "complete",
        "empty",
        "open",
        "open",
        "waiting",
        "open",
        "waiting",
    ]
    check_registry(registry)


def test_an_empty_registry_holds_them() -> None:
    """Nothing is consistent, too."""
    check_registry(make_registry()[0])


def _stale_writer(registry: Registry) -> None:
    writer = channel(registry).segments[2].writer
    assert writer is not None
    writer.settle(Ending.SUPERSEDED)


def _ambiguous(registry: Registry) -> None:
    orphan(registry).key = "k"
    orphan(registry).former_keys = ("k",)


def _foreign_writer(registry: Registry) -> None:
    channel(registry).segments[2].writer = channel(registry).segments[6].writer


def _grow(registry: Registry) -> None:
    kept = segment(registry, State.COMPLETE)
    for at in range(3):
        channel(registry).segments[100 + at] = kept
        channel(registry).window.keep(kept)


def _rename(registry: Registry) -> None:
    channel(registry).name = "other"


def _leak(registry: Registry) -> None:
    registry.budget.used += 1


def _swell(registry: Registry) -> None:
    channel(registry).window.bytes += 1


def _linger(registry: Registry, segment: Segment) -> None:
    registry.budget.lingering[segment] = channel(registry).window


def _cheapen(registry: Registry) -> None:
    cheap = orphan(registry)
    cheap.cost -= 1
    channel(registry).window.open -= 1
    registry.budget.give_back(channel(registry).window, 1)


def _ended(registry: Registry) -> None:
    channel(registry).ended = True


def _unscheduled(registry: Registry) -> None:
    registry._agenda.clear(channel(registry))


def _late(registry: Registry) -> None:
    registry._agenda.set(channel(registry), registry._agenda.times[channel(registry)] + 100)


def _timeless(registry: Registry, segment: Segment) -> None:
    channel(registry)._deadlines.clear(segment)


def _untold(registry: Registry) -> None:
    writer = channel(registry).segments[2].writer
    assert writer is not None
    channel(registry)._preempted.append(writer)


def _forgotten(registry: Registry) -> None:
    waiting = channel(registry).segments[6]
    waiting.writer, waiting.written = None, False
    waiting.cursors.clear()


def _buried(registry: Registry) -> None:
    registry._tombstones.update(a=Tombstone(1, 0, 9.0), b=Tombstone(1, 0, 9.0))


FAULTS: Final[dict[str, Callable[[Registry], object]]] = {
    "a channel is filed under its own name": _rename,
    "the budget counts just what is held": _leak,
    "readers are counted": lambda registry: setattr(channel(registry).reading, "used", 9),
    "publishers are counted": lambda registry: registry.capacities.publishers.take(),
    "channels are counted": lambda registry: registry.capacities.channels.take(),
    "the limit holds: ": lambda registry: setattr(registry.capacities.readers, "limit", 0),
    "the limit of tombstones holds": _buried,
    "a channel with a deadline is looked at again": _unscheduled,
    "that is in time": _late,
    "the window counts its bytes": _swell,
    "the window's count holds": _grow,
    "every reader of a closed segment was woken": lambda registry: channel(registry)._to_wake.append(orphan(registry)),
    "every preempted writer was told": _untold,
    "a segment is filed under its own seq": lambda registry: setattr(orphan(registry), "seq", 9),
    "only segments below the head are final": lambda registry: setattr(channel(registry), "floor", 99),
    "nothing waits or is written in an ended channel": _ended,
    "size counts what the frames hold": lambda registry: orphan(registry).frames.append(b"1\r\nx\r\n"),
    "nobody writes to a closed segment": lambda registry: setattr(
        segment(registry, State.COMPLETE), "writer", channel(registry).segments[2].writer
    ),
    "a writer is known to write": lambda registry: setattr(channel(registry).segments[2], "written", False),
    "the writer of a segment is valid": _stale_writer,
    "a writer writes to its own segment": _foreign_writer,
    "only what is there is passed over": lambda registry: setattr(channel(registry).segments[2].writer, "repeated", 99),
    "a body begins within its segment": lambda registry: setattr(orphan(registry), "body_at", 99),
    "a key is of the present body, or of an earlier one": _ambiguous,
    "a waiting segment is waited for, or has a deadline": _forgotten,
    "no reader waits on a dead segment for long": lambda registry: _timeless(registry, overtaken(registry)),
    "the head is past every started segment": lambda registry: setattr(channel(registry), "next_seq", 5),
    "an orphan has a deadline": lambda registry: _timeless(registry, orphan(registry)),
    "what lingers is being read": lambda registry: _linger(registry, segment(registry, State.COMPLETE)),
    "only a closed segment leaves its window": lambda registry: _linger(registry, orphan(registry)),
    "the memory of what is being written is counted": lambda registry: setattr(channel(registry).window, "open", 1),
    "all of its memory is counted": lambda registry: setattr(channel(registry).window, "held", 1),
    "the window counts its memory": lambda registry: setattr(channel(registry).window, "cost", 0),
    "the cost counts the frames as they are held": _cheapen,
    "closing leaves its time": lambda registry: setattr(channel(registry).segments[1], "closed_at", None),
    "a complete segment has bytes": lambda registry: setattr(channel(registry).segments[1], "state", State.COMPLETE),
    "an empty segment has no byte": lambda registry: setattr(channel(registry).segments[0], "state", State.EMPTY),
}


@pytest.mark.parametrize("invariant", FAULTS)
def test_each_invariant_finds_its_fault(invariant: str) -> None:
    """A registry with this one fault in it is found out, by the invariant that is about it."""
    registry = busy()
    FAULTS[invariant](registry)
    with pytest.raises(AssertionError, match=invariant):
        check_registry(registry)


def test_no_orphan_outlives_a_later_complete_segment() -> None:
    """An orphan that was left open behind a complete segment is found."""
    registry = busy()
    channel(registry).window._segments[0].seq = 9
    channel(registry).segments[9] = channel(registry).segments.pop(0)
    channel(registry).next_seq = 10
    with pytest.raises(AssertionError, match="no orphan without a key outlives"):
        check_channel(channel(registry))
