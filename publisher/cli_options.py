"""The arguments and options of ``tricklecast publish``: their names, and the text of their help."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer

from tricklecast.trickle import wire

DEFAULT_BY: Final = "size:1MiB"

_MEDIA: Final = "Media"
_TRANSCODE: Final = "Encoding anew"
_SOURCE: Final = "Inputs that end or break"
_BYTES: Final = "Plain bytes"

Url = Annotated[str, typer.Argument(metavar="URL", help="The channel, as in http://localhost:2939/trickle/CHANNEL.")]
Source = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="A media file; a URL (rtsp, rtmp, udp, tcp, http, …); a device (v4l2:/dev/video0, alsa:hw:0,"
        " avfoundation:0); - for standard input; or testsrc, a generated picture with a clock, and a tone"
        " (testsrc:size=640x360,rate=25,duration=10s).",
    ),
]

Start = Annotated[
    str,
    typer.Option(
        help="The first segment: resume (where the channel is), reset (the same, and close what an earlier publisher"
        " left open), or a number."
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the channel open at the end.")]
ContentType = Annotated[
    str | None,
    typer.Option(
        help="Media type of the segments.",
        show_default=f"{wire.MPEG_TS} or {wire.MP4}; with --raw {wire.DEFAULT_CONTENT_TYPE}",
    ),
]

Realtime = Annotated[
    bool,
    typer.Option(
        help="Publish at the pace at which it plays: segments that the network is too slow for are dropped, and named."
        " Or as fast as it can be read, dropping nothing.",
        rich_help_panel=_MEDIA,
    ),
]
Container = Annotated[
    Literal["mpegts", "fmp4"],
    typer.Option(help="MPEG-TS, or fragmented MP4 with an init segment in every segment.", rich_help_panel=_MEDIA),
]
MinSegment = Annotated[
    str, typer.Option(help="With video, a segment ends at the first keyframe after this time.", rich_help_panel=_MEDIA)
]
SegmentLength = Annotated[
    str, typer.Option("--segment", help="Without video, a segment lasts so long.", rich_help_panel=_MEDIA)
]
InputOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--input-option",
        metavar="KEY=VALUE",
        help="An option of libavformat for the input, as in rtsp_transport=udp or framerate=30; may be repeated.",
        rich_help_panel=_MEDIA,
    ),
]

Transcode = Annotated[
    bool,
    typer.Option(
        "--transcode",
        help="Encode video as H.264, and sound as AAC or Opus. Otherwise, packets are published as they are.",
        rich_help_panel=_TRANSCODE,
    ),
]
VideoBitrate = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="As in 2.5M.", show_default="constant quality", rich_help_panel=_TRANSCODE),
]
Gop = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="From keyframe to keyframe.", show_default="2s", rich_help_panel=_TRANSCODE),
]
AudioCodec = Annotated[
    Literal["aac", "opus"] | None,
    typer.Option(help="What sound is encoded as.", show_default="aac", rich_help_panel=_TRANSCODE),
]

Reconnect = Annotated[
    bool | None,
    typer.Option(
        "--reconnect/--no-reconnect",
        help="Open the input again when it ends or breaks, and go on with the next segment.",
        show_default="for live inputs on a network",
        rich_help_panel=_SOURCE,
    ),
]
ReconnectFor = Annotated[str, typer.Option(metavar="TIME", help="How long that is tried.", rich_help_panel=_SOURCE)]
Loop = Annotated[
    str,
    typer.Option(metavar="N|forever", help="Play a file so many times, as one stream.", rich_help_panel=_SOURCE),
]

Raw = Annotated[bool, typer.Option("--raw", help="Publish plain bytes instead of media.", rich_help_panel=_BYTES)]
By = Annotated[
    str | None,
    typer.Option(
        help="How they are split into segments: size:1MiB, line or time:1s.",
        show_default=DEFAULT_BY,
        rich_help_panel=_BYTES,
    ),
]
