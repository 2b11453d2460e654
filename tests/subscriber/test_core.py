"""The cursor: what each answer leads to, without any socket."""

from __future__ import annotations

from random import Random
from typing import Any, Literal, TypeAlias

import httpx
import pytest

from tricklecast.subscriber.catchup import LATE_AGAIN_S
from tricklecast.subscriber.core import (
    HEAD_RECHECKS,
    MAX_CUT_S,
    REFRESH_S,
    REFRESH_SPREAD,
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
    parse_start,
)
from tricklecast.trickle.backoff import BASE_S, CAP_S, RetryBudget
from tricklecast.trickle.client.exchange import Answer
from tricklecast.trickle.client.retry import IDLE_S, MAX_RETRY_AFTER_S, MIN_DELAY_S, OUTAGE_BACKOFF, RECONNECT_S, Stop
from tricklecast.trickle.errors import (
    ChannelNotFound,
    ConnectionLost,
    InvalidInput,
    Position,
    Refused,
    RemoteProtocolError,
    SegmentMissing,
)

LOST = ConnectionLost(detail="gone")
Look: TypeAlias = int | Literal["gone", "lost"]


class Driver:
    """A cursor with a clock that the test moves and dice that always fall the same way."""

    def __init__(self, start: AnyStart | str = 0, **options: Any) -> None:
        self.cursor = Cursor(start, **options)
        self.now = 1000.0
        self.rng = Random(1)

    def fails(self, look: Look) -> Decision:
        """The server is lost, as ``look`` says."""
        match look:
            case int():
                return self.answer(look)
        return self.lost()

    def answer(self, status: int, **headers: object) -> Decision:
        body = str(headers.pop("body", "")).strip()
        names = {"Lp-Trickle-" + name.capitalize(): str(value) for name, value in headers.items()}
        for plain in ("Retry-After", "Content-Length", "Content-Type", "Content-Encoding"):
            if (value := names.pop("Lp-Trickle-" + plain.replace("-", "_").capitalize(), None)) is not None:
                names[plain] = value
        answer = Answer.read(status, httpx.Headers(names).raw)
        answer.detail = body
        return self.cursor.answered(answer, self.now, self.rng)

    def lost(
        self,
        error: ConnectionLost | Refused | RemoteProtocolError = LOST,
        *,
        taken: bool = False,
        waited_s: float = 0.0,
    ) -> Decision:
        return self.cursor.lost(error, self.now, self.rng, taken=taken, waited_s=waited_s)

    @property
    def asked(self) -> int | None:
        return self.cursor.ask().seq

    def read(self, seq: int, **headers: object) -> NextSegment:
        outcome = self.answer(200, seq=seq, **headers)
        assert isinstance(outcome, NextSegment)
        if not outcome.empty:
            self.cursor.finished()
        return outcome


def retry(outcome: Decision) -> Retry:
    assert isinstance(outcome, Retry)
    return outcome


def jump(outcome: Decision) -> Jump:
    assert isinstance(outcome, Jump)
    return outcome


def stopped(outcome: Decision | None) -> Exception:
    assert isinstance(outcome, Stop)
    return outcome.error


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
        outcome = jump(driver.answer(400))
        assert outcome.seq == -1
        assert outcome.delay_s >= MIN_DELAY_S
        assert driver.answer(200, seq=8) == NextSegment(8)
        assert driver.asked == 9

    def test_that_fallback_is_paid_for(self) -> None:
        """Without a retry left, the 400 is the end."""
        assert isinstance(stopped(Driver("next", budget=RetryBudget(0, 0)).answer(400)), Refused)

    def test_next_answered_470_is_tried_again(self) -> None:
        """A 470 where there is no seq to be missing is a fault that may pass."""
        driver = Driver("next")
        assert retry(driver.answer(470, latest=3)).delay_s > 0
        assert driver.cursor.ask() == Ask(None, 2)

    @pytest.mark.parametrize("start", ["current", "-2", -2])
    def test_a_start_relative_to_the_head_is_resolved_by_its_answer(self, start: str) -> None:
        """The answer's seq counts; the next GET is for a concrete one; there is no gap at the join."""
        driver = Driver(start)
        assert driver.read(41, epoch=3) == NextSegment(41, epoch=3)
        assert driver.asked == 42

    def test_minus_n_is_counted_from_the_head_here(self) -> None:
        """The reference server breaks the connection of a client that asks for -3; and only ``next`` never waits."""
        driver = Driver(-5)
        assert driver.cursor.ask() == Ask(None)
        assert driver.answer(200, latest=12) == Resolved(8)
        assert driver.read(8) == NextSegment(8)

    def test_minus_n_ends_at_the_first_segment(self) -> None:
        """There is nothing below 0."""
        assert Driver(-5).answer(200, latest=3) == Resolved(0)

    def test_minus_n_that_has_left_the_window_is_the_earliest(self) -> None:
        """Nobody named that segment, so that its absence is no gap, and no reason to fail."""
        driver = Driver(-50, on_lag=OnLag.FAIL)
        driver.answer(200, latest=100)
        assert jump(driver.answer(470, latest=100, earliest=60)).seq == 60
        assert driver.read(60).gap == 0

    def test_minus_n_on_a_server_without_next_is_asked_for_as_it_is(self) -> None:
        """Those servers know it."""
        driver = Driver(-5)
        assert jump(driver.answer(400)).seq == -5
        assert driver.read(8) == NextSegment(8)

    def test_next_that_has_left_the_window_is_a_gap(self) -> None:
        """From the moment it was resolved, all that begins is wanted."""
        driver = Driver("next")
        driver.answer(200, latest=5)
        jump(driver.answer(470, latest=9, earliest=7))
        assert driver.read(8).gap == 3

    def test_earliest_begins_with_all_there_is(self) -> None:
        """0 is asked for; where it is gone, the server says what is kept; there is no gap."""
        driver = Driver("earliest", on_lag=OnLag.FAIL)
        assert driver.cursor.ask() == Ask(0)
        assert jump(driver.answer(470, latest=100, earliest=40)) == Jump(40, 0.0, jump_error(0, 100, 40))
        assert driver.read(40) == NextSegment(40)
        assert isinstance(stopped(driver.answer(470, latest=100, earliest=50)), SegmentMissing)

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
        """404 is final by default, and the error names the argument that waits, unless that was given."""
        error = stopped(Driver().answer(404, body="Stream not found\n"))
        assert isinstance(error, ChannelNotFound)
        assert error.detail == "Stream not found"
        assert "wait_for_channel_s" in str(error)
        driver = Driver(wait_for_channel_s=1)
        retry(driver.answer(404))
        driver.now += 1
        assert "wait_for_channel_s" not in str(stopped(driver.answer(404)))

    def test_a_missing_channel_can_be_waited_for(self) -> None:
        """With time given, a 404 is asked again later and later, until the time is over."""
        driver = Driver(5, wait_for_channel_s=30)
        delays = [retry(driver.answer(404)).delay_s for _ in range(60)]
        assert all(MIN_DELAY_S <= delay <= MIN_DELAY_S + OUTAGE_BACKOFF.cap_s for delay in delays)
        assert max(delays) > OUTAGE_BACKOFF.cap_s / 2
        assert driver.cursor.ask() == Ask(5, 61)
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
        assert driver.answer(470, latest=90, earliest=80) == Jump(80, 0.0, jump_error(0, 90, 80))
        assert driver.read(80) == NextSegment(80)

    def test_a_channel_that_has_just_ended_is_an_end(self) -> None:
        """``Closed`` at the join ends the subscription before it began."""
        assert Driver("next").answer(200, latest=5, closed="terminated") == End()

    def test_a_channel_that_has_just_ended_can_begin_again(self) -> None:
        """Who waits for a channel waits for its next life, and has an end if there is none."""
        driver = Driver("next", wait_for_channel_s=3)
        retry(driver.answer(404, closed="terminated"))
        driver.now += 3
        assert driver.answer(404, closed="terminated") == End()

    @pytest.mark.parametrize("status", [200, 404])
    def test_who_waits_for_ever_has_no_end_before_a_segment(self, status: int) -> None:
        """So a program that follows a channel from life to life needs no pauses of its own."""
        driver = Driver("current", wait_for_channel_s=None)
        for _ in range(100):
            driver.now += retry(driver.answer(status, latest=5, closed="terminated")).delay_s

    def test_no_server_is_an_error_at_once(self) -> None:
        """Before the first answer, a lost connection is most likely a wrong address."""
        assert stopped(Driver().lost()) is LOST

    def test_a_server_that_has_taken_the_first_get_is_waited_for(self) -> None:
        """It was killed while the GET waited for a segment: it is as if it had answered before."""
        driver = Driver()
        retry(driver.lost(taken=True))
        retry(driver.lost())
        driver.now += RECONNECT_S
        assert stopped(driver.lost()) is LOST

    def test_a_server_can_be_waited_for(self) -> None:
        """The time given for the channel counts for its server, too."""
        driver = Driver(wait_for_channel_s=10)
        assert retry(driver.lost()).error is LOST
        driver.now += 9
        retry(driver.answer(404))
        driver.now += 1
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)


