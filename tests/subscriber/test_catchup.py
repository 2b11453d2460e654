"""Where a reader goes on that came too late: how far, and after which pause."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from tricklecast.subscriber.catchup import LATE_AGAIN_S, LATE_PAUSE_S, PAUSE_SPREAD, CatchUp, ServerWindow, StepForward
from tricklecast.trickle import wire
from tricklecast.trickle.backoff import RetryBudget
from tricklecast.trickle.client.retry import MIN_DELAY_S, Retries


class Reader:
    """A reader that wants one segment after the other, with a clock that the test moves."""

    def __init__(
        self,
        asked: int = 5,
        *,
        reads_all: bool = True,
        budget: RetryBudget | None = None,
    ) -> None:
        self.asked = asked
        self.reads_all = reads_all
        self.now = 1000.0
        self.retries = Retries(budget=budget)
        self._catch_up = CatchUp()
        self._rng = Random(1)

    def try_step(
        self, head: int, earliest: int | None = None, following: int | None = None, *, before: int | None = None
    ) -> StepForward | None:
        """The server has these segments, and not the one that was asked for."""
        step = self._catch_up.step(
            self.asked,
            ServerWindow(head, earliest, following),
            self.retries,
            self.now,
            self._rng,
            reads_all=self.reads_all,
            wanted_before=before,
        )
        self.asked = self.asked if step is None else step.seq
        return step

    def step(
        self, head: int, earliest: int | None = None, following: int | None = None, *, before: int | None = None
    ) -> StepForward:
        step = self.try_step(head, earliest, following, before=before)
        assert step is not None
        return step

    def read(self, seq: int) -> None:
        """A whole segment, after which the next one is wanted."""
        self.retries.succeeded()
        self.asked = seq + 1


@pytest.mark.parametrize(("reads_all", "seq"), [(True, 40), (False, 99)])
def test_the_first_step_is_free(reads_all: bool, seq: int) -> None:
    """It leads to the oldest segment, or to the newest one: as the reader wants."""
    reader = Reader(reads_all=reads_all, budget=RetryBudget(0, 0))
    assert reader.step(100, 40) == StepForward(seq, None, 0.0)


@pytest.mark.parametrize(("head", "earliest", "seq"), [(6, None, 6), (7, 7, 7), (9, 100, 9), (9, 0, 6), (9, None, 6)])
def test_forward_is_always_further(head: int, earliest: int | None, seq: int) -> None:
    """With any headers, the new seq is beyond the old one and not beyond the head."""
    assert Reader().step(head, earliest).seq == seq


class TestTooLateAgain:
    """A reader that does not keep up, however fast its channel is."""

    def test_it_goes_further_with_each_step_and_counts_from_the_head(self) -> None:
        """Of what it was told, the oldest segment is gone at once, and after a pause the newest one may be, too."""
        reader = Reader()
        steps = [reader.step(earliest + 90, earliest)[:2] for earliest in (40, 50, 80, 210)]
        assert steps == [
            (40, None),
            (50 + 10, 60 - 140 - 1),
            (80 + 2 * 30, 140 - 170 - 1),
            (299, wire.SEQ_CURRENT),
        ]

    def test_segments_in_between_do_not_end_the_row(self) -> None:
        """Otherwise it would be late for every other segment, and ask as often in vain as it reads."""
        reader = Reader()
        reader.step(140, 50)
        reader.read(50)
        assert reader.step(143, 53) == StepForward(56, 56 - 143 - 1, 0.0)

    def test_a_second_in_time_does(self) -> None:
        """It loses as little as it can again."""
        reader = Reader()
        reader.step(140, 50)
        reader.read(50)
        reader.step(143, 53)
        reader.read(57)
        reader.now += LATE_AGAIN_S
        assert reader.step(440, 350)[:2] == (350, None)

    @pytest.mark.parametrize("reads_all", [True, False])
    def test_there_is_a_pause_between_the_steps(self, reads_all: bool) -> None:
        """From the third one on, whatever it reads in between."""
        reader = Reader(reads_all=reads_all, budget=RetryBudget(0, 0))
        made = []
        for number in range(40):
            step = reader.step(1000 * number + 300, 1000 * number + 100)
            reader.now += step.delay_s
            made.append(reader.now)
            reader.read(step.seq)
            reader.now += 0.01
        pauses = [after - before for before, after in itertools.pairwise(made)]
        assert pauses[0] == pytest.approx(0.01)
        assert all(LATE_PAUSE_S <= pause <= LATE_PAUSE_S * (1.0 + PAUSE_SPREAD) for pause in pauses[1:])

    def test_a_live_reader_asks_for_the_newest_as_such(self) -> None:
        """The one that it was told has left a window that moves faster than requests take."""
        reader = Reader(reads_all=False, budget=RetryBudget(0, 0))
        assert reader.step(100, 95)[:2] == (99, None)
        again = reader.step(200, 195)
        assert again.from_head == wire.SEQ_CURRENT
        assert again.delay_s >= MIN_DELAY_S

    def test_a_second_step_without_a_segment_between_waits(self) -> None:
        """A server that only ever says 470 is asked more and more slowly, and not for ever."""
        reader = Reader(budget=RetryBudget(0.2, 3))
        delays = [reader.step(head, head - 3).delay_s for head in (10, 20, 30, 40, 50, 60)]
        assert delays[0] == 0
        assert all(delay >= MIN_DELAY_S for delay in delays[1:])
        assert reader.try_step(70, 67) is None

    def test_a_whole_segment_makes_the_next_step_free(self) -> None:
        """A slow reader may skip forward for ever, as long as it reads something each time."""
        reader = Reader(0, reads_all=False, budget=RetryBudget(0, 0))
        for head in range(10, 500, 10):
            assert reader.step(head).delay_s == 0
            reader.read(head - 1)
            reader.now += LATE_AGAIN_S

    def test_where_a_numbering_goes_on_is_asked_for_by_number(self) -> None:
        """It is where the reader had come to before its server was restarted: nothing behind it was read."""
        reader = Reader(2)
        assert reader.step(8, 6, before=10)[:2] == (6, None)
        assert reader.step(14, 9, before=10)[:2] == (10, None)
        assert reader.step(30, 21, before=10)[:2] == (29, wire.SEQ_CURRENT), "it has left the window, too"

    def test_a_live_reader_goes_to_the_head_from_there(self) -> None:
        """It asked for that segment, and that has left the window, too."""
        reader = Reader(reads_all=False)
        reader.asked = 14
        assert reader.step(28, before=14).seq == 27


class TestHole:
    """The window holds older segments than the wanted one: its publisher left it out."""

    def test_it_costs_a_live_reader_one_segment(self) -> None:
        """It was not missed by the reader, who does not go to the live edge for it."""
        assert Reader(reads_all=False).step(20, 1).seq == 6

    @pytest.mark.parametrize("reads_all", [True, False])
    def test_one_whose_end_is_known_costs_one_request(self, reads_all: bool) -> None:
        """A publisher that dropped much is followed to where it went on, however large the hole."""
        reader = Reader(reads_all=reads_all, budget=RetryBudget(0, 0))
        assert reader.step(900, 1, 700) == StepForward(700, None, 0.0)

    def test_a_window_that_has_moved_on_is_none(self) -> None:
        """A live reader that lags goes to the live edge, as it was wished for."""
        assert Reader(reads_all=False).step(900, 700, 700).seq == 899

    def test_one_that_is_found_late_is_left_too(self) -> None:
        """After other failures it takes a pause, as every step does."""
        reader = Reader()
        reader.retries.failures = 1
        step = reader.step(900, 1, 700)
        assert step.seq == 700
        assert step.delay_s >= MIN_DELAY_S

    def test_a_wide_one_leads_a_live_reader_to_the_live_edge(self) -> None:
        """A publisher that resumed far ahead is not followed step by step."""
        reader = Reader(reads_all=False)
        assert [reader.step(900, 1).seq for _ in range(2)] == [6, 899]

    def test_a_wide_one_is_crossed_in_growing_steps(self) -> None:
        """By a reader that wants everything; by number, since what is beyond it is in the window, and waits there."""
        reader = Reader()
        steps = [reader.step(30, 1)[:2] for _ in range(5)]
        assert steps == [(seq, None) for seq in (6, 7, 9, 13, 21)]


class TestReferenceServer:
    """It keeps five segments, and does not say where they begin."""

    def test_its_oldest_segment_is_looked_for(self) -> None:
        """Of the five a preconnect may have taken one."""
        reader = Reader(0)
        assert [reader.step(100).seq for _ in range(2)] == [95, 96]

    def test_two_guesses_are_made_at_once(self) -> None:
        """A fast channel would have left such a window during a delay; from the third guess on there is one."""
        reader = Reader(0)
        steps = [reader.step(head) for head in (100, 101, 110)]
        assert [step.seq for step in steps[:2]] == [95, 97]
        assert [step.delay_s > 0 for step in steps] == [False, False, True]

    @pytest.mark.parametrize("asked", [26, 27, 28, 29])
    def test_a_hole_is_crossed_at_once(self, asked: int) -> None:
        """Its publisher went on behind it after a restart, and a fast channel has that segment for a moment only."""
        reader, steps = Reader(asked, budget=RetryBudget(0, 0)), []
        while reader.asked < 30:
            steps.append(reader.step(31))
        assert len(steps) <= 3
        assert all(step.from_head is None and step.delay_s == 0 for step in steps)

    def test_a_hole_that_moves_on_meanwhile_is_left_to_the_newest(self) -> None:
        """Any number would be gone after a pause. Pauses grow, and end."""
        reader = Reader(26, budget=RetryBudget(0, 2))
        steps = [reader.step(head) for head in (31, 31, 31, 32, 33)]
        assert [step.from_head for step in steps] == [None, None, None, wire.SEQ_CURRENT, wire.SEQ_CURRENT]
        assert [step.delay_s >= LATE_PAUSE_S for step in steps] == [False, False, False, True, True]
        assert reader.try_step(34) is None

    def test_a_young_channel_is_not_looked_for_below_its_first_segment(self) -> None:
        """Nor where the reader asked already."""
        assert Reader(0).step(3).seq == 1

    @pytest.mark.parametrize(("reads_all", "first"), [(True, (95, 101)), (False, (99, wire.SEQ_CURRENT))])
    def test_it_is_asked_for_the_newest_only(self, reads_all: bool, first: tuple[int, int]) -> None:
        """It breaks the connection when it is asked for a seq below -2."""
        reader = Reader(reads_all=reads_all)
        steps = [reader.step(head) for head in (100, 103, 110, 120)]
        assert [step.seq if step.from_head is None else step.from_head for step in steps] == [
            *first,
            wire.SEQ_CURRENT,
            wire.SEQ_CURRENT,
        ]
