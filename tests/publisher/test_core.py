"""The plan: what each answer means, and what a publisher may ask after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import httpx
import pytest

from tests.support.dice import TopRandom, ZeroRandom
from tricklecast.publisher.core import (
    BUSY_RETRIES,
    Advance,
    Closed,
    Decision,
    Plan,
    Progress,
    Receipt,
    Resync,
    RetryAfter,
    Ticket,
    parse_start,
)
from tricklecast.trickle import errors, wire
from tricklecast.trickle.backoff import RetryBudget
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, Lost
from tricklecast.trickle.client.retry import IDLE_S, MAX_RETRY_AFTER_S, MIN_DELAY_S, RECONNECT_S, Stop

IDLE = Progress()
WHOLE = Progress(sent=10, ended=True, handed=10, over=True)
HALF = Progress(sent=10, handed=10)
WAITING = Progress(handed=10)
"""Something to send, of which nothing was sent in this request."""

GONE = Progress(sent=10, handed=10, held=False)


def answer(status: int, detail: str = "", **headers: object) -> Answer:
    """An answer with ``Lp-Trickle-`` headers."""
    named = {f"Lp-Trickle-{name}": str(value) for name, value in headers.items()}
    answer = Answer.read(status, httpx.Headers(named).raw)
    answer.detail = detail
    return answer


def lost(connected: bool = True) -> Lost:
    """A lost connection."""
    return Lost(errors.ConnectionLost(detail="gone"), connected)


def opened(plan: Plan) -> Ticket:
    """A ticket for a request that is made at once."""
    ticket = plan.before_request(plan.take())
    assert isinstance(ticket, Ticket)
    return ticket


def take(plan: Plan) -> Ticket:
    """A ticket for something that is sent at once."""
    ticket = opened(plan)
    plan.numbering.bind(ticket.seq)
    plan.begin(ticket)
    return ticket


def started(
    seq: int = 5, rng: Random | None = None, budget: RetryBudget | None = None, *, keeps_keys: bool | None = True
) -> tuple[Plan, Ticket]:
    """A plan that has published one segment and given out the next ticket."""
    plan = Plan(seq, rng=rng or TopRandom(), budget=budget)
    assert plan.on_post(take(plan), answer(200, Size=10), WHOLE) == Advance(Receipt(seq, 10, 10, Closed.COMPLETE))
    plan.keeps_keys = keeps_keys
    return plan, opened(plan)


def located(plan: Plan, reply: ExchangeOutcome | None = None) -> Advance | RetryAfter | Stop:
    """The answer to the question for the position; without one, what is expected."""
    assert plan.uncertain
    return plan.on_located(
        reply or answer(200, Latest=plan.numbering.confirmed + 1, Epoch=1), plan.numbering.confirmed, 0.0
    )


@pytest.mark.parametrize(("text", "start"), [("resume", "resume"), ("reset", "reset"), ("17", 17), (0, 0)])
def test_a_start_is_a_word_or_a_seq(text: str | int, start: object) -> None:
    """The three ways to say where to begin."""
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "-1", "next", "1" * 16, "٣", -1, 10**15])
def test_anything_else_is_no_start(text: str | int) -> None:
    """Negative and overlong numbers, other words and other digits are refused."""
    with pytest.raises(errors.InvalidInput, match="start is"):
        parse_start(text)


@pytest.mark.parametrize("text", ["earliest", "latest", "next"])
def test_where_a_reader_starts_is_told_apart(text: str) -> None:
    """The message says which word a publisher wants."""
    with pytest.raises(errors.InvalidInput, match="where a reader begins: 'resume' goes on"):
        parse_start(text)


@pytest.mark.parametrize(
    ("reply", "seq", "keeps_keys"),
    [
        (answer(200, Latest=7), 7, False),
        (answer(200, Latest=7, Epoch=2), 7, True),
        (answer(200, "8"), 8, False),
        (answer(404, "Stream not found"), 0, False),
        (answer(404, Closed="terminated"), 0, False),
        (answer(200, Latest=7, Epoch=1, Closed="terminated"), 0, True),
    ],
    ids=["header", "ours", "text", "no channel", "ended and gone", "ended and drained"],
)
def test_resuming_begins_at_the_head(reply: Answer, seq: int, keeps_keys: bool) -> None:
    """The head is the first seq; a channel that is not there, or no longer, begins at 0."""
    plan = Plan("resume", rng=TopRandom(), name="me")
    assert plan.numbering.next is None
    assert plan.on_next(reply, 0.0) == Advance()
    assert plan.keeps_keys == (keeps_keys if reply.status == 200 else None)
    assert [plan.take(), plan.take()] == [Ticket(seq, "me.1"), Ticket(seq + 1, "me.2")]


@pytest.mark.parametrize("reply", [answer(200, "<html>"), answer(200, Latest=-3), answer(302), answer(405)])
def test_an_answer_that_gives_no_position_is_final(reply: Answer) -> None:
    """Where there is no trickle server, nothing is published and nothing deleted."""
    plan = Plan("resume", rng=TopRandom())
    verdict = plan.on_next(reply, 0.0)
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
    assert plan.on_next(Answer(503, httpx.Headers({"Retry-After": "3"})), 0.0) == RetryAfter(3.25, holds=True)
    assert plan.on_next(lost(), 0.0) == RetryAfter(0.25)
    assert plan.on_next(answer(200, Latest=2), 0.0) == Advance()
    assert not plan.uncertain


def test_reset_is_said_once() -> None:
    """Only the first segment's request says reset, and every attempt of it does, under one key."""
    plan = Plan("reset", rng=TopRandom())
    plan.on_next(answer(200, Latest=3), 0.0)
    first = plan.take()
    assert first == Ticket(3, ".1", reset=True)
    assert first.again() == Ticket(3, ".1", attempt=2, reset=True)
    assert first.again(exposed=True).again() == Ticket(3, ".1", attempt=3, reset=True, exposed=True)
    assert first.again(exposed=True).again(9) == Ticket(9, ".1", attempt=3, reset=True)
    assert plan.take() == Ticket(4, ".2")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (answer(200, "<html>"), "<html>"),
        (answer(200, Seq=77, Size=10), "it stored segment 77"),
        (answer(200, Seq=5), "it does not say what it stored"),
        (answer(200), "it does not say what it stored"),
    ],
)
def test_a_200_that_is_no_trickle_servers_confirms_nothing(reply: Answer, why: str) -> None:
    """A web page, or another segment's answer; a server of another make says nothing at all."""
    plan = Plan(5, rng=TopRandom())
    plan.keeps_keys = True
    verdict = plan.on_post(take(plan), reply, WHOLE)
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error, errors.RemoteProtocolError)
    assert why in str(verdict.error)
    plan = Plan(5, rng=TopRandom())
    assert isinstance(plan.on_post(take(plan), answer(200), WHOLE), Advance)


