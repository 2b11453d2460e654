"""What a full server evicts, and what it refuses, against the rule written down a second time in the plainest way."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.core.support import Told, check_registry, cost
from tests.properties.room import Room
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Verdict
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


@settings(max_examples=300)
@given(limit=st.sampled_from([1500, 4000, 12_000]), steps=STEPS)
def test_a_full_server_does_what_the_rule_says(limit: int, steps: list[tuple[str, list[int], bool]]) -> None:
    """The same segments are kept, the same bytes are refused, and the sums agree, after every step."""
    registry = Registry(Limits(total_bytes=limit, channel_drain_s=0.0), autocreate=True)
    plain = Room(limit, windows={}, open=[], lingering=[])
    for name, sizes, stays_open in steps:
        writer = registry.reserve(name, -1, Told(), 0.0)
        assert isinstance(writer, Writer)
        window = plain.windows.setdefault(name, [])
        stored: list[bytes] = []
        for size in sizes:
            frame = b"x" * size
            fits = plain.take(cost(*stored, frame) - (cost(*stored) if stored else 0))
            outcome = writer.channel.append(writer, [frame], 0.0)
            assert (outcome is None) == fits
            if outcome is not None:
                assert outcome.verdict is Verdict.OVER_BUDGET
                break
            plain.open += [] if stored else [0]
            stored.append(frame)
            plain.open[-1] = cost(*stored)
        if writer.outcome is not None:
            if stored:
                window.append(plain.open.pop())  # it closes truncated
        elif not stored:
            plain.take(cost())
            window.append(cost())
            writer.channel.finish(writer, [], 0.0)
        elif not stays_open:
            window.append(plain.open.pop())
            writer.channel.finish(writer, [], 0.0)
        kept = {
            channel.name: [s.cost for _, s in sorted(channel.segments.items()) if s.closed]
            for channel in registry.channels.values()
        }
        assert kept == plain.windows
        assert registry.budget.used == plain.used
        check_registry(registry)
