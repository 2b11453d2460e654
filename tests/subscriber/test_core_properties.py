"""For arbitrary answers: a cursor sends no burst of requests, goes back only if the server does, and counts right."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import assert_never

from hypothesis import given, settings
from hypothesis import strategies as st

from tricklecast.subscriber.core import (
    MAX_CUT_S,
    REFRESH_S,
    AnyStart,
    Ask,
    Cursor,
    Decision,
    End,
    Jump,
    NextSegment,
    OnLag,
    Resolved,
    Retry,
    Start,
)
from tricklecast.trickle import wire
from tricklecast.trickle.backoff import BUDGET_RATIO, BUDGET_RESERVE, CAP_S
from tricklecast.trickle.client.exchange import Answer
from tricklecast.trickle.client.retry import MAX_RETRY_AFTER_S, MIN_DELAY_S, RECONNECT_S, Stop
from tricklecast.trickle.errors import ConnectionLost, Position, TrickleError

seqs = st.integers(0, 30)
texts = st.one_of(
    seqs.map(str),
    seqs.map(str),
    st.sampled_from(["-1", "", "x", "99999999999999999999", "999999999999999", "\u0661", "--1"]),
    st.text(max_size=5),
)
headers = st.dictionaries(
    st.sampled_from([wire.LATEST, wire.EARLIEST, wire.EPOCH, wire.SIZE, wire.RETRY_AFTER, "Content-Length"]), texts
)
# Any status, but mostly those that lead somewhere.
statuses = st.one_of(
    st.sampled_from([200, 200, 200, 200, 470, 470, 470, 404, 429, 503, 500, 204, 301, 400, 403, 409, 418, 599]),
    st.integers(100, 999),
)
starts = st.one_of(
    st.sampled_from(["next", "current", "earliest"]),
    st.integers(-6, 20),
    st.builds(Position, seqs, st.none() | st.integers(1, 3)),
)


@dataclass(frozen=True)
class Reply:
    """What the server does to one GET, and how the body of a segment then ends."""

    status: int
    headers: dict[str, str]
    closed: bool = False
    honest_seq: bool = True
    cuts: int = 0
    """Times the body is cut; below 0 the rest is not to be had."""
    took_s: float = 0.0
    epoch: int | None = None
    ahead: int | None = None
    """How far the server's head is beyond what is asked for, and how many segments it keeps."""
    kept: int | None = None


@dataclass(frozen=True)
class Seek:
    """The user goes elsewhere, while a GET is under way or after the end."""

    start: AnyStart


replies = st.builds(
    Reply,
    status=statuses,
    headers=headers,
    closed=st.booleans().flatmap(lambda rare: st.booleans() if rare else st.just(False)),
    honest_seq=st.sampled_from([True, True, True, True, False]),
    cuts=st.sampled_from([0, 0, 0, 1, 2, -1, -3]),
    took_s=st.sampled_from([0.0, 0.0, 0.0]) | st.floats(0, 30),
    epoch=st.sampled_from([None, 1, 1, 2]),
)
# Such as a real server gives: its head moves, or is another one's after a restart.
moves = st.builds(
    Reply,
    status=st.just(470),
    headers=st.just({}),
    ahead=st.integers(-5, 12),
    kept=st.none() | st.integers(0, 5),
)
bodies = st.builds(
    Reply,
    status=st.just(200),
    headers=st.just({}),
    epoch=st.sampled_from([1, 1, 1, 2]),
    cuts=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
)
busy = st.builds(Reply, status=st.sampled_from([429, 503]), headers=st.just({}))
outages = st.sampled_from(["refused", "lost", Reply(404, {}), Reply(502, {})])
silences = st.sampled_from(["lost", "refused", "waited"])
# What leads on is more frequent than what ends the run, or most runs would be over with their first answer.
events = st.one_of(bodies, bodies, bodies, bodies, st.sampled_from(["lost", "refused", "waited"]), replies)


