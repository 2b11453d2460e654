"""Captions in the pictures, in a real browser: the decoder of CEA-608, and the page that shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import av
import pytest
from av.packet import Packet
from playwright.sync_api import expect

from tests.publisher.media.clips import FRAME_RATE, make_clip
from tests.support.browser import Watched, barriers, wait_for
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S
from tests.web.test_media import plays, publishing

RCL: Final = (0x14, 0x20)
RU2: Final = (0x14, 0x25)
RU3: Final = (0x14, 0x26)
RDC: Final = (0x14, 0x29)
TR: Final = (0x14, 0x2A)
EDM: Final = (0x14, 0x2C)
CR: Final = (0x14, 0x2D)
ENM: Final = (0x14, 0x2E)
EOC: Final = (0x14, 0x2F)
BS: Final = (0x14, 0x21)
DER: Final = (0x14, 0x24)
ROW_15: Final = (0x14, 0x60)
DECODED = """async ({pairs, channel, field}) => {
    // The rows that a decoder shows after these pairs, with the column in which each run begins, and its look.
    const page = document.querySelector('script[type=module]').src;
    const { Cea608 } = await import(page.replace('watch.js', 'media/cea608.js'));
    const decoder = new Cea608();
    for (const [one, two] of pairs) decoder.push(field, one, two);
    return decoder.channels[channel].runs.map(({ row, column, text, look }) => [
        row, column, text, look.colour + (look.isItalic ? ' italic' : '') + (look.isUnderlined ? ' underlined' : '')]);
}"""
SEEN = """() => new Promise(resolve => {
    // The captions beside each picture, with the time of it, until there have been three of them.
    const video = document.getElementById('video'), seen = [];
    const look = (_, { mediaTime }) => {
        const text = document.getElementById('captions').textContent;
        if (/^AT \\d{3}$/.test(text)) seen.push([mediaTime, text]);
        if (new Set(seen.map(([, one]) => one)).size < 3) video.requestVideoFrameCallback(look);
        else resolve(seen);
    };
    video.requestVideoFrameCallback(look);
})"""


def odd(byte: int) -> int:
    """The byte with its bit of parity."""
    return byte | (0 if byte.bit_count() % 2 else 0x80)


def letters(text: str) -> list[tuple[int, int]]:
    """Pairs of plain characters."""
    data = [*text.encode(), *([0] if len(text) % 2 else [])]
    return list(zip(data[::2], data[1::2], strict=True))


CASES: Final[list[tuple[list[tuple[int, int]], list[Any]]]] = [
    ([RCL, ROW_15, *letters("HI")], []),
    ([RCL, ROW_15, *letters("HI"), EOC], [[15, 0, "HI", "white"]]),
    ([RCL, ROW_15, *letters("HI"), EOC, EDM], []),
    ([RCL, ROW_15, *letters("HI"), ENM, EOC], []),
    (
        [RDC, (0x11, 0x52), *letters("A"), (0x11, 0x2F), *letters("B")],
        [[1, 4, "A ", "white"], [1, 6, "B", "white italic underlined"]],
    ),
    ([RDC, (0x13, 0x64), *letters("C")], [[13, 0, "C", "#7a7aff"]]),
    ([RDC, ROW_15, (0x17, 0x23), *letters("D")], [[15, 3, "D", "white"]]),
    ([RDC, ROW_15, *letters("ABCD"), BS, *letters("E")], [[15, 0, "ABCE", "white"]]),
    ([RDC, ROW_15, *letters("ABCD"), ROW_15, *letters("X"), DER], [[15, 0, "X", "white"]]),
    ([RDC, ROW_15, *letters("E"), (0x12, 0x21), *letters("'*"), (0x11, 0x37)], [[15, 0, "É\u2019á♪", "white"]]),
    ([RU2, CR, *letters("AB"), CR, *letters("CD"), CR, *letters("E")], [[14, 0, "CD", "white"], [15, 0, "E", "white"]]),
    ([RU3, (0x14, 0x40), CR, *letters("AB"), CR, *letters("CD")], [[13, 0, "AB", "white"], [14, 0, "CD", "white"]]),
    ([RU2, CR, *letters("AB"), (0x11, 0x60), CR, *letters("CD")], [[1, 0, "AB", "white"], [2, 0, "CD", "white"]]),
    ([RU2, *letters("AB"), RCL, ROW_15, *letters("CD"), EOC, RU2], []),
    ([RDC, ROW_15, *letters("AB"), TR, *letters("CD"), RDC, *letters("EF")], [[15, 0, "ABEF", "white"]]),
    ([RDC, ROW_15, *letters("x" * 40)], [[15, 0, "x" * 32, "white"]]),
    ([*letters("AB"), (0x1C, 0x29), *letters("CD")], []),
    ([RDC, ROW_15, (0x01, 0x05), *letters("AB"), (0x0F, 0x10), RDC, *letters("CD")], [[15, 0, "CD", "white"]]),
    ([RDC, ROW_15, *letters("ABCD"), BS, BS, BS], [[15, 0, "AB", "white"]]),
]
"""Pairs, and the rows that CC1 shows after them: row, column, text, look."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server without access control."""
    with serve() as running:
        yield running


