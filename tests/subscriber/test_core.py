"""The cursor: what each answer leads to, without any socket."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from subscriber.core import (
    JOIN_BACKOFF,
    MIN_PAUSE_S,
    PATIENCE_S,
    REFRESH_S,
    REFRESH_SPREAD,
    REJOIN_WAIT_S,
    Cursor,
    start_seq,
)
from subscriber.verdicts import Advance, Answer, Ask, End, OnLag, Resolved, Resync, RetryAfter, Stop, Verdict
from trickle.backoff import Backoff, RetryBudget
from trickle.errors import (
    ChannelNotFound,
    ConnectionLost,
    InvalidSeq,
    Refused,
    RemoteProtocolError,
    SegmentMissing,
)

LOST = ConnectionLost(detail="gone")


class Driver:
    """A cursor with a clock that the test moves and dice that always fall the same way."""

    def __init__(self, start: int | str = 0, **options: Any) -> None:
        self.cursor = Cursor(start_seq(start), **options)
        self.now = 1000.0
        self.rng = Random(1)

    def answer(self, status: int, **headers: object) -> Verdict:
        body = str(headers.pop("body", "")).encode()
        names = {"Lp-Trickle-" + name.capitalize(): str(value) for name, value in headers.items()}
        for plain in ("Retry-After", "Content-Length", "Content-Type"):
            if (value := names.pop("Lp-Trickle-" + plain.replace("-", "_").capitalize(), None)) is not None:
                names[plain] = value
        return self.cursor.answered(Answer.read(status, names, body), self.now, self.rng)

    def lost(self, error: ConnectionLost | RemoteProtocolError = LOST) -> Verdict:
        return self.cursor.lost(error, self.now, self.rng)

    @property
    def asked(self) -> int | None:
        return self.cursor.ask().seq

    def read(self, seq: int, **headers: object) -> Advance:
        verdict = self.answer(200, seq=seq, **headers)
        assert isinstance(verdict, Advance)
        self.cursor.finished(empty=verdict.empty)
        return verdict


def retry(verdict: Verdict) -> RetryAfter:
    assert isinstance(verdict, RetryAfter)
    return verdict


def resync(verdict: Verdict) -> Resync:
    assert isinstance(verdict, Resync)
    return verdict


def stopped(verdict: Verdict | None) -> Exception:
    assert isinstance(verdict, Stop)
    return verdict.error


@pytest.mark.parametrize(
    ("start", "seq"), [("next", -1), ("current", -2), ("7", 7), ("-3", -3), (0, 0), (-1, -1), (12, 12)]
)
def test_a_start_is_a_word_or_a_seq(start: int | str, seq: int) -> None:
    """``next``, ``current``, N and -N are understood, as text and as numbers."""
    assert start_seq(start) == seq


@pytest.mark.parametrize("start", ["", "first", "1.5", "+1", "9" * 16, "--1"])
def test_a_bad_start_is_refused(start: str) -> None:
    """Anything else is not a seq."""
    with pytest.raises(InvalidSeq):
        start_seq(start)


class TestJoining:
    def test_next_asks_for_the_head_first(self) -> None:
        """``next`` is resolved by the route that never waits, so that each wait is for a concrete seq."""
        driver = Driver("next")
        assert driver.cursor.ask() == Ask(None)
        assert driver.answer(200, latest=5) == Resolved(5)
        assert driver.cursor.ask() == Ask(5)

    def test_next_without_a_head_is_not_the_protocol(self) -> None:
        """A web page under ``/next`` is not taken for a head."""
        assert isinstance(stopped(Driver("next").answer(200)), RemoteProtocolError)

    def test_next_on_a_server_without_that_route_falls_back(self) -> None:
        """A 400 to ``/next`` leads to a GET of -1, once, and later."""
        driver = Driver("next")
        verdict = resync(driver.answer(400))
        assert verdict.seq == -1
        assert verdict.delay_s >= MIN_PAUSE_S
        assert driver.answer(200, seq=8) == Advance(8)
        assert driver.asked == 9

    def test_that_fallback_is_paid_for(self) -> None:
        """Without a retry left, the 400 is the end."""
        assert isinstance(stopped(Driver("next", budget=RetryBudget(0, 0)).answer(400)), Refused)

    def test_next_answered_470_is_tried_again(self) -> None:
        """A 470 where there is no seq to be missing is a fault that may pass."""
        driver = Driver("next")
        assert retry(driver.answer(470, latest=3)).delay_s > 0
        assert driver.cursor.ask() == Ask(None, 2)

    @pytest.mark.parametrize("start", ["current", "-2", "-7"])
    def test_a_start_relative_to_the_head_is_resolved_by_its_answer(self, start: str) -> None:
        """The answer's seq counts; the next GET is for a concrete one; there is no gap at the join."""
        driver = Driver(start)
        assert driver.read(41, epoch=3) == Advance(41, epoch=3)
        assert driver.asked == 42

    def test_a_wait_at_a_relative_start_becomes_concrete(self) -> None:
        """Such a GET waits only where nothing was ever written, so that what begins is seq 0."""
        driver = Driver("current")
        driver.cursor.refreshed()
        assert driver.cursor.ask() == Ask(0)

    def test_a_wait_for_minus_one_stays_what_it_is(self) -> None:
        """On a server without ``/next``, -1 cannot be made concrete."""
        driver = Driver("next")
        driver.answer(400)
        driver.cursor.refreshed()
        assert driver.asked == -1

    def test_a_missing_channel_is_an_error(self) -> None:
        """404 is final by default."""
        error = stopped(Driver().answer(404, body="Stream not found\n"))
        assert isinstance(error, ChannelNotFound)
        assert error.detail == "Stream not found"

    def test_a_missing_channel_can_be_waited_for(self) -> None:
        """With time given, a 404 is asked again later and later, until the time is over."""
        driver = Driver(5, wait_for_channel_s=30)
        delays = [retry(driver.answer(404)).delay_s for _ in range(200)]
        assert all(MIN_PAUSE_S <= delay <= MIN_PAUSE_S + JOIN_BACKOFF.cap_s for delay in delays)
        assert max(delays) > JOIN_BACKOFF.cap_s / 2
        assert driver.cursor.ask() == Ask(5, 201)
        driver.now += 30
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)

    def test_a_channel_that_was_waited_for_is_read_from_its_birth(self) -> None:
        """What did not exist when ``next`` was asked for is new in all its parts."""
        driver = Driver("next", wait_for_channel_s=30)
        retry(driver.answer(404))
        assert driver.asked == 0
        assert driver.read(0).gap == 0

    def test_a_birth_that_has_left_the_window_is_read_from_the_earliest(self) -> None:
        """Nobody named seq 0, so that its absence is no gap and no reason to fail."""
        driver = Driver("next", wait_for_channel_s=30, on_lag=OnLag.FAIL)
        retry(driver.answer(404))
        assert driver.answer(470, latest=90, earliest=80) == Resync(80, 0.0, resync_error(0, 90, 80))
        assert driver.read(80) == Advance(80)

    def test_a_channel_that_has_just_ended_is_an_end(self) -> None:
        """``Closed`` at the join ends the subscription before it began."""
        assert Driver("next").answer(200, latest=5, closed="terminated") == End()

    def test_a_channel_that_has_just_ended_can_begin_again(self) -> None:
        """Who waits for a channel waits for its next life, and has an end if there is none."""
        driver = Driver("next", wait_for_channel_s=3)
        retry(driver.answer(404, closed="terminated"))
        driver.now += 3
        assert driver.answer(404, closed="terminated") == End()

    def test_no_server_is_an_error_at_once(self) -> None:
        """Before the first answer, a lost connection is most likely a wrong address."""
        assert stopped(Driver().lost()) is LOST

    def test_a_server_can_be_waited_for(self) -> None:
        """The time given for the channel counts for its server, too."""
        driver = Driver(wait_for_channel_s=10)
        assert retry(driver.lost()).error is LOST
        driver.now += 9
        retry(driver.answer(404))
        driver.now += 1
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)