def test_a_published_segment_yields_a_receipt() -> None:
    """A 200 to a whole body says what is stored."""
    plan = Plan(0, rng=TopRandom())
    assert plan.on_post(take(plan), answer(200), WHOLE) == Advance(Receipt(0, 10, None, Closed.COMPLETE))
    empty = plan.on_post(take(plan), answer(200, Size=0), Progress(ended=True, over=True))
    assert empty == Advance(Receipt(1, 0, 0, Closed.EMPTY))
    again = plan.on_post(take(plan).again(), answer(200, Size=10), WHOLE)
    assert again == Advance(Receipt(2, 10, 10, Closed.COMPLETE, attempts=2))
    assert plan.owns_channel


def test_what_the_server_can_take_is_opened_ahead() -> None:
    """One seq beyond the head that is known, or beyond the newest segment that has begun."""
    plan = Plan("resume", rng=TopRandom())
    plan.on_next(answer(200, Latest=4), 0.0)
    assert [plan.numbering.may_open(seq) for seq in (4, 5, 6)] == [True, True, False]
    ticket = take(plan)
    assert [plan.numbering.may_open(seq) for seq in (5, 6)] == [True, False]
    plan.on_post(ticket, answer(200, Size=10), WHOLE)
    assert [plan.numbering.may_open(seq) for seq in (6, 7)] == [True, False]


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


@pytest.mark.parametrize("progress", [IDLE, WAITING, HALF, WHOLE])
def test_a_segment_that_was_closed_before_it_began_moves_on(progress: Progress) -> None:
    """Nothing of it was stored: it is not lost, and goes into the next one, after a wait."""
    plan, ticket = started()
    assert plan.on_post(ticket, answer(200, Size=0), progress) == Resync(0.25, ticket.seq + 1)
    assert plan.numbering.next == ticket.seq + 2


def test_a_segment_whose_answer_was_lost_is_found_stored() -> None:
    """The 200 to a retry says that all of it is there, before any of it was sent again."""
    plan, ticket = started()
    assert plan.on_post(ticket, lost(), WHOLE) == RetryAfter(0.25, exposed=True)
    located(plan)
    again = plan.before_request(ticket.again(exposed=True))
    assert isinstance(again, Ticket)
    verdict = plan.on_post(again, answer(200, Size=10), Progress(handed=10, over=True))
    assert verdict == Advance(Receipt(6, 10, 10, Closed.COMPLETE, attempts=2))


def test_a_retry_that_is_closed_while_it_is_sent_is_lost() -> None:
    """Somebody closed the segment in between; what is stored of it is a part."""
    plan, ticket = started()
    again = ticket.again(exposed=True)
    verdict = plan.on_post(again, answer(200, Size=4), Progress(handed=10, over=True))
    assert isinstance(verdict, Advance)
    assert isinstance(verdict.error, errors.Superseded)
    assert isinstance(plan.on_post(plan.take().again(exposed=True), answer(200, Size=10), HALF), Advance)


# 470 and 409.


def placed(head: int) -> Plan:
    """A plan that has asked the server where its head is."""
    plan = Plan("resume", rng=TopRandom())
    plan.on_next(answer(200, Latest=head), 0.0)
    return plan


def test_470_moves_the_first_segment_to_the_head() -> None:
    """Before anything was published the server's position is taken over, after a wait; later tickets follow it."""
    plan = placed(50)
    ticket = plan.take()
    assert plan.on_post(ticket, answer(470, Latest=3), IDLE) == Resync(0.25, 3)
    assert plan.take().seq == 4


@pytest.mark.parametrize("progress", [IDLE, HALF])
def test_a_number_that_was_chosen_is_sent_again_with_a_reset(progress: Progress) -> None:
    """With it the server takes any number from its head on. One that does not has the last word."""
    plan = Plan(50, rng=TopRandom())
    ticket = take(plan) if progress.begun else plan.take()
    assert plan.on_post(ticket, answer(470, Latest=3), progress) == RetryAfter(0.25)
    again = plan.before_request(ticket.again())
    assert isinstance(again, Ticket)
    assert (again.seq, again.reset) == (50, True)
    assert plan.on_post(again, answer(470, Latest=3), progress) == Resync(0.5, 3)


def test_470_moves_segments_in_their_order() -> None:
    """Of several the oldest is moved; the others wait until they follow it."""
    plan = placed(50)
    first, second = take(plan), take(plan)
    assert plan.on_post(second, answer(470, Latest=7), HALF) == RetryAfter(0.25)
    assert plan.on_post(first, answer(470, Latest=7), HALF) == Resync(0.5, 7)
    plan.begin(first.again(7))
    assert plan.on_post(second.again(), answer(470, Latest=8), HALF) == Resync(1.0, 8)
    assert plan.take().seq == 9


def test_470_to_one_that_came_too_early_is_waited_for() -> None:
    """The head is behind, since the first byte of the segment before is still on its way."""
    plan, first = started(seq=4)
    plan.numbering.bind(first.seq)
    plan.begin(first)
    ahead = plan.take()
    assert plan.on_post(ahead, answer(470, Latest=first.seq), IDLE) == RetryAfter(0.25)


@pytest.mark.parametrize("head", [1, 5, 8, 50])
def test_470_of_another_publishers_channel_stops(head: int) -> None:
    """A head that went back, or moved beyond what was published here, is somebody else's doing."""
    plan, ticket = started()
    plan.numbering.bind(ticket.seq)
    verdict = plan.on_post(ticket, answer(470, Latest=head), HALF)
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error, errors.Superseded)
    assert (verdict.error.seq, verdict.error.latest) == (6, head)
    assert not plan.owns_channel


@pytest.mark.parametrize("reply", [answer(470), answer(470, Latest=-1), answer(413)])
def test_a_preconnect_that_cannot_be_placed_stops(reply: Answer) -> None:
    """A 470 without a position, or a 413 without a byte, cannot be helped by asking again."""
    plan, ticket = started()
    assert isinstance(plan.on_post(ticket, reply, IDLE), Stop)


def test_470_behind_what_was_given_up_is_waited_for_like_an_outage() -> None:
    """The server never heard of it, and those behind it cannot leap while an older one is open: that costs no token."""
    plan, oldest = started(budget=RetryBudget(0, 0))
    given_up, following = take(plan), take(plan)
    plan.numbering.settle(given_up.seq, closed=False)
    for delay_s in (0.25, 0.5, 1.0):
        assert plan.on_post(following, answer(470, Latest=oldest.seq + 1), WAITING) == RetryAfter(delay_s)
        again = plan.before_request(following.again())
        assert isinstance(again, Ticket)
        following = again
    late = replace(WAITING, now=RECONNECT_S)
    assert isinstance(plan.on_post(following, answer(470, Latest=oldest.seq + 1), late), Stop)


