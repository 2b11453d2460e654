"""The plan: what each answer means, and the bounds on what a publisher may ask."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from publisher.core import (
    LONG_S,
    MAX_RETRY_AFTER_S,
    MIN_DELAY_S,
    Advance,
    Answered,
    Closed,
    Lost,
    Outcome,
    Plan,
    Progress,
    Receipt,
    Resync,
    RetryAfter,
    Stop,
    Ticket,
    Verdict,
    parse_start,
)
from trickle import errors, wire
from trickle.backoff import BUDGET_RATIO, BUDGET_RESERVE, RetryBudget

IDLE = Progress()
WHOLE = Progress(sent=10, ended=True)
HALF = Progress(sent=10)


class TopRandom(Random):
    """Dice that always show the highest number, so that delays are known."""

    def uniform(self, a: float, b: float) -> float:
        return b


class ZeroRandom(Random):
    """Dice that always show the lowest number."""

    def uniform(self, a: float, b: float) -> float:
        return a


def answer(status: int, detail: str = "", **headers: object) -> Answered:
    """An answer with ``Lp-Trickle-`` headers."""
    named = {f"Lp-Trickle-{name}": str(value) for name, value in headers.items()}
    return Answered(status, httpx.Headers(named), detail)


def lost(connected: bool = True) -> Lost:
    """A lost connection."""
    return Lost(errors.ConnectionLost(detail="gone"), connected)


def started(seq: int = 5, rng: Random | None = None, budget: RetryBudget | None = None) -> tuple[Plan, Ticket]:
    """A plan that has reached its server and given out one ticket."""
    plan = Plan(seq, rng=rng or TopRandom(), budget=budget)
    assert plan.on_post(plan.take(), answer(200, Size=10), WHOLE) == Advance(Receipt(seq, 10, 10, Closed.COMPLETE))
    return plan, plan.take()


@pytest.mark.parametrize(("text", "start"), [("resume", "resume"), ("reset", "reset"), ("17", 17), (0, 0)])
def test_a_start_is_a_word_or_a_seq(text: str | int, start: object) -> None:
    """The three ways to say where to begin."""
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "-1", "next", "1" * 16, "٣", -1, 10**15])
def test_anything_else_is_no_start(text: str | int) -> None:
    """Negative and overlong numbers, other words and other digits are refused."""
    with pytest.raises(errors.InvalidInput, match="start is"):
        parse_start(text)


@pytest.mark.parametrize(
    ("reply", "seq"),
    [
        (answer(200, Latest=7), 7),
        (answer(200, "8"), 8),
        (answer(404, "Stream not found"), 0),
        (answer(404, Closed="terminated"), 0),
        (answer(200, Latest=7, Closed="terminated"), 0),
    ],
    ids=["header", "text", "no channel", "ended and gone", "ended and drained"],
)
def test_resuming_begins_at_the_head(reply: Answered, seq: int) -> None:
    """The head is the first seq; a channel that is not there, or no longer, begins at 0."""
    plan = Plan("resume", rng=TopRandom())
    assert plan.next_seq is None
    assert plan.on_next(reply) == Advance()
    assert [plan.take(), plan.take()] == [Ticket(seq), Ticket(seq + 1)]


@pytest.mark.parametrize("reply", [answer(200, "<html>"), answer(200, Latest=-3), answer(302), answer(405)])
def test_an_answer_that_gives_no_position_is_final(reply: Answered) -> None:
    """Where there is no trickle server, nothing is published and nothing deleted."""
    plan = Plan("resume", rng=TopRandom())
    verdict = plan.on_next(reply)
    assert isinstance(verdict, Stop)
    assert plan.error is verdict.error
    assert not plan.owns_channel


def test_a_ticket_needs_a_position() -> None:
    """Taking a ticket before the position is known is the caller's mistake."""
    with pytest.raises(errors.LocalProtocolError):
        Plan("resume", rng=TopRandom()).take()


