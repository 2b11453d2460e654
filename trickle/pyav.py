"""PyAV for both clients: the check that it is installed, its errors, streams, packets, codecs and decoders.

PyAV is optional, so each function imports it when it is called. The module works around three habits of PyAV and
libavformat: a stream, its decoder and its packets are lost with their container; PyAV does not show streams that begin
after the container was opened; and one codec may have several decoders, whose names PyAV gives to the stream.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.trickle.errors import InvalidInput, MissingExtra, NoHardware, needs

if TYPE_CHECKING:
    from av import CodecContext, Packet
    from av.container import Container, InputContainer, OutputContainer
    from av.stream import Stream

NEEDS_PYAV: Final = f"media {needs('PyAV', 'media')}"

_CLEARER: Final = {
    "Immediate exit requested": "nothing came in time",  # a time-out interrupted libavformat
    "Protocol not found": "PyAV was built without this protocol",
}
"""Messages of libavformat that a user would not understand, in better words."""


class MissingPyAV(MissingExtra, InvalidInput):
    """PyAV is not installed; the message says how to install it."""


def need_pyav() -> None:
    """Check that PyAV is installed.

    Raises:
        MissingPyAV: it is not.
    """
    try:
        import av  # noqa: F401
    except ImportError as error:
        raise MissingPyAV(NEEDS_PYAV) from error


def any_titles() -> dict[str, Any]:
    """Return the options of ``av.open`` for files whose titles have another encoding than UTF-8.

    Without them such a title is a reason to refuse the file. PyAV 19 has no such options, and needs none.
    """
    import av

    return {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}


def reason(error: Exception) -> str:
    """Return the reason of an error of PyAV or the system, in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _CLEARER.get(text, text.splitlines()[0])


def packet_errors() -> tuple[type[Exception], ...]:
    """Return the errors by which libavcodec refuses one damaged packet. The next packet may be fine."""
    from av import error

    return (
        error.InvalidDataError,
        error.ArgumentError,
        error.ExternalError,
        error.PatchWelcomeError,
        error.UnknownError,
        error.PermissionError,  # AAC whose channel layout was never sent
    )


def file_errors() -> tuple[type[Exception], ...]:
    """Return the errors of writing a file. Some of libavformat's are no ``OSError``."""
    from av.error import FFmpegError

    return OSError, FFmpegError


def demuxed(container: InputContainer, streams: Sequence[Stream]) -> Iterator[Packet[Stream]]:
    """Yield the packets of some streams of a container, and an empty one of each at the end.

    A stream that begins after the container was opened is left out.

    Args:
        streams: if there are none, there are no packets (PyAV's ``demux`` takes none for all).

    Raises:
        OSError: the container is damaged, or cannot be read (PyAV's ``FFmpegError``, too).
    """
    while streams:
        try:
            yield from container.demux(streams)
            return
        except IndexError:  # PyAV met a new stream; the next call of demux() knows it
            continue


def copied(stream: Stream, container: OutputContainer | None = None) -> Stream:
    """Copy a stream and its language, for packets that are not encoded anew.

    Args:
        container: gets the copy. ``None``: a container that writes nothing, so that the copy outlives the original.
    """
    import av

    container = container or av.open(os.devnull, "w", format="null")
    # Opaque: a copy needs no encoder of its codec, and a decoder's name is none of an encoder (libdav1d).
    copy = container.add_stream_from_template(stream, opaque=True)
    if language := stream.metadata.get("language"):
        copy.metadata["language"] = language
    return copy


UNKNOWN: Final = "unknown codec"


def codec_name(stream: Stream) -> str:
    """Return the name of a stream's codec. PyAV's ``stream.name`` is that of the decoder."""
    context = getattr(stream, "codec_context", None)
    if context is None:  # PyAV cannot decode it, but knows the names of data streams
        name = getattr(stream, "name", None) if stream.type == "data" else None
        return name or present_streams(stream.container).get(stream.index, ("", ""))[1].replace("none", "") or UNKNOWN
    return str(context.codec.canonical_name)


def codec_family(codec: str) -> str:
    """Return one name for all codecs of a decoder. In a short segment of MPEG-TS libavformat takes one for another."""
    return {"mp1": "mp3", "mp2": "mp3", "mpeg1video": "mpeg2video"}.get(codec, codec)


_DESCRIBED: Final = re.compile(r"^ *Stream #0:(\d+).*?: (\w+): (\w+)", re.MULTILINE)
"""A stream in libavformat's description of a container: ``Stream #0:1[0x101](eng): Audio: aac``."""

