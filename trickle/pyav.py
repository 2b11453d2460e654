"""What both clients do with PyAV: whether it is there, what its errors say, and what outlives a container."""

from __future__ import annotations

import os
import re
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.trickle.errors import InvalidInput

if TYPE_CHECKING:
    from av import CodecContext
    from av.container import Container, OutputContainer
    from av.stream import Stream

NEEDS_PYAV: Final = 'media needs PyAV: pip install "tricklecast[media]"'

_CLEARER: Final = {
    "Immediate exit requested": "nothing came in time",  # a time-out interrupted libavformat
    "Protocol not found": "PyAV was built without this protocol",
}


def need_pyav() -> None:
    """Raises InvalidInput, with what to install, if PyAV is missing."""
    try:
        import av  # noqa: F401
    except ImportError as error:
        raise InvalidInput(NEEDS_PYAV) from error


def reason(error: Exception) -> str:
    """Why something failed, in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _CLEARER.get(text, text.splitlines()[0])


def packet_errors() -> tuple[type[Exception], ...]:
    """The errors with which libavcodec refuses one packet, because it is damaged; the next one may be fine."""
    from av import error

    return (
        error.InvalidDataError,
        error.ArgumentError,
        error.ExternalError,
        error.PatchWelcomeError,
        error.UnknownError,
        error.PermissionError,  # AAC whose channels were never named
    )


def file_errors() -> tuple[type[Exception], ...]:
    """The errors with which a file cannot be written: some of libavformat's are no errors of the system."""
    from av.error import FFmpegError

    return OSError, FFmpegError


def copied(stream: Stream, container: OutputContainer | None = None, *, is_opaque: bool | None = None) -> Stream:
    """A copy of a stream, with its language, for packets that are not encoded anew.

    Args:
        stream: of any container.
        container: gets the copy; ``None``: one that writes nothing, so that the copy outlives all others.
        is_opaque: the container need not have an encoder for it.
    """
    import av

    if container is None:
        container, is_opaque = av.open(os.devnull, "w", format="null"), True
    copy = container.add_stream_from_template(stream, opaque=is_opaque)
    if language := stream.metadata.get("language"):
        copy.metadata["language"] = language
    return copy


UNKNOWN: Final = "unknown codec"


def codec_name(stream: Stream) -> str:
    """The codec's own name; a stream's ``name`` is that of the decoder, of which a codec may have several."""
    context = getattr(stream, "codec_context", None)
    if context is None:  # PyAV cannot decode it; of data, it knows the name all the same
        name = getattr(stream, "name", None) if stream.type == "data" else None
        return name or present_streams(stream.container).get(stream.index, ("", ""))[1].replace("none", "") or UNKNOWN
    return str(context.codec.canonical_name)


def decoder_of(codec: str) -> str:
    """One name for the codecs of one decoder, which libavformat confuses in short segments of MPEG-TS."""
    return {"mp1": "mp3", "mp2": "mp3", "mpeg1video": "mpeg2video"}.get(codec, codec)


_DESCRIBED: Final = re.compile(r"^ *Stream #0:(\d+).*?: (\w+): (\w+)", re.MULTILINE)
"""A stream in libavformat's description of a container: ``Stream #0:1[0x101](eng): Audio: aac``."""


_LOG: Final = Lock()
"""Held while libavformat's log has another level, which all threads share."""


def present_streams(container: Container) -> dict[int, tuple[str, str]]:
    """Kind and codec of the streams that a container has by now, by number. MPEG-TS can announce others at any time.

    PyAV shows each stream as it was when the container was opened, and none that came later, nor their packets. But it
    shows what libavformat writes to its log about all of them.
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
    """Whether it is a cover: a picture that belongs to the file, not to its media time."""
    from av.stream import Disposition

    return bool(stream.disposition & Disposition.attached_pic)


def new_decoder(stream: Stream) -> CodecContext:
    """A decoder for a stream, which outlives the stream's container."""
    from av import CodecContext

    decoder = CodecContext.create(stream.codec_context.codec.canonical_name, "r")
    decoder.extradata = stream.codec_context.extradata
    return decoder