def test_the_position_is_asked_for_again_after_a_wait() -> None:
    """A server that is busy, or a connection that broke, is not the end."""
    plan = Plan("resume", rng=TopRandom())
    assert plan.on_next(Answered(503, httpx.Headers({"Retry-After": "3"}))) == RetryAfter(3.25)
    assert plan.on_next(lost()) == RetryAfter(0.5)
    assert plan.on_next(answer(200, Latest=2)) == Advance()


def test_reset_is_said_once() -> None:
    """Only the first segment's request says reset, and every attempt of it does."""
    plan = Plan("reset", rng=TopRandom())
    plan.on_next(answer(200, Latest=3))
    first = plan.take()
    assert first == Ticket(3, reset=True)
    assert first.again() == Ticket(3, attempt=2, reset=True)
    assert first.again(9) == Ticket(9, attempt=2, reset=True)
    assert plan.take() == Ticket(4)


def test_a_published_segment_yields_a_receipt() -> None:
    """A 200 to a whole body says what is stored."""
    plan = Plan(0, rng=TopRandom())
    assert plan.on_post(plan.take(), answer(200), WHOLE) == Advance(Receipt(0, 10, None, Closed.COMPLETE))
    empty = plan.on_post(plan.take(), answer(200, Size=0), Progress(ended=True))
    assert empty == Advance(Receipt(1, 0, 0, Closed.EMPTY))
    assert plan.owns_channel


@pytest.mark.parametrize("progress", [IDLE, HALF, WHOLE])
@pytest.mark.parametrize("status", [200, 404])
def test_the_end_of_the_channel_stops_everything(progress: Progress, status: int) -> None:
    """``Closed`` ends publishing, whatever else the answer says."""
    plan, ticket = started()
    verdict = plan.on_post(ticket, answer(status, Closed="terminated", Size=10), progress)
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error, errors.ChannelEnded)
    assert not plan.owns_channel


@pytest.mark.parametrize("progress", [HALF, WHOLE])
def test_bytes_that_the_server_did_not_keep_are_reported(progress: Progress) -> None:
    """A segment that somebody else closed has failed, although the status is 200."""
    plan, ticket = started()
    verdict = plan.on_post(ticket, answer(200, Size=4), progress)
    assert isinstance(verdict, Advance)
    assert isinstance(verdict.error, errors.Superseded)
    assert "4 of 10 bytes" in str(verdict.error)
    assert plan.error is None


def test_a_preconnect_that_was_closed_moves_on() -> None:
    """A segment that was closed before it began is not lost: its bytes go into the next one, after a wait."""
    plan, ticket = started()
    assert plan.on_post(ticket, answer(200, Size=0), IDLE) == Resync(0.25, ticket.seq + 1)
    assert plan.next_seq == ticket.seq + 2


def test_470_moves_to_the_head() -> None:
    """The server's position is taken over, after a wait, and later tickets follow it."""
    plan, ticket = started(seq=50)
    assert plan.on_post(ticket, answer(470, Latest=3), IDLE) == Resync(0.25, 3)
    assert plan.next_seq == 4


def test_470_never_leads_into_a_segment_of_our_own() -> None:
    """If the head is the segment that is being written, the preconnect goes one past it."""
    plan, first = started(seq=4)
    plan.begin(first)
    ahead = plan.take()
    assert plan.on_post(ahead, answer(470, Latest=first.seq), IDLE) == Resync(0.25, first.seq + 1)


@pytest.mark.parametrize("reply", [answer(470), answer(470, Latest=-1), answer(413)])
def test_a_preconnect_that_cannot_be_placed_stops(reply: Answered) -> None:
    """A 470 without a position, or a 413 without a byte, cannot be helped by asking again."""
    plan, ticket = started()
    assert isinstance(plan.on_post(ticket, reply, IDLE), Stop)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 414, 431, 204, 301])
