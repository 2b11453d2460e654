"""``tricklecast publish``: its options, and how they become a source and a publisher.

The module imports no client and no media library before it publishes, so that ``--help`` is quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from tricklecast.trickle import wire
from tricklecast.trickle.amounts import parse_bitrate, parse_duration, parse_limit, parse_size
from tricklecast.trickle.terminal import (
    NO_CREDENTIALS,
    ChannelUrls,
    Credentials,
    ReconnectFor,
    checked,
    option,
    with_credentials,
)

if TYPE_CHECKING:
    from tricklecast.publisher.feed import Totals
    from tricklecast.publisher.media.encode import Encoding
    from tricklecast.publisher.media.inputs import Input
    from tricklecast.publisher.media.reader import MediaOptions
    from tricklecast.publisher.steps import Source

STDIN: Final = "-"
DEFAULT_BY: Final = "size:1MiB"
DEFAULT_BUFFER: Final = "64MiB,30s"

HUGE_BYTES: Final = 1 << 30
"""The size of a buffer that only a time was given for."""

_SEGMENTS: Final = "Segments"
_INPUT: Final = "Input"
_ENCODING: Final = "Encoding (with --transcode or --ladder)"

_OF_MEDIA: Final = (
    *("realtime", "container", "min_segment", "segment", "input_option", "transcode", "reopen", "loop"),
    *("video_bitrate", "gop", "audio_codec", "ladder"),
)
"""Parameters that --raw refuses."""


@with_credentials
async def publish(
    url: ChannelUrls,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A media file; a URL (rtsp, rtmp, srt, udp, tcp, http, ...); a device (v4l2:/dev/video0, alsa:hw:0, "
            "avfoundation:0); - for standard input; or testsrc, a generated picture with a clock, and a tone "
            "(testsrc:size=640x360,rate=25,duration=10s).",
        ),
    ],
    raw: Annotated[bool, option(None, "Publish plain bytes instead of media.", "--raw")] = False,
    transcode: Annotated[
        bool, option(None, "Encode to H.264 and AAC or Opus. By default, packets are copied.", "--transcode")
    ] = False,
    container: Annotated[
        Literal["mpegts", "fmp4"] | None,
        option(
            None,
            "MPEG-TS, or fragmented MP4 with an init segment in each segment.",
            default="mpegts; fmp4 for codecs that only MP4 carries",
        ),
    ] = None,
    leave_open: Annotated[
        bool, option(None, "Do not end the channel at the end of the input.", "--leave-open")
    ] = False,
    takeover: Annotated[
        bool, option(None, "Publish even if somebody else publishes to the channel now.", "--takeover")
    ] = False,
    start: Annotated[
        str,
        option(
            "WHERE",
            "First segment: resume (the next number of the channel), reset (the same, and close segments that an "
            "earlier publisher left open), or a number.",
            group=_SEGMENTS,
        ),
    ] = "resume",
    min_segment: Annotated[
        str, option("TIME", "With video: end a segment at the first keyframe after this time.", group=_SEGMENTS)
    ] = "1s",
    segment: Annotated[
        str, option("TIME", "Without video: end a segment after this time.", "--segment", group=_SEGMENTS)
    ] = "2s",
    by: Annotated[
        str | None,
        option("RULE", "With --raw: end a segment by size:1MiB, line or time:1s.", group=_SEGMENTS, default=DEFAULT_BY),
    ] = None,
    content_type: Annotated[
        str | None,
        option(
            "TYPE",
            "Media type of the segments.",
            group=_SEGMENTS,
            default=f"{wire.MPEG_TS} or {wire.MP4}; with --raw {wire.DEFAULT_CONTENT_TYPE}",
        ),
    ] = None,
    realtime: Annotated[
        bool,
        option(
            None,
            "Publish at the speed at which the media plays, and drop segments when the network is too slow. "
            "Otherwise: as fast as possible, and drop nothing.",
            group=_INPUT,
        ),
    ] = True,
    input_option: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "An option of libavformat for the input: rtsp_transport=udp, framerate=30. May be repeated. libavformat "
            "passes over one that it does not know.",
            "--input-option",
            group=_INPUT,
        ),
    ] = None,
    loop: Annotated[str, option("N|forever", "Play a file this many times, as one stream.", group=_INPUT)] = "1",
    reopen: Annotated[
        bool | None,
        option(
            None,
            "Open the input again when it ends or breaks, and go on with the next segment.",
            "--reopen/--no-reopen",
            group=_INPUT,
            default="for live inputs on a network",
        ),
    ] = None,
    reopen_for: Annotated[str, option("TIME|forever", "Give up after trying for this time.", group=_INPUT)] = "60s",
    video_bitrate: Annotated[
        str | None, option("RATE", "For example 2.5M.", group=_ENCODING, default="constant quality")
    ] = None,
    gop: Annotated[str | None, option("TIME", "Time between keyframes.", group=_ENCODING, default="2s")] = None,
    audio_codec: Annotated[
        Literal["aac", "opus"] | None, option(None, "Audio codec.", group=_ENCODING, default="aac")
    ] = None,
    ladder: Annotated[
        str | None,
        option(
            "RUNGS",
            "Encode in several sizes, each to a channel of its own: with 1080p,720p,360p to CHANNEL, CHANNEL_720p and "
            "CHANNEL_360p. Players of HLS choose among them.",
            group=_ENCODING,
        ),
    ] = None,
    buffer: Annotated[
        str,
        option(
            "SIZE|TIME",
            "Memory for live media while the server is away: 256MB, 60s, or 256MB,60s. Beyond that the oldest segments "
            "are dropped.",
            group=_SEGMENTS,
        ),
    ] = DEFAULT_BUFFER,
    reconnect_for: ReconnectFor = "60s",
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Publish media, or plain bytes, to a channel.

    Each group of pictures becomes one segment. Readers get a segment while it is still being written.

    At the end of the input, and on Ctrl-C, the command ends the channel, unless you give --leave-open. After an error
    the channel stays open, so that another publisher can go on.

    Exit codes: 0 all was published; 1 an error, or segments were lost or dropped; 2 wrong usage; 130 Ctrl-C;
    143 SIGTERM.

    Examples:

    \b
      URL=http://localhost:2939/trickle/cam
      tricklecast publish $URL film.mp4
      tricklecast publish $URL rtsp://camera.local/stream --container fmp4
      tricklecast publish $URL v4l2:/dev/video0 --transcode --gop 1s
      tricklecast publish $URL film.mp4 --ladder 1080p,720p,360p
      ffmpeg ... -f mpegts - | tricklecast publish $URL -
      my-program | tricklecast publish $URL - --raw --by line
    """
    values = dict(locals())
    from tricklecast.publisher.core import parse_start
    from tricklecast.publisher.run import run
    from tricklecast.trickle.client.arguments import channel_urls, check_content_type

    channel_urls(url)
    if content_type is not None:
        checked("--content-type", check_content_type, content_type)
    first = checked("--start", parse_start, start)
    options: dict[str, Any] = {
        "leave_open": leave_open,
        "takeover": takeover,
        **checked("--buffer", parse_buffer, buffer),
        "content_type": content_type,
        "outage_s": checked("--reconnect-for", parse_limit, reconnect_for),
        **credentials.arguments,
    }
    if ladder is not None and not raw:
        totals = await _run_ladder(url, values, first, options)
    else:
        totals = await run(url, _raw(values) if raw else _media_input(values), start=first, **options)
    if totals.lost or totals.dropped:
        raise typer.Exit(1)