def test_470_to_bytes_that_are_gone_loses_the_segment() -> None:
    """What is not held any more cannot be sent again."""
    plan = Plan(50, rng=TopRandom())
    verdict = plan.on_post(take(plan), answer(470, Latest=3), GONE)
    assert isinstance(verdict, Advance)
    assert isinstance(verdict.error, errors.SegmentMissing)


def test_numbers_that_were_given_up_are_leapt_over() -> None:
    """The server may never have heard of them, and would wait for them; it is told once nothing else lies between."""
    plan, ticket = started()
    others = [take(plan) for _ in range(3)]
    plan.numbering.bind(ticket.seq)
    assert plan.on_post(others[2], answer(470, Latest=6), HALF) == RetryAfter(0.25)
    plan.numbering.settle(ticket.seq, closed=False)
    plan.numbering.settle(others[0].seq, closed=False)
    assert plan.before_request(others[2].again()) == replace(others[2], attempt=2, confirmed=5)
    assert plan.before_request(others[1]) == replace(others[1], reset=True, confirmed=5)
    plan.numbering.settle(others[1].seq, closed=False)
    assert plan.before_request(others[2].again()) == replace(others[2], attempt=2, reset=True, confirmed=5)
    unknown = Plan(8, rng=TopRandom())
    unknown.numbering.settle(take(unknown).seq, closed=False)
    assert unknown.before_request(take(unknown)) == Ticket(9, ".2")


def test_a_refusal_may_be_overtaken_by_later_confirmations() -> None:
    """Connections differ in speed: a head that is behind by now was right when the request was answered."""
    plan, slow = started()
    plan.numbering.bind(slow.seq)
    plan.begin(slow)
    quick = [take(plan) for _ in range(3)]
    for ticket in quick:
        assert isinstance(plan.on_post(ticket, answer(200, Size=10), WHOLE), Advance)
    assert plan.numbering.confirmed == 9
    assert plan.on_post(slow, answer(409, Latest=8), HALF) == Resync(0.25, 10)
    plan, slow = started()
    late = take(plan)
    assert isinstance(plan.on_post(late, answer(200, Size=10), WHOLE), Advance)
    assert plan.on_post(slow, answer(470, Latest=6), HALF) == RetryAfter(0.25)


def test_a_request_of_an_earlier_life_proves_nothing_about_this_one() -> None:
    """The server was restarted meanwhile, and its head may be anywhere below what was confirmed before."""
    plan, slow = started()
    plan.numbering.bind(slow.seq)
    plan.begin(slow)
    plan.on_post(take(plan), lost(), IDLE)
    assert located(plan, answer(404)) == Advance()
    assert plan.on_post(slow, answer(470, Latest=2), HALF) == RetryAfter(0.25)


@pytest.mark.parametrize("reply", [answer(409, Latest=8), answer(200, Size=0)])
def test_what_readers_may_have_from_a_dead_server_gets_no_other_number(reply: Answer) -> None:
    """They would have it twice; it is lost visibly to the others. What never left may move."""
    plan, ticket = started()
    plan.numbering.bind(ticket.seq)
    plan.on_post(ticket, lost(), HALF)
    fresh = take(plan)
    plan.on_post(fresh, lost(connected=False), HALF)
    assert located(plan, answer(404)) == Advance()
    again = plan.before_request(ticket.again(exposed=True))
    assert isinstance(again, Ticket)
    assert not again.exposed
    other = plan.before_request(fresh.again())
    assert isinstance(other, Ticket)
    assert isinstance(plan.on_post(take(plan), answer(200, Size=10), WHOLE), Advance)
    early = Progress(handed=10, over=True)
    verdict = plan.on_post(again, reply, early)
    assert isinstance(verdict, Advance)
    assert isinstance(verdict.error, errors.Superseded)
    assert isinstance(plan.on_post(other, reply, early), Resync)


@pytest.mark.parametrize("reply", [answer(409), answer(409, Latest=7), answer(409, Latest=9)])
def test_409_to_a_segment_that_was_not_begun_stops(reply: Answer) -> None:
    """Somebody else has written it, or is about to."""
    plan, ticket = started()
    plan.numbering.bind(ticket.seq)
    verdict = plan.on_post(ticket, reply, HALF)
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error, errors.Superseded)


def test_409_to_a_retry_loses_only_the_segment() -> None:
    """Its grace ended in between: what the server has is a part, and the next segment may get through."""
    plan, ticket = started()
    plan.numbering.bind(ticket.seq)
    verdict = plan.on_post(ticket.again(exposed=True), answer(409, Latest=7), HALF)
    assert isinstance(verdict, Advance)
    assert isinstance(verdict.error, errors.Superseded)
    assert plan.error is None


def test_409_to_a_retry_in_another_publishers_channel_stops() -> None:
    """The head has gone further than this publisher."""
    plan, ticket = started()
    plan.numbering.bind(ticket.seq)
    verdict = plan.on_post(ticket.again(exposed=True), answer(409, Latest=9), HALF)
    assert isinstance(verdict, Stop)
    assert "has come to 6" in str(verdict.error)
    assert isinstance(plan.on_post(ticket.again(exposed=True), answer(409), HALF), Stop)


@pytest.mark.parametrize("held", [True, False])
def test_409_to_a_segment_that_a_later_one_overtook_moves_it(held: bool) -> None:
    """It came so late that its seq was passed by; nothing of it is stored, so it gets the next one."""
    plan, first = started()
    plan.numbering.bind(first.seq)
    second = take(plan)
    verdict = plan.on_post(first, answer(409, Latest=second.seq + 1), Progress(sent=1, handed=1, held=held))
    assert verdict == Resync(0.25, second.seq + 1) if held else isinstance(verdict, Advance)


# A no, and a later.


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 414, 431, 204, 301])
@pytest.mark.parametrize("progress", [IDLE, HALF, WHOLE, Progress(lived_s=IDLE_S)])
def test_a_no_is_final(status: int, progress: Progress) -> None:
    """Whatever says no, or is not of this protocol, ends publishing and leaves the channel alone."""
    plan, ticket = started()
    verdict = plan.on_post(ticket, answer(status), progress)
    assert isinstance(verdict, Stop)
    assert plan.error is verdict.error
    assert not plan.owns_channel


def test_who_is_sent_elsewhere_need_not_wait() -> None:
    """A mirror takes nobody's first segment. Who has published, or waits for ever, waits: it may be promoted."""
    refusal = answer(503, "This server mirrors http://a: publish there", Elsewhere=1)
    plan = Plan(5, rng=TopRandom())
    verdict = plan.on_post(take(plan), refusal, HALF)
    assert isinstance(verdict, Stop)
    assert "publish there" in str(verdict.error)
    assert not plan.owns_channel
    endless = Plan(5, rng=TopRandom(), outage_s=None)
    for plan, ticket in (started(), (endless, opened(endless))):
        assert isinstance(plan.on_post(ticket, refusal, IDLE), RetryAfter)