@pytest.mark.parametrize("progress", [IDLE, HALF, WHOLE, Progress(lived_s=LONG_S)])
def test_a_no_is_final(status: int, progress: Progress) -> None:
    """Whatever says no, or is not of this protocol, ends publishing and leaves the channel alone."""
    plan, ticket = started()
    verdict = plan.on_post(ticket, answer(status), progress)
    assert isinstance(verdict, Stop)
    assert plan.error is verdict.error
    assert not plan.owns_channel


def test_nonsense_is_final() -> None:
    """A peer that does not speak HTTP is not asked again."""
    plan, ticket = started()
    assert isinstance(plan.on_post(ticket, Lost(errors.RemoteProtocolError()), IDLE), Stop)


@pytest.mark.parametrize("outcome", [answer(429), answer(500), answer(503), lost(), lost(connected=False)])
def test_a_preconnect_is_retried_with_growing_delays(outcome: Outcome) -> None:
    """What may pass is waited for: capped exponential, full jitter."""
    plan, ticket = started()
    delays = [plan.on_post(ticket, outcome, IDLE) for _ in range(8)]
    assert delays == [RetryAfter(delay) for delay in (0.25, 0.5, 1, 2, 4, 8, 10, 10)]
    assert plan.on_post(ticket, answer(200, Size=10), WHOLE) == Advance(Receipt(6, 10, 10, Closed.COMPLETE))
    assert plan.on_post(plan.take(), outcome, IDLE) == RetryAfter(0.25)


def test_retry_after_is_a_floor() -> None:
    """The jitter comes on top of what the server asked for, for 470 as well."""
    plan, ticket = started()
    headers: Mapping[str, str] = httpx.Headers({"Retry-After": "7", wire.LATEST: "1"})
    assert plan.on_post(ticket, Answered(503, headers), IDLE) == RetryAfter(7.25)
    assert plan.on_post(ticket, Answered(470, headers), IDLE) == Resync(7.5, 1)
    too_long = httpx.Headers({"Retry-After": str(int(MAX_RETRY_AFTER_S) + 1)})
    assert isinstance(plan.on_post(ticket, Answered(503, too_long), IDLE), Stop)
    assert plan.owns_channel


def test_no_delay_is_shorter_than_the_minimum() -> None:
    """Even the luckiest dice do not make an immediate retry."""
    plan, ticket = started(rng=ZeroRandom())
    assert plan.on_post(ticket, lost(), IDLE) == RetryAfter(MIN_DELAY_S)
    assert plan.on_post(ticket, answer(470, Latest=ticket.seq), IDLE) == Resync(MIN_DELAY_S, ticket.seq)


def test_the_budget_ends_the_retries() -> None:
    """Without published segments, the retries run out, with the last error."""
    plan, ticket = started(budget=RetryBudget(reserve=2))
    assert isinstance(plan.on_post(ticket, lost(), IDLE), RetryAfter)
    assert isinstance(plan.on_post(ticket, answer(470, Latest=1), IDLE), Resync)
    verdict = plan.on_post(ticket, answer(470, Latest=1), IDLE)
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error, errors.SegmentMissing)
    assert plan.owns_channel


def test_a_preconnect_cut_for_idleness_costs_nothing() -> None:
    """Replacing a preconnect that stood for long is neither paid for nor counted as a failure."""
    plan, ticket = started(budget=RetryBudget(reserve=0))
    for _ in range(50):
        assert plan.on_post(ticket, lost(), Progress(lived_s=LONG_S)) == RetryAfter(0.25)
    assert isinstance(plan.on_post(ticket, lost(connected=False), Progress(lived_s=LONG_S)), Stop)