@dataclass
class Run:
    """One subscription against arbitrary replies, in virtual time, with everything counted."""

    cursor: Cursor
    rng: Random
    now: float = 0.0
    requests: int = 0
    refreshes: int = 0
    waited_s: float = 0.0
    whole: int = 0
    met: bool = False
    waits: int = 0
    """Waits for a channel or a server: paid for with time, which another test bounds."""
    cuts: list[float] = field(default_factory=list)
    breaks: int = 0
    seeks: list[tuple[bool, float]] = field(default_factory=list)
    segments: list[NextSegment | Seek] = field(default_factory=list)
    outcomes: list[Decision] = field(default_factory=list)
    pauses: list[tuple[Ask, Ask, float]] = field(default_factory=list)
    at_once: int = 0
    """Requests in a row that neither brought a segment nor had a pause before them."""
    longest_rush: int = 0
    over: bool = False
    failed: bool = False

    def step(self, event: Reply | Seek | str) -> None:
        """One GET and what comes of it, or a seek in the middle of it."""
        if isinstance(event, Seek):
            self._seek(event)
            return
        if self.over:
            return
        ask = self._request()
        if event == "waited":
            wait_s = self.cursor.refresh_after(self.rng)
            self.now += wait_s
            self.waited_s += wait_s
            self.refreshes += 1
            self.cursor.refreshed()
            self.met = True
            self.at_once = 0
            return
        if isinstance(event, Reply):
            self.now += event.took_s
            self.met = True
            outcome = self.cursor.answered(_answer(event, ask), self.now, self.rng)
        else:
            outcome = self.cursor.lost(ConnectionLost(), self.now, self.rng)
        self.waits += isinstance(outcome, Retry) and _is_outage(event)
        self._obey(outcome, ask, event.cuts if isinstance(event, Reply) else 0)

    def _request(self) -> Ask:
        self.requests += 1
        self.at_once += 1
        self.longest_rush = max(self.longest_rush, self.at_once)
        return self.cursor.ask()

    def _seek(self, seek: Seek) -> None:
        if not self.over:
            self._request()  # which nobody waits for any more
        delay_s = self.cursor.seek(Start.parse(seek.start), self.rng, failed=self.failed)
        self.seeks.append((self.failed, delay_s))
        self.segments.append(seek)
        self.over = self.failed = False
        self.at_once = 0  # it is the user who is in a hurry
        self.now += delay_s

    def _obey(self, outcome: Decision, ask: Ask, cuts: int) -> None:
        self.outcomes.append(outcome)
        match outcome:
            case NextSegment():
                self.at_once = 0
                self.segments.append(outcome)
                self._read(outcome, cuts)
            case Resolved() | Jump() | Retry():
                pass
            case End():
                self.over = True
            case Stop(error):
                assert isinstance(error, TrickleError)
                self.over = self.failed = True
            case _:
                assert_never(outcome)
        if self.over:
            return
        assert not isinstance(outcome, End | Stop)
        self.pauses.append((ask, self.cursor.ask(), outcome.delay_s))
        self.now += outcome.delay_s
        if outcome.delay_s > 0:
            self.at_once = 0

    def _read(self, segment: NextSegment, cuts: int) -> None:
        """Read the segment to its end, or until its rest is not to be had."""
        lost = ConnectionLost()
        for _ in range(0 if segment.empty else abs(cuts)):
            delay_s = self.cursor.cut(self.now, self.rng)
            if delay_s is None:
                cuts = -1
                break
            self.cuts.append(delay_s)
            self.now += delay_s
            self.requests += 1
            if cuts > 0:
                self.cursor.resumed()
        if cuts < 0 and not segment.empty:
            self.breaks += 1
            self.over = self.failed = self.cursor.broken(lost) is not None
        else:
            self.whole += not segment.empty
            if not segment.empty:
                self.cursor.finished()


def _is_outage(event: Reply | str) -> bool:
    """Whether it says that the channel or the server is not there."""
    if isinstance(event, str):
        return True
    return event.status == 404 or event.closed or (event.status >= 500 and wire.RETRY_AFTER not in event.headers)


