"""``tricklecast publish``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import typer

from tricklecast.publisher import cli_options as options
from tricklecast.publisher.core import parse_start
from tricklecast.publisher.raw import parse_by
from tricklecast.trickle.client.arguments import channel_url
from tricklecast.trickle.terminal import (
    CaFile,
    Token,
    TokenFile,
    bearer_for,
    checked,
    parse_bitrate,
    parse_duration,
    tls_context,
)

if TYPE_CHECKING:
    from tricklecast.publisher.job import Raw
    from tricklecast.publisher.media.relay import MediaOptions
    from tricklecast.publisher.media.transcode import TranscodeOptions

_OF_MEDIA: Final = (
    *("realtime", "container", "min_segment", "segment", "input_option", "transcode", "reconnect", "loop"),
    *("video_bitrate", "gop", "preset", "height", "audio_codec", "audio_bitrate"),
)
"""Parameters that plain bytes have no use for."""


async def publish(
    url: options.Url,
    source: options.Source,
    start: options.Start = "resume",
    keep: options.Keep = False,
    content_type: options.ContentType = None,
    ca_file: CaFile = None,
    token: Token = None,
    token_file: TokenFile = None,
    realtime: options.Realtime = True,
    container: options.Container = "mpegts",
    min_segment: options.MinSegment = "1s",
    segment: options.SegmentLength = "2s",
    input_option: options.InputOptions = None,
    transcode: options.Transcode = False,
    video_bitrate: options.VideoBitrate = None,
    gop: options.Gop = None,
    preset: options.Preset = None,
    height: options.Height = None,
    audio_codec: options.AudioCodec = None,
    audio_bitrate: options.AudioBitrate = None,
    reconnect: options.Reconnect = None,
    reconnect_for: options.ReconnectFor = "60s",
    loop: options.Loop = "1",
    raw: options.Raw = False,
    by: options.By = None,
) -> None:
    """Publish media, or plain bytes, to a channel.

    Every group of pictures becomes one segment, which can be read while it is
    still being written. It begins with the wall-clock time at which its first
    picture left the input. At the end, and on Ctrl-C, the channel is ended,
    unless --keep is given. The exit code is 1 if segments were lost or dropped.

    Examples, with URL=http://localhost:2939/trickle/cam:

    \b
    tricklecast publish $URL film.mp4
    tricklecast publish $URL rtsp://camera.local/stream --container fmp4
    tricklecast publish $URL v4l2:/dev/video0 --transcode --gop 1s
    ffmpeg ... -f mpegts - | tricklecast publish $URL -
    my-program | tricklecast publish $URL - --raw --by line
    """
    values = dict(locals())
    channel_url(url)
    from tricklecast.publisher.job import Job, Media

    if raw:
        _refuse_media(values)
        what: Raw | Media = _raw(source, by)
    else:
        if by is not None:
            raise typer.BadParameter("--by needs --raw: media is split at its keyframes")
        encoding = _encoding(
            transcode,
            {
                "video_bitrate": video_bitrate,
                "gop": gop,
                "preset": preset,
                "height": height,
                "audio_codec": audio_codec,
                "audio_bitrate": audio_bitrate,
            },
        )
        media = _media(container, realtime, min_segment, segment, encoding, reconnect, reconnect_for, loop)
        what = Media(source, _pairs(input_option or []), media)
        if media.plays != 1 and not what.repeats:
            raise typer.BadParameter(f"only a file can be played again, not {what.name}", param_hint="--loop")
    job = Job(
        url=url,
        what=what,
        start=checked("--start", parse_start, start),
        content_type=checked("--content-type", _media_type, content_type) or what.content_type,
        keep=keep,
        verify=checked("--ca-file", tls_context, ca_file) or True,
        auth=bearer_for(token, token_file),
    )
    totals = await job.run()
    if totals.lost or totals.dropped:
        raise typer.Exit(1)


def _refuse_media(values: Mapping[str, Any]) -> None:
    parameters = inspect.signature(publish).parameters
    for name in _OF_MEDIA:
        if values[name] != parameters[name].default:
            flag = f"--{'no-' if values[name] is False else ''}{name.replace('_', '-')}"
            raise typer.BadParameter("it is for media, and --raw publishes plain bytes", param_hint=flag)


def _raw(source: str, by: str | None) -> Raw:
    from tricklecast.publisher.job import STDIN, Raw

    return Raw(None if source == STDIN else source, checked("--by", parse_by, by or options.DEFAULT_BY))


def _media(
    container: str,
    realtime: bool,
    min_segment: str,
    segment: str,
    encoding: TranscodeOptions | None,
    reconnect: bool | None,
    reconnect_for: str,
    loop: str,
) -> MediaOptions:
    from tricklecast.publisher.media.relay import ContainerKind, MediaOptions
    from tricklecast.publisher.media.remux import Cutting

    return MediaOptions(
        container=ContainerKind(container),
        cutting=Cutting(
            checked("--min-segment", parse_duration, min_segment), checked("--segment", parse_duration, segment)
        ),
        realtime=realtime,
        transcode=encoding,
        reconnect=reconnect,
        reconnect_for_s=checked("--reconnect-for", parse_duration, reconnect_for),
        plays=_plays(loop),
    )


def _encoding(wanted: bool, given: Mapping[str, Any]) -> TranscodeOptions | None:
    from tricklecast.publisher.media.coding import PRESETS, AudioCodec
    from tricklecast.publisher.media.transcode import TranscodeOptions

    parsers: dict[str, Callable[[Any], Any]] = {
        "video_bitrate": parse_bitrate,
        "audio_bitrate": parse_bitrate,
        "gop": parse_duration,
        "audio_codec": AudioCodec.parse,
    }
    values = {name: value for name, value in given.items() if value is not None}
    if not wanted:
        for name in values:
            raise typer.BadParameter(f"--{name.replace('_', '-')} needs --transcode")
        return None
    if values.get("preset", PRESETS[0]) not in PRESETS:
        raise typer.BadParameter(f"--preset is one of {', '.join(PRESETS)}")
    parsed = {
        name: checked(f"--{name.replace('_', '-')}", parsers.get(name, lambda value: value), value)
        for name, value in values.items()
    }
    return TranscodeOptions(**parsed)


def _plays(loop: str) -> int | None:
    if loop == "forever":
        return None
    if loop.isascii() and loop.isdecimal() and int(loop):
        return int(loop)
    raise typer.BadParameter(f"--loop is a number, or forever, not {loop!r}")


def _pairs(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if text.find("=") < 1:
            raise typer.BadParameter(f"--input-option is KEY=VALUE, not {text!r}")
    return {key: value for key, _, value in (text.partition("=") for text in texts)}


def _media_type(text: str | None) -> str | None:
    from tricklecast.publisher.client import media_type

    return None if text is None else media_type(text)