def test_the_first_connection_is_not_waited_for() -> None:
    """Nobody at the address at the very beginning: the error comes at once, and nothing is deleted."""
    for plan in (Plan("resume", rng=TopRandom()), Plan(0, rng=TopRandom())):
        verdict: Verdict
        if plan.next_seq is None:
            verdict = plan.on_next(lost(connected=False))
        else:
            verdict = plan.on_post(plan.take(), lost(connected=False), IDLE)
        assert isinstance(verdict, Stop)
        assert isinstance(verdict.error, errors.ConnectionLost)
        assert not plan.owns_channel


@pytest.mark.parametrize("progress", [HALF, WHOLE, Progress(ended=True)])
@pytest.mark.parametrize("outcome", [lost(), answer(503), answer(429), answer(413), answer(470, Latest=1)])
def test_a_segment_that_failed_after_its_first_byte_is_not_repeated(outcome: Outcome, progress: Progress) -> None:
    """Its writer is told, and the next segment may still get through."""
    plan, ticket = started()
    verdict = plan.on_post(ticket, outcome, progress)
    assert isinstance(verdict, Advance)
    assert verdict.error is not None
    assert plan.error is None
    assert plan.next_seq == ticket.seq + 1


@pytest.mark.parametrize("reply", [answer(200), answer(400, "Invalid stream"), answer(404)])
def test_a_channel_that_is_gone_is_ended(reply: Answered) -> None:
    """It does not matter who ended it."""
    plan, _ = started()
    assert plan.on_delete(reply) == Advance()


def test_ending_is_retried_and_refused_like_anything_else() -> None:
    """A busy server is asked again, a no is final."""
    plan, _ = started()
    assert plan.on_delete(answer(503)) == RetryAfter(0.25)
    assert plan.on_delete(lost(connected=False)) == RetryAfter(0.5)
    assert isinstance(plan.on_delete(answer(403)), Stop)


statuses = st.sampled_from([200, 204, 301, 400, 403, 404, 405, 409, 413, 429, 470, 500, 503]) | st.integers(200, 599)
numbers = st.integers(-5, 60).map(str) | st.text(max_size=5)
headers = st.dictionaries(
    st.sampled_from([wire.LATEST, wire.SIZE, wire.SEQ, wire.CLOSED, wire.RETRY_AFTER]), numbers, max_size=4
)
outcomes = st.builds(Answered, statuses, headers, st.text(max_size=5)) | st.sampled_from(
    [lost(), lost(connected=False), Lost(errors.RemoteProtocolError())]
)
progresses = st.builds(
    Progress, sent=st.sampled_from([0, 0, 10]), ended=st.booleans(), lived_s=st.sampled_from([0.0, 1.0, 20.0])
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(outcomes, progresses), max_size=120), st.integers(0, 50), st.randoms(use_true_random=False))
def test_arbitrary_answers_never_make_a_storm(
    script: list[tuple[Outcome, Progress]], start: int, random: Random
) -> None:
    """Whatever comes: no repetition without a wait, and requests stay within segments + budget + idle time."""
    plan = Plan(start, rng=random)
    ticket, requests, segments, idle_s = plan.take(), 0, 0, 0.0
    for outcome, progress in script:
        requests += 1
        idle_s += progress.lived_s
        verdict = plan.on_post(ticket, outcome, progress)
        match verdict:
            case Stop(error):
                assert plan.error is error
                break
            case Advance(receipt, error):
                assert (receipt is None) != (error is None)
                # The writer had given bytes, or the end, or the segment was published: never silently nothing.
                assert receipt is not None or progress.sent or progress.ended
                segments += 1
                following = plan.take()
                assert following.seq > ticket.seq
                ticket = following
            case RetryAfter(delay_s):
                assert delay_s >= MIN_DELAY_S
                ticket = ticket.again()
            case Resync(delay_s, seq):
                assert delay_s >= MIN_DELAY_S
                assert seq >= 0
                ticket = ticket.again(seq)
                assert plan.next_seq == seq + 1
    assert requests <= segments + BUDGET_RESERVE + BUDGET_RATIO * segments + idle_s / LONG_S + 1