async def _run_ladder(url: str, values: Mapping[str, Any], start: Any, options: dict[str, Any]) -> Totals:
    """Publish in several sizes."""
    from tricklecast.publisher.ladder import run_ladder
    from tricklecast.publisher.media.ladder import SharedInput
    from tricklecast.trickle.media.ladder import parse_ladder

    ladder = checked("--ladder", parse_ladder, values["ladder"])
    if values["video_bitrate"] is not None:
        raise typer.BadParameter("each rung of a --ladder has its bit rate", param_hint="--video-bitrate")
    if start == "reset":
        raise typer.BadParameter("the rungs of a --ladder resume, or begin with a number", param_hint="--start")
    source, media = _media({**values, "transcode": True})
    return await run_ladder(url, SharedInput(source, media, ladder).rungs, ladder, start=start, **options)


def parse_buffer(text: str) -> dict[str, Any]:
    """Read the size of a buffer, how long a segment may wait in it, or both: ``64MiB,30s``.

    Raises:
        ValueError: the text is neither.
    """
    from tricklecast.publisher.run import ENDLESS_S

    limits: dict[str, Any] = {}
    for part in text.split(","):
        last = part.strip()[-1:]
        is_time = last.isalpha() and last not in "bB"  # sizes end in B, or have no unit
        name, parse = ("buffer_s", parse_duration) if is_time else ("buffer_bytes", parse_size)
        if name in limits:
            raise ValueError(f"one size and one time, not {text!r} (64MiB,30s)")
        limits[name] = parse(part.strip())
    return {"buffer_s": ENDLESS_S, "buffer_bytes": HUGE_BYTES, **limits}