def test_nonsense_is_final() -> None:
    """A peer that does not speak HTTP is not asked again."""
    plan, ticket = started()
    assert isinstance(plan.on_post(ticket, Lost(errors.RemoteProtocolError()), IDLE), Stop)


@pytest.mark.parametrize("outcome", [answer(429), answer(500), answer(503)])
@pytest.mark.parametrize("progress", [IDLE, HALF, WHOLE])
def test_a_refusal_for_the_moment_is_retried_with_growing_delays(outcome: Answer, progress: Progress) -> None:
    """What may pass is waited for: capped exponential, full jitter; no byte is lost by it."""
    plan, ticket = started()
    longest = [8.0, 10, 10] if outcome.status == 429 else [4.0, 4, 4]  # a server that is away is wanted back soon
    for delay_s in (0.25, 0.5, 1, 2, 4, *longest):
        assert isinstance(now := plan.before_request(ticket), Ticket)
        assert plan.on_post(now, outcome, progress) == RetryAfter(delay_s, progress.exposed, holds=True)
    assert plan.on_post(ticket, answer(200, Size=10), WHOLE) == Advance(Receipt(6, 10, 10, Closed.COMPLETE))
    assert plan.on_post(opened(plan), outcome, IDLE) == RetryAfter(0.25, holds=True)


def test_what_all_are_told_at_once_is_paid_for_once() -> None:
    """Requests that were under way together are refused together: that is one refusal, until one is made again."""
    plan, ticket = started(budget=RetryBudget(reserve=2))
    ahead = opened(plan)
    for _ in range(2):
        assert plan.on_post(ticket, answer(429), IDLE) == plan.on_post(ahead, answer(429), IDLE)
        plan.before_request(ticket)
    assert isinstance(plan.on_post(ticket, answer(429), IDLE), Stop)


def test_what_was_under_way_does_not_end_the_trouble() -> None:
    """A segment that is published while the next one is put off says nothing about that."""
    plan, ticket = started()
    plan.numbering.bind(ticket.seq)
    ahead = opened(plan)
    plan.on_post(ahead, answer(503), IDLE)
    plan.on_post(ticket, answer(200, Size=10), WHOLE)
    assert isinstance(plan.trouble, errors.Refused)
    plan.before_request(ahead)
    plan.on_post(ahead, answer(200, Size=10), WHOLE)
    assert plan.trouble is None


def test_retry_after_is_a_floor() -> None:
    """The jitter comes on top of what the server asked for, for 470 as well."""
    plan = placed(9)
    ticket = plan.take()
    headers: Mapping[str, str] = httpx.Headers({"Retry-After": "7", wire.LATEST: "1"})
    assert plan.on_post(ticket, Answer(503, headers), IDLE) == RetryAfter(7.25, holds=True)
    assert plan.on_post(ticket, Answer(470, headers), IDLE) == Resync(7.5, 1)
    too_long = httpx.Headers({"Retry-After": str(int(MAX_RETRY_AFTER_S) + 1)})
    assert isinstance(plan.on_post(ticket, Answer(503, too_long), IDLE), Stop)
    assert plan.owns_channel


def test_no_delay_is_shorter_than_the_minimum() -> None:
    """Even the luckiest dice do not make an immediate retry."""
    plan = Plan(5, rng=ZeroRandom())
    ticket = plan.take()
    assert plan.on_post(ticket, lost(), IDLE) == RetryAfter(MIN_DELAY_S)
    assert plan.on_post(ticket, answer(470, Latest=ticket.seq), IDLE) == Resync(MIN_DELAY_S, ticket.seq)


def test_the_budget_ends_the_retries() -> None:
    """Without published segments, the retries run out, with the last error."""
    plan, ticket = started(budget=RetryBudget(reserve=2))
    for reply in (answer(429), answer(200, Size=0)):
        assert not isinstance(plan.on_post(ticket, reply, IDLE), Stop)
    verdict = plan.on_post(ticket, answer(470, Latest=7), IDLE)
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error, errors.SegmentMissing)
    assert plan.owns_channel
    assert isinstance(plan.on_post(ticket, answer(200, Size=0), IDLE), Stop)
    assert isinstance(plan.on_post(ticket, answer(429), Progress(lived_s=IDLE_S)), RetryAfter)


# Lost connections.


def test_the_position_is_asked_for_after_a_lost_connection() -> None:
    """Before anything is sent again, by whoever: once for all that was lost at the same time."""
    plan, ticket = started()
    plan.numbering.bind(ticket.seq)
    ahead = plan.take()
    assert plan.on_post(ticket, lost(), HALF) == RetryAfter(0.25, exposed=True)
    assert plan.on_post(ahead, lost(connected=False), IDLE) == RetryAfter(0.25)
    assert located(plan, answer(200, Latest=7, Epoch=1)) == Advance()
    assert not plan.uncertain
    assert plan.before_request(ticket.again(exposed=True)) == replace(ticket.again(exposed=True), epoch=1)


def test_the_position_is_asked_for_when_segments_come_too_fast() -> None:
    """A server that hangs is told from a slow one by a question that costs it nothing."""
    plan, ticket = started()
    plan.numbering.bind(ticket.seq)
    plan.uncertain = True
    plan.numbering.settle(ticket.seq, closed=False)
    assert located(plan, answer(200, Latest=7, Epoch=1)) == Advance()
    assert not plan.uncertain


@pytest.mark.parametrize("reply", [Answer(503, httpx.Headers({"Retry-After": "1"})), answer(429)])
def test_a_busy_server_is_asked_for_the_position_again(reply: Answer) -> None:
    """Each of these is paid for."""
    plan, ticket = started(budget=RetryBudget(reserve=1))
    plan.on_post(ticket, lost(), IDLE)
    assert isinstance(located(plan, reply), RetryAfter)
    assert plan.uncertain
    assert isinstance(located(plan, reply), Stop)