_LOG: Final = Lock()
"""Held while libavformat's log, which all threads share, has another level."""


def present_streams(container: Container) -> dict[int, tuple[str, str]]:
    """Return kind and codec of each stream that a container has now, by its number.

    MPEG-TS can announce a stream at any time. PyAV shows the streams of the moment at which the container was opened.
    libavformat knows the others, and lists all of them in its log: they are read from there.
    """
    from av import logging

    with _LOG:
        before = logging.get_level()
        logging.set_level(logging.INFO)
        try:
            text = cast(Any, container).dumps_format()  # its stub lacks it
        finally:
            logging.set_level(before)
    return {int(number): (kind.lower(), codec) for number, kind, codec in _DESCRIBED.findall(text)}


def is_attached(stream: Stream) -> bool:
    """Whether the stream is a cover: one picture that belongs to the file and has no time."""
    from av.stream import Disposition

    return bool(stream.disposition & Disposition.attached_pic)


def new_decoder(stream: Stream, *, hwaccel: str | None = None, threads: int | None = None) -> CodecContext:
    """Make a decoder for a stream. It outlives the stream's container.

    Args:
        hwaccel: the device that decodes, as for :func:`check_hwaccel`; ``"auto"``: the first one that can be opened.
        threads: the number of pictures that are decoded at once, each of which comes ``threads - 1`` pictures later;
            ``None``: parts of one picture are decoded at once, where its encoder made such parts.

    Raises:
        NoHardware: no such device decodes this codec here; with ``"auto"``, none at all.
    """
    from av import CodecContext
    from av.codec.context import ThreadType

    codec = stream.codec_context.codec
    if hwaccel is not None:
        decoder = _hardware_decoder(codec.canonical_name, hwaccel)
    else:  # an encoder's name is no decoder's; and the decoder that is called "av1" needs a device
        decoder = CodecContext.create(codec.name if codec.is_decoder else codec.canonical_name, "r")
    decoder.extradata = stream.codec_context.extradata
    if threads is not None:
        decoder.thread_count, decoder.thread_type = threads, ThreadType.FRAME
    return decoder


def check_hwaccel(hwaccel: str) -> None:
    """Check the name of a device: its kind, as in ``"cuda"``, and which one, as in ``"cuda:1"``; or ``"auto"``.

    Raises:
        InvalidInput: it is no text.
        NoHardware: PyAV was built without that kind.
    """
    from av.codec.hwaccel import hwdevices_available

    if not isinstance(hwaccel, str):
        raise InvalidInput(f"hwaccel is the name of a device, as in 'cuda', not {hwaccel!r}")
    kinds = hwdevices_available()
    if hwaccel.partition(":")[0] not in ("auto", *kinds):
        raise NoHardware(hwaccel, f"PyAV was built with {', '.join(kinds) or 'none'}")


def _hardware_decoder(codec: str, hwaccel: str) -> CodecContext:
    from av.codec.hwaccel import hwdevices_available

    is_any = hwaccel == "auto"
    for name in hwdevices_available() if is_any else (hwaccel,):
        decoder, why = _opened(codec, name, falls_back=is_any)
        if decoder is not None:
            return decoder
    if is_any:
        raise NoHardware(hwaccel, f"no device of this machine decodes {codec}")
    others = [kind for kind in hwdevices_available() if _opened(codec, kind)[0] is not None]
    raise NoHardware(hwaccel, f"{why}; devices of this machine that decode {codec}: {', '.join(others) or 'none'}")


def _opened(codec: str, hwaccel: str, *, falls_back: bool = False) -> tuple[CodecContext | None, str]:
    """Make a decoder that a device runs; or say why there is none."""
    from av import CodecContext
    from av.codec.hwaccel import HWAccel
    from av.error import FFmpegError

    kind, _, device = hwaccel.partition(":")
    try:
        # A device may decode the codec, but not this stream's profile: then libavcodec may decode without it.
        decoder = CodecContext.create(codec, "r", HWAccel(kind, device or None, allow_software_fallback=falls_back))
    except (FFmpegError, ValueError) as error:
        return None, f"it cannot be opened ({reason(error)})"
    return (decoder, "") if decoder.is_hwaccel else (None, f"it does not decode {codec}")


class Sink:
    """Memory that a muxer of PyAV writes to."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes | bytearray) -> int:
        """Keep it."""
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """The bytes written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