def _raw(values: Mapping[str, Any]) -> Source:
    """The source that the options describe."""
    from tricklecast.publisher.raw import RawSource, parse_by

    parameters = inspect.signature(publish).parameters
    for name in _OF_MEDIA:
        if values[name] != parameters[name].default:
            option = f"--{'no-' if values[name] is False else ''}{name.replace('_', '-')}"
            raise typer.BadParameter("it is for media, and --raw publishes plain bytes", param_hint=option)
    path = None if values["source"] == STDIN else values["source"]
    return RawSource(path, checked("--by", parse_by, values["by"] or DEFAULT_BY))


def _media_input(values: Mapping[str, Any]) -> Source:
    """The source that the options describe."""
    from tricklecast.publisher.media.reader import MediaInput

    return MediaInput(*_media(values))


def _media(values: Mapping[str, Any]) -> tuple[Input, MediaOptions]:
    """The input that the options describe, and how it is published."""
    from tricklecast.publisher.media.inputs import Input, Kind
    from tricklecast.publisher.media.reader import MediaOptions
    from tricklecast.publisher.media.testsrc import TestOptions
    from tricklecast.trickle.pyav import need_pyav

    if values["by"] is not None:
        raise typer.BadParameter("--by needs --raw: media is split at its keyframes")
    pairs = [text.partition("=") for text in values["input_option"] or []]
    for key, equals, value in pairs:
        if not key or not equals:
            raise typer.BadParameter(f"--input-option is KEY=VALUE, not {key + equals + value!r}")
    source = Input.parse(values["source"], {key: value for key, _, value in pairs}, realtime=values["realtime"])
    options = MediaOptions(
        container=values["container"],
        min_segment_s=checked("--min-segment", parse_duration, values["min_segment"]),
        segment_s=checked("--segment", parse_duration, values["segment"]),
        realtime=values["realtime"],
        encoding=_encoding(values),
        reconnect=values["reopen"],
        reconnect_for_s=checked("--reopen-for", parse_limit, values["reopen_for"]),
        plays=checked("--loop", _plays, values["loop"]),
    )
    if options.plays != 1 and source.kind is not Kind.FILE:
        raise typer.BadParameter(f"only a file can be played again, not {source.name}", param_hint="--loop")
    if source.kind is Kind.GENERATED:
        checked("INPUT", TestOptions.parse, values["source"])
    need_pyav()
    return source, options


def _encoding(values: Mapping[str, Any]) -> Encoding | None:
    """How to encode; ``None`` without --transcode."""
    from tricklecast.publisher.media.encode import Encoding

    parsers: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "video_bitrate": ("video_bitrate", parse_bitrate),
        "gop": ("gop_s", parse_duration),
        "audio_codec": ("audio_codec", str),
    }
    given = {}
    for name, (field, parse) in parsers.items():
        if values[name] is not None:
            option = f"--{name.replace('_', '-')}"
            if not values["transcode"]:
                raise typer.BadParameter(f"{option} needs --transcode")
            given[field] = checked(option, parse, values[name])
    return Encoding(**given) if values["transcode"] else None


def _plays(loop: str) -> int | None:
    """How often a file is played; ``None`` for ever."""
    if loop == "forever":
        return None
    if loop.isascii() and loop.isdecimal() and int(loop):
        return int(loop)
    raise ValueError(f"use a number of times, or forever, not {loop!r}")