@pytest.mark.parametrize("reply", [answer(404), answer(200, Latest=0, Epoch=1)])
@pytest.mark.parametrize("keeps_keys", [True, False])
def test_a_server_without_the_channel_gets_the_numbers_that_come_next(reply: Answer, keeps_keys: bool) -> None:
    """It has nothing, so everything that is held can be sent again, on any server."""
    plan, ticket = started(keeps_keys=keeps_keys)
    plan.numbering.bind(ticket.seq)
    plan.on_post(ticket, lost(), HALF)
    assert located(plan, reply) == Advance()
    again = plan.before_request(ticket.again(exposed=True))
    epoch = reply.natural(wire.EPOCH)
    assert again == Ticket(6, ticket.key, attempt=2, final=True, renewals=1, confirmed=-1, epoch=epoch)
    assert plan.take().seq == 7


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (answer(200, Latest=9, Epoch=1), "has come to 6"),
        (answer(200, Latest=3, Epoch=1), "another client"),
        (answer(200, Latest=6, Epoch=2), "began it again"),
    ],
)
def test_another_publishers_channel_is_left_alone(reply: Answer, why: str) -> None:
    """A head too far, too low, or of a later life: nothing is put between another's segments."""
    plan, ticket = started()
    plan.numbering.compare(6, 5, 1)
    plan.numbering.bind(ticket.seq)
    plan.on_post(ticket, lost(), HALF)
    verdict = located(plan, reply)
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error, errors.Superseded)
    assert why in str(verdict.error)
    assert verdict.error.seq == 6
    assert not plan.owns_channel


def test_a_channel_that_ended_meanwhile_has_ended() -> None:
    """For who has published in it; who has not begins its next life."""
    plan, ticket = started()
    plan.on_post(ticket, lost(), IDLE)
    verdict = located(plan, answer(200, Latest=6, Closed="terminated"))
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error, errors.ChannelEnded)
    plan = Plan(0, rng=TopRandom())
    plan.on_post(plan.take(), lost(), IDLE)
    assert located(plan, answer(404, Closed="terminated")) == Advance()


def test_a_chosen_number_begins_a_channel_that_has_ended() -> None:
    """With a reset, and once: a server that lets nobody create channels says the same again."""
    plan = Plan(7, rng=TopRandom())
    ended = answer(404, Latest=3, Epoch=1, Closed="terminated")
    ticket = opened(plan)
    assert not ticket.reset
    assert isinstance(plan.on_post(ticket, ended, IDLE), RetryAfter)
    again = plan.before_request(ticket.again())
    assert isinstance(again, Ticket)
    assert again.reset
    follower = opened(plan)
    assert not follower.reset
    assert isinstance(plan.on_post(follower, ended, IDLE), RetryAfter)  # it has overtaken the first one
    assert isinstance(plan.on_post(again, ended, IDLE), Stop)


def test_a_segment_that_overtakes_the_first_one_of_a_new_epoch_waits() -> None:
    """The server takes seq 0 for a beginning, and seq 1 for a late-comer of the epoch before; for some time only."""
    plan = Plan("resume", rng=TopRandom(), budget=RetryBudget(0, 1))
    ended = answer(404, Latest=6, Epoch=3, Closed="terminated")
    plan.on_next(answer(200, Latest=6, Epoch=3, Closed="terminated"), 0.0)
    first, second = take(plan), opened(plan)
    for expected in (RetryAfter, RetryAfter, Stop):
        verdict = plan.on_post(second, ended, IDLE)
        assert isinstance(verdict, expected)
        again = plan.before_request(second.again())
        assert isinstance(again, Ticket)
        second = again
    plan = Plan("resume", rng=TopRandom())
    plan.on_next(answer(404), 0.0)
    assert isinstance(plan.on_post(first, ended, IDLE), Stop)  # the server takes nobody's beginning


@pytest.mark.parametrize("status", [200, 404])
def test_the_end_of_a_channel_that_this_publisher_may_have_begun_is_final(status: int) -> None:
    """Its first segment was on its way: the server may have begun the channel with it."""
    plan = Plan(7, rng=TopRandom())
    ticket = opened(plan)
    if status == 404:
        assert isinstance(plan.on_post(ticket, lost(), HALF), RetryAfter)
        ticket = ticket.again(exposed=True)
        plan.keeps_keys = True
        again = plan.before_request(ticket)
        assert isinstance(again, Ticket)
        ticket = again
    verdict = plan.on_post(ticket, answer(status, Latest=8, Closed="terminated", Size=10), HALF)
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error, errors.ChannelEnded)


def test_a_channel_that_had_ended_before_is_begun() -> None:
    """A server that was away before a byte came through tells of the same end again; a later end is a later epoch's."""
    for epoch, expected in ((3, Advance), (4, Stop)):
        plan = Plan("resume", rng=TopRandom())
        assert plan.on_next(answer(200, Latest=6, Epoch=3, Closed="terminated"), 0.0) == Advance()
        ticket = take(plan)
        assert isinstance(plan.on_post(ticket, lost(connected=False), WAITING), RetryAfter)
        assert isinstance(located(plan, answer(404, Latest=6, Epoch=epoch, Closed="terminated")), expected)
    plan = Plan("resume", rng=TopRandom())
    plan.on_next(answer(200, Latest=6, Epoch=3, Closed="terminated"), 0.0)
    plan.on_post(take(plan), answer(200, Size=10), WHOLE)
    plan.on_post(take(plan), lost(), HALF)
    verdict = located(plan, answer(404, Latest=1, Epoch=3, Closed="terminated"))
    assert isinstance(verdict, Stop)  # it has published: that is the end of its own segments


def test_a_server_without_that_question_is_taken_at_its_word() -> None:
    """It says what it thinks of a segment when that comes; nothing is sent that it could double."""
    plan, ticket = started()
    plan.on_post(ticket, lost(), HALF)
    assert located(plan, answer(400, "Invalid idx")) == Advance()
    assert plan.keeps_keys is False


def test_what_a_server_could_double_is_not_sent_again() -> None:
    """A part that it may have makes the segment lost; one that never got a connection is not."""
    plan, ticket = started(keeps_keys=None)
    assert plan.on_post(ticket, answer(503), HALF) == RetryAfter(0.25, exposed=True, holds=True)
    assert located(plan, answer(200, Latest=6)) == Advance()
    refused = plan.before_request(ticket.again(exposed=True))
    assert isinstance(refused, Advance)
    assert isinstance(refused.error, errors.ConnectionLost)
    assert refused.drop
    other = take(plan)
    verdict = plan.on_post(other, answer(503), HALF)
    assert isinstance(verdict, Advance)
    assert verdict.drop
    third = take(plan)
    assert plan.on_post(third, lost(connected=False), HALF) == RetryAfter(0.25)
    located(plan, answer(200, Latest=6))
    assert plan.before_request(third.again()) == third.again()
    assert plan.error is None


@pytest.mark.parametrize("outcome", [lost(), answer(503), answer(429)])
def test_what_is_not_held_any_more_is_lost(outcome: ExchangeOutcome) -> None:
    """Its writer is told, its readers too, and the next segment may still get through."""
    plan, ticket = started()
    verdict = plan.on_post(ticket, outcome, GONE)
    assert isinstance(verdict, Advance)
    assert verdict.error is not None
    assert verdict.drop
    assert plan.error is None
    assert plan.uncertain == isinstance(outcome, Lost)