def jump_error(seq: int, latest: int, earliest: int) -> Any:
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


class TestResuming:
    def test_a_position_is_asked_for(self) -> None:
        """It goes on as if nothing had been in between."""
        driver = Driver("128@3")
        assert driver.cursor.ask() == Ask(128, 1, None, 3)
        assert driver.read(128, epoch=3) == NextSegment(128, epoch=3)

    def test_what_was_missed_meanwhile_is_a_gap(self) -> None:
        """Counted from the position."""
        driver = Driver("128@3")
        driver.answer(470, latest=200, earliest=150)
        assert driver.read(199, epoch=3) == NextSegment(199, epoch=3, gap=71)

    def test_another_life_is_told(self) -> None:
        """The segment of that number is taken, and is marked: what was before it in this life is not known."""
        assert Driver("128@3").read(128, epoch=4) == NextSegment(128, epoch=4, restarted=True)

    def test_another_life_is_read_from_its_earliest_segment_if_that_is_wanted(self) -> None:
        """All of it is new. That is paid for, so that a server whose epochs flutter is left."""
        driver = Driver("128@3", on_lag=OnLag.EARLIEST)
        outcome = jump(driver.answer(200, seq=128, epoch=4))
        assert outcome.seq == 0
        assert outcome.delay_s >= MIN_DELAY_S
        jump(driver.answer(470, latest=200, earliest=100))
        assert driver.read(100, epoch=4) == NextSegment(100, epoch=4, restarted=True)
        assert driver.read(101, epoch=4) == NextSegment(101, epoch=4)
        broke = Driver("128@3", on_lag=OnLag.EARLIEST, budget=RetryBudget(0, 0))
        assert isinstance(stopped(broke.answer(200, seq=128, epoch=4)), SegmentMissing)

    def test_the_first_segment_of_another_life_is_its_beginning(self) -> None:
        """There is nothing before it to go back to, and the same GET is not made twice."""
        driver = Driver("0@3", on_lag=OnLag.EARLIEST)
        assert driver.read(0, epoch=4) == NextSegment(0, epoch=4, restarted=True)

    def test_another_life_is_an_error_if_that_is_wanted(self) -> None:
        """``fail``: the wanted segment is gone for good."""
        error = stopped(Driver("128@3", on_lag=OnLag.FAIL).answer(200, seq=128, epoch=4, latest=130))
        assert isinstance(error, SegmentMissing)
        assert str(error) == "segment not available: the channel has another life: epoch 4 instead of 3 (segment 128)"
        assert error.latest == 130

    def test_a_position_ahead_of_the_head_is_a_restart(self) -> None:
        """Epochs begin at 1 again with the server, so that they alone would not tell."""
        driver = Driver("128@1")
        assert jump(driver.answer(470, latest=5, earliest=2)).seq == 5
        assert driver.read(5, epoch=1) == NextSegment(5, epoch=1, gap=3, restarted=True)

    def test_a_number_ahead_of_the_head_is_none(self) -> None:
        """Nobody has read what is before it."""
        driver = Driver(128)
        assert jump(driver.answer(470, latest=5, earliest=2)).seq == 5
        assert driver.read(5) == NextSegment(5)

    def test_a_position_without_an_epoch_takes_any(self) -> None:
        """Servers that tell none have none."""
        assert not Driver("128").read(128, epoch=4).restarted

    @pytest.mark.parametrize(
        "headers", [{"latest": 1, "epoch": 4}, {"latest": 1, "epoch": 3}, {"latest": 128, "epoch": 4}]
    )
    def test_another_life_that_has_ended_too_is_no_quiet_end(self, headers: dict[str, int]) -> None:
        """Read from its beginning, an error, or missed as a whole: as ``on_lag`` has it."""
        headers |= {"seq": 128, "content_length": 0}
        earliest = Driver("128@3", on_lag=OnLag.EARLIEST)
        outcome = jump(earliest.answer(200, closed="terminated", **headers))
        assert outcome.seq == 0
        assert outcome.delay_s >= MIN_DELAY_S
        assert earliest.read(0, epoch=headers["epoch"]) == NextSegment(0, epoch=headers["epoch"], restarted=True)
        assert Driver("128@3").answer(200, closed="terminated", **headers) == End(headers["latest"])
        error = stopped(Driver("128@3", on_lag=OnLag.FAIL).answer(200, closed="terminated", **headers))
        assert isinstance(error, SegmentMissing)
        assert error.detail.startswith("the channel has another life")

    @pytest.mark.parametrize(
        ("start", "headers"),
        [
            ("128@3", {"latest": 128, "epoch": 3}),
            ("128@3", {"latest": 0, "epoch": 4}),
            ("128@3", {"latest": 1}),
            ("128@3", {"epoch": 4}),
            (128, {"latest": 1, "epoch": 4}),
        ],
        ids=["the same life", "nothing in it", "no epoch", "no head", "a number"],
    )
    def test_an_end_that_tells_of_no_other_life_is_the_end(
        self, start: AnyStart | str, headers: dict[str, int]
    ) -> None:
        """Also on a server without epochs, whose head may go back for a moment: nothing is read twice."""
        driver = Driver(start, on_lag=OnLag.EARLIEST)
        assert driver.answer(200, seq=128, content_length=0, closed="terminated", **headers) == End()

    def test_another_life_that_is_forgotten_is_not_asked_for(self) -> None:
        """Its name is not known any more; only how much there was."""
        driver = Driver("128@3", on_lag=OnLag.EARLIEST)
        assert driver.answer(404, latest=5, epoch=4, closed="terminated") == End(5)

    @pytest.mark.parametrize("start", ["14@1", 14])
    def test_what_ended_while_the_next_life_was_waited_for_is_missed(self, start: AnyStart | str) -> None:
        """A reader that comes back after the end learns how many segments it missed."""
        driver = Driver(start, wait_for_channel_s=3)
        retry(driver.answer(404, latest=97, epoch=1, closed="terminated"))
        driver.now += 3
        assert driver.answer(404, closed="terminated") == End(83)


