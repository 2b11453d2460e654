"""Times of segments on one line: what is kept, what is closed up, and what never happens."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tricklecast.subscriber.media.joiner import CLOCK_HZ, MAX_PAUSE, MIN_STEP, WRAP, Timeline, Times

FRAME = CLOCK_HZ // 25
SOUND = CLOCK_HZ * 1024 // 48_000


def segment(start: int, *, frames: int = 25, sound: int = 0, stream: int = 0) -> list[Times]:
    """Pictures from ``start`` on, each shown two frames after it is decoded, and the sound that goes with them."""
    pictures = [Times(stream, start + at * FRAME, start + (at + 2) * FRAME, FRAME) for at in range(frames)]
    return [*pictures, *[Times(1, start + at * SOUND, start + at * SOUND, SOUND) for at in range(sound)]]


def placed(*segments: list[Times], wraps: bool = True) -> list[list[Times]]:
    """All of them on one time line."""
    timeline = Timeline()
    return [timeline.place(packets, wraps=wraps) for packets in segments]


def test_a_file_begins_at_nought() -> None:
    """Wherever the channel is; distances stay as they are, between streams, too."""
    (times,) = placed(segment(77 * CLOCK_HZ, frames=2, sound=2))
    assert times == segment(0, frames=2, sound=2)


def test_a_sound_that_begins_before_its_picture_begins_the_file() -> None:
    """Nothing is shown before 0."""
    (times,) = placed([Times(0, 500, 900), Times(1, 300, 300)])
    assert times == [Times(0, 200, 600), Times(1, 0, 0)]


def test_segments_that_continue_stay_exact() -> None:
    """Not a tick is added or lost over many of them."""
    parts = placed(*(segment(number * 25 * FRAME) for number in range(50)))
    decoded = [times.dts for part in parts for times in part]
    assert {later - sooner for sooner, later in pairwise(decoded)} == {FRAME}


def test_what_was_missed_leaves_its_time_open() -> None:
    """A player shows the last picture meanwhile, and what follows is on time."""
    _, after = placed(segment(0), segment(CLOCK_HZ * 5))
    assert after[0].dts == CLOCK_HZ * 5


def test_a_clock_that_was_set_is_closed_up() -> None:
    """Backwards, or further forward than anyone wants to wait; sound and picture keep together."""
    for start in (0, -3 * CLOCK_HZ, 2 * MAX_PAUSE, 10**15):
        before, after = placed(segment(CLOCK_HZ, sound=48), segment(start, sound=48), wraps=False)
        end = max(times.dts + times.duration for times in before)
        assert after[0].dts == end
        assert after[25].dts == end


def test_pictures_before_and_after_a_cut_are_shown_in_order() -> None:
    """A cut leaves a picture that is shown late, without those before it; what another publisher sends comes behind."""
    cut = [Times(0, 0, 2 * FRAME, FRAME), Times(0, FRAME, 6 * FRAME, FRAME)]
    before, after = placed(cut, segment(-CLOCK_HZ, frames=3), wraps=False)
    assert after[0].pts == before[1].pts + FRAME
    assert [times.dts - after[0].dts for times in after] == [0, FRAME, 2 * FRAME]


def test_a_wrap_of_33_bits_is_no_jump() -> None:
    """Nor is a second one."""
    before, after, again = placed(
        segment(WRAP - 25 * FRAME), segment(0), [Times(0, 25 * FRAME - 3 * WRAP, 27 * FRAME - 3 * WRAP, FRAME)]
    )
    assert after[0].dts == before[-1].dts + FRAME
    assert again[0].dts == after[-1].dts + FRAME


def test_without_33_bits_there_is_no_wrap() -> None:
    """A jump by just that much is a jump."""
    _, after = placed(segment(WRAP - 25 * FRAME), segment(0), wraps=False)
    assert after[0].dts == 25 * FRAME
    _, after = placed(segment(0), segment(WRAP + 30 * FRAME), wraps=False)
    assert after[0].dts == 25 * FRAME


def test_another_stream_goes_on_behind() -> None:
    """A segment that has none of the streams before says nothing of its place."""
    _, after = placed(segment(0), segment(7 * CLOCK_HZ, stream=5))
    assert after[0].dts == 25 * FRAME


def test_a_duration_that_is_not_known_is_the_last_step() -> None:
    """So that the next segment does not begin on top of the last packet."""
    first = [Times(0, at * FRAME, at * FRAME) for at in range(3)]
    _, after = placed(first, [Times(0, -CLOCK_HZ, -CLOCK_HZ)])
    assert after[0].dts == 3 * FRAME


streams = st.integers(0, 2)
packets = st.lists(
    st.builds(Times, streams, st.integers(-(10**15), 10**15), st.integers(-(10**15), 10**15), st.integers(0, CLOCK_HZ)),
    min_size=1,
    max_size=8,
)


@given(st.lists(packets, min_size=1, max_size=5), st.booleans())
def test_any_times_become_ones_that_a_file_can_hold(segments: list[list[Times]], wraps: bool) -> None:
    """Decoding times of each stream rise by a tick of the file at least, and nothing is shown before it is decoded."""
    for packets in segments:
        packets.sort(key=lambda times: times.dts)
    last: dict[int, int] = {}
    for times in (times for part in placed(*segments, wraps=wraps) for times in part):
        assert times.pts >= times.dts
        assert times.dts >= last.get(times.stream, times.dts - MIN_STEP) + MIN_STEP
        last[times.stream] = times.dts
