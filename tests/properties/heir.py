"""Heirs: registries that adopt a channel whose owner is gone, and how they are compared with that owner.

An heir is what the owner would be if the connections of all its publishers had just broken, but for one thing: a
segment without a byte that its publisher had begun, and that the head has passed, gets another chance.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from tests.app.core.support import Told, check_registry, content
from tricklecast.app.core.copies import Copy
from tricklecast.app.core.facts import Fact
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import AlreadyStored, Cause, Refusal
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import COMPLETE, EMPTY, OPEN, WAITING, Segment, State, Writer
from tricklecast.app.core.state import Channel, Ready
from tricklecast.trickle.paths import is_reserved

_NO_LIMITS: Final = {"total_bytes": 10**12, "channels": 10, "readers": 10**6, "readers_per_channel": None}

Bytes = tuple[int, bytes, int]
"""A frame of a segment: its seq, the frame, and its body bytes."""


def roomy(limits: Limits) -> Limits:
    """The same limits, but for those that another server need not have."""
    return Limits(**{**asdict(limits), **_NO_LIMITS})


def check_heir(registry: Registry, holder: Channel, owner: OwnedChannel, now: float) -> None:
    """Adopt a holder that has all of its owner, let its publishers come back, and their time pass.

    Raises:
        AssertionError: a reader or a publisher is answered otherwise than by the owner.
    """
    index, facts = registry.journal.index, holder.facts
    heir = registry.adopt(holder, now)
    numbers: list[int] = []
    heir.follow(lambda fact: numbers.append(fact.number))
    followed = heir.facts
    check_registry(registry)
    assert registry.journal.index > index, "the server hears of it"
    assert heir.facts > facts, "the facts go on"
    same = ["name", "epoch", "content_type", "next_seq", "jumped_to", "life", "lives", "playlist", "bytes_in"]
    if isinstance(holder, Copy) and not owner.playlist:
        same.remove("playlist")  # a copy keeps a mark that its owner takes back
    assert [getattr(heir, name) for name in same] == [getattr(owner, name) for name in same]
    assert heir._first == owner._first or not owner.life.name, "the numbering goes on"
    assert heir.floor >= owner.floor, "what is final stays final"
    for segment in owner.segments.values():
        _check_segment(heir, segment, now, owner.floor)
    assert heir.first_free() == heir.next_seq, "no publisher is connected"
    if not is_reserved(heir.name):
        _check_publishers(registry, heir, owner, now)
    registry.expire(now + heir._limits.publisher_grace_s + heir._limits.overtaking_grace_s)
    check_registry(registry)
    assert heir.ended or not heir._open, "nobody waits longer for publishers than usual"
    assert numbers == list(range(followed + 1, heir.facts + 1)), "no fact is missing"


def _check_segment(heir: OwnedChannel, segment: Segment, now: float, floor: int) -> None:
    seq, limits = segment.seq, heir._limits
    found = heir.segments.get(seq)
    if found is None:
        assert seq < heir.floor or (segment.state is WAITING and seq >= heir.next_seq)
        return
    if segment.state is WAITING:
        # What the heir closes may push others out of the window, so the floor may have risen after it had decided.
        assert found.state in (WAITING, State.SKIPPED)
        assert found.state is WAITING or not limits.overtaking_grace_s or seq < heir.floor
        if found.state is WAITING:
            assert seq >= floor, "nobody may write it"
            assert heir.deadline(found) == now + limits.overtaking_grace_s
        return
    assert content(found) == content(segment), "no byte is lost or doubled"
    assert (found.key, found.body_at) == (segment.key, segment.body_at)
    if segment.closed:
        assert isinstance(heir.resolve(seq), Ready)
        assert found.state is segment.state
    elif found.closed:
        assert (found.state, found.key) == (State.TRUNCATED, None)
        assert heir.window.completed_after(seq), "its publisher has gone on without it"
    else:
        assert found.former_keys == segment.former_keys
        assert (found.written, heir.deadline(found)) == (False, now + limits.publisher_grace_s)


def _check_publishers(registry: Registry, heir: OwnedChannel, owner: OwnedChannel, now: float) -> None:
    """Publishers come back to all that they had, and to what they may not write."""

    def ask(seq: int, key: str | None = None) -> object:
        return registry.reserve(heir.name, seq, Told(), now, key=key, attempt=2)

    for seq in sorted(owner.segments):
        segment = heir.segments.get(seq)
        if segment is None or segment.state is WAITING:
            continue
        if segment.state is OPEN:
            resumed = ask(seq, segment.key)
            assert isinstance(resumed, Writer), resumed
            again = 0 if segment.key is None else segment.size - segment.body_at
            assert resumed.repeated == again, "a retry sends its body from the start"
            heir.abort(resumed, now)
        elif segment.key is not None and segment.state in (COMPLETE, EMPTY):
            assert ask(seq, segment.key) == AlreadyStored(seq, segment.size, heir.epoch)
        else:
            assert _why(ask(seq, "another")) is Cause.CLOSED
    if heir.floor and heir.floor - 1 not in heir.segments:
        assert _why(ask(heir.floor - 1)) is Cause.CLOSED
    # Without a grace it goes on there at once: its segments until then may have been lost with the owner.
    if heir.next_seq > heir.jumped_to and heir._limits.overtaking_grace_s:
        assert _why(ask(heir.next_seq + 2)) is Cause.AHEAD
    went_on = ask(-1)
    assert isinstance(went_on, Writer), went_on
    seq, head = went_on.segment.seq, heir.next_seq
    heir.finish(went_on, [b"new"], now)
    assert (seq, heir.next_seq) == (head, head + 1), "its publisher goes on at the head"
    check_registry(registry)


def _why(answer: object) -> Cause:
    assert isinstance(answer, Refusal), answer
    return answer.why


def check_prefix(history: list[Fact | Bytes], limits: Limits, now: float) -> None:
    """Adopt a channel of which only the beginning of its history has come, which may end in the middle of a change.

    Raises:
        AssertionError: what is adopted is not sound, or is not the history's.
    """
    registry = Registry(roomy(limits), autocreate=True)
    first = history[0]
    assert isinstance(first, Fact)
    channel = registry.replicate(first.channel, first.epoch, now)
    for one in history:
        if isinstance(one, Fact):
            channel.apply(one)
        else:
            seq, frame, size = one
            segment = channel.segments[seq]
            assert channel.bytes_stored(segment, frame, size, segment.price(frame))
    if channel.ended:
        return
    bodies = {seq: content(segment) for seq, segment in channel.segments.items() if segment.size}
    heir = registry.adopt(channel, now)
    check_registry(registry)
    assert {seq: content(one) for seq, one in heir.segments.items() if one.size}.items() <= bodies.items()
    registry.expire(now + 1e6)
    check_registry(registry)