class TestSeeking:
    def seek(self, driver: Driver, start: AnyStart | str, **options: Any) -> float:
        return driver.cursor.seek(Start.parse(start), driver.rng, **options)

    def test_a_seek_is_no_gap(self) -> None:
        """Neither forward nor back."""
        driver = Driver()
        driver.read(0)
        assert self.seek(driver, 9) == 0
        assert driver.read(9) == NextSegment(9)
        self.seek(driver, 3)
        assert driver.read(3) == NextSegment(3)

    def test_what_is_missing_behind_its_target_is_one(self) -> None:
        """The user has named that segment."""
        driver = Driver()
        driver.read(0)
        self.seek(driver, 5)
        driver.answer(470, latest=100, earliest=40)
        assert driver.read(40).gap == 35

    @pytest.mark.parametrize(("start", "target", "seq"), [("next", 8, 40), (0, "8@1", 40), (0, "current", 99)])
    def test_a_reader_wants_what_it_has_gone_to(self, start: AnyStart | str, target: int | str, seq: int) -> None:
        """Everything from a number on, only the newest from the live edge; at a position, what it wanted before."""
        driver = Driver(start)
        if start == "next":
            driver.answer(200, latest=8)
        self.seek(driver, target)
        driver.read(8)
        assert jump(driver.answer(470, latest=100, earliest=40)).seq == seq

    def test_next_is_resolved_anew(self) -> None:
        """From words like from numbers."""
        driver = Driver()
        driver.read(0)
        self.seek(driver, "next")
        assert driver.cursor.ask() == Ask(None)
        assert driver.answer(200, latest=7) == Resolved(7)

    def test_a_target_ahead_of_the_head_is_no_restart(self) -> None:
        """The channel is the same; the user was wrong."""
        driver = Driver()
        driver.read(0, epoch=1)
        self.seek(driver, 50)
        assert jump(driver.answer(470, latest=5, earliest=0)).seq == 5
        assert driver.read(5, epoch=1) == NextSegment(5, epoch=1)

    def test_another_life_is_noticed_all_the_same(self) -> None:
        """The epoch is that of what was read last."""
        driver = Driver()
        driver.read(0, epoch=1)
        self.seek(driver, 0)
        assert driver.read(0, epoch=2).restarted

    def test_a_seek_after_failures_waits(self) -> None:
        """A seek after each error is no way to send requests without delays."""
        driver = Driver()
        stopped(driver.answer(404))
        assert self.seek(driver, 0, failed=True) >= MIN_DELAY_S


class TestCutSegments:
    def test_the_segment_is_asked_for_again_after_a_pause(self) -> None:
        """Without moving; again and again for a while, and for a token once it has gone on and was cut again."""
        budget = RetryBudget(0, 1)
        driver = Driver(budget=budget)
        driver.read(0)
        for _ in range(9):
            delay_s = driver.cursor.cut(driver.now, driver.rng)
            assert delay_s is not None
            assert delay_s >= MIN_DELAY_S
            assert driver.cursor.ask() == Ask(1)
            driver.now += 1
        assert budget.tokens == 1
        driver.now += MAX_CUT_S
        assert driver.cursor.cut(driver.now, driver.rng) is None
        driver.cursor.resumed()
        assert driver.cursor.cut(driver.now, driver.rng) is not None
        driver.cursor.resumed()
        assert driver.cursor.cut(driver.now, driver.rng) is None

    def test_retry_after_is_kept_to_or_too_long(self) -> None:
        """Nobody waits in the middle of a segment until it has left the window."""
        driver = Driver()
        delay_s = driver.cursor.cut(driver.now, driver.rng, floor_s=MAX_CUT_S)
        assert delay_s is not None
        assert delay_s > MAX_CUT_S
        assert driver.cursor.cut(driver.now, driver.rng, floor_s=MAX_CUT_S + 1) is None


class TestReading:
    def test_a_segment_carries_what_the_server_said(self) -> None:
        """Seq, epoch, type, size and truncation come from the headers."""
        outcome = Driver(4).answer(200, seq=4, epoch=2, size=512, truncated="publisher_lost", content_type="video/mp2t")
        assert outcome == NextSegment(
            4, epoch=2, content_type="video/mp2t", size_at_start=512, truncated="publisher_lost"
        )

    def test_an_empty_segment_is_a_segment(self) -> None:
        """200 without a byte and without ``Closed`` advances by one."""
        driver = Driver(4)
        assert driver.answer(200, seq=4, content_length=0) == NextSegment(4, empty=True)
        assert driver.asked == 5

    def test_the_head_tells_how_far_behind_a_segment_is(self) -> None:
        """Segments that begin with the answer, or whose server does not say, are at the live edge."""
        for latest, lag in ((9, 4), (5, 0), (4, 0), (None, 0)):
            outcome = Driver(4).answer(200, seq=4, latest=latest)
            assert isinstance(outcome, NextSegment)
            assert outcome.lag == lag

    def test_closed_is_the_end(self) -> None:
        """``Closed`` ends the channel, also after segments."""
        driver = Driver()
        driver.read(0)
        assert driver.answer(200, seq=1, latest=1, closed="terminated", content_length=0) == End()

    def test_an_empty_segment_of_an_ended_channel_is_not_its_end(self) -> None:
        """It says ``Closed``, too; but as long as the channel drains, what follows can still be read."""
        driver = Driver()
        driver.read(0)
        outcome = driver.answer(200, seq=1, latest=3, closed="terminated", content_length=0)
        assert outcome == NextSegment(1, lag=1, empty=True)
        assert driver.read(2) == NextSegment(2)
        assert driver.answer(200, seq=3, latest=3, closed="terminated", content_length=0) == End()

    @pytest.mark.parametrize(
        ("status", "headers"),
        [
            (404, {"seq": 1, "latest": 9}),
            (200, {"seq": 2, "latest": 9}),
            (200, {"seq": 1, "latest": 2}),
            (200, {"seq": 1, "latest": 9, "content_length": 7}),
        ],
    )
    def test_everything_else_that_says_closed_is(self, status: int, headers: dict[str, int]) -> None:
        """Another seq, nothing behind it, or an error's text."""
        driver = Driver(1)
        assert isinstance(driver.answer(status, **{"content_length": 0} | headers, closed="terminated"), End)

    def test_an_ended_channel_can_be_read_from_before_its_head(self) -> None:
        """Its head says ``Closed``; what is kept can still be read."""
        driver = Driver(-3)
        assert driver.answer(200, latest=8, closed="terminated") == Resolved(6)
        assert driver.read(6) == NextSegment(6)
        assert Driver(-3).answer(200, latest=0, closed="terminated") == End()

    def test_an_end_beyond_the_wanted_segment_is_a_gap(self) -> None:
        """Segments between the last one read and the end are reported as missed."""
        driver = Driver()
        driver.read(0)
        assert driver.answer(200, latest=4, closed="terminated") == End(gap=3)

    def test_404_after_a_segment_is_final(self) -> None:
        """The reference server forgets a channel at its end. No time to wait for one changes that."""
        driver = Driver(wait_for_channel_s=60)
        driver.read(0)
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)

    @pytest.mark.parametrize("seq", [None, "-1", "x", 3])
    def test_another_seq_than_the_one_asked_for_is_not_the_protocol(self, seq: object) -> None:
        """No 200 is taken for a segment unless it says that it is that segment."""
        headers = {} if seq is None else {"seq": seq}
        assert isinstance(stopped(Driver(5).answer(200, **headers)), RemoteProtocolError)

    def test_a_segment_that_was_compressed_on_the_way_is_not_read(self) -> None:
        """Its bytes are not those that were published. One without bytes has none to be wrong."""
        assert "in the proxy" in str(stopped(Driver(5).answer(200, seq=5, content_encoding="gzip")))
        assert Driver(5).read(5, content_encoding="gzip", content_length=0).empty

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

    def test_another_epoch_leads_to_its_earliest_segment_if_that_is_wanted(self) -> None:
        """Who wants to lose least reads all of the new life."""
        driver = Driver(6, on_lag=OnLag.EARLIEST)
        driver.read(6, epoch=1)
        assert jump(driver.answer(200, seq=7, epoch=2)).seq == 0
        assert driver.read(0, epoch=2) == NextSegment(0, epoch=2, restarted=True)

    def test_the_last_seq_of_all_is_not_the_protocol(self) -> None:
        """None could follow it."""
        assert isinstance(stopped(Driver("current").answer(200, seq=10**15 - 1)), RemoteProtocolError)

    @pytest.mark.parametrize("error", [RemoteProtocolError(detail="SSH-2.0"), Refused(detail="no certificate")])
    def test_garbage_and_a_refused_certificate_are_final(self, error: Refused | RemoteProtocolError) -> None:
        """A peer that does not speak HTTP will not learn it, and this client has no other certificate."""
        driver = Driver()
        driver.read(0)
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
        assert retry(driver.lost()).delay_s >= MIN_DELAY_S


