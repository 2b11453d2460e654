"""H.264 as browsers take it over WebRTC: Annex B, parameter sets before each key picture, no B-pictures.

A container holds a picture as units (NAL units). MPEG-TS puts a start code before each (Annex B) and repeats the
parameter sets in the stream; MP4 puts a length before each and has the parameter sets in its init segment: libavcodec
takes both apart. RTP wants start codes here, since aiortc cuts at them, and a viewer that comes in the middle needs the
parameter sets with the first key picture that it gets.

A browser shows the pictures of WebRTC in the order in which they come. A stream with B-pictures, which are sent in
another order, would stutter without an error. So it is refused at its first B-picture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tricklecast.subscriber.media.opening import Unit, unit_type
from tricklecast.trickle.errors import TrickleError

START: Final = b"\x00\x00\x00\x01"

_B_SLICES: Final = (1, 6)

PROFILES: Final = {66: "Baseline", 77: "Main", 88: "Extended", 100: "High"}
"""Profiles with 8 bits and 4:2:0, by ``profile_idc``: browsers decode these."""

LOOKED_AT: Final = 8
"""Pictures after which a channel is known: B-pictures come in groups of up to three or so, and show among them."""


class CannotPass(TrickleError):
    """A channel's media cannot go to browsers as they are."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture for RTP.

    Attributes:
        data: its units, in Annex B.
        is_key: whether a decoder can begin here.
    """

    data: bytes
    is_key: bool


class Pictures:
    """Brings the pictures of one stream into the form for RTP."""

    def __init__(self) -> None:
        self._sets: tuple[bytes, ...] = ()  # the parameter sets that came last

    def convert(self, units: Iterable[bytes]) -> Picture | None:
        """Convert a picture, of which these are the units.

        Returns:
            ``None`` if there is no picture in it.

        Raises:
            CannotPass: browsers cannot show such a stream.
        """
        units = [unit for unit in units if unit_type(unit) not in (Unit.DELIMITER, Unit.FILLER)]
        has_sets = any(unit_type(unit) == Unit.SPS for unit in units)
        if has_sets:
            self._sets = tuple(unit for unit in units if unit_type(unit) in (Unit.SPS, Unit.PPS))
        for unit in self._sets:
            if unit_type(unit) == Unit.SPS and len(unit) > 1 and unit[1] not in PROFILES:
                raise CannotPass(f"browsers do not decode H.264 of the profile {unit[1]}: publish with --transcode")
        first = next((unit for unit in units if unit_type(unit) in (Unit.SLICE, Unit.IDR)), None)
        if first is None:
            return None
        is_key = unit_type(first) == Unit.IDR
        if not is_key and _slice_type(first) in _B_SLICES:
            raise CannotPass("it has B-pictures, which browsers do not take over WebRTC: publish with --transcode")
        if is_key and not has_sets:
            units = [*self._sets, *units]
        return Picture(b"".join(START + unit for unit in units), is_key and bool(self._sets))


def _slice_type(unit: bytes) -> int:
    """Read ``slice_type``, the second number of a slice's header; -1 if it is cut off."""
    bits = "".join(f"{byte:08b}" for byte in unit[1:9])
    value = -1
    for _ in range(2):
        zeros = len(bits) - len(bits.lstrip("0"))
        code = bits[zeros : 2 * zeros + 1]
        if len(code) <= zeros:
            return -1
        value, bits = int(code, 2) - 1, bits[2 * zeros + 1 :]
    return value