def test_413_loses_the_segment_only() -> None:
    """The server keeps its beginning; sending it again would not help."""
    plan, ticket = started()
    verdict = plan.on_post(ticket, answer(413), HALF)
    assert isinstance(verdict, Advance)
    assert isinstance(verdict.error, errors.SegmentTooLarge)
    assert not verdict.drop


def test_the_first_connection_is_not_waited_for() -> None:
    """Nobody at the address at the very beginning: the error comes at once, and nothing is deleted."""
    for plan in (Plan("resume", rng=TopRandom()), Plan(0, rng=TopRandom())):
        verdict: Decision
        if plan.numbering.next is None:
            verdict = plan.on_next(lost(connected=False), 0.0)
        else:
            verdict = plan.on_post(plan.take(), lost(connected=False), IDLE)
        assert isinstance(verdict, Stop)
        assert isinstance(verdict.error, errors.ConnectionLost)
        assert not plan.owns_channel


@pytest.mark.parametrize("wait_s", [30.0, None])
def test_the_first_connection_may_be_waited_for(wait_s: float | None) -> None:
    """With the delays of an outage, and a limit of its own."""
    plan = Plan("resume", rng=TopRandom(), outage_s=0.0, wait_s=wait_s)
    for now, delay_s in enumerate((0.25, 0.5, 1, 2, 4, 4)):
        assert plan.on_next(lost(connected=False), float(now)) == RetryAfter(delay_s)
    late = plan.on_next(lost(connected=False), 30.0)
    assert late == RetryAfter(4) if wait_s is None else isinstance(late, Stop)
    assert not plan.owns_channel


def test_a_server_that_was_waited_for_has_time_to_fail() -> None:
    """Its first outage after that has a time of its own."""
    plan = Plan("resume", rng=TopRandom(), outage_s=0.0, wait_s=30.0)
    assert plan.on_next(lost(connected=False), 0.0) == RetryAfter(0.25)
    assert plan.on_next(answer(200, Latest=3), 29.0) == Advance()
    ticket = opened(plan)
    assert plan.on_post(ticket, lost(), Progress(now=31.0)) == RetryAfter(0.25)


def test_a_segment_given_up_leaves_its_number_behind() -> None:
    """Unless nothing of it was handed over, and nothing else has begun since."""
    plan, ticket = started()
    plan.numbering.bind(ticket.seq)
    assert plan.numbering.release(ticket.seq)
    plan.numbering.bind(ticket.seq)
    later = plan.take()
    plan.numbering.bind(later.seq)
    assert not plan.numbering.release(ticket.seq)
    plan.numbering.settle(later.seq, closed=False)
    assert plan.numbering.may_open(later.seq + 1)


@pytest.mark.parametrize("reply", [answer(200), answer(400, "Invalid stream"), answer(404)])
def test_a_channel_that_is_gone_is_ended(reply: Answer) -> None:
    """It does not matter who ended it."""
    plan, _ = started()
    assert plan.on_delete(reply, 0.0) == Advance()


def test_ending_is_retried_and_refused_like_anything_else() -> None:
    """A busy server is asked again, a no is final."""
    plan, _ = started()
    assert plan.on_delete(answer(503), 0.0) == RetryAfter(0.25, holds=True)
    assert plan.on_delete(lost(connected=False), 0.0) == RetryAfter(0.5)
    assert isinstance(plan.on_delete(answer(403), 0.0), Stop)


class TestNumbering:
    """What a publisher says of its numbering, so that readers of a restarted server know that nothing began."""

    def test_each_request_names_it(self) -> None:
        """By the publisher's name and its first seq; the same for all, also on another server."""
        plan = Plan(7, rng=TopRandom(), name="0123456789abcdef0123456789abcdef")
        first = take(plan)
        assert first.numbering == "0123456789abcdef:7"
        plan.on_post(first, lost(), HALF)
        located(plan, answer(404))
        assert opened(plan).numbering == first.numbering

    def test_who_joins_others_takes_their_name(self) -> None:
        """The server tells it with the first segment that it has stored; before, nothing was published here."""
        plan = Plan(7, rng=TopRandom(), name="mine")
        plan.on_post(take(plan), answer(200, Size=10, Life="theirs:0"), WHOLE)
        assert opened(plan).numbering == "theirs:0"

    def test_a_server_that_lost_the_newest_segments_gets_those_that_come_next(self) -> None:
        """Its head went back, and nothing was published since its start: nobody else has done that."""
        plan, ticket = started(5)
        plan.numbering.bind(ticket.seq)
        plan.on_post(ticket, lost(), HALF)
        assert located(plan, answer(200, Latest=3, Epoch=1, Life="abc.1")) == Advance()
        again = plan.before_request(ticket.again(exposed=True))
        assert isinstance(again, Ticket)
        assert (again.seq, again.reset) == (6, True)

    def test_so_it_is_if_a_segment_is_the_first_to_hear_of_it(self) -> None:
        """A 470 says it as well."""
        plan, ticket = started(5)
        plan.numbering.bind(ticket.seq)
        verdict = plan.on_post(ticket, answer(470, Latest=3, Life="abc.1"), WAITING)
        assert isinstance(verdict, RetryAfter)
        again = plan.before_request(ticket.again())
        assert isinstance(again, Ticket)
        assert again.reset

    def test_a_server_where_something_was_published_since_is_another_publishers(self) -> None:
        """Then its head did not go back by itself."""
        plan, ticket = started(5)
        plan.numbering.bind(ticket.seq)
        plan.on_post(ticket, lost(), HALF)
        assert isinstance(located(plan, answer(200, Latest=3, Epoch=1, Life="abc.1:0")), Stop)


