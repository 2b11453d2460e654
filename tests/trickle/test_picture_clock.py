"""The clock in a picture."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tricklecast.trickle.picture_clock import COLUMNS, ROWS, TIME_BITS, draw, read, strip_height

NOW_MS = 1_785_000_000_123

times = st.integers(0, 2**TIME_BITS - 1)
few_walks = settings(max_examples=25)


class Picture:
    """A picture of luma, with a clock."""

    def __init__(self, unix_ms: int, width: int, height: int, *, black: int = 16, white: int = 235) -> None:
        self.width, self.height = width, height
        self.pixels = [[128] * width for _ in range(height)]
        for cell in draw(unix_ms, width, height):
            for line in self.pixels[cell.top : cell.bottom]:
                line[cell.left : cell.right] = [white if cell.white else black] * (cell.right - cell.left)

    def luma(self, x: int, y: int) -> int:
        """A pixel; negative places are no pixels."""
        assert x >= 0
        assert y >= 0
        return self.pixels[y][x]

    def read(self) -> int | None:
        """The clock's time."""
        return read(self.luma, self.width, self.height)

    def add_noise(self, most: int, seed: int) -> None:
        """Make every pixel up to ``most`` brighter or darker."""
        random = Random(seed)
        for line in self.pixels:
            line[:] = [min(255, max(0, level + random.randint(-most, most))) for level in line]

    def scaled(self, divisor: int) -> Picture:
        """Every block of pixels averaged into one."""
        small = Picture(0, self.width // divisor, self.height // divisor)
        blocks = range(divisor)
        for y in range(small.height):
            for x in range(small.width):
                total = sum(self.pixels[y * divisor + j][x * divisor + i] for j in blocks for i in blocks)
                small.pixels[y][x] = total // divisor**2
        return small


@given(unix_ms=times, width=st.integers(160, 400), height=st.integers(90, 300))
@example(unix_ms=0, width=160, height=90)
@example(unix_ms=2**TIME_BITS - 1, width=1920, height=1080)
def test_a_drawn_clock_reads_back(unix_ms: int, width: int, height: int) -> None:
    """Whatever the picture's size."""
    assert Picture(unix_ms, width, height).read() == unix_ms


@pytest.mark.parametrize(("width", "height"), [(320, 180), (163, 91), (854, 480)])
def test_the_cells_fill_the_top_of_the_picture(width: int, height: int) -> None:
    """Without a hole and without overlap; below them the picture is free."""
    cells = draw(NOW_MS, width, height)
    covered = [(x, y) for cell in cells for y in range(cell.top, cell.bottom) for x in range(cell.left, cell.right)]
    assert len(cells) == ROWS * COLUMNS
    assert len(covered) == len(set(covered)) == width * strip_height(height)
    assert strip_height(height) == max(y for _, y in covered) + 1


@pytest.mark.parametrize("unix_ms", [-1, 2**TIME_BITS])
def test_a_time_that_does_not_fit_is_refused(unix_ms: int) -> None:
    """Rather than drawn as another one."""
    with pytest.raises(ValueError, match="cannot show"):
        draw(unix_ms, 320, 180)


@few_walks
@given(unix_ms=times, divisor=st.sampled_from([2, 3, 4]))
def test_a_clock_survives_being_scaled_down(unix_ms: int, divisor: int) -> None:
    """To a quarter of 320 by 180."""
    assert Picture(unix_ms, 320, 180).scaled(divisor).read() == unix_ms


@given(unix_ms=times, black=st.integers(0, 100), contrast=st.integers(60, 155))
def test_a_clock_survives_a_change_of_brightness(unix_ms: int, black: int, contrast: int) -> None:
    """Black and white are what is darkest and brightest in it."""
    assert Picture(unix_ms, 160, 90, black=black, white=black + contrast).read() == unix_ms


@few_walks
@given(unix_ms=times, seed=st.integers(), noise=st.integers(0, 80))
def test_a_clock_survives_noise(unix_ms: int, seed: int, noise: int) -> None:
    """Noise that leaves black darker than white is averaged away."""
    picture = Picture(unix_ms, 160, 90)
    picture.add_noise(noise, seed)
    assert picture.read() == unix_ms


@few_walks
@given(unix_ms=times, seed=st.integers(), noise=st.integers(80, 2000))
def test_noise_never_makes_another_time(unix_ms: int, seed: int, noise: int) -> None:
    """What drowns in noise is no clock."""
    picture = Picture(unix_ms, 160, 90)
    picture.add_noise(noise, seed)
    assert picture.read() in (unix_ms, None)


@given(
    unix_ms=times,
    flipped=st.lists(st.integers(0, ROWS * COLUMNS - 1), min_size=1, max_size=ROWS * COLUMNS, unique=True),
)
def test_a_damaged_clock_reads_as_none(unix_ms: int, flipped: list[int]) -> None:
    """Any number of wrong cells: a wrong time is worse than no time."""
    picture = Picture(unix_ms, 160, 90)
    cells = draw(unix_ms, 160, 90)
    for index in flipped:
        cell = cells[index]
        for line in picture.pixels[cell.top : cell.bottom]:
            line[cell.left : cell.right] = [16 if cell.white else 235] * (cell.right - cell.left)
    assert picture.read() is None


@given(st.binary(min_size=ROWS * COLUMNS, max_size=ROWS * COLUMNS))
@example(bytes(ROWS * COLUMNS))
@example(b"\xff" * ROWS * COLUMNS)
def test_a_picture_without_a_clock_reads_as_none(levels: bytes) -> None:
    """Flat or random."""
    width, height = COLUMNS * 10, ROWS * 10 * 9 // 2

    def luma(x: int, y: int) -> int:
        return levels[y // 10 * COLUMNS + x // 10]

    assert read(luma, width, height) is None


@pytest.mark.parametrize(("width", "height"), [(0, 0), (19, 180), (320, 17)])
def test_a_picture_too_small_for_the_cells_reads_as_none(width: int, height: int) -> None:
    """Without asking for a pixel."""

    def luma(x: int, y: int) -> int:
        raise AssertionError

    assert read(luma, width, height) is None
