"""Pictures that lie: phones film as they are held, and write down how the picture is to be turned.

MP4 and Matroska keep that beside the coded picture, MPEG-TS does not. PyAV shows it of decoded frames only, and an
encoder must be set up before; so it is read from an MP4 header, which libavformat writes for any stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from tricklecast.publisher.media.boxes import display_matrix
from tricklecast.publisher.media.muxer import Sink

if TYPE_CHECKING:
    from av.filter import Graph
    from av.stream import Stream
    from av.video.frame import VideoFrame

# The matrix (ISO/IEC 14496-12, 8.3.2) maps a picture's x to (a, b) and its y to (c, d).
_FILTERS: Final[dict[tuple[int, ...], tuple[str, ...]]] = {
    (0, 1, -1, 0): ("transpose=clock",),
    (-1, 0, 0, -1): ("hflip", "vflip"),
    (0, -1, 1, 0): ("transpose=cclock",),
    (-1, 0, 0, 1): ("hflip",),
    (1, 0, 0, -1): ("vflip",),
    (0, 1, 1, 0): ("transpose=cclock_flip",),
    (0, -1, -1, 0): ("transpose=clock_flip",),
}
_OPTIONS: Final = {"movflags": "empty_moov", "strict": "experimental"}


@dataclass(frozen=True, slots=True)
class Turn:
    """How pictures are turned or mirrored, in steps of 90 degrees.

    Attributes:
        filters: libavfilter's, in order; none: they stand upright.
    """

    filters: tuple[str, ...] = ()

    @property
    def swaps_sides(self) -> bool:
        """Whether the width becomes the height."""
        return any(name.startswith("transpose") for name in self.filters)

    @classmethod
    def of(cls, stream: Stream) -> Turn:
        """How players turn the pictures of a stream, as far as its container says so."""
        signs = tuple((part > 0) - (part < 0) for part in _matrix(stream))
        return cls(_FILTERS.get(signs, ()))


class Turner:
    """Turns pictures.

    Args:
        turn: how.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._graph: Graph | None = None

    def turned(self, frame: VideoFrame) -> VideoFrame:
        """A picture, upright; all are of one size and format."""
        if not self._turn.filters:
            return frame
        if self._graph is None:
            self._graph = self._made_for(frame)
        self._graph.vpush(frame)
        turned = self._graph.vpull()
        turned.pts, turned.time_base = frame.pts, frame.time_base
        return turned

    def _made_for(self, frame: VideoFrame) -> Graph:
        from av.filter import Graph

        graph = Graph()
        source = graph.add_buffer(
            width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base or Fraction(1, 1000)
        )
        filters = [graph.add(*name.split("=")) for name in self._turn.filters]
        graph.link_nodes(source, *filters, graph.add("buffersink")).configure()
        return graph


def _matrix(stream: Stream) -> tuple[int, ...]:
    """Where the container puts the corners of the picture; nothing, where no MP4 header can be written for it."""
    import av

    sink = Sink()
    try:
        with av.open(sink, mode="w", format="mov", container_options=_OPTIONS) as header:
            header.add_stream_from_template(stream, opaque=True)
            header.start_encoding()
    except (av.error.FFmpegError, ValueError):
        return ()
    return display_matrix(sink.take())