class TestMissing:
    def test_a_segment_that_left_the_window_leads_to_the_live_edge(self) -> None:
        """Forward, at once, since it is another request; the gap is told with the next segment."""
        driver = Driver(5, on_lag=OnLag.LIVE)
        assert driver.answer(470, seq=5, latest=100, earliest=40) == Jump(99, 0.0, jump_error(5, 100, 40))
        assert driver.read(99) == NextSegment(99, gap=94)
        assert driver.read(100) == NextSegment(100)

    def test_or_to_the_earliest(self) -> None:
        """``earliest`` goes to the oldest segment that is kept."""
        driver = Driver(5, on_lag=OnLag.EARLIEST)
        assert jump(driver.answer(470, latest=100, earliest=40)).seq == 40
        assert driver.read(40).gap == 35

    @pytest.mark.parametrize(
        ("start", "seq"), [(5, 40), ("5", 40), ("earliest", 40), ("5@1", 99), ("current", 99), ("next", 99), ("-3", 99)]
    )
    def test_by_default_the_start_decides(self, start: AnyStart | str, seq: int) -> None:
        """A reader that asked for everything goes on at the oldest segment that is there, a live one at the newest."""
        driver = Driver(start)
        if driver.cursor.ask().seq is None:
            driver.answer(200, latest=5 + 2 * (start == "-3"))
        driver.read(0 if start == "earliest" else 5)
        assert jump(driver.answer(470, latest=100, earliest=40)).seq == seq

    def test_or_nowhere(self) -> None:
        """``fail`` gives up with the error that says what was there."""
        error = stopped(Driver(5, on_lag=OnLag.FAIL).answer(470, latest=100, earliest=40))
        assert isinstance(error, SegmentMissing)
        assert (error.seq, error.latest, error.earliest) == (5, 100, 40)

    def test_a_second_step_is_paid_for(self) -> None:
        """Without a segment in between: what the server said last is the error."""
        driver = Driver(5, budget=RetryBudget(0, 0))
        assert jump(driver.answer(470, latest=10, earliest=7)).delay_s == 0
        driver.now += LATE_AGAIN_S
        error = stopped(driver.answer(470, latest=20, earliest=17))
        assert isinstance(error, SegmentMissing)
        assert error.latest == 20

    def test_after_an_empty_segment_as_well(self) -> None:
        """A dead segment is answered empty too: it is no proof that all is well again."""
        driver = Driver(0, on_lag=OnLag.LIVE)
        driver.answer(470, latest=10)
        driver.read(9, content_length=0)
        assert jump(driver.answer(470, latest=20)).delay_s > 0

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
        outcome = jump(driver.answer(470, latest=3, earliest=1))
        assert outcome.seq == 3
        assert outcome.delay_s >= MIN_DELAY_S
        assert driver.read(3, epoch=1) == NextSegment(3, epoch=1, gap=2, restarted=True)
        assert not driver.read(4, epoch=1).restarted

    def test_or_at_its_earliest(self) -> None:
        """``earliest`` reads all that the new life still has."""
        driver = Driver(7, on_lag=OnLag.EARLIEST)
        driver.read(7)
        assert jump(driver.answer(470, latest=3, earliest=1)).seq == 1
        assert driver.read(1) == NextSegment(1, gap=0, restarted=True)

    @pytest.mark.parametrize("on_lag", [None, OnLag.EARLIEST])
    def test_a_start_beyond_the_head_begins_at_the_head(self, on_lag: OnLag | None) -> None:
        """A seq that is far in the future is brought back to the present, without a gap or a restart."""
        driver = Driver(100, on_lag=on_lag)
        assert jump(driver.answer(470, latest=5, earliest=2)).seq == 5
        assert driver.read(5) == NextSegment(5)

    def test_a_relative_start_that_is_missing_begins_at_the_head(self) -> None:
        """470 to -2 should not be; it leads to the head that it names."""
        assert jump(Driver("current").answer(470, latest=5)).seq == 5

    def test_a_head_that_swings_does_not_make_a_loop(self) -> None:
        """The historic fault: dead segment N is answered empty, N + 1 with 470 and head N, and so on."""
        driver = Driver(8)
        driver.read(8)
        requests, paused = 0, 0.0
        while not isinstance(outcome := driver.answer(470, latest=8), Stop):
            assert isinstance(outcome, Jump | Retry)
            requests += 1
            paused += outcome.delay_s
            if isinstance(outcome, Jump):
                requests += 1
                driver.read(8, content_length=0)
        assert isinstance(outcome.error, SegmentMissing)
        assert requests <= 22
        assert paused > 5

    def test_the_reference_servers_head_goes_back_for_moments(self) -> None:
        """When two of its publisher's requests overtake each other: the same seq is asked for again, and is there."""
        driver = Driver(7, on_lag=OnLag.FAIL)
        driver.read(7)
        assert retry(driver.answer(470, latest=6)).delay_s >= MIN_DELAY_S
        assert driver.cursor.ask() == Ask(8, 2)
        assert driver.read(8) == NextSegment(8)

    def test_a_head_that_stays_behind_is_believed(self) -> None:
        """After about 2 s; and at once from a server that was away, or that says what it keeps."""
        driver = Driver(7)
        driver.read(7)
        assert sum(retry(driver.answer(470, latest=6)).delay_s for _ in range(HEAD_RECHECKS)) < 5
        assert jump(driver.answer(470, latest=6)).seq == 6
        for away in (True, False):
            driver = Driver(7)
            driver.read(7)
            if away:
                driver.lost()
            assert jump(driver.answer(470, latest=6, **({} if away else {"earliest": 0}))).seq == 6

    def test_an_outage_does_not_slow_down_what_follows_it(self) -> None:
        """The server is back: another segment is asked for soon, however long it was away."""
        driver = Driver(7)
        driver.read(7)
        for _ in range(6):
            driver.lost()
        assert jump(driver.answer(470, latest=30, earliest=20)).delay_s <= MIN_DELAY_S + 2 * BASE_S

    def test_a_numbering_that_goes_on_is_followed_where_it_was_left(self) -> None:
        """The live edge is for who fell behind; here the server did, and all that it has is wanted."""
        driver = Driver(21)
        driver.read(21)
        driver.lost()
        assert jump(driver.answer(470, latest=0)).seq == 0
        assert driver.answer(200, seq=0, latest=26, content_length=0) == NextSegment(
            0, lag=25, restarted=True, empty=True
        )
        assert jump(driver.answer(470, latest=26, earliest=22)).seq == 22
        assert driver.read(22) == NextSegment(22)


