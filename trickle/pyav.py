"""What both clients do with PyAV: whether it is there, what its errors say, and what outlives a container."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.trickle.errors import InvalidInput

if TYPE_CHECKING:
    from av import CodecContext
    from av.container import InputContainer, OutputContainer
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


def codec_name(stream: Stream) -> str:
    """The codec's own name; a stream's ``name`` is that of the decoder, of which a codec may have several."""
    context = getattr(stream, "codec_context", None)
    if context is None:  # PyAV cannot decode it; of data, it knows the name all the same
        return (stream.type == "data" and getattr(stream, "name", None)) or "unknown codec"
    return str(context.codec.canonical_name)


def decoder_of(codec: str) -> str:
    """One name for the codecs of one decoder, which libavformat confuses in short segments of MPEG-TS."""
    return {"mp1": "mp3", "mp2": "mp3", "mpeg1video": "mpeg2video"}.get(codec, codec)


_FILTERS: Final = {
    "h264": "h264_mp4toannexb",
    "hevc": "hevc_mp4toannexb",
    "vvc": "vvc_mp4toannexb",
    "av1": "av1_metadata",
    "vp9": "vp9_metadata",
    "mpeg4": "mpeg4_unpack_bframes",
    "mpeg2video": "mpeg2_metadata",
    "aac": "aac_adtstoasc",
    "opus": "opus_metadata",
    "eac3": "eac3_core",
    "dts": "dca_core",
}
"""Filters that take one codec each."""


def changed_codec(stream: Stream) -> str:
    """The codec that a stream has now, if it is another one than at its beginning, as MPEG-TS can announce at any time.

    PyAV shows the first one for ever. But filters look at libavformat's own state.
    """
    from av.bitstream import BitStreamFilterContext

    first = codec_name(stream)
    for codec, name in _FILTERS.items():
        if codec not in (first, "mpeg2video" if first == "mpeg1video" else first):
            with suppress(*packet_errors()):
                BitStreamFilterContext(name, stream)
                return codec
    return ""


_DESCRIBED: Final = re.compile(r"^ *Stream #0:(\d+).*?: (\w+: \w+)", re.MULTILINE)
"""A stream in libavformat's description of a container: ``Stream #0:1[0x101](eng): Audio: aac``."""


def late_streams(container: InputContainer) -> dict[int, str]:
    """The streams that a container has by now and had not when it was opened, as in ``audio: aac``, by number.

    PyAV shows neither them nor their packets. But it shows what libavformat writes to its log about all streams.
    """
    from av import logging

    before = logging.get_level()
    logging.set_level(logging.INFO)
    try:
        text = cast(Any, container).dumps_format()  # its stub lacks it
    finally:
        logging.set_level(before)
    known = len(container.streams)
    return {int(number): kind.lower() for number, kind in _DESCRIBED.findall(text) if int(number) >= known}


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
