"""A ladder: one stream in several sizes, each in a channel of its own, for players that choose by their network.

Publisher and server must agree on it without a word, so it stands here: the names of rungs, their sizes and bit rates,
and the channel of each. The highest rung has the channel itself, ``cam``; the others are ``cam_720p``, ``cam_360p``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple


class Rung(NamedTuple):
    """One size of a ladder.

    Attributes:
        name: as ``720p``.
        lines: of a picture of 16:9. Others are as large as fits into such a picture, or one that stands on its side.
        bitrate: of the pictures, in bits per second, kept over every second.
    """

    name: str
    lines: int
    bitrate: int

    def fitted(self, width: int, height: int) -> tuple[int, int]:
        """The size of a picture on this rung, in pixels: even, and never enlarged."""
        long, short = self.lines * 16 / 9, self.lines
        box = (long, short) if width >= height else (short, long)
        share = min(1.0, box[0] / width, box[1] / height)
        return max(2, 2 * round(width * share / 2)), max(2, 2 * round(height * share / 2))


RUNGS: Final = {
    rung.name: rung
    for rung in (
        Rung("2160p", 2160, 16_000_000),
        Rung("1440p", 1440, 9_000_000),
        Rung("1080p", 1080, 5_000_000),
        Rung("720p", 720, 2_800_000),
        Rung("540p", 540, 1_800_000),
        Rung("480p", 480, 1_400_000),
        Rung("360p", 360, 800_000),
        Rung("240p", 240, 400_000),
        Rung("144p", 144, 200_000),
    )
}
"""The rungs that there are, the highest first."""

MAX_RUNGS: Final = 6
"""Each is encoded apart."""


def parse_ladder(text: str) -> tuple[Rung, ...]:
    """Read a ladder: names of rungs with commas between, the highest first.

    Raises:
        ValueError: it is none.
    """
    names = [name.strip() for name in text.split(",")]
    known = ", ".join(RUNGS)
    if unknown := [name for name in names if name not in RUNGS]:
        raise ValueError(f"not a rung: {unknown[0][:20]!r} ({known})")
    rungs = tuple(RUNGS[name] for name in names)
    if not 2 <= len(rungs) <= MAX_RUNGS:
        raise ValueError(f"a ladder has 2 to {MAX_RUNGS} rungs")
    if any(one.lines <= other.lines for one, other in pairwise(rungs)):
        raise ValueError("the highest rung comes first, and each is there once")
    return rungs


def channel_of(channel: str, rung: Rung, ladder: tuple[Rung, ...]) -> str:
    """The name of a rung's channel.

    Args:
        channel: the name of the ladder, which is that of its highest rung's channel.
    """
    return channel if rung == ladder[0] else f"{channel}_{rung.name}"


def ladder_name(channel: str) -> str:
    """The name of the ladder that a channel belongs to, if it belongs to one: ``cam`` for ``cam_720p``.

    Code that must keep the channels of a ladder together goes by this name. A channel that belongs to none may have
    such a name, too.
    """
    while True:
        name, _, rung = channel.rpartition("_")
        if not name or rung not in RUNGS:
            return channel
        channel = name  # the ladder may be called as a rung of another one