class TestTooLateAgain:
    """A reader that does not keep up, however fast its channel is."""

    def test_a_numbering_that_goes_on_is_asked_for_by_number(self) -> None:
        """Where the reader had come to before its server was restarted."""
        driver = Driver(0)
        for seq in range(10):
            driver.read(seq)
        for latest, earliest, seq in ((2, 0, 2), (8, 6, 6), (14, 9, 10)):
            assert jump(driver.answer(470, latest=latest, earliest=earliest)).seq == driver.asked == seq

    def test_a_retry_asks_by_number(self) -> None:
        """A full server refuses a reader that counts from the head, as a new one, and serves one that is there."""
        driver = self.counting()
        retry(driver.answer(503, retry_after=1))
        assert driver.cursor.ask() == Ask(60, 2)
        driver = self.counting()
        retry(driver.lost())
        assert driver.cursor.ask() == Ask(60, 2)

    def test_a_wait_asks_by_number(self) -> None:
        """A server that has nothing lets it wait: it has been restarted."""
        driver = self.counting()
        driver.cursor.refreshed()
        assert driver.cursor.ask() == Ask(60)

    def test_a_head_that_has_gone_back_is_not_read(self) -> None:
        """What the reader had would come again. The answer to the number says what has become of it."""
        driver = self.counting()
        outcome = retry(driver.answer(200, seq=59))
        assert "the head has gone back to 59" in str(outcome.error)
        assert driver.cursor.ask() == Ask(60, 2)

    def test_the_answer_names_the_segment(self) -> None:
        """It must not be missing, and it is no end if it is empty."""
        driver = self.counting()
        assert isinstance(stopped(driver.answer(200)), RemoteProtocolError)
        driver = self.counting()
        outcome = driver.answer(200, seq=70, latest=72, content_length=0, closed="terminated")
        assert isinstance(outcome, NextSegment)
        assert (outcome.seq, outcome.gap) == (70, 65)

    def test_470_goes_on_from_the_lowest_that_was_meant(self) -> None:
        """A server may not be able to read what it still lists."""
        driver = self.counting()
        assert jump(driver.answer(470, latest=160, earliest=70)).seq == 70 + 2 * 20
        assert driver.asked == 110 - 160 - 1

    @staticmethod
    def counting() -> Driver:
        """A reader that counts from the head, and wants 60 or a later one."""
        driver = Driver(5)
        for earliest in (40, 50):
            driver.answer(470, latest=earliest + 90, earliest=earliest)
        assert driver.cursor.ask() == Ask(60 - 140 - 1)
        return driver


