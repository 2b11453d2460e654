"""Whatever a server answers, a cursor neither hammers it, nor goes back without being led, nor loses count."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import assert_never

from hypothesis import given, settings
from hypothesis import strategies as st

from subscriber.core import JOIN_BACKOFF, MIN_PAUSE_S, PATIENCE_S, REFRESH_S, REJOIN_WAIT_S, Cursor
from subscriber.verdicts import Advance, Answer, Ask, End, OnLag, Resolved, Resync, RetryAfter, Stop, Verdict
from trickle import wire
from trickle.backoff import BUDGET_RATIO, BUDGET_RESERVE, CAP_S
from trickle.errors import ConnectionLost, TrickleError

seqs = st.integers(0, 30)
texts = st.one_of(seqs.map(str), st.sampled_from(["-1", "", "x", "99999999999999999999", "\u0661", "--1"]))
headers = st.dictionaries(
    st.sampled_from([wire.LATEST, wire.EARLIEST, wire.EPOCH, wire.SIZE, wire.RETRY_AFTER, "Content-Length"]), texts
)
statuses = st.sampled_from([200, 200, 200, 200, 470, 470, 470, 404, 429, 503, 500, 204, 301, 400, 403, 409, 418, 599])


@dataclass(frozen=True)
class Reply:
    """What the server does to one GET, and how the body of a segment then ends."""

    status: int
    headers: dict[str, str]
    closed: bool = False
    honest_seq: bool = True
    cut: bool = False
    took_s: float = 0.0


replies = st.builds(
    Reply,
    status=statuses,
    headers=headers,
    closed=st.booleans().flatmap(lambda rare: st.booleans() if rare else st.just(False)),
    honest_seq=st.sampled_from([True, True, True, True, False]),
    cut=st.booleans(),
    took_s=st.sampled_from([0.0, 0.0, 0.0, 1.0]),
)
events = st.one_of(replies, replies, replies, replies, st.just("lost"), st.just("waited"))


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
    segments: list[Advance] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    pauses: list[tuple[Ask, Ask, float]] = field(default_factory=list)
    over: bool = False

    def step(self, event: Reply | str) -> None:
        """One GET and what comes of it."""
        ask = self.cursor.ask()
        self.requests += 1
        if event == "waited":
            wait_s = self.cursor.refresh_after(self.rng)
            self.now += wait_s
            self.waited_s += wait_s
            self.refreshes += 1
            self.cursor.refreshed()
            self.met = True
            return
        if isinstance(event, Reply):
            self.now += event.took_s
            self.met = True
            verdict = self.cursor.answered(_answer(event, ask), self.now, self.rng)
        else:
            verdict = self.cursor.lost(ConnectionLost(), self.now, self.rng)
        waits = isinstance(verdict, RetryAfter) and (_is_404(event) or not self.met)
        self.waits += waits
        self._obey(verdict, ask, cut=isinstance(event, Reply) and event.cut)

    def _obey(self, verdict: Verdict, ask: Ask, *, cut: bool) -> None:
        self.verdicts.append(verdict)
        match verdict:
            case Advance():
                self.segments.append(verdict)
                if cut and not verdict.empty:
                    self.over = self.cursor.broken(ConnectionLost()) is not None
                else:
                    self.whole += not verdict.empty
                    self.cursor.finished(empty=verdict.empty)
            case Resolved() | Resync() | RetryAfter():
                pass
            case End():
                self.over = True
                return
            case Stop(error):
                assert isinstance(error, TrickleError)
                self.over = True
                return
            case _:
                assert_never(verdict)
        self.pauses.append((ask, self.cursor.ask(), verdict.delay_s))
        self.now += verdict.delay_s


def _is_404(event: Reply | str) -> bool:
    return isinstance(event, Reply) and (event.status == 404 or event.closed)


def _answer(reply: Reply, ask: Ask) -> Answer:
    told = dict(reply.headers)
    if ask.seq is not None and reply.honest_seq:
        told[wire.SEQ] = str(ask.seq if ask.seq >= 0 else 7)
    if reply.closed:
        told[wire.CLOSED] = wire.TERMINATED
    return Answer.read(reply.status, told)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A finished run."""
    cursor = Cursor(
        draw(st.integers(-4, 20)),
        on_lag=draw(st.sampled_from(OnLag)),
        wait_for_channel_s=draw(st.sampled_from([0.0, 5.0])),
    )
    run = Run(cursor, Random(draw(st.integers(0, 1000))))
    for event in draw(st.lists(events, max_size=120)):
        if run.over:
            break
        run.step(event)
    return run


@settings(max_examples=250, deadline=None)
@given(runs())
def test_requests_are_bounded(run: Run) -> None:
    """Requests ≤ segments + reconnects + waited / 20 s + 2, and the reconnects themselves are paid for."""
    reconnects = sum(isinstance(verdict, RetryAfter | Resync) for verdict in run.verdicts)
    assert run.requests <= len(run.segments) + reconnects + run.waited_s / REFRESH_S + 2
    assert run.refreshes <= run.waited_s / REFRESH_S
    free = sum(isinstance(verdict, Resync) and verdict.delay_s == 0 for verdict in run.verdicts)
    assert free <= run.whole + 1
    assert reconnects - free - run.waits <= BUDGET_RESERVE + BUDGET_RATIO * run.whole


@settings(max_examples=250, deadline=None)
@given(runs())
def test_no_request_is_repeated_at_once(run: Run) -> None:
    """The same GET comes again only after a pause, and no pause is longer than patience allows."""
    for before, after, delay_s in run.pauses:
        if before.seq == after.seq:
            assert delay_s >= MIN_PAUSE_S
            assert after.attempt == before.attempt + 1
        assert delay_s <= PATIENCE_S + MIN_PAUSE_S + CAP_S


@settings(max_examples=250, deadline=None)
@given(runs())
def test_segments_come_in_order_and_gaps_are_counted(run: Run) -> None:
    """Within one numbering each seq comes once, in order, and ``gap`` is exactly what lies between."""
    for before, after in zip(run.segments, run.segments[1:], strict=False):
        assert after.gap >= 0
        if not after.restarted:
            assert after.seq == before.seq + 1 + after.gap


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 60), st.booleans())
def test_waiting_for_a_channel_ends(seed: int, wait_s: float, lost_before: bool) -> None:
    """An endless row of 404s is left when the time is over, after few requests."""
    run = Run(Cursor(0, wait_for_channel_s=wait_s), Random(seed))
    if lost_before:
        run.step(Reply(200, {}))
        run.step("lost")
    began, before = run.now, run.requests
    while not run.over:
        run.step(Reply(404, {}))
    patience_s = max(wait_s, REJOIN_WAIT_S) if lost_before else wait_s
    assert run.now - began <= patience_s + MIN_PAUSE_S + JOIN_BACKOFF.cap_s
    # On average a request per second once the delays have grown; this bound is 10 standard deviations away.
    assert run.requests - before <= 12 + 2.5 * patience_s