def _answer(reply: Reply, ask: Ask) -> Answer:
    headers = dict(reply.headers)
    if ask.seq is None and reply.honest_seq:
        headers.setdefault(wire.LATEST, "7")
    if reply.epoch is not None:
        headers[wire.EPOCH] = str(reply.epoch)
    if reply.ahead is not None:
        head = max(0, (ask.seq or 0) + reply.ahead)
        headers[wire.LATEST] = str(head)
        if reply.kept is not None:
            headers[wire.EARLIEST] = str(max(0, head - reply.kept))
    if ask.seq is not None and reply.honest_seq:
        headers[wire.SEQ] = str(ask.seq if ask.seq >= 0 else 7)
    if reply.closed:
        headers[wire.CLOSED] = wire.TERMINATED
    return Answer.read(reply.status, [(name.encode(), value.encode()) for name, value in headers.items()])


@st.composite
def runs(draw: st.DrawFn, *, seeking: bool = False) -> Run:
    """A finished run."""
    cursor = Cursor(
        draw(starts),
        on_lag=draw(st.sampled_from([None, *OnLag])),
        wait_for_channel_s=draw(st.sampled_from([0.0, 5.0])),
    )
    run = Run(cursor, Random(draw(st.integers(0, 1000))))
    what = st.one_of(events, events, events, st.builds(Seek, starts)) if seeking else events
    for _ in range(draw(st.sampled_from([5, 15, 40]))):
        if run.over and not seeking:
            break
        run.step(draw(what))
    return run


def requests_are_bounded(run: Run) -> None:
    """Requests ≤ segments + reconnects + waited / 20 s + 2, and as much again for each seek."""
    reconnects = sum(isinstance(outcome, Retry | Jump) for outcome in run.outcomes) + len(run.cuts)
    segments = sum(isinstance(segment, NextSegment) for segment in run.segments)
    assert run.requests <= segments + reconnects + run.waited_s / REFRESH_S + 2 * (1 + len(run.seeks))
    assert run.refreshes <= run.waited_s / REFRESH_S


def reconnects_are_paid_for(run: Run) -> None:
    """By what went well; but for a few steps forward after each segment, and for waits, which another test bounds."""
    reconnects = sum(isinstance(outcome, Retry | Jump) for outcome in run.outcomes)
    free = sum(isinstance(outcome, Jump) and outcome.delay_s == 0 for outcome in run.outcomes)
    assert free <= 2 * (run.whole + 1)
    unpaid = 3 * (run.whole + 1)
    assert reconnects - run.waits <= unpaid + BUDGET_RESERVE + BUDGET_RATIO * (run.whole + run.refreshes)


def no_request_is_repeated_at_once(run: Run) -> None:
    """The same GET comes again only after a pause, and no delay is longer than its limit."""
    for before, after, delay_s in run.pauses:
        if before.seq == after.seq:
            assert delay_s >= MIN_DELAY_S
            assert after.attempt == before.attempt + 1
        assert delay_s <= MAX_RETRY_AFTER_S + MIN_DELAY_S + CAP_S
    for cut in run.cuts:
        assert MIN_DELAY_S <= cut <= MAX_CUT_S + CAP_S
    for failed, delay_s in run.seeks:
        assert delay_s <= MIN_DELAY_S + CAP_S
        if failed:
            assert delay_s >= MIN_DELAY_S


def every_sequence_ends_in_data_a_wait_or_a_typed_end(run: Run) -> None:
    """At most three requests in a row (the head, its segment, one step forward) bring none of these."""
    assert run.longest_rush <= 3


