"""Whether the first picture of a segment can be decoded by itself: start codes of an elementary stream, and no more.

H.264 (ITU-T H.264, table 7-1), HEVC (H.265, table 7-1), VVC (H.266, table 5), MPEG-1/2 (H.262, 6.2) and MPEG-4 part 2
(ISO/IEC 14496-2, 6.3.1). A picture counts as a key picture if it is an IDR or another random access point, carries
a recovery point (open GOP, gradual refresh), or is intra-coded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tricklecast.subscriber.check.media import Opening

SCAN_BYTES: Final = 64 * 1024
"""How much of a segment's first picture is searched: parameters and a slice's head; captions may come before them."""

_H264_RECOVERY_POINT: Final = 6
_H264_INTRA_SLICES: Final = (2, 4, 7, 9)


def opening(codec: str, data: bytes) -> Opening:
    """Look at the beginning of a video track.

    Args:
        codec: as the parsers name it.
        data: the first bytes of its elementary stream, with start codes.
    """
    look = _LOOKS.get(codec)
    return Opening() if look is None else look(data)


def _h264(data: bytes) -> Opening:
    seen: set[int] = set()
    recovers = False
    for at in _units(data):
        kind = data[at] & 0x1F
        if kind == 5:
            return Opening(True, {7, 8} <= seen)
        if kind in (1, 2):
            slice_type = _second_golomb(data[at + 1 : at + 17])
            if slice_type is None and not recovers:
                return Opening(None, {7, 8} <= seen)
            return Opening(recovers or slice_type in _H264_INTRA_SLICES, {7, 8} <= seen)
        if kind == 6:
            recovers = recovers or _has_message(data, at + 1, _H264_RECOVERY_POINT)
        seen.add(kind)
    return Opening(None, {7, 8} <= seen or None)


def _hevc(data: bytes) -> Opening:
    return _by_type(data, lambda at: data[at] >> 1 & 0x3F, {32, 33, 34}, range(16, 24), range(0, 16))


def _vvc(data: bytes) -> Opening:
    # The video parameter set is optional.
    return _by_type(data, lambda at: data[at + 1] >> 3 if at + 1 < len(data) else 31, {15, 16}, range(7, 11), range(4))


def _by_type(data: bytes, kind_at: Callable[[int], int], needed: set[int], keys: range, others: range) -> Opening:
    seen: set[int] = set()
    for at in _units(data):
        kind = kind_at(at)
        if kind in keys or kind in others:
            return Opening(kind in keys, needed <= seen)
        seen.add(kind)
    return Opening(None, needed <= seen or None)


def _mpeg2(data: bytes) -> Opening:
    parameters = False
    for at in _units(data):
        if data[at] == 0xB3:
            parameters = True
        elif data[at] == 0x00 and at + 2 < len(data):
            return Opening(data[at + 2] >> 3 & 7 == 1, parameters)
    return Opening(None, parameters or None)


def _mpeg4(data: bytes) -> Opening:
    parameters = False
    for at in _units(data):
        if 0x20 <= data[at] <= 0x2F:
            parameters = True
        elif data[at] == 0xB6 and at + 1 < len(data):
            return Opening(data[at + 1] >> 6 == 0, parameters)
    return Opening(None, parameters or None)


_LOOKS: Final[dict[str, Callable[[bytes], Opening]]] = {
    "h264": _h264,
    "hevc": _hevc,
    "vvc": _vvc,
    "mpeg1video": _mpeg2,
    "mpeg2video": _mpeg2,
    "mpeg4": _mpeg4,
}


def _units(data: bytes) -> Iterator[int]:
    """Where the units behind start codes begin."""
    at = data.find(b"\0\0\1")
    while at >= 0 and at + 3 < len(data):
        yield at + 3
        at = data.find(b"\0\0\1", at + 3)


def _has_message(data: bytes, at: int, wanted: int) -> bool:
    """Whether supplemental information holds a message of that type (H.264, 7.3.2.3.1)."""
    end = data.find(b"\0\0\1", at)
    end = len(data) if end < 0 else end
    while at + 2 < end:
        kind, at = _sum_of_bytes(data, at, end)
        size, at = _sum_of_bytes(data, at, end)
        if kind == wanted:
            return True
        at += size
    return False


def _sum_of_bytes(data: bytes, at: int, end: int) -> tuple[int, int]:
    total = 0
    while at < end and data[at] == 0xFF:
        total, at = total + 255, at + 1
    return total + (data[at] if at < end else 0), at + 1


def _second_golomb(data: bytes) -> int | None:
    """The second of two Exp-Golomb numbers (H.264, 9.1): of a slice, its type."""
    bits = "".join(f"{byte:08b}" for byte in data.replace(b"\0\0\3", b"\0\0"))
    value = at = 0
    for _ in range(2):
        one = bits.find("1", at)
        zeros = one - at
        if one < 0 or one + zeros >= len(bits):
            return None
        value = int(bits[one : one + zeros + 1], 2) - 1
        at = one + zeros + 1
    return value