class TestFailing:
    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_a_refusal_for_now_is_retried_after_what_it_says(self, status: int) -> None:
        """``Retry-After`` is a floor, and jitter comes on top."""
        driver = Driver(5)
        outcome = retry(driver.answer(status, body="busy", retry_after=4))
        assert 4 < outcome.delay_s <= 4 + BASE_S
        assert isinstance(outcome.error, Refused)
        assert driver.cursor.ask() == Ask(5, 2)

    def test_a_long_retry_after_is_a_refusal(self) -> None:
        """Nobody waits for hours in silence."""
        assert isinstance(stopped(Driver().answer(503, retry_after=int(MAX_RETRY_AFTER_S) + 1)), Refused)
        retry(Driver().answer(503, retry_after=int(MAX_RETRY_AFTER_S)))

    def test_delays_grow_and_end(self) -> None:
        """Full jitter under a growing ceiling, as often as the budget allows."""
        driver = Driver(budget=RetryBudget(0.2, 8))
        for ceiling in (0.25, 0.5, 1, 2, 4, 8, 10, 10):
            assert MIN_DELAY_S <= retry(driver.answer(429)).delay_s <= MIN_DELAY_S + ceiling
        assert isinstance(stopped(driver.answer(429)), Refused)

    @pytest.mark.parametrize("look", ["lost", 500, 502, 503, 504])
    def test_an_outage_costs_as_much_however_it_looks(self, look: Look) -> None:
        """One token and half a minute, for the GET that waits and for the segment that was being read together."""
        budget = RetryBudget(0, 2)
        driver = Driver(budget=budget)

        def fail() -> Decision:
            return driver.fails(look)

        driver.answer(200, seq=0)
        assert driver.cursor.cut(driver.now, driver.rng) is not None
        while driver.cursor.cut(driver.now, driver.rng) is not None:
            retry(fail())
            driver.now += 1
        assert driver.cursor.broken(LOST) is None
        while isinstance(outcome := fail(), Retry):
            assert MIN_DELAY_S <= outcome.delay_s <= MIN_DELAY_S + CAP_S
            driver.now += 1
        assert isinstance(stopped(outcome), ConnectionLost | Refused)
        assert driver.now == 1000 + RECONNECT_S
        assert budget.tokens == 1

    @pytest.mark.parametrize("look", ["lost", 502])
    def test_outages_without_a_segment_in_between_are_paid_for(self, look: Look) -> None:
        """A server that only comes and goes is left when the budget is empty; one that serves in between is not."""
        driver = Driver(budget=RetryBudget(0, 3))
        for seq in range(100):
            driver.read(seq)
            retry(driver.fails(look))
        for seq in range(100, 103):
            driver.answer(200, seq=seq)
            retry(driver.fails(look))
        driver.answer(200, seq=103)
        stopped(driver.fails(look))

    def test_a_wait_that_was_cut_for_idleness_is_no_outage(self) -> None:
        """A proxy may cut each wait of a quiet channel, for hours."""
        driver = Driver(budget=RetryBudget(0, 0))
        driver.read(0)
        for _ in range(1000):
            driver.now += IDLE_S
            assert retry(driver.lost(taken=True, waited_s=IDLE_S)).delay_s <= MIN_DELAY_S + 0.25

    def test_a_quiet_channel_outlives_any_number_of_restarts(self) -> None:
        """A wait that lasted its time pays for later ones, and ends the outage before it."""
        driver = Driver(budget=RetryBudget(0.2, 1))
        driver.read(0)
        for _ in range(100):
            retry(driver.lost())
            for _ in range(5):
                driver.now += REFRESH_S
                driver.cursor.refreshed()

    def test_a_channel_that_is_waited_for_is_waited_for_no_longer_by_a_failure(self) -> None:
        """The user's 5 s stay 5 s, although a lost server is waited for longer."""
        driver = Driver(wait_for_channel_s=5)
        retry(driver.answer(404))
        retry(driver.lost())
        retry(driver.lost())
        retry(driver.answer(502))
        driver.now += 5
        assert isinstance(stopped(driver.answer(502)), Refused)

    def test_a_lost_connection_is_retried(self) -> None:
        """Once the server has answered, a lost connection is an accident."""
        driver = Driver()
        driver.read(0)
        outcome = retry(driver.lost())
        assert outcome.delay_s >= MIN_DELAY_S
        assert outcome.error is LOST
        assert driver.cursor.ask() == Ask(1, 2)

    def test_404_after_a_lost_connection_is_waited_for_a_little(self) -> None:
        """A restarted server has its channels again once its publishers are back."""
        driver = Driver()
        driver.read(0)
        driver.lost()
        retry(driver.answer(404))
        driver.now += RECONNECT_S - 0.1
        retry(driver.answer(404))
        driver.now += 0.1
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)

    def test_404_of_a_server_that_tells_ends_is_waited_for_a_little(self) -> None:
        """Behind a proxy that swaps the server, no connection is lost: the publisher begins the channel there anew."""
        driver = Driver()
        driver.read(0, epoch=1)
        retry(driver.answer(404))
        assert driver.read(1, epoch=1).gap == 0
        retry(driver.answer(404))
        driver.now += RECONNECT_S
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)

    def test_how_long_is_a_setting(self) -> None:
        """A server that was there is waited for as long as the user says, one that never was for no longer."""
        for reconnect_s in (0.0, 5.0, 3600.0):
            driver = Driver(reconnect_s=reconnect_s)
            assert stopped(driver.lost()) is LOST
            driver = Driver(reconnect_s=reconnect_s)
            driver.read(0)
            requests = 0
            while isinstance(outcome := driver.lost(), Retry):
                requests += 1
                driver.now += outcome.delay_s
            assert reconnect_s <= driver.now - 1000 <= reconnect_s + CAP_S
            assert requests <= 60 + reconnect_s / 3

    @pytest.mark.parametrize("look", ["lost", 502, 404, 429, 503])
    def test_a_reader_without_end_never_stops_for_a_failure(self, look: Look) -> None:
        """Not for a channel that the server has dropped, nor an empty budget, which slows it down."""
        driver = Driver(wait_for_channel_s=None, reconnect_s=None, budget=RetryBudget(0.2, 2))
        for _ in range(2000):
            driver.now += retry(driver.fails(look)).delay_s
        driver.read(0)
        began, delays = driver.now, []
        for seq in range(1, 200):  # it fails again and again
            driver.answer(200, seq=seq)
            assert driver.cursor.broken(LOST) is None
            delays.append(retry(driver.fails(look)).delay_s)
            driver.now += delays[-1]
        assert driver.now - began >= 190 * CAP_S / 4
        assert retry(driver.answer(503, retry_after=1000)).delay_s >= 1000
        for final in (401, 403):
            assert isinstance(stopped(driver.answer(final)), Refused)

    def test_a_channel_that_the_server_has_dropped_is_the_end_or_is_waited_for(self) -> None:
        """Without a limit the reader waits, and goes on where it was."""
        driver = Driver()
        driver.read(0)
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)
        driver = Driver(reconnect_s=None)
        driver.read(0)
        for _ in range(3):
            driver.now += retry(driver.answer(404)).delay_s
        assert driver.read(1).gap == 0

    def test_404_at_another_node_is_waited_for_a_little(self) -> None:
        """The node that was lost may have had the channel. A reader that no node has answered yet does not wait."""
        driver = Driver()
        driver.cursor.moved()
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)
        budget = RetryBudget(0, 3)
        driver = Driver(budget=budget)
        driver.read(0)
        driver.cursor.moved()
        driver.cursor.moved()
        assert budget.tokens == 3
        retry(driver.answer(404))
        driver.read(1)
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)

    def test_a_segment_after_it_ends_that_wait(self) -> None:
        """Only a 404 that follows the loss is waited for."""
        driver = Driver()
        driver.read(0)
        driver.lost()
        driver.read(1)
        assert isinstance(stopped(driver.answer(404)), ChannelNotFound)

    def test_404_after_a_shutdown_is_waited_for(self) -> None:
        """A server that is restarted in order says 503 first; its successor has no channels yet, either."""
        driver = Driver()
        driver.read(0)
        assert retry(driver.answer(503, retry_after=2)).delay_s >= 2
        retry(driver.answer(404))

    def test_a_server_that_is_gone_is_asked_for_often(self) -> None:
        """The delays stay short for a minute."""
        budget = RetryBudget(0.2, 3)
        driver = Driver(budget=budget)
        driver.read(0)
        driver.lost()
        delays = []
        for _ in range(20):
            delays.append(retry(driver.lost()).delay_s)
            driver.now += RECONNECT_S / 20 - 0.01
        assert budget.tokens == 3
        assert max(delays) <= MIN_DELAY_S + OUTAGE_BACKOFF.cap_s
        retry(driver.answer(404))
        driver.now += 0.2
        gone = ConnectionLost()
        assert stopped(driver.lost(gone)) is gone

    def test_an_end_that_is_the_wanted_segments_answer_misses_nothing(self) -> None:
        """The reference server closes a publisher's preconnect empty, counts it, and then ends the channel."""
        driver = Driver()
        driver.read(0)
        assert driver.answer(200, seq=1, latest=2, closed="terminated", content_length=0) == End()
        assert Driver().answer(404, latest=1, closed="terminated") == End(1)

    def test_an_end_without_a_head_is_counted_up_to_the_newest_head_that_was_seen(self) -> None:
        """Who comes when an ended channel is no longer kept has missed at least what it was told of before."""
        driver = Driver()
        driver.read(0, latest=5)
        assert driver.answer(404, closed="terminated") == End(4)

    def test_a_numbering_that_goes_on_after_a_restart(self) -> None:
        """Found empty, the channel is read from its new start; what the publisher leaves out there was read before."""
        driver = Driver(on_lag=OnLag.LIVE)
        for seq in range(5):
            driver.read(seq)
        driver.lost()
        assert isinstance(driver.answer(470, seq=5, latest=0), Jump)
        skipped = driver.answer(200, seq=0, content_length=0)
        assert isinstance(skipped, NextSegment)
        assert (skipped.gap, skipped.restarted) == (0, True)
        assert isinstance(driver.answer(470, seq=1, latest=9, earliest=7), Jump)
        outcome = driver.answer(200, seq=8)
        assert isinstance(outcome, NextSegment)
        assert outcome.gap == 3, "5, 6 and 7; not those from before the restart"

    def test_a_numbering_that_began_again_after_a_restart(self) -> None:
        """A seq below those from before is counted from the new start; so is all that follows."""
        driver = Driver()
        for seq in range(5):
            driver.read(seq)
        driver.lost()
        assert isinstance(driver.answer(470, seq=5, latest=0), Jump)
        assert isinstance(driver.answer(470, seq=0, latest=3, earliest=2), Jump)
        began = driver.answer(200, seq=2)
        assert isinstance(began, NextSegment)
        assert (began.gap, began.restarted) == (2, True)
        driver.cursor.finished()
        assert isinstance(driver.answer(470, seq=3, latest=8, earliest=7), Jump)
        outcome = driver.answer(200, seq=7)
        assert isinstance(outcome, NextSegment)
        assert outcome.gap == 4

    def test_a_cut_segment_is_passed_over_and_slows_down(self) -> None:
        """The GET after the next segment is held back; the one that is out already is not touched."""
        driver = Driver()
        driver.answer(200, seq=0)
        assert driver.cursor.broken(LOST) is None
        assert driver.asked == 1
        outcome = driver.answer(200, seq=1)
        assert isinstance(outcome, NextSegment)
        assert outcome.delay_s >= MIN_DELAY_S
        assert outcome.gap == 0
        driver.cursor.finished()
        assert driver.read(2).delay_s == 0

    def test_cut_segments_are_paid_for(self) -> None:
        """A server that cuts every segment is left after as many as the budget allows."""
        driver = Driver(budget=RetryBudget(0.2, 2))
        for seq in (0, 1):
            driver.answer(200, seq=seq)
            assert driver.cursor.broken(LOST) is None
        driver.answer(200, seq=2)
        assert stopped(driver.cursor.broken(LOST)) is LOST

    def test_whole_segments_earn_retries(self) -> None:
        """The budget is a share of what arrived."""
        budget = RetryBudget(0.5, 2)
        driver = Driver(budget=budget)
        driver.answer(429)
        driver.answer(429)
        driver.read(0)
        driver.read(1)
        assert budget.tokens == 1
        retry(driver.answer(429))