class TestEpoch:
    """Requests are for one life of the channel, as soon as that is known."""

    def test_a_channel_that_was_joined_is_known(self) -> None:
        """The first question tells its epoch; one that is not there, or over, has none yet."""
        for reply, epoch in (
            (answer(200, Latest=7, Epoch=2), 2),
            (answer(200, Latest=7), None),
            (answer(200, Latest=7, Epoch=2, Closed="terminated"), None),
            (answer(404), None),
            (answer(404, Latest=7, Epoch=2, Closed="terminated"), None),
        ):
            plan = Plan("resume", rng=TopRandom())
            plan.on_next(reply, 0.0)
            assert opened(plan).epoch == epoch

    def test_a_channel_that_was_begun_here_is_known_by_its_first_answer(self) -> None:
        """Later answers change nothing: were one of another life, the next request would be refused."""
        plan = Plan(5, rng=TopRandom())
        tickets = [take(plan), take(plan)]
        plan.on_post(tickets[0], answer(200, Size=10, Epoch=3), WHOLE)
        assert opened(plan).epoch == 3
        plan.on_post(tickets[1], answer(200, Size=10, Epoch=4), WHOLE)
        assert opened(plan).epoch == 3

    def test_an_answer_of_a_life_that_is_gone_tells_nothing(self) -> None:
        """It was made before the channel was found to be gone."""
        plan = Plan(5, rng=TopRandom())
        early, later = take(plan), take(plan)
        plan.on_post(later, lost(), HALF)
        located(plan, answer(404))
        plan.on_post(early, answer(200, Size=10, Epoch=3), WHOLE)
        assert opened(plan).epoch is None

    @pytest.mark.parametrize(("head", "goes_on"), [(1, True), (0, True), (2, True), (9, False)])
    def test_a_later_one_with_the_same_numbering_is_a_copy_that_was_promoted(self, head: int, goes_on: bool) -> None:
        """The publisher asks how far it is, and goes on in its epoch; another one may be there all the same."""
        plan = Plan("resume", rng=TopRandom(), name="me")
        plan.on_next(answer(200, Latest=0, Epoch=2), 0.0)
        ticket, later = take(plan), take(plan)
        plan.on_post(ticket, answer(200, Size=10, Epoch=2, Life="me:0"), WHOLE)
        request = plan.before_request(later)
        assert isinstance(request, Ticket)
        assert request.epoch == 2
        verdict = plan.on_post(request, answer(409, "", Latest=1, Epoch=3, Life="me:0"), HALF)
        assert isinstance(verdict, RetryAfter)
        assert plan.uncertain
        found = plan.on_located(answer(200, Latest=head, Epoch=3, Life="me:0"), 0, 0.0)
        assert isinstance(found, Advance) is goes_on
        if goes_on:
            again = plan.before_request(later)
            assert isinstance(again, Ticket)
            assert (again.epoch, plan.uncertain) == (3, False)
            late = replace(later, epoch=2, renewals=plan.numbering.renewals)
            assert isinstance(plan.on_post(late, answer(409, Epoch=3, Life="me:0"), HALF), RetryAfter)
            assert not plan.uncertain

    @pytest.mark.parametrize("progress", [IDLE, HALF, GONE])
    def test_a_later_one_is_another_publishers(self, progress: Progress) -> None:
        """Nothing more is published, and the error tells the epoch."""
        plan, ticket = pinned(2)
        verdict = plan.on_post(ticket, answer(409, "The channel is in epoch 3", Latest=1, Epoch=3), progress)
        assert isinstance(verdict, Stop)
        assert isinstance(verdict.error, errors.Superseded)
        assert (verdict.error.latest, verdict.error.epoch) == (1, 3)
        assert not plan.owns_channel

    def test_a_server_that_has_forgotten_the_channel_begins_it_anew(self) -> None:
        """All that was under way is sent again, for any epoch, at the cost of one retry; the next answer tells it."""
        plan, first = pinned(3)
        plan.numbering.bind(first.seq)
        second = take(plan)
        for ticket in (first, second):
            assert isinstance(plan.on_post(ticket, answer(404, "Stream not found"), HALF), RetryAfter)
        assert (plan.numbering.renewals, plan.uncertain) == (1, False)
        again = plan.before_request(first.again())
        assert isinstance(again, Ticket)
        assert (again.seq, again.epoch) == (first.seq, None)
        assert isinstance(plan.on_post(again, answer(200, Size=10, Epoch=1), WHOLE), Advance)
        assert opened(plan).epoch == 1

    def test_a_channel_that_may_not_be_begun_is_not_found(self) -> None:
        """The second 404 is final."""
        plan, ticket = pinned(3)
        assert isinstance(plan.on_post(ticket, answer(404), IDLE), RetryAfter)
        again = plan.before_request(ticket.again())
        assert isinstance(again, Ticket)
        verdict = plan.on_post(again, answer(404), IDLE)
        assert isinstance(verdict, Stop)
        assert isinstance(verdict.error, errors.ChannelNotFound)

    def test_a_life_that_has_ended_is_not_begun_again(self) -> None:
        """The server says so while it remembers the end."""
        plan, ticket = pinned(3)
        verdict = plan.on_post(ticket, answer(404, Latest=7, Epoch=3, Closed="terminated"), HALF)
        assert isinstance(verdict, Stop)
        assert isinstance(verdict.error, errors.ChannelEnded)

    @pytest.mark.parametrize("head", [7, 9])
    def test_an_earlier_one_is_that_of_a_server_that_was_restarted(self, head: int) -> None:
        """The position tells whether this publisher's segments can follow; then that epoch is the one."""
        plan, ticket = pinned(3)
        plan.numbering.bind(ticket.seq)
        assert isinstance(plan.on_post(ticket, answer(409, Latest=head, Epoch=1), HALF), RetryAfter)
        assert isinstance(located(plan, answer(200, Latest=head, Epoch=1)), Advance if head == 7 else Stop)
        assert plan.numbering.epoch == 1

    def test_a_life_that_was_begun_here_meanwhile_is_our_own(self) -> None:
        """A request for the life that is gone comes behind the one that has begun the channel anew."""
        plan, first = pinned(1)
        plan.numbering.bind(first.seq)
        second = take(plan)
        plan.on_post(first, answer(404), HALF)
        verdict = plan.on_post(second, answer(409, Latest=7, Epoch=2), HALF)
        assert isinstance(verdict, RetryAfter)
        assert not plan.uncertain

    @pytest.mark.parametrize("reply", [answer(404), answer(409, Latest=0, Epoch=1)])
    def test_what_is_not_held_any_more_is_lost(self, reply: Answer) -> None:
        """Its writer is told."""
        plan, ticket = pinned(3)
        plan.numbering.bind(ticket.seq)
        verdict = plan.on_post(ticket, reply, GONE)
        assert isinstance(verdict, Advance)
        assert verdict.error is not None

    def test_the_budget_bounds_it(self) -> None:
        """A server that says so again and again is given up."""
        plan, ticket = pinned(3, budget=RetryBudget(reserve=0))
        assert isinstance(plan.on_post(ticket, answer(404), IDLE), Stop)

    def test_an_empty_channel_keeps_the_epoch_that_its_server_told(self) -> None:
        """Its server has forgotten the segments; what follows is for the life that it has begun."""
        plan, ticket = pinned(3)
        plan.numbering.bind(ticket.seq)
        plan.on_post(ticket, lost(), HALF)
        assert located(plan, answer(200, Latest=0, Epoch=1)) == Advance()
        assert (plan.numbering.renewals, opened(plan).epoch) == (1, 1)

    def test_the_next_life_is_not_ended(self) -> None:
        """A DELETE that is refused for its epoch is an error."""
        plan, _ = pinned(1)
        assert isinstance(plan.on_delete(answer(409, Latest=4, Epoch=2), 0.0), Stop)
        assert isinstance(plan.error, errors.Superseded)


