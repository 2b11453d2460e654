"""The random walk through :class:`tests.properties.model.World` that Hypothesis takes."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.properties.model import Post, World
from tricklecast.app.core.limits import Limits

CI: Final = settings(
    max_examples=40,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
"""Thousands of steps in well under a minute."""

LIMITS: Final = st.builds(
    Limits,
    segment_bytes=st.sampled_from([4, 9, 1000, 5000]),
    window_segments=st.sampled_from([1, 2, 3, 50]),
    window_bytes=st.sampled_from([5, 12, 1000, 5001]),
    window_age_s=st.sampled_from([4.0, 60.0]),
    total_bytes=st.sampled_from([1000, 1900, 3700, 6900, 100_000, 10_000_000]),
    channels=st.sampled_from([1, 2, 9]),
    readers=st.sampled_from([1, 3, 5, 50, 10_000, 10_000, 10_000]),
    readers_per_channel=st.sampled_from([None, None, 1, 4]),
    publishers=st.sampled_from([None, None, 1, 5]),
    publisher_grace_s=st.sampled_from([0.0, 5.0]),
    skip_grace_s=st.sampled_from([0.0, 2.0]),
    overtaking_segments=st.sampled_from([0, 4]),
    overtaking_grace_s=st.sampled_from([0.0, 0.2, 3.0]),
    first_byte_timeout_s=st.sampled_from([None, None, 3.0]),
    channel_drain_s=st.sampled_from([0.0, 10.0]),
    idle_timeout_s=st.sampled_from([20.0, 300.0]),
    tombstone_s=st.sampled_from([0.0, 15.0, 300.0]),
    tombstones=st.sampled_from([0, 1, 9]),
)
"""Small enough that a short walk meets each limit."""

CHANNELS: Final = st.sampled_from(["a", "a", "a", "b", "_own"])
"""Mostly one channel: what happens to it from many sides is where the trouble lies."""

CONTENT_TYPES: Final = st.sampled_from(["", "video/mp2t", "text/plain"])
SIZES: Final = st.lists(st.integers(1, 4), max_size=3)
WHICH: Final = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5])
"""Counted from the newest back: mostly one that still lives, sometimes a stale one."""

OFFSETS: Final = st.sampled_from([0, 0, 0, -1, -1, 1, -2, 2, -3, 6])
"""Distance of a seq from the head."""

NOT_OFTEN: Final = st.sampled_from([False, False, False, True])
MOSTLY: Final = st.sampled_from([True, True, True, False])


class RegistryMachine(RuleBasedStateMachine):
    """Publishers, readers, deletes, resets and time in any order; the oracle is asked after each step."""

    world: World

    @initialize(limits=LIMITS, autocreate=MOSTLY)
    def begin(self, limits: Limits, autocreate: bool) -> None:
        self.world = World(limits, autocreate=autocreate)
        self.world.create("_own", "application/json", force=True)
        self.world.create("a", "", force=True)

    @rule(name=CHANNELS, content_type=CONTENT_TYPES, force=NOT_OFTEN)
    def create(self, name: str, content_type: str, force: bool) -> None:
        self.world.create(name, content_type, force=force)

    @rule(
        name=CHANNELS,
        offset=OFFSETS,
        content_type=CONTENT_TYPES,
        reset=NOT_OFTEN,
        key=st.sampled_from([None, None, "k1", "k2"]),
        attempt=st.sampled_from([1, 1, 2, 3]),
    )
    def reserve(self, name: str, offset: int, content_type: str, reset: bool, key: str | None, attempt: int) -> None:
        self._reserve(name, max(0, self.world.head(name) + offset), content_type, reset, key, attempt)

    @rule(
        offset=OFFSETS,
        keys=st.sampled_from([["k1"], ["k1"], [None, "k1"], ["k1", "k2"], ["k1", None]]),
        sizes=SIZES.filter(bool),
        attempt=st.sampled_from([1, 1, 2]),
        later=st.sampled_from([1, 1, 1, -1]),
        delete=NOT_OFTEN,
        again=SIZES,
        end=st.booleans(),
    )
    def retry(
        self,
        offset: int,
        keys: list[str | None],
        sizes: list[int],
        attempt: int,
        later: int,
        delete: bool,
        again: list[int],
        end: bool,
    ) -> None:
        seq = max(0, self.world.head("a") + offset)
        for key in keys:
            self._reserve("a", seq, "", False, key, attempt)
            if self.world.posts:
                self.world.append(self.world.posts[-1], sizes)
        if delete:
            self.world.close_segment("a", seq)
        self._reserve("a", seq, "", False, "k1", max(1, attempt + later))
        if self.world.posts:
            (self.world.finish if end else self.world.append)(self.world.posts[-1], again)

    @rule(name=CHANNELS, content_type=CONTENT_TYPES, reset=NOT_OFTEN)
    def reserve_next(self, name: str, content_type: str, reset: bool) -> None:
        self._reserve(name, -1, content_type, reset, None)

    @rule(name=CHANNELS, content_type=CONTENT_TYPES, reset=NOT_OFTEN)
    def reserve_first(self, name: str, content_type: str, reset: bool) -> None:
        self._reserve(name, 0, content_type, reset, None)

    def _reserve(self, name: str, seq: int, content_type: str, reset: bool, key: str | None, attempt: int = 1) -> None:
        self.world.reserve(name, seq, content_type=content_type, reset=reset, key=key, attempt=attempt)
        if name.startswith("_"):
            self.world.reserve_own(name, seq)

    @rule(name=CHANNELS, sizes=SIZES)
    def publish(self, name: str, sizes: list[int]) -> None:
        posts = len(self.world.posts)
        self._reserve(name, -1, "", False, None)
        if len(self.world.posts) > posts:
            self.world.append(self.world.posts[-1], sizes)
            self.world.finish(self.world.posts[-1], [])

    @rule(name=CHANNELS, mark=st.sampled_from(["", "one", "another"]))
    def mark_playlist(self, name: str, mark: str) -> None:
        self.world.mark_playlist(name, mark)

    @rule(name=CHANNELS, sizes=st.lists(st.integers(0, 4), min_size=3, max_size=8))
    def publish_many(self, name: str, sizes: list[int]) -> None:
        for size in sizes:
            self.publish(name, [size] if size else [])

    @rule(seqs=st.permutations([0, 1, 2]), attach=MOSTLY)
    def read_ahead(self, seqs: list[int], attach: bool) -> None:
        for seq in seqs:
            self.world.read("a", self.world.head("a") + seq, attach=attach, leaves=True)

    @rule(name=CHANNELS, come=st.integers(1, 6), go=st.integers(0, 3))
    def come_and_go(self, name: str, come: int, go: int) -> None:
        """Readers by the number, since a limit lets in by shares; one more comes when some have left."""
        for _ in range(come):
            self.world.read(name, -1, attach=True, leaves=False)
        for _ in range(min(go, len(self.world.readers))):
            self.world.detach(self.world.readers[-1])
        self.world.read(name, -1, attach=True, leaves=True)

    @precondition(lambda self: self.world.posts)
    @rule(which=WHICH, sizes=SIZES)
    def append(self, which: int, sizes: list[int]) -> None:
        self.world.append(self._post(which), sizes)

    @precondition(lambda self: self.world.posts)
    @rule(which=WHICH, sizes=SIZES.filter(bool))
    def append_more(self, which: int, sizes: list[int]) -> None:
        self.world.append(self._post(which), sizes)

    @precondition(lambda self: self.world.posts)
    @rule(which=WHICH, sizes=SIZES)
    def finish(self, which: int, sizes: list[int]) -> None:
        self.world.finish(self._post(which), sizes)

    @precondition(lambda self: self.world.posts)
    @rule(which=WHICH)
    def abort(self, which: int) -> None:
        self.world.abort(self._post(which))

    @rule(name=CHANNELS, short_by=st.sampled_from([0, 0, 1, -1]), pieces=st.integers(1, 3))
    def publish_large(self, name: str, short_by: int, pieces: int) -> None:
        """A segment about as large as one may be; a window, or the whole budget, may hold no other one."""
        size = self.world.limits.segment_bytes - short_by
        self.publish(name, [size // pieces] * (pieces - 1) + [size - size // pieces * (pieces - 1)])

    @rule(
        wait=st.sampled_from([(), (0,), (0, 1)]),
        seqs=st.sampled_from([(1, 3, 5), (1, 3), (2, 4), (1,), (3, 1)]),
        large=MOSTLY,
        seconds=st.sampled_from([None, 0.0, 0.2, 3.0]),
    )
    def overtake(self, wait: tuple[int, ...], seqs: tuple[int, ...], large: bool, seconds: float | None) -> None:
        """Segments beyond the head are published before those that readers wait for; the last one may be large."""
        head = self.world.head("a")
        for seq in wait:
            self.world.read("a", head + seq, attach=True, leaves=True)
        for number, seq in enumerate(seqs, start=1):
            posts = len(self.world.posts)
            self._reserve("a", head + seq, "", False, None)
            if len(self.world.posts) > posts:
                size = self.world.limits.segment_bytes if large and number == len(seqs) else 1
                self.world.finish(self.world.posts[-1], [size])
        if seconds is not None:
            self.world.pass_time(seconds, expire=True)

    @rule(
        name=CHANNELS,
        n=st.sampled_from([3, 3, 30, 30, 1500]),
        waiting=MOSTLY,
        abandon=MOSTLY,
        jump=st.sampled_from([None, 0, 1, 7]),
    )
    def preconnect_many(self, name: str, n: int, waiting: bool, abandon: bool, jump: int | None) -> None:
        """Preconnects with a reader each; their publishers go, and one resumes beyond all of them."""
        head = self.world.head(name)
        posts = self.world.preconnect_many(name, n, waiting=waiting)
        if abandon:
            for post in posts:
                self.world.abort(post, bulk=True)
        if jump is not None:
            granted = len(self.world.posts)
            self._reserve(name, max(self.world.head(name), head + n + jump), "", True, None)
            if len(self.world.posts) > granted:
                self.world.append(self.world.posts[-1], [1])

    @rule(name=CHANNELS, offset=OFFSETS)
    def close_segment(self, name: str, offset: int) -> None:
        self.world.close_segment(name, max(0, self.world.head(name) + offset))

    @rule(name=CHANNELS, force=NOT_OFTEN)
    def end(self, name: str, force: bool) -> None:
        self.world.end(name, force=force)

    @rule(name=CHANNELS, seq=st.sampled_from([-1, -1, -2, -3, -5]), attach=MOSTLY, leaves=st.booleans())
    def read_from_head(self, name: str, seq: int, attach: bool, leaves: bool) -> None:
        self.world.read(name, seq, attach=attach, leaves=leaves)

    @rule(name=CHANNELS, seq=st.sampled_from([-1, -1, -2, -5]), post=st.booleans(), key=st.sampled_from([None, "k1"]))
    def faulty(self, name: str, seq: int, post: bool, key: str | None) -> None:
        """A reader that raises when it is woken or evicted, or a publisher that raises when it is preempted."""
        if post:
            self.world.reserve(name, -1, content_type="", reset=False, key=key, faulty=True)
        else:
            self.world.read(name, seq, attach=True, leaves=False, faulty=True)

    @rule(name=CHANNELS, offset=OFFSETS, attach=MOSTLY, leaves=st.booleans())
    def read(self, name: str, offset: int, attach: bool, leaves: bool) -> None:
        self.world.read(name, max(0, self.world.head(name) + offset), attach=attach, leaves=leaves)

    @precondition(lambda self: self.world.readers)
    @rule(which=WHICH)
    def detach(self, which: int) -> None:
        self.world.detach(self.world.readers[-1 - which % len(self.world.readers)])

    @precondition(lambda self: self.world.readers)
    @rule(which=WHICH)
    def pause(self, which: int) -> None:
        self.world.pause(self.world.readers[-1 - which % len(self.world.readers)])

    @rule(seconds=st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, 11.0, 25.0, 400.0]), expire=MOSTLY)
    def pass_time(self, seconds: float, expire: bool) -> None:
        self.world.pass_time(seconds, expire=expire)

    @rule(on=st.sampled_from([False, False, False, False, False, True]))
    def shut_down(self, on: bool) -> None:
        self.world.registry.shutting_down = on

    @invariant()
    def agrees_with_the_oracle(self) -> None:
        self.world.check()

    def _post(self, which: int) -> Post:
        return self.world.posts[-1 - which % len(self.world.posts)]
