"""Opens a segment with PyAV: for frames, for joined files and for ``check``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.media.containers import Container
from tricklecast.trickle.pyav import reason

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.stream import Stream

FORMATS: Final = {Container.MPEGTS: "mpegts", Container.FMP4: "mp4"}
"""libavformat's names of the containers."""


class NotMedia(TrickleError):
    """A segment's bytes are no media that can be read."""


def open_segment(file: object, kind: Container, options: Mapping[str, str] | None = None) -> InputContainer:
    """Open a segment.

    Args:
        file: its bytes, for libavformat to ``read``. Those of MP4 have passed a
            :class:`~tricklecast.trickle.media.demux.SampleGuard`, which also knows the last init segment.

    Raises:
        NotMedia: it is neither MPEG-TS nor MP4, or cannot be opened.
    """
    import av
    from av.error import FFmpegError

    if kind not in FORMATS:
        raise NotMedia("it is neither MPEG-TS nor MP4")
    try:
        # libavformat asks for types only: ``read`` is all that it needs of a file.
        return cast("InputContainer", av.open(cast(Any, file), "r", format=FORMATS[kind], options=dict(options or {})))
    except (FFmpegError, OSError, ValueError) as error:
        raise NotMedia(reason(error)) from error


def is_mpegts(stream: Stream) -> bool:
    """Whether the decoder's parameters come within the stream, where decoders expect them to change."""
    return stream.container.format.name == "mpegts"