def resync_error(seq: int, latest: int, earliest: int) -> Any:
    """Equal to the error of that 470."""

    class Same(SegmentMissing):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, SegmentMissing) and (other.seq, other.latest, other.earliest) == (
                seq,
                latest,
                earliest,
            )

        __hash__ = None  # type: ignore[assignment]

    return Same()


class TestReading:
    def test_a_segment_carries_what_the_server_said(self) -> None:
        """Seq, epoch, type, size and truncation come from the headers."""
        verdict = Driver(4).answer(200, seq=4, epoch=2, size=512, truncated="publisher_lost", content_type="video/mp2t")
        assert verdict == Advance(4, epoch=2, content_type="video/mp2t", size_at_start=512, truncated="publisher_lost")

    def test_an_empty_segment_is_a_segment(self) -> None:
        """200 without a byte and without ``Closed`` advances by one."""
        driver = Driver(4)
        assert driver.answer(200, seq=4, latest=9, content_length=0) == Advance(4, empty=True)
        assert driver.asked == 5

    def test_closed_is_the_end(self) -> None:
        """``Closed`` ends the channel, also after segments."""
        driver = Driver()
        driver.read(0)
        assert driver.answer(200, seq=1, latest=1, closed="terminated", content_length=0) == End()

    def test_an_end_beyond_the_wanted_segment_is_a_gap(self) -> None:
        """Segments between the last one read and the end are reported as missed."""
        driver = Driver()
        driver.read(0)
        assert driver.answer(200, latest=4, closed="terminated") == End(gap=3)

    def test_404_after_a_segment_is_final(self) -> None:
        """A channel that was there and is not any more is not asked for again, however long was to be waited."""
        driver = Driver(wait_for_channel_s=60)
        driver.read(0)
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)

    @pytest.mark.parametrize("seq", [None, "-1", "x", 3])
    def test_another_seq_than_the_one_asked_for_is_not_the_protocol(self, seq: object) -> None:
        """No 200 is taken for a segment unless it says that it is that segment."""
        headers = {} if seq is None else {"seq": seq}
        assert isinstance(stopped(Driver(5).answer(200, **headers)), RemoteProtocolError)

    @pytest.mark.parametrize("status", [204, 206, 301, 400, 401, 403, 405, 409, 413])
    def test_a_no_is_final(self, status: int) -> None:
        """Redirects, oddities and 4xx that say no are never retried."""
        assert isinstance(Driver(5).answer(status), Stop)

    def test_another_epoch_is_noticed(self) -> None:
        """A new life of the name is told with its first segment, and only there."""
        driver = Driver("current")
        assert not driver.read(0, epoch=1).restarted
        assert not driver.read(1).restarted
        assert driver.read(2, epoch=2).restarted
        assert not driver.read(3, epoch=2).restarted

    def test_garbage_is_final(self) -> None:
        """What does not speak HTTP will not learn it."""
        driver = Driver()
        driver.read(0)
        error = RemoteProtocolError(detail="SSH-2.0")
        assert stopped(driver.lost(error)) is error