def test_pairs_of_bytes_become_rows(server: RunningServer, tab: Watched) -> None:
    """All at once, row by row or letter by letter; a code that is sent twice counts once, and a third one counts.

    The second field has CC3 and CC4; the bit of a code says which of the two.
    """
    tab.expected += ["404"]
    page = tab.open(f"{server.url}/watch/nothing")
    for pairs, rows in CASES:
        data = [[odd(one), odd(two)] for one, two in pairs]
        assert page.evaluate(DECODED, {"pairs": data, "channel": "CC1", "field": 0}) == rows, pairs
    both = [(0x1C, 0x29), (0x1C, 0x60), *letters("AB"), RDC, ROW_15, *letters("CD")]
    for field, channel, text in ((0, "CC2", "AB"), (0, "CC1", "CD"), (1, "CC4", "AB"), (1, "CC3", "CD")):
        found = page.evaluate(DECODED, {"pairs": both, "channel": channel, "field": field})
        assert found == [[15, 0, text, "white"]]


@pytest.fixture(scope="module")
def captioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip in MPEG-TS whose captions count the seconds: each appears with the twentieth picture of its second."""
    path = tmp_path_factory.mktemp("captions")
    clip = make_clip(path / "plain.ts", seconds=60)
    wanted = path / "captioned.ts"
    with av.open(str(clip)) as source, av.open(str(wanted), "w", "mpegts") as target:
        streams = {one.index: target.add_stream_from_template(one) for one in source.streams}
        packets = [packet for packet in source.demux() if packet.dts is not None]
        first = min(packet.pts or 0 for packet in packets if packet.stream.type == "video")
        for packet in packets:
            changed: Any = packet
            if packet.stream.type == "video":
                picture = round(((packet.pts or 0) - first) * float(packet.time_base) * FRAME_RATE)
                changed = Packet(with_captions(bytes(packet), *script(picture)))
                changed.pts, changed.dts, changed.time_base = packet.pts, packet.dts, packet.time_base
                changed.is_keyframe = packet.is_keyframe
            changed.stream = streams[packet.stream.index]
            target.mux(changed)
    return wanted


def script(picture: int) -> tuple[int, int]:
    """The pair of bytes of a picture, by its number in the order in which they are shown."""
    second, at = divmod(picture, FRAME_RATE)
    pairs = [RCL, RCL, ENM, ENM, ROW_15, ROW_15, *letters(f"AT {second:03}")]
    return pairs[at] if at < len(pairs) else EOC if at in (20, 21) else (0, 0)


def with_captions(picture: bytes, one: int, two: int) -> bytes:
    """A picture with a message of captions before its first slice (ATSC A/53, part 4, 6.2)."""
    data = b"\xb5\0\x31GA94\x03\x41\xff" + bytes([0xFC, odd(one), odd(two)]) + b"\xff"
    begins = re.search(rb"\x00\x00\x01[\x01\x21\x41\x61\x05\x25\x45\x65]", picture)
    assert begins is not None
    return picture[: begins.start()] + b"\0\0\1\x06\4" + bytes([len(data)]) + data + b"\x80" + picture[begins.start() :]


@pytest.mark.parametrize("container", ["fmp4", "mpegts"])
def test_captions_are_shown_beside_their_pictures(
    server: RunningServer, tab: Watched, captioned: Path, container: str
) -> None:
    """Though pictures come in another order than they are shown in; the choice is kept for the next visit."""
    with publishing(server.base, f"cc-{container}", captioned, "--container", container, "--segment", "1s"):
        tab.expected += ["404"]
        page = tab.open(f"{server.url}/watch/cc-{container}")
        plays(page, 1)
        expect(page.locator("#subtitles")).to_be_visible()
        assert page.locator("#subtitles option").all_inner_texts() == ["No captions", "Captions"]
        assert page.locator("#captions").inner_text() == ""
        page.keyboard.press("c")
        expect(page.locator("#captions")).to_have_text(re.compile(r"^AT \d\d\d$"), timeout=WITHIN_S * 1000)
        # A number stays for a second, from the same picture of each second on; a slow browser leaves some pictures out.
        since = [at - int(text[3:]) for at, text in page.evaluate(SEEN)]
        assert max(since) - min(since) < 1 + 1.5 / FRAME_RATE
        assert barriers(page) == []
        page.reload()
        expect(page.locator("#captions")).to_have_text(re.compile(r"^AT \d\d\d$"), timeout=WITHIN_S * 1000)
        wait_for(page, "() => document.getElementById('subtitles').value === 'CC1'")
        page.select_option("#subtitles", "")
        assert page.locator("#captions").inner_text() == ""