class TestLives:
    """A server that is restarted: ``Lp-Trickle-Life`` says whether the numbers of before go on."""

    @staticmethod
    def at(seq: int = 5, life: str = "a:0", start: AnyStart | str = "current", **options: Any) -> Driver:
        """A cursor that has read all below ``seq`` of one numbering, in epoch 1; a live one, unless ``start`` says."""
        driver = Driver(start, **options)
        driver.read(seq - 1, epoch=1, life=life)
        return driver

    def test_the_server_is_told_which_numbering_goes_on(self) -> None:
        """As soon as one is known, with its epoch, and of the one to which the reader was sent: another may follow."""
        assert Driver(5).cursor.ask() == Ask(5)
        driver = self.at()
        assert driver.cursor.ask() == Ask(5, 1, "a", 1)
        jump(driver.answer(470, latest=5, earliest=0, epoch=2, life="b:0"))
        assert driver.cursor.ask() == Ask(4, 1, "b", 2)
        driver.read(4, epoch=2, life="b:0")
        assert driver.cursor.ask() == Ask(5, 1, "b", 2)
        assert Driver("5@1:a").cursor.ask() == Ask(5, 1, "a", 1)

    def test_of_one_of_which_nothing_was_read_it_is_told_the_first_seq(self) -> None:
        """It is told where that begins: if it has lost it, the reader has lost nothing, and is not sent back."""
        driver = self.at(4, "b:5", on_lag=OnLag.EARLIEST)
        assert driver.cursor.ask() == Ask(4, 1, "b:5", 1)
        driver.read(4, epoch=1, life="b:5")
        assert driver.read(5, epoch=1, life="c:5").restarted is False
        assert driver.cursor.ask() == Ask(6, 1, "c", 1)

    @pytest.mark.parametrize(("place", "restarted"), [("5@1:a+9", True), ("5@1:a+0", False), ("5@1:a", False)])
    def test_a_numbering_that_begins_with_a_segment_read_in_part_is_another_one(
        self, place: str, restarted: bool
    ) -> None:
        """The bytes before a position of lines are those of the numbering that was read."""
        begun = Driver(place).read(5, epoch=1, life="b:5")
        assert (begun.gap, begun.restarted) == (0, restarted)

    def test_at_its_head_a_new_numbering_is_gone_to(self) -> None:
        """The server says so at once, rather than let the reader wait for the next segment."""
        driver = self.at()
        assert jump(driver.answer(470, latest=5, earliest=0, life="b:0")).seq == 4
        begun = driver.read(4, epoch=1, life="b:0")
        assert (begun.gap, begun.restarted) == (4, True)

    @pytest.mark.parametrize("start", ["earliest", 4, 0])
    def test_a_reader_of_everything_begins_with_its_first_segment(self, start: AnyStart | str) -> None:
        """One that began at ``earliest`` or at a number; however it learns of the new numbering."""
        driver = Driver(start)
        if start == 0:
            for seq in range(4):
                driver.read(seq, epoch=1, life="a:0")
        elif start == "earliest":
            jump(driver.answer(470, latest=6, earliest=4, life="a:0"))
        driver.read(4, epoch=1, life="a:0")
        if start == 0:
            outcome = driver.answer(200, seq=5, epoch=1, life="b:0")
        else:
            outcome = driver.answer(470, latest=9, earliest=0, life="b:0")
        assert jump(outcome).seq == 0
        begun = driver.read(0, epoch=1, life="b:0")
        assert (begun.gap, begun.restarted) == (0, True)

    def test_another_epoch_is_read_from_where_it_begins(self) -> None:
        """Also if nothing was written since the restart. One that begins further on is gone to by what is kept."""
        driver = self.at(on_lag=OnLag.EARLIEST)
        assert jump(driver.answer(470, latest=5, earliest=0, epoch=2, life="b")).seq == 0
        begun = driver.read(0, epoch=2, life="b")
        assert (begun.gap, begun.restarted) == (0, True)
        driver = self.at(on_lag=OnLag.EARLIEST)
        assert jump(driver.answer(470, latest=12, earliest=6, next=6, epoch=2, life="c:8")).seq == 6

    @pytest.mark.parametrize("life", ["a:0", "b"])
    def test_it_does_not_read_again_what_is_of_its_own_numbering(self, life: str) -> None:
        """A head that stays behind, with the same name, or of which nothing was written since the start."""
        driver = self.at(start=4, on_lag=OnLag.EARLIEST if life == "a:0" else None)
        driver.answer(470, latest=3, earliest=0, life=life)
        driver.now += RECONNECT_S
        assert jump(driver.answer(470, latest=3, earliest=0, life=life)).seq == 3

    @pytest.mark.parametrize("start", ["3@1:a", "-4", "next", "current"])
    def test_a_live_reader_goes_on_at_the_head(self, start: str) -> None:
        """So does one that goes on at a position, which a live reader has, too."""
        driver = Driver(start)
        if driver.asked is None:
            driver.answer(200, latest=3 if start == "next" else 6)
        driver.read(3, epoch=1, life="a:0")
        assert jump(driver.answer(470, latest=9, earliest=0, life="b:0")).seq == 8

    def test_a_new_numbering_that_has_passed_the_position_is_told(self) -> None:
        """B5 does not follow A4 though its epoch is the same: it is *restarted*, and B0 to B4 are a gap."""
        begun = self.at().read(5, epoch=1, life="b:0")
        assert (begun.gap, begun.restarted, begun.life) == (5, True, "b")

    def test_it_is_read_from_its_first_segment_by_who_goes_to_the_earliest(self) -> None:
        """B5 is not handed out; B0 is, without a gap; what was evicted of it is one."""
        driver = self.at(on_lag=OnLag.EARLIEST)
        assert jump(driver.answer(200, seq=5, epoch=1, life="b:0")).seq == 0
        first = driver.read(0, epoch=1, life="b:0")
        assert (first.gap, first.restarted) == (0, True)
        driver = self.at(on_lag=OnLag.EARLIEST)
        driver.answer(200, seq=5, epoch=1, life="b:0")
        assert jump(driver.answer(470, latest=9, earliest=3, next=3, life="b:0")).seq == 3
        assert driver.read(3, epoch=1, life="b:0").gap == 3

    def test_it_ends_who_may_not_lag(self) -> None:
        """Nothing else can be meant by *fail*."""
        driver = self.at(on_lag=OnLag.FAIL)
        assert isinstance(stopped(driver.answer(200, seq=5, epoch=1, life="b:0")), SegmentMissing)
        driver = self.at(on_lag=OnLag.FAIL)
        assert isinstance(stopped(driver.answer(470, latest=3, earliest=0, life="b:0")), SegmentMissing)

    def test_it_is_read_from_the_position_if_it_begins_there(self) -> None:
        """A server that keeps channels lost what was next, and another publisher went on: that follows."""
        begun = self.at().read(5, epoch=1, life="b:5")
        assert (begun.gap, begun.restarted, begun.life) == (0, False, "b")

    def test_a_publisher_that_goes_on_begins_nothing(self) -> None:
        """It sends again what its readers may have, under the name that they know, whatever the epoch now is."""
        driver = self.at()
        assert jump(driver.answer(470, latest=9, earliest=7, next=7, life="a:0")).seq == 8
        begun = driver.read(8, epoch=1, life="a:0")
        assert (begun.gap, begun.restarted) == (3, False)
        assert not self.at().read(5, epoch=2, life="a:0").restarted

    def test_one_without_that_name_goes_on_at_or_beyond_the_position(self) -> None:
        """A publisher of another make does not say that it goes on: its numbers do."""
        driver = self.at()
        assert jump(driver.answer(470, latest=7, earliest=6, next=6, life="b:6")).seq == 6
        begun = driver.read(6, epoch=1, life="b:6")
        assert (begun.gap, begun.restarted, begun.life) == (1, False, "b")

    def test_a_server_to_which_nothing_was_written_says_nothing(self) -> None:
        """What it has kept from before its start is of the numbering of before."""
        begun = self.at().read(5, epoch=1, life="b")
        assert (begun.restarted, begun.life) == (False, "a")

    @pytest.mark.parametrize("life", ["a:0", "b"])
    def test_a_head_behind_the_position_is_waited_for(self, life: str) -> None:
        """The publisher sends again what was on its way, or is not back yet; and then the position is next."""
        driver = self.at(on_lag=OnLag.FAIL)
        assert retry(driver.answer(470, latest=3, earliest=0, life=life, retry_after=2)).delay_s > 2
        assert driver.asked == 5
        assert driver.read(5, epoch=1, life="a:0") == NextSegment(5, epoch=1, life="a")

    @pytest.mark.parametrize("start", [0, "earliest"])
    def test_a_reader_that_was_sent_on_before_it_read_anything_knows_the_numbering(self, start: AnyStart) -> None:
        """The number that it was sent to is one of that numbering, not of one that begins before the reader asks."""
        driver = Driver(start)
        assert jump(driver.answer(470, latest=2, earliest=1, next=1, epoch=1, life="a:0")).seq == 1
        assert driver.cursor.ask() == Ask(1, 1, "a", 1)
        assert jump(driver.answer(470, latest=1, earliest=0, epoch=2, life="b:0")).seq == 0
        begun = driver.read(0, epoch=2, life="b:0")
        assert (begun.gap, begun.restarted) == (0, True)

    def test_a_reader_that_was_sent_on_twice_knows_the_numbering(self) -> None:
        """It was sent back to a numbering without a segment, and then on within it: its name was not known before."""
        driver = self.at(2, "p:0", start=1)
        assert jump(driver.answer(470, latest=0, earliest=0, epoch=2, life="s")).seq == 0
        assert jump(driver.answer(470, latest=2, earliest=1, next=1, epoch=2, life="s:1")).seq == 1
        assert driver.cursor.ask() == Ask(1, 1, "s", 2)
        assert jump(driver.answer(470, latest=2, earliest=0, epoch=2, life="p3:0")).seq == 0
        begun = driver.read(0, epoch=2, life="p3:0")
        assert (begun.gap, begun.restarted) == (0, True)

    def test_a_reader_that_was_sent_on_by_a_server_without_a_numbering_does_not(self) -> None:
        """Nothing was written there since its start: it does not know of which numbering its segments are."""
        driver = Driver(0)
        assert jump(driver.answer(470, latest=2, earliest=1, next=1, epoch=1, life="a")).seq == 1
        assert driver.cursor.ask() == Ask(1)

    def test_it_is_not_waited_for_without_end(self) -> None:
        """Then the publisher is not coming back, and the reader goes where the head is."""
        driver = self.at()
        driver.answer(470, latest=3, earliest=0, life="b")
        driver.now += RECONNECT_S
        assert jump(driver.answer(470, latest=3, earliest=0, life="b")).seq == 3

    @pytest.mark.parametrize(("on_lag", "seq", "gap"), [(OnLag.LIVE, 2, 2), (OnLag.EARLIEST, 1, 1)])
    def test_a_head_behind_it_in_a_new_numbering_is_gone_to(self, on_lag: OnLag, seq: int, gap: int) -> None:
        """To the newest segment that was begun, or to the oldest that is kept; what lies before it is missed."""
        driver = self.at(on_lag=on_lag)
        assert jump(driver.answer(470, latest=3, earliest=1, life="b:0")).seq == seq
        begun = driver.read(seq, epoch=1, life="b:0")
        assert (begun.gap, begun.restarted) == (gap, True)

    def test_what_was_kept_from_before_is_not_read_again(self) -> None:
        """A server that keeps channels has the numbers below ``first`` from before: they were read."""
        driver = self.at(9, on_lag=OnLag.EARLIEST)
        assert jump(driver.answer(470, latest=8, earliest=0, life="b:7")).seq == 7
        assert driver.read(7, epoch=1, life="b:7").gap == 0
        driver = self.at(9, on_lag=OnLag.EARLIEST)
        assert jump(driver.answer(200, seq=9, epoch=1, life="b:7")).seq == 7

    def test_the_budget_pays_for_a_new_numbering(self) -> None:
        """A server that changes its name with each answer is not asked for ever."""
        driver = self.at(budget=RetryBudget(0, 0))
        assert isinstance(stopped(driver.answer(470, latest=3, earliest=0, life="b:0")), SegmentMissing)
        driver = self.at(budget=RetryBudget(0, 0))
        retry(driver.answer(470, latest=3, earliest=0, life="a:0"))
        driver.now += RECONNECT_S
        assert isinstance(stopped(driver.answer(470, latest=3, earliest=0, life="a:0")), SegmentMissing)

    def test_a_position_knows_its_numbering(self) -> None:
        """Its text is enough, and one from before there were names is as good as it was."""
        assert Driver("5@1:a").read(5, epoch=1, life="b:0").restarted
        assert not Driver("5@1:a").read(5, epoch=1, life="a:0").restarted
        assert not Driver("5@1").read(5, epoch=1, life="b:0").restarted

    def test_the_end_of_a_new_numbering_is_not_the_old_ones(self) -> None:
        """All of it was missed; of the own one that has ended behind the position, nothing."""
        headers = {"seq": 5, "epoch": 1, "closed": "terminated", "content_length": 0}
        assert self.at().answer(200, latest=3, life="b:0", **headers) == End(3)
        assert self.at().answer(200, latest=3, life="a:0", **headers) == End(0)

    def test_the_head_of_the_old_numbering_is_forgotten_with_it(self) -> None:
        """A slow reader of 200 segments goes over to a numbering that ends at 6: it has missed nothing at the end."""
        driver = self.at()
        driver.read(5, latest=200, epoch=1, life="a:0")
        driver.read(6, latest=7, epoch=2, life="b:0")
        assert driver.answer(404, latest=7, epoch=2, life="b:0", closed="terminated") == End(0)

    def test_what_is_no_name_is_not_there(self) -> None:
        """A header that nobody can read changes nothing."""
        assert self.at().read(5, epoch=1, life="b:x").life is None


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ("next", Start(None)),
        (-1, Start(None)),
        ("current", Start(-2)),
        (-2, Start(-2)),
        ("-3", Start(None, back=2)),
        ("earliest", Start(0)),
        (0, Start(0, named=True)),
        ("12", Start(12, named=True)),
        (Position(7), Start(7, named=True, position=Position(7))),
        ("7@2", Start(7, named=True, position=Position(7, 2))),
        ("7+9", Start(7, named=True, position=Position(7, offset=9))),
    ],
)
def test_a_start_is_a_word_a_number_or_a_position(given: AnyStart, start: Start) -> None:
    """As an object, as a number and as text."""
    assert Start.parse(given) == start