class TestWaiting:
    def test_a_wait_is_refreshed_with_the_same_seq(self) -> None:
        """A refresh is no retry: same seq, still attempt 1."""
        driver = Driver(3)
        driver.cursor.refreshed()
        assert driver.cursor.ask() == Ask(3)

    def test_the_refresh_is_jittered_upwards(self) -> None:
        """Between 20 and 24 s, so that waited time / 20 s bounds the number of refreshes."""
        waits = [Cursor(0).refresh_after(Random(seed)) for seed in range(100)]
        assert min(waits) >= REFRESH_S
        assert max(waits) <= REFRESH_S * (1 + REFRESH_SPREAD)
        assert len(set(waits)) > 90

    def test_a_server_that_let_us_wait_is_known(self) -> None:
        """After a refreshed wait, a lost connection is retried."""
        driver = Driver(3)
        driver.cursor.refreshed()
        assert retry(driver.lost()).delay_s >= MIN_PAUSE_S


class TestMissing:
    def test_a_segment_that_left_the_window_leads_to_the_live_edge(self) -> None:
        """Forward, at once, since it is another request; the gap is told with the next segment."""
        driver = Driver(5)
        assert driver.answer(470, seq=5, latest=100, earliest=40) == Resync(99, 0.0, resync_error(5, 100, 40))
        assert driver.read(99) == Advance(99, gap=94)
        assert driver.read(100) == Advance(100)

    def test_or_to_the_earliest(self) -> None:
        """``earliest`` goes to the oldest segment that is kept."""
        driver = Driver(5, on_lag=OnLag.EARLIEST)
        assert resync(driver.answer(470, latest=100, earliest=40)).seq == 40
        assert driver.read(40).gap == 35

    def test_or_nowhere(self) -> None:
        """``fail`` gives up with the error that says what was there."""
        error = stopped(Driver(5, on_lag=OnLag.FAIL).answer(470, latest=100, earliest=40))
        assert isinstance(error, SegmentMissing)
        assert (error.seq, error.latest, error.earliest) == (5, 100, 40)

    @pytest.mark.parametrize(
        ("latest", "earliest", "seq"), [(6, None, 6), (7, 7, 7), (9, 100, 9), (9, 0, 6), (9, None, 8)]
    )
    def test_forward_is_always_further(self, latest: int, earliest: int | None, seq: int) -> None:
        """Whatever the headers say, the new seq is beyond the old one and not beyond the head."""
        headers = {} if earliest is None else {"earliest": earliest}
        assert resync(Driver(5).answer(470, latest=latest, **headers)).seq == seq

    def test_a_hole_in_the_window_costs_one_segment(self) -> None:
        """What is older is still kept, so that the wanted one was left out by its publisher, not missed here."""
        driver = Driver(5)
        assert resync(driver.answer(470, latest=20, earliest=1)) == Resync(6, 0.0, resync_error(5, 20, 1))
        assert driver.read(6) == Advance(6, gap=1)

    def test_a_wide_hole_leads_to_the_live_edge(self) -> None:
        """A publisher that resumed far ahead is not followed step by step."""
        driver = Driver(5)
        assert resync(driver.answer(470, latest=900, earliest=1)).seq == 6
        assert resync(driver.answer(470, latest=900, earliest=1)).seq == 899
        assert driver.read(899).gap == 894

    def test_a_second_step_without_a_segment_between_waits(self) -> None:
        """A server that only ever says 470 is asked more and more slowly, and not for ever."""
        driver = Driver(5, budget=RetryBudget(0.2, 3), backoff=Backoff(1, 8))
        delays = [resync(driver.answer(470, latest=latest)).delay_s for latest in (10, 20, 30, 40)]
        assert delays[0] == 0
        assert all(delay >= MIN_PAUSE_S for delay in delays[1:])
        assert isinstance(stopped(driver.answer(470, latest=50)), SegmentMissing)

    def test_a_whole_segment_makes_the_next_step_free(self) -> None:
        """A slow subscriber may skip forward for ever, as long as it reads something each time."""
        driver = Driver(0, budget=RetryBudget(0, 0))
        for head in range(10, 500, 10):
            assert resync(driver.answer(470, latest=head)).delay_s == 0
            driver.read(head - 1)

    def test_an_empty_segment_does_not(self) -> None:
        """A dead segment is answered empty too: it is no proof that all is well again."""
        driver = Driver(0)
        driver.answer(470, latest=10)
        driver.read(9, content_length=0)
        assert resync(driver.answer(470, latest=20)).delay_s > 0

    @pytest.mark.parametrize("headers", [{}, {"latest": 5}, {"latest": -3}, {"latest": "x"}, {"latest": "9" * 5000}])
    def test_470_that_leads_nowhere_is_asked_again_later(self, headers: dict[str, object]) -> None:
        """Without another seq to go to, the same one is asked for, after a pause and Retry-After."""
        driver = Driver(5)
        assert retry(driver.answer(470, retry_after=7, **headers)).delay_s >= 7
        assert driver.cursor.ask() == Ask(5, 2)

    def test_a_head_that_is_behind_starts_anew_there(self) -> None:
        """After a server's restart the numbering is lower: go on at its head, later, and say so."""
        driver = Driver(7)
        driver.read(7, epoch=1)
        verdict = resync(driver.answer(470, latest=3, earliest=1))
        assert verdict.seq == 3
        assert verdict.delay_s >= MIN_PAUSE_S
        assert driver.read(3, epoch=1) == Advance(3, epoch=1, gap=2, restarted=True)
        assert not driver.read(4, epoch=1).restarted

    def test_or_at_its_earliest(self) -> None:
        """``earliest`` reads all that the new life still has."""
        driver = Driver(7, on_lag=OnLag.EARLIEST)
        driver.read(7)
        assert resync(driver.answer(470, latest=3, earliest=1)).seq == 1
        assert driver.read(1) == Advance(1, gap=0, restarted=True)

    def test_a_start_beyond_the_head_begins_at_the_head(self) -> None:
        """A seq that is far in the future is brought back to the present, without a gap or a restart."""
        driver = Driver(100)
        assert resync(driver.answer(470, latest=5, earliest=2)).seq == 5
        assert driver.read(5) == Advance(5)

    def test_a_relative_start_that_is_missing_begins_at_the_head(self) -> None:
        """470 to -2 should not be; it leads to the head that it names."""
        assert resync(Driver("current").answer(470, latest=5)).seq == 5

    def test_a_head_that_swings_does_not_make_a_loop(self) -> None:
        """The historic fault: dead segment N is answered empty, N + 1 with 470 and head N, and so on."""
        driver = Driver(8)
        driver.read(8)
        requests, paused = 0, 0.0
        while True:
            requests += 2
            verdict = driver.answer(470, latest=8)
            if isinstance(verdict, Stop):
                break
            paused += resync(verdict).delay_s
            driver.read(8, content_length=0)
        assert isinstance(verdict.error, SegmentMissing)
        assert requests <= 22
        assert paused > 5


