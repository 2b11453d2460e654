"""Ladders: their grammar, their sizes, their channels."""

from __future__ import annotations

import pytest

from tricklecast.trickle.media.ladder import RUNGS, channel_of, ladder_name, parse_ladder


def test_a_ladder_names_a_channel_for_each_rung() -> None:
    """The highest one has the channel itself."""
    ladder = parse_ladder("1080p, 720p,360p")
    assert [rung.lines for rung in ladder] == [1080, 720, 360]
    assert [channel_of("cam", rung, ladder) for rung in ladder] == ["cam", "cam_720p", "cam_360p"]
    assert [rung.bitrate for rung in ladder] == sorted((rung.bitrate for rung in ladder), reverse=True)


@pytest.mark.parametrize(
    ("channel", "name"),
    [
        ("cam", "cam"),
        ("cam_720p", "cam"),
        ("cam_721p", "cam_721p"),
        ("a_b_360p", "a_b"),
        ("cam_720p_360p", "cam"),  # a ladder that is called as a rung of another one
        ("_720p", "_720p"),
        ("720p", "720p"),
    ],
)
def test_the_ladder_of_a_channel(channel: str, name: str) -> None:
    """Its name shows to which ladder a channel may belong."""
    assert ladder_name(channel) == name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a rung: ''"),
        ("720p", "2 to 6 rungs"),
        ("721p,360p", "not a rung: '721p'"),
        ("360p,720p", "the highest rung comes first"),
        ("720p,720p", "each is there once"),
        (",".join(RUNGS), "2 to 6 rungs"),
    ],
)
def test_what_is_no_ladder(text: str, why: str) -> None:
    """It is said what is wrong."""
    with pytest.raises(ValueError, match=why):
        parse_ladder(text)


@pytest.mark.parametrize(
    ("size", "name", "fitted"),
    [
        ((1920, 1080), "720p", (1280, 720)),
        ((1920, 1080), "1080p", (1920, 1080)),
        ((1280, 720), "1080p", (1280, 720)),
        ((1080, 1920), "720p", (720, 1280)),
        ((1920, 800), "720p", (1280, 534)),
        ((640, 480), "360p", (480, 360)),
        ((5000, 2), "144p", (256, 2)),
    ],
)
def test_pictures_fit_into_their_rung(size: tuple[int, int], name: str, fitted: tuple[int, int]) -> None:
    """With their own shape, both sides even, and never enlarged."""
    assert RUNGS[name].fitted(*size) == fitted
