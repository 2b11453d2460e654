"""What a full server evicts, and what it refuses, against the rule written down a second time in the plainest way."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.app.core.support import Told, check_registry, cost, publish
from tests.properties.room import Holder, Room
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Ending
from tricklecast.app.core.segment import Writer

CHANNELS = "abc"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(CHANNELS),
        st.lists(st.integers(1, 900), max_size=3),  # the sizes of a segment's frames
        st.booleans(),  # whether it stays open
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(limit=st.sampled_from([1500, 4000, 12_000]), steps=STEPS)
@example(limit=4000, steps=[("a", [645], True), ("b", [256, 367], True), ("a", [], False), ("b", [], False)])
def test_a_full_server_does_what_the_rule_says(limit: int, steps: list[tuple[str, list[int], bool]]) -> None:
    """The same segments are kept, cut and refused, and the sums agree, after every step."""
    registry = Registry(Limits(total_bytes=limit, channel_drain_s=0.0), autocreate=True)
    plain = Room(limit)
    for name, sizes, stays_open in steps:
        writer = registry.reserve(name, -1, Told(), 0.0)
        assert isinstance(writer, Writer)
        holder = plain.holders.setdefault(name, Holder())
        stored: list[bytes] = []
        for size in sizes:
            frame = b"x" * size
            fits = plain.take(name, cost(*stored, frame) - (cost(*stored) if stored else 0))
            outcome = writer.channel.append(writer, [frame], 0.0)
            assert (outcome is None) == fits
            if outcome is not None:
                assert outcome.ending is Ending.OVER_BUDGET
                break
            if stored:
                holder.open.remove(cost(*stored))
            stored.append(frame)
            holder.open.append(cost(*stored))
        if not stored:
            if writer.outcome is None:
                plain.take(name, cost())
                holder.window.append(cost())
                writer.channel.finish(writer, [], 0.0)
        elif writer.outcome is not None or not stays_open:
            # It has closed, as truncated or as complete.
            holder.open.remove(cost(*stored))
            writer.channel.finish(writer, [], 0.0)
            later = [one.seq > writer.segment.seq for one in writer.channel.segments.values() if one.closed]
            holder.window.insert(len(holder.window) - sum(later), cost(*stored))
        kept = {
            channel.name: [s.cost for _, s in sorted(channel.segments.items()) if s.closed]
            for channel in registry.channels.values()
        }
        assert kept == {name: holder.window for name, holder in plain.holders.items()}
        assert registry.budget.used == plain.used
        check_registry(registry)


@settings(max_examples=150)
@given(limit=st.sampled_from([4000, 12_000]), calm=st.lists(st.integers(1, 300), max_size=3), steps=STEPS)
def test_who_holds_less_than_its_share_keeps_it(
    limit: int, calm: list[int], steps: list[tuple[str, list[int], bool]]
) -> None:
    """Whatever the other channels publish, finish, and leave open; and each segment of its own fits."""
    registry = Registry(Limits(total_bytes=limit, channel_drain_s=0.0), autocreate=True)
    share = (limit - limit // 16) // (1 + len(CHANNELS))
    published: list[int] = []
    for at, (name, sizes, stays_open) in enumerate([("", [], False), *steps, ("", [], False)]):
        own = sum(cost(b"x" * size) for size in published)
        if at % 5 == 0 and calm and own + cost(b"x" * calm[-1]) <= share:
            published.append(size := calm.pop())
            publish(registry, "calm", len(published) - 1, b"x" * size)
        if name:
            writer = registry.reserve(name, -1, Told(), 0.0)
            assert isinstance(writer, Writer)
            for size in sizes:
                writer.channel.append(writer, [b"x" * size], 0.0)
            if not (sizes and stays_open):
                writer.channel.finish(writer, [], 0.0)
        if published:
            channel = registry.channels["calm"]
            assert [channel.segments[seq].size for seq in range(len(published))] == published
