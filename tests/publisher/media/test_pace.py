"""When packets are due, and the wall-clock time of a media time."""

from __future__ import annotations

import time

import pytest

from tests.publisher.media.generated import FakeClock
from tricklecast.publisher.media.pace import Clock, Pace
from tricklecast.publisher.steps import POLL_S


@pytest.mark.parametrize("speed", [0.5, 1.0, 8.0])
def test_waits_until_a_media_time_is_there(speed: float) -> None:
    """No longer and no shorter, counted from the start; times that have passed cost nothing."""
    clock = FakeClock()
    pace = Pace(speed, clock=clock)
    for media_s in (0.0, 0.04, 2.0, 1.0):
        assert pace.wait(media_s)
    assert clock.now == pytest.approx(100 + 2 / speed)


def test_what_is_late_does_not_move_what_follows() -> None:
    """A source that was held up keeps its rate."""
    clock = FakeClock()
    pace = Pace(1.0, clock=clock)
    clock.now += 5
    assert pace.wait(3.0)
    assert clock.slept == []
    assert pace.wait(6.0)
    assert clock.now == pytest.approx(106)


def test_media_may_have_begun_before() -> None:
    """What is due already is not waited for, and the rest comes at its time."""
    clock = FakeClock()
    pace = Pace(1.0, clock=clock, begun_at=clock.now - 2)
    assert pace.wait(1.9)
    assert clock.slept == []
    assert pace.unix_us(0.0) == clock.unix_us() - 2_000_000
    assert pace.wait(3.0)
    assert clock.now == pytest.approx(101)


def test_without_speed_nothing_waits() -> None:
    """The wall clock then runs with the media, from the start."""
    clock = FakeClock()
    pace = Pace(None, clock=clock)
    begun = clock.unix_us()
    assert pace.wait(1000.0)
    assert clock.slept == []
    clock.now += 7
    assert pace.unix_us(1.5) == begun + 1_500_000


def test_a_stopped_source_waits_no_longer() -> None:
    """It notices while it waits."""
    clock = FakeClock()
    pace = Pace(1.0, lambda: clock.now > 103.5, clock)
    assert pace.wait(3.0)
    assert not pace.wait(60.0)
    assert clock.now <= 103.5 + 2 * POLL_S
    assert max(clock.slept) <= POLL_S


def test_the_wall_clock_of_a_media_time() -> None:
    """When it was due, however late it is asked for; and it follows a clock that is set anew."""
    clock = FakeClock()
    pace = Pace(8.0, clock=clock)
    begun = clock.unix_us()
    pace.wait(4.0)
    clock.now += 0.003
    assert pace.unix_us(4.0) == pytest.approx(begun + 500_000, abs=1)
    clock.offset_us += 3_600_000_000
    assert pace.unix_us(4.0) == pytest.approx(begun + 3_600_500_000, abs=1)


def test_the_machines_clock_runs() -> None:
    """Its wall clock is the system's, and sleeping takes time."""
    clock = Clock()
    before = clock.monotonic()
    clock.sleep(0.001)
    assert clock.monotonic() - before >= 0.001
    assert abs(clock.unix_us() / 1e6 - time.time()) < 60
