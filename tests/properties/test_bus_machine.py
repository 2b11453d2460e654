"""Random interleavings of facts, subscribers and the event loop: each subscriber has read what was published."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tricklecast.app import bus as buses
from tricklecast.app.bus import CAPACITY, Bus, CannotSubscribe, Facts, OutOfCapacity, SubscriptionEnded, Unsubscribed
from tricklecast.app.changes import Changes, IndexGone
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry

KEEP: Final = 24
MAX_SUBSCRIPTIONS: Final = 10
QUERIES: Final = st.sampled_from(["", "kind = 'added'", "channel = 'a*'", "channel = 'b' AND kind != 'removed'"])


@dataclass
class Subscriber:
    """A subscription, and what its subscriber has seen of it."""

    facts: Facts
    query: str
    after: int
    read: list[int] = field(default_factory=list)
    reason: SubscriptionEnded | None = None


class BusMachine(RuleBasedStateMachine):
    """The oracle is the history: all facts in their order, whatever is kept of them."""

    subscribers = Bundle("subscribers")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.later: list[Callable[[], None]] = []
        self.registry = Registry(Limits(channel_drain_s=0.0), autocreate=True)
        self.changes = Changes(self.registry, defer=self.later.append, keep=KEEP, wall_us=lambda: 0)
        self.bus = Bus(self.changes, self.registry, defer=self.later.append)
        self.history: dict[int, tuple[str, str]] = {}
        self.all: list[Subscriber] = []
        self.joinable = True

    def teardown(self) -> None:
        for function in iter(lambda: self.later.pop(0) if self.later else None, None):
            function()
        self.loop.run_until_complete(self.bus.close(0))
        for subscriber in self.all:
            self.read(subscriber, 10**6)
            assert subscriber.reason is not None, "everyone is told an end"
        assert self.bus.used.used == 0
        self.loop.close()

    # What happens.

    @rule(name=st.sampled_from(["a", "ab", "b", "_own"]))
    def toggle(self, name: str) -> None:
        """A channel comes or goes."""
        known = name in self.registry.channels
        if known:
            self.registry.end(name, 0.0, force=True)
        else:
            self.registry.create(name, "", 0.0, force=True)
        if name != "_own":
            self.history[self.registry.journal.index] = ("removed" if known else "added", name)

    @rule(name=st.sampled_from(["a", "b"]), times=st.integers(1, 30))
    def many(self, name: str, times: int) -> None:
        for _ in range(2 * times):
            self.toggle(name)

    @rule()
    def turn(self) -> None:
        """One turn of the event loop."""
        later = self.later[:]
        self.later.clear()
        for function in later:
            function()

    # What subscribers do.

    @rule(
        target=subscribers,
        query=QUERIES,
        capacity=st.integers(1, 6),
        back=st.none() | st.integers(0, 30),
    )
    def subscribe(self, query: str, capacity: int, back: int | None) -> Subscriber | None:
        after = None if back is None else max(0, self.registry.journal.index - back)
        living = sum(one.facts.ended is None for one in self.all)
        buses.CAPACITY = capacity  # type: ignore[misc]
        try:
            facts = self.bus.subscribe(query, after=after)
        except IndexGone:
            assert after is not None
            assert after < self.changes.floor, "an index that is kept is never refused"
            return None
        except CannotSubscribe:
            assert living == MAX_SUBSCRIPTIONS or (after is None and not self.joinable), "only the living are counted"
            return None
        assert living < MAX_SUBSCRIPTIONS
        assert after is not None or self.joinable
        assert after is None or after >= self.changes.floor, "a cursor below the floor is never moved"
        found = Subscriber(facts, query, self.registry.journal.index if after is None else after)
        self.all.append(found)
        return found

    @rule(subscriber=subscribers, most=st.integers(1, 8))
    def take(self, subscriber: Subscriber | None, most: int) -> None:
        if subscriber is not None:
            self.read(subscriber, most)

    @rule(subscriber=subscribers)
    def unsubscribe(self, subscriber: Subscriber | None) -> None:
        if subscriber is not None:
            lived = subscriber.facts.ended is None
            subscriber.facts.unsubscribe()
            assert isinstance(subscriber.facts.ended, Unsubscribed) or not lived

    @precondition(lambda self: any(isinstance(one.reason, OutOfCapacity) for one in self.all))
    @rule(target=subscribers)
    def go_on(self) -> Subscriber | None:
        """Whoever was behind subscribes again, with what the reason says: at once, and without loss."""
        last = next(one for one in reversed(self.all) if isinstance(one.reason, OutOfCapacity))
        assert last.reason is not None
        buses.CAPACITY = CAPACITY  # type: ignore[misc]
        try:
            facts = self.bus.subscribe(last.query, after=last.reason.index)
        except IndexGone:
            assert last.reason.index < self.changes.floor
            return None
        except CannotSubscribe:
            return None
        found = Subscriber(facts, last.query, last.after, list(last.read))
        self.all.append(found)
        return found

    def read(self, subscriber: Subscriber, most: int) -> None:
        async def step() -> SubscriptionEnded | None:
            reason = None
            call = subscriber.facts.__anext__()
            try:
                call.send(None)
            except StopIteration as item:
                subscriber.read.append(item.value.index)
                assert subscriber.reason is None, "nothing follows the reason"
            except SubscriptionEnded as ended:
                reason = ended
            else:
                call.close()
            return reason

        for _ in range(most):
            before = len(subscriber.read)
            reason = self.loop.run_until_complete(step())
            assert subscriber.reason is None or reason is subscriber.reason, "the reason is the same for ever"
            subscriber.reason = reason
            if len(subscriber.read) == before:
                return

    # What is always true.

    @invariant()
    def each_has_read_the_history(self) -> None:
        for one in self.all:
            end = one.reason.index if one.reason is not None else one.read[-1] if one.read else one.after
            wanted = [index for index in self.matching(one) if one.after < index <= end]
            assert one.read == wanted, "no fact lost, doubled or reordered"

    @invariant()
    def only_the_living_are_counted(self) -> None:
        living = sum(one.facts.ended is None for one in self.all)
        assert self.bus.used.used == living
        if living >= MAX_SUBSCRIPTIONS * 8 // 10:
            self.joinable = False
        elif living < MAX_SUBSCRIPTIONS * 6 // 10:
            self.joinable = True
        assert self.bus.used.joinable is self.joinable

    @invariant()
    def a_snapshot_is_that_of_its_index(self) -> None:
        snapshot = self.changes.snapshot()
        assert snapshot is not None
        live: set[str] = set()
        for index, (kind, name) in self.history.items():
            if index <= snapshot.index:
                (live.add if kind == "added" else live.discard)(name)
        assert {channel.channel for channel in snapshot.channels} == live

    def matching(self, one: Subscriber) -> list[int]:
        text = one.query
        return [
            index
            for index, (kind, name) in self.history.items()
            if text == ""
            or (text == "kind = 'added'" and kind == "added")
            or (text == "channel = 'a*'" and name.startswith("a"))
            or (text == "channel = 'b' AND kind != 'removed'" and name == "b" and kind == "added")
        ]


def test_no_interleaving_loses_doubles_or_hides_a_fact() -> None:
    """With turns of the loop that judge only a few facts, so that the pump is always in the middle of something."""
    steps, buses.STEPS = buses.STEPS, 7  # type: ignore[misc]
    subscriptions, buses.MAX_SUBSCRIPTIONS = buses.MAX_SUBSCRIPTIONS, MAX_SUBSCRIPTIONS  # type: ignore[misc]
    try:
        run_state_machine_as_test(
            BusMachine,
            settings=settings(
                max_examples=50,
                stateful_step_count=40,
                suppress_health_check=list(HealthCheck),
                print_blob=False,
            ),
        )
    finally:
        buses.STEPS, buses.MAX_SUBSCRIPTIONS, buses.CAPACITY = steps, subscriptions, CAPACITY  # type: ignore[misc]