@settings(max_examples=100)
@given(starts, st.lists(events, min_size=1, max_size=4), st.sampled_from([None, *OnLag]), st.integers(0, 1000))
def test_a_server_that_repeats_itself_is_left_or_read(
    start: AnyStart, cycle: list[Reply | str], on_lag: OnLag | None, seed: int
) -> None:
    """For ever the same few answers: they bring segments or waits, or there is an end soon."""
    run = Run(Cursor(start, on_lag=on_lag), Random(seed))
    for number in range(200):
        run.step(cycle[number % len(cycle)])
    progress = sum(isinstance(segment, NextSegment) for segment in run.segments) + run.refreshes
    assert run.over or progress >= 200 / 50


def segments_come_in_order_and_gaps_are_counted(run: Run) -> None:
    """Within one numbering each seq comes once, in order, and ``gap`` is exactly what lies between."""
    for before, after in zip(run.segments, run.segments[1:], strict=False):
        if isinstance(before, NextSegment) and isinstance(after, NextSegment):
            assert after.gap >= 0
            if not after.restarted:
                assert after.seq == before.seq + 1 + after.gap


def what_follows_a_named_place_is_counted_from_there(run: Run) -> None:
    """After a seek to N, what lies between N and the first segment is its gap, unless the server's head is below N."""
    for before, after in zip(run.segments, run.segments[1:], strict=False):
        if isinstance(before, Seek) and isinstance(after, NextSegment) and not after.restarted:
            named = Start.parse(before.start)
            if named.named and named.ask is not None and after.seq >= named.ask:
                assert after.gap in (0, after.seq - named.ask)
                assert after.gap or after.seq == named.ask or _moved_back(run)


def _moved_back(run: Run) -> bool:
    """Whether a head below what was asked for has begun the count anew somewhere."""
    return any(isinstance(outcome, Jump) and outcome.delay_s > 0 for outcome in run.outcomes)


RULES = (
    requests_are_bounded,
    reconnects_are_paid_for,
    no_request_is_repeated_at_once,
    every_sequence_ends_in_data_a_wait_or_a_typed_end,
    segments_come_in_order_and_gaps_are_counted,
    what_follows_a_named_place_is_counted_from_there,
)


@settings(max_examples=125)
@given(runs() | runs(seeking=True))
def test_every_run_keeps_the_rules(run: Run) -> None:
    """Each of :data:`RULES`; they look at the same runs, since to draw a run takes longer than to judge it."""
    for rule in RULES:
        rule(run)


@settings(max_examples=100)
@given(st.integers(0, 1000), st.floats(0, 60), st.booleans(), st.lists(outages, min_size=1, max_size=5))
def test_waiting_for_a_channel_ends(seed: int, wait_s: float, lost_before: bool, looks: list[Reply | str]) -> None:
    """An endless row of 404s, refusals, resets and 502s is left when the time is over, after few requests."""
    run = Run(Cursor(0, wait_for_channel_s=wait_s), Random(seed))
    if lost_before:
        run.step(Reply(200, {}))
        run.step("lost")
    began, before = run.now, run.requests
    for look in cycle(looks):
        run.step(look)
        if run.over:
            break
    was_there = lost_before or looks[0] == Reply(502, {})
    limit_s = max(wait_s, RECONNECT_S) if was_there else wait_s
    assert run.now - began <= limit_s + MIN_DELAY_S + CAP_S
    # On average a request every two seconds once the delays have grown; this bound is 10 standard deviations away.
    assert run.requests - before <= 12 + 1.5 * limit_s


# A channel that is faster than its reader ---------------------------------------------------------------------------


@dataclass(frozen=True)
class FastChannel:
    """A channel that never stops, and a server that keeps the newest segments of it.

    Attributes:
        rate: segments per second.
        kept: how many the server keeps.
        tells: the server says which one is the oldest, as the reference server does not.
        rtt_s: what a request takes at the least.
    """

    rate: float
    kept: int
    tells: bool
    rtt_s: float

    def head(self, now: float) -> int:
        """One past the newest segment."""
        return 1000 + int(self.rate * now)

    def get(self, seq: int, now: float) -> tuple[Answer, float]:
        """What a GET is answered, and when."""
        head = self.head(now)
        if seq < 0:
            assert self.tells or seq == wire.SEQ_CURRENT, "the reference server breaks the connection"
            seq = max(head + seq + 1, head - self.kept)
        assert seq <= head, "the reader knows no segment that is not there"
        headers: dict[str, int] = {wire.SEQ: seq, wire.LATEST: head}
        status = 200
        if seq == head:
            now = max(now, (seq + 1 - 1000) / self.rate)
        elif seq < head - self.kept:
            status = 470
            if self.tells:
                headers |= {wire.EARLIEST: head - self.kept, wire.NEXT: head - self.kept}
        return Answer.read(status, [(name.encode(), b"%d" % value) for name, value in headers.items()]), now


