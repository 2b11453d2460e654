"""What a decoder makes of a segment's first picture. Blocks, and needs PyAV; ``probe`` calls it in a thread."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tricklecast.subscriber.check.observations import Picture
from tricklecast.subscriber.check.openings import opening
from tricklecast.trickle.media.clock import read_clock

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

MAX_PACKETS: Final = 64
"""How many packets a decoder is given for its first picture: more than any codec reorders (H.264 and HEVC: 16)."""

PROBE: Final = {"probesize": "5000000", "analyzeduration": "0"}
"""Look at all of the beginning that is kept, but for no more of it than it takes to know the codecs."""


def has_decoder() -> bool:
    """Whether PyAV is installed."""
    return importlib.util.find_spec("av") is not None


def first_picture(head: bytes, format_: str) -> Picture | None:
    """Decode the first picture of a segment from this segment alone.

    Args:
        head: the segment's beginning.
        format_: ``"mpegts"`` or ``"mp4"``.

    Returns:
        What came of it; ``None`` if there is no video in it.
    """
    import av

    try:
        with av.open(io.BytesIO(head), "r", format_, options=PROBE) as container:
            if not container.streams.video:
                return None
            return _first(container, container.streams.video[0])
    except (av.error.FFmpegError, ValueError) as error:
        return Picture(False, _reason(error))


def _first(container: InputContainer, stream: VideoStream) -> Picture:
    stream.codec_context.thread_count = 1
    begins: int | None = None
    refreshes = False
    for number, packet in enumerate(container.demux(stream)):
        begins = packet.pts if begins is None else begins
        refreshes = refreshes or (number == 0 and _recovers(bytes(packet), stream))
        # The last packet may be cut by the limit on what is kept; it never is the first picture's.
        for frame in packet.decode():
            return _picture(frame, begins, stream)
        if number >= MAX_PACKETS:
            break
    # Without an error, since the decoder holds pictures back until the last strip of them is fresh.
    return Picture(False, "no picture comes out of the decoder", refreshes=refreshes)


def _recovers(data: bytes, stream: VideoStream) -> bool:
    """Whether that picture is where a decoder of H.264 may begin, be it without a whole picture (gradual refresh)."""
    from av import Packet
    from av.bitstream import BitStreamFilterContext

    if stream.codec_context.name != "h264" or not data:
        return False
    start_codes = BitStreamFilterContext("h264_mp4toannexb", stream)
    return any(opening("h264", bytes(packet)).key for packet in start_codes.filter(Packet(data)))


def _picture(frame: VideoFrame, begins: int | None, stream: VideoStream) -> Picture:
    late_s = 0.0
    if begins is not None and frame.pts is not None and stream.time_base is not None:
        late_s = float((frame.pts - begins) * stream.time_base)
    known = Picture(True, "", late_s, bool(frame.key_frame), frame.width, frame.height)
    if frame.is_corrupt:
        return replace(known, decoded=False, error="the first picture is damaged")
    return replace(known, clock_ms=_clock(frame))


def _clock(frame: VideoFrame) -> int | None:
    """The time that the test source drew into the picture."""
    grey = frame if frame.format.name.startswith("yuv") and frame.format.components[0].bits == 8 else None
    if grey is None:
        grey = frame.reformat(format="gray")
    plane = grey.planes[0]
    pixels, width = memoryview(plane), plane.line_size
    return read_clock(lambda x, y: pixels[y * width + x], frame.width, frame.height)


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0]
