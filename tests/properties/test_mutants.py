"""The random walk is worth something only if it finds faults: each of these, put into the core, must be found.

A mutant replaces one piece of one method's source text. The piece must occur exactly once, so that a mutant cannot
survive merely because the code has moved on.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.machine import CI, RegistryMachine
from tricklecast.app.core.budget import Budget
from tricklecast.app.core.capacity import Capacity
from tricklecast.app.core.channel import Channel
from tricklecast.app.core.deadlines import Deadlines
from tricklecast.app.core.facts import Journal
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.window import Window
from tricklecast.app.core.writer import Writer
from tricklecast.trickle.errors import LocalProtocolError

pytestmark = pytest.mark.long

HUNT: Final = settings(CI, phases=[Phase.generate], report_multiple_bugs=False)
"""The same walks as for the real core; a found fault is not made small, since nobody reads it."""


@dataclass(frozen=True)
class Mutant:
    """One fault: in ``owner.method``, ``code`` becomes ``fault``."""

    name: str
    owner: type
    method: str
    code: str
    fault: str

    def mutate(self) -> Any:
        """The faulty method, compiled in the namespace of its module."""
        source = textwrap.dedent(inspect.getsource(getattr(self.owner, self.method)))
        assert source.count(self.code) == 1, f"{self.code!r} is not, or not only once, in {self.method}"
        source = "from __future__ import annotations\n" + source.replace(self.code, self.fault)
        namespace = dict(vars(sys.modules[self.owner.__module__]))
        exec(compile(source, f"<mutant {self.name}>", "exec"), namespace)
        return namespace[self.method]


STALE: Final = "if writer.outcome is not None:"
STALE_UNLESS_TAKEN_OVER: Final = "if writer.outcome is not None and writer.segment.writer is None:"

MUTANTS: Final = (
    # The head.
    Mutant("head-assigned", Channel, "_advance", "if seq >= self.next_seq:", "if True:"),
    Mutant(
        "empty-close-does-not-advance",
        Channel,
        "_close",
        "self._advance(segment.seq, now)",
        "self._advance(segment.seq if segment.size else segment.seq - 1, now)",
    ),
    Mutant(
        "reset-sets-the-head",
        Channel,
        "reserve",
        "self._truncate_open(seq, now, orphans_only=False)",
        "self._truncate_open(seq, now, orphans_only=False); self.next_seq = seq",
    ),
    # Stale writers.
    Mutant("stale-end-closes-the-new-writers-segment", Channel, "finish", STALE, STALE_UNLESS_TAKEN_OVER),
    Mutant(
        "stale-abort-orphans-the-new-writers-segment",
        Channel,
        "abort",
        "if writer.outcome is None:",
        "if writer.outcome is None or writer.segment.writer is not None:",
    ),
    Mutant("stale-bytes-are-stored", Channel, "append", STALE, STALE_UNLESS_TAKEN_OVER),
    Mutant("takeover-is-not-told", Channel, "_preempt", "self._preempted.append(writer)", "pass"),
    Mutant("preempted-is-told-twice", Channel, "_preempt", "append(writer)", "extend([writer, writer])"),
    Mutant("preempted-token-stays-valid", Writer, "settle", "self.outcome = Outcome(", "Outcome("),
    Mutant("next-is-shared", Channel, "first_free", "segment.writer is not None", "segment.closed"),
    # Epochs.
    Mutant(
        "drain-end-removes-the-next-epoch",
        Registry,
        "expire",
        "self.channels.get(channel.name) is channel",
        "channel.name in self.channels",
    ),
    Mutant("latecomer-resurrects", Registry, "reserve", "channel.ended and seq != 0 and not reset", "False"),
    Mutant("new-epoch-keeps-the-number", Registry, "_create", "last + 1", "max(last, 1)"),
    Mutant("predecessor-is-not-let-go", Registry, "_create", "self._forget(before)", "pass"),
    # Readers.
    Mutant("append-does-not-wake", Channel, "append", "writer.segment.wake()", "pass"),
    Mutant(
        "skip-does-not-wake",
        Channel,
        "_close",
        "self._woken.append(segment)",
        "event is Event.SKIP or self._woken.append(segment)",
    ),
    Mutant("end-does-not-wake-the-waiting", Channel, "end", "self._woken.append(segment)", "pass"),
    Mutant("overtaken-is-not-skipped", Channel, "_advance", "or segment.closed", "or True"),
    Mutant(
        "overtaken-writer-has-no-deadline",
        Deadlines,
        "spare",
        "self.set(segment, now + grace_s)",
        "pass",
    ),
    Mutant(
        "first-leaver-takes-the-segment-along", Channel, "release", "not segment.is_wanted", "segment.writer is None"
    ),
    Mutant(
        "reader-of-an-evicted-segment-leaks-its-memory",
        Channel,
        "detach",
        "self._budget.settle if segment.closed else self.release",
        "self.release",
    ),
    Mutant("negative-seq-is-off-by-one", Channel, "resolve", "head + seq + 1", "head + seq"),
    # Bytes.
    Mutant("chunks-are-reordered", Channel, "_store", "encode_frame(chunks)", "encode_frame(chunks[::-1])"),
    Mutant("last-chunk-is-doubled", Channel, "_store", "encode_frame(chunks)", "encode_frame([*chunks, chunks[-1]])"),
    Mutant("refused-part-is-lost", Channel, "_store", "prefix(chunks, room), room", "[], 0"),
    Mutant(
        "orphan-is-forgotten",
        Channel,
        "_break_off",
        "self._deadlines.set(segment, now + self._limits.publisher_grace_s)",
        "pass",
    ),
    # Retries.
    Mutant("retry-is-doubled", Segment, "begin_body", "return self.size - self.body_at", "return 0"),
    Mutant("retry-passes-over-others", Segment, "begin_body", "return self.size - self.body_at", "return self.size"),
    Mutant("taken-over-body-comes-back", Segment, "admits", "key not in self.former_keys", "True"),
    Mutant("overtaken-attempt-takes-over", Segment, "admits", "attempt >= self.writer.attempt", "True"),
    Mutant("short-retry-completes", Channel, "finish", "if writer.repeated:", "if False:"),
    Mutant("deleted-body-counts-as-ended", Channel, "close_segment", "segment.key = None", "pass"),
    # The window and the budget.
    Mutant("newest-is-evicted", Window, "_drop_oldest", "pop(0)", "pop()"),
    Mutant("last-one-is-evicted", Window, "_exceeds", "<= 1", "<= 0"),
    Mutant("budget-leaks", Window, "_drop_oldest", "self._budget.release(segment)", "pass"),
    Mutant("evicted-is-free-while-it-is-read", Budget, "release", "if segment.cursors:", "if False:"),
    Mutant("frames-cost-nothing", Segment, "price", "len(frame) + FRAME_COST", "len(frame)"),
    Mutant("empty-segment-costs-nothing", Window, "keep", "self._budget.charge(segment.cost)", "pass"),
    Mutant("newest-is-never-evicted", Registry, "_reclaim", "keep=0", "keep=1"),
    Mutant(
        "smallest-goes-first",
        Registry,
        "_evict_largest",
        "heap = [(-channel.window.cost",
        "heap = [(channel.window.cost",
    ),
    Mutant("lingering-goes-last", Registry, "_reclaim", "if self.budget.used > goal - spare:", "if False:"),
    # Refusals, facts and time.
    Mutant(
        "refused-post-sets-the-content-type",
        Registry,
        "reserve",
        '"" if live else content_type',
        "content_type",
    ),
    # Limits.
    Mutant("joins-never-stop", Capacity, "take", ">= self._joins_stop", "> self.limit"),
    Mutant("joins-return-at-once", Capacity, "give_back", "self._joins_return", "self._joins_stop"),
    Mutant("channel-has-no-limit", Registry, "_limit_of_readers", "not channel.reading.admits(join=join)", "False"),
    Mutant("reader-of-a-channel-counts-for-ever", Channel, "detach", "self.reading.give_back()", "pass"),
    Mutant("publisher-counts-for-ever", Writer, "settle", "self._counted.give_back()", "pass"),
    Mutant("journal-has-gaps", Journal, "segment_closed", "self.index += 1", "self.index += 2"),
    Mutant("idle-counts-from-the-beginning", Registry, "_idle_at", "channel.active_at", "channel.created_at"),
    Mutant(
        "earlier-deadline-is-missed",
        Registry,
        "_schedule",
        "when < channel.scheduled_at",
        "when > channel.scheduled_at",
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_walk_finds_the_fault(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this fault in the core, some walk contradicts the oracle or an invariant, or an event is illegal."""
    monkeypatch.setattr(mutant.owner, mutant.method, mutant.mutate())
    with pytest.raises((AssertionError, LocalProtocolError)):
        run_state_machine_as_test(RegistryMachine, settings=HUNT)


def test_the_walk_is_green_without_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way in which a mutant is put in place changes nothing by itself."""
    same = Mutant("none", Channel, "_advance", "self.next_seq", "self.next_seq")
    with pytest.raises(AssertionError, match="only once"):
        same.mutate()
    one = Mutant("none", Channel, "_advance", "if seq >= self.next_seq:", "if self.next_seq <= seq:")
    monkeypatch.setattr(Channel, "_advance", one.mutate())
    run_state_machine_as_test(RegistryMachine, settings=settings(HUNT, max_examples=50))