fast_channels = st.builds(
    FastChannel,
    rate=st.sampled_from([2.0, 20.0, 90.0, 400.0, 6000.0, 20_000.0]),
    kept=st.sampled_from([5, 64, 256]),
    tells=st.booleans(),
    rtt_s=st.sampled_from([0.0005, 0.01, 0.1]),
)


@dataclass
class SlowReader:
    """A reader of such a channel, in virtual time. It asks for the next segment while it works on the one before.

    Attributes:
        waits: for how long no segment was there when the reader wanted one, in seconds.
        dead: when the server was asked for a segment that it did not have any more.
        untold: numbers that were left out without a word.
    """

    channel: FastChannel
    cursor: Cursor
    rng: Random
    now: float = 0.0
    last: int | None = None
    waits: list[float] = field(default_factory=list)
    dead: list[float] = field(default_factory=list)
    untold: int = 0

    def read(self, work_s: float, *, at_once: bool) -> None:
        """Get a segment, and work on it.

        Args:
            at_once: it is read to its end before the work, not after it.
        """
        wanted_at, working_until = self.now, self.now
        if self.last is not None:
            working_until += work_s
            if at_once:
                self.cursor.finished()
        is_finished = at_once
        while True:
            ask = self.cursor.ask()
            assert ask.seq is not None
            answer, answered_at = self.channel.get(ask.seq, self.now + self.channel.rtt_s / 2)
            self.now = answered_at + self.channel.rtt_s / 2
            if not is_finished and self.now >= working_until and self.last is not None:
                is_finished = True
                self.cursor.finished()
            outcome = self.cursor.answered(answer, self.now, self.rng)
            if isinstance(outcome, NextSegment):
                break
            self.dead.append(self.now)
            assert isinstance(outcome, Jump)
            self.now += outcome.delay_s
        if not is_finished and self.last is not None:
            self.cursor.finished()
        self.waits.append(self.now - max(wanted_at, working_until))
        self.now = max(self.now, working_until)
        self.untold += self.last is not None and outcome.seq != self.last + 1 + outcome.gap
        self.last = outcome.seq


@settings(max_examples=150)
@given(
    fast_channels,
    st.sampled_from([("earliest", None), (1000, None), ("current", OnLag.EARLIEST), ("current", OnLag.LIVE)]),
    st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.02, 0.3, 3.0]), min_size=1, max_size=8),
    st.booleans(),
    st.integers(0, 1000),
)
def test_who_cannot_keep_up_gets_what_there_is_and_asks_little(
    channel: FastChannel, how: tuple[AnyStart, OnLag | None], work_s: list[float], at_once: bool, seed: int
) -> None:
    """However fast its channel is, a reader has a segment within two seconds, and costs few requests in vain.

    It is told exactly what it missed, and it does not end.
    """
    start, on_lag = how
    reader = SlowReader(channel, Cursor(start, on_lag=on_lag), Random(seed))
    for number in range(400):
        reader.read(work_s[number % len(work_s)], at_once=at_once)
    assert max(reader.waits) <= 2.0 + 1.0 / channel.rate + 5 * channel.rtt_s
    within_a_second = [bisect_left(reader.dead, at + 1.0) - number for number, at in enumerate(reader.dead)]
    assert max(within_a_second, default=0) <= 7
    assert len(reader.dead) <= 4 * reader.now + 7
    assert reader.untold == 0