def pinned(epoch: int, budget: RetryBudget | None = None) -> tuple[Plan, Ticket]:
    """A plan that has published segment 6 in this epoch, and the ticket of the next one."""
    plan = Plan(6, rng=TopRandom(), budget=budget)
    plan.keeps_keys = True
    plan.on_post(take(plan), answer(200, Size=10, Epoch=epoch), WHOLE)
    return plan, opened(plan)


def test_a_ticket_that_is_handed_back_leaves_its_reset_to_the_next() -> None:
    """Otherwise a segment that an earlier publisher left open would stay open."""
    plan = Plan("reset", rng=TopRandom())
    assert plan.on_next(answer(200, Latest=7), 0.0) == Advance()
    first = opened(plan)
    assert first.reset
    second = opened(plan)
    assert not plan.hand_back(first)
    assert plan.hand_back(second)
    assert plan.hand_back(first)
    assert (opened(plan).reset, opened(plan).reset) == (True, False)


# Waiting for the server: tests/trickle/client/test_retry.py has the rules.

SILENT = Lost(errors.ConnectionLost(), waited_s=10.0)


@pytest.mark.parametrize(("outcome", "takes_s"), [(SILENT, 10.0), (lost(connected=False), 5.0), (lost(), 0.0)])
def test_an_outage_is_outlasted_for_a_minute(outcome: Lost, takes_s: float) -> None:
    """However the server fails: not one request of it is paid for, and the publisher's error is the last failure."""
    plan, ticket = started(rng=Random(1), budget=RetryBudget(reserve=0))
    verdict = plan.on_post(ticket, outcome, Progress(lived_s=takes_s, now=100.0))
    now = 100.0
    while isinstance(verdict, RetryAfter):
        now += verdict.delay_s + takes_s
        verdict = plan.on_located(outcome, 5, now, takes_s)
    assert isinstance(verdict, Stop)
    assert isinstance(verdict.error, errors.ConnectionLost)
    assert RECONNECT_S <= now - 100.0 < RECONNECT_S + 5.0 + takes_s
    assert plan.owns_channel


def test_a_server_that_is_back_is_asked_quickly_again() -> None:
    """The delays begin anew once the position is known, not only when a segment is published."""
    plan, ticket = started(rng=TopRandom())
    plan.on_post(ticket, lost(), IDLE)
    delays = []
    for _ in range(6):
        verdict = plan.on_located(lost(connected=False), 5, 0.0)
        assert isinstance(verdict, RetryAfter)
        delays.append(verdict.delay_s)
    assert located(plan, answer(200, Latest=6, Epoch=1)) == Advance()
    again = plan.on_post(ticket.again(), lost(), IDLE)
    assert isinstance(again, RetryAfter)
    assert again.delay_s <= delays[0] < delays[-1]


@pytest.mark.parametrize("outcome", [lost(), answer(503), answer(429)])
def test_a_preconnect_that_was_cut_for_idleness_is_replaced_for_nothing(outcome: ExchangeOutcome) -> None:
    """However often; one on which an answer was due is not idle."""
    plan = Plan(5, rng=TopRandom(), budget=RetryBudget(reserve=0), outage_s=60.0)
    ticket = take(plan)
    for now in range(0, 1000, 20):
        plan.uncertain = False
        assert isinstance(plan.on_post(ticket, outcome, Progress(lived_s=IDLE_S, now=now)), RetryAfter)
    plan = Plan(5, rng=TopRandom(), budget=RetryBudget(reserve=0), outage_s=60.0)
    assert isinstance(plan.on_post(take(plan), SILENT, Progress(lived_s=IDLE_S)), Stop)


def busy(retry_after: int | None = None) -> Answer:
    """Another client publishes to the channel."""
    again = {} if retry_after is None else {wire.RETRY_AFTER: str(retry_after)}
    named = {wire.PUBLISHING_FOR: "60", wire.PUBLISHER: "studio", wire.LATEST: "9"}
    answer = Answer.read(409, httpx.Headers(named | again).raw)
    answer.detail = "studio publishes"
    return answer


def test_a_busy_channel_is_left_to_its_publisher() -> None:
    """The error says who publishes and for how long; the channel is not this publisher's to end."""
    plan = Plan(5, rng=TopRandom())
    decision = plan.on_post(opened(plan), busy(), IDLE)
    assert isinstance(decision, Stop)
    error = decision.error
    assert isinstance(error, errors.ChannelBusy)
    assert (error.publishing_s, error.publisher, error.latest) == (60, "studio", 9)
    assert str(error).startswith("studio has published to this channel for 60 s")
    assert not plan.owns_channel


def test_a_publisher_without_a_connection_may_leave_its_place() -> None:
    """The request is repeated after the time that the server gives, a few times; a body that is gone is not."""
    plan = Plan(5, rng=TopRandom())
    ticket = opened(plan)
    other, now = take(plan), 7.0
    for _ in range(BUSY_RETRIES):
        for one in (ticket, other):  # two requests that are refused at once share a wait
            decision = plan.on_post(one, busy(2), replace(WAITING, now=now))
            assert isinstance(decision, RetryAfter)
            assert decision.holds
            assert decision.delay_s >= 2
            wait_s = decision.delay_s
        ticket, other, now = ticket.again(), other.again(), now + wait_s
    assert isinstance(plan.on_post(ticket, busy(2), replace(WAITING, now=now)), Stop)
    plan = Plan(5, rng=TopRandom())
    assert isinstance(plan.on_post(opened(plan), busy(2), GONE), Stop)
    plan = Plan(5, rng=TopRandom(), budget=RetryBudget(reserve=0))
    assert isinstance(plan.on_post(opened(plan), busy(2), IDLE), Stop)


def test_who_comes_after_the_first_segment_has_taken_over() -> None:
    """Then it is not the channel that is busy: this publisher was superseded."""
    plan, ticket = started()
    decision = plan.on_post(ticket, busy(2), WAITING)
    assert isinstance(decision, Stop)
    assert isinstance(decision.error, errors.Superseded)
    assert not plan.owns_channel
    plan, _ = started()
    assert isinstance(plan.on_delete(busy(), 0.0), Stop)


def test_a_refusal_from_before_the_first_segment_is_tried_again() -> None:
    """A proxy held it back: its head is no further than what was published since. A body that is gone ends it."""
    plan, ticket = started(9)
    decision = plan.on_post(ticket, busy(2), WAITING)
    assert isinstance(decision, RetryAfter)
    assert 0 < decision.delay_s < 2, "the time for which it says to wait is over"
    assert not decision.holds
    assert isinstance(plan.on_post(ticket, busy(2), GONE), Stop)