@pytest.mark.parametrize("given", ["", "first", "1.5", "+1", "9" * 16, "--1", "@1", "1@", "-1@2", "1@x", "-1+2"])
def test_a_bad_start_is_refused(given: str) -> None:
    """The error names what is allowed."""
    with pytest.raises(InvalidInput, match=r"^use next, current, earliest, a number, -N, or a position such .* not"):
        Start.parse(given)
    with pytest.raises(InvalidInput):
        parse_start(given)


@pytest.mark.parametrize(
    "start", ["next", "current", "earliest", 5, -3, Position(5), Position(5, 1, "a"), Position(5, offset=0)]
)
def test_the_text_of_a_start_is_read(start: AnyStart) -> None:
    """As the value that it is the text of; a position without an epoch has that of a number."""
    parsed = parse_start(str(start))
    assert parsed == (5 if start == Position(5) else start)
    assert type(parsed) is (int if start == Position(5) else type(start))
    assert parse_start(f" {start}\n") == parsed  # as in a file that was written by echo


def test_the_text_of_a_place_between_two_lines_is_no_start_of_segments() -> None:
    """They would come from the begin of that segment once more, as the error says."""
    with pytest.raises(InvalidInput, match=r"^5@1\+9 is between two lines .* without \+9 the segment is read again"):
        parse_start("5@1+9")


@pytest.mark.parametrize(
    ("given", "place"),
    [("next", None), ("current", None), ("earliest", None), (-3, None), (4, Position(4)), ("4@2", Position(4, 2))],
)
def test_a_start_is_a_place_if_it_does_not_depend_on_the_head(given: AnyStart, place: Position | None) -> None:
    """The position of a subscriber that has read nothing yet."""
    assert Start.parse(given).place == place