class TestFailing:
    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_a_refusal_for_now_is_retried_after_what_it_says(self, status: int) -> None:
        """``Retry-After`` is a floor, and jitter comes on top."""
        driver = Driver(5)
        verdict = retry(driver.answer(status, body="busy", retry_after=4))
        assert 4 < verdict.delay_s <= 4 + Backoff().base_s
        assert isinstance(verdict.error, Refused)
        assert driver.cursor.ask() == Ask(5, 2)

    def test_a_retry_after_beyond_all_patience_is_a_no(self) -> None:
        """Nobody waits for hours in silence."""
        assert isinstance(stopped(Driver().answer(503, retry_after=int(PATIENCE_S) + 1)), Refused)
        retry(Driver().answer(503, retry_after=int(PATIENCE_S)))

    def test_delays_grow_and_end(self) -> None:
        """Full jitter under a growing ceiling, as often as the budget allows."""
        driver = Driver(budget=RetryBudget(0.2, 6), backoff=Backoff(1, 8))
        for ceiling in (1, 2, 4, 8, 8, 8):
            assert MIN_PAUSE_S <= retry(driver.answer(503)).delay_s <= MIN_PAUSE_S + ceiling
        assert isinstance(stopped(driver.answer(503)), Refused)

    def test_a_lost_connection_is_retried(self) -> None:
        """Once the server has answered, a lost connection is an accident."""
        driver = Driver()
        driver.read(0)
        verdict = retry(driver.lost())
        assert verdict.delay_s >= MIN_PAUSE_S
        assert verdict.error is LOST
        assert driver.cursor.ask() == Ask(1, 2)

    def test_404_after_a_lost_connection_is_waited_for_a_little(self) -> None:
        """A restarted server has its channels again once its publishers are back."""
        driver = Driver()
        driver.read(0)
        driver.lost()
        retry(driver.answer(404))
        driver.now += REJOIN_WAIT_S - 0.1
        retry(driver.answer(404))
        driver.now += 0.1
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)

    def test_a_segment_after_it_ends_that_patience(self) -> None:
        """Only a 404 that follows the loss is waited for."""
        driver = Driver()
        driver.read(0)
        driver.lost()
        driver.read(1)
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)

    def test_a_cut_segment_is_passed_over_and_slows_down(self) -> None:
        """The GET after the next segment is held back; the one that is out already is not touched."""
        driver = Driver()
        driver.answer(200, seq=0)
        assert driver.cursor.broken(LOST) is None
        assert driver.asked == 1
        verdict = driver.answer(200, seq=1)
        assert isinstance(verdict, Advance)
        assert verdict.delay_s >= MIN_PAUSE_S
        assert verdict.gap == 0
        driver.cursor.finished()
        assert driver.read(2).delay_s == 0

    def test_cut_segments_are_paid_for(self) -> None:
        """A server that cuts every segment is left after as many as the budget allows."""
        driver = Driver(budget=RetryBudget(0.2, 2))
        for seq in (0, 1):
            driver.answer(200, seq=seq)
            assert driver.cursor.broken(LOST) is None
        assert stopped(driver.cursor.broken(LOST)) is LOST

    def test_whole_segments_earn_retries(self) -> None:
        """The budget is a share of what arrived."""
        budget = RetryBudget(0.5, 2)
        driver = Driver(budget=budget)
        driver.answer(503)
        driver.answer(503)
        driver.read(0)
        driver.read(1)
        assert budget.tokens == 1
        retry(driver.answer(503))
