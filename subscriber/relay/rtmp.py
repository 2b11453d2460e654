"""Sends Matroska from standard input to an RTMP server, unchanged: ``python -m tricklecast.subscriber.relay.rtmp``.

A process of its own, since libavformat connects without letting other Python code run. The first line of standard input
is the URL: a stream key on the command line could be seen by all users of the machine.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.trickle.pyav import reason

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream

OPEN_S: Final = 15.0
SEND_S: Final = 10.0
"""A server that takes this many seconds to answer, or to take a packet, is away."""

_PROBE: Final = {"probesize": "32", "analyzeduration": "0"}
"""The head of Matroska says all: libavformat waits for no packet."""

_LIVE: Final = {"flvflags": "no_duration_filesize"}
"""A stream has no head to which one could go back at its end."""


def send(url: str, source: object) -> None:
    """Send the first picture track and the first sound track that RTMP takes, until the input ends.

    Args:
        source: its ``read`` gives Matroska.

    Raises:
        FFmpegError: the server cannot be reached, refuses the stream, or breaks it off.
        ValueError: RTMP takes none of the streams.
    """
    import av

    with (
        av.open(cast(Any, source), "r", format="matroska", options=_PROBE) as incoming,
        av.open(url, "w", format="flv", container_options=_LIVE, timeout=(OPEN_S, SEND_S)) as outgoing,
    ):
        copies: dict[int, Stream] = {}
        for stream in (*incoming.streams.video[:1], *incoming.streams.audio[:1]):
            names = {stream.codec_context.name, stream.codec_context.codec.canonical_name}
            if names & outgoing.supported_codecs:
                copies[stream.index] = outgoing.add_stream_from_template(stream, opaque=True)
            else:
                sys.stderr.write(f"left out: {stream.type}, {stream.codec_context.name}\n")
        if not copies:
            raise ValueError("RTMP carries none of the channel's streams")
        outgoing.start_encoding()
        packet: Packet[Any]
        for packet in incoming.demux([incoming.streams[index] for index in copies]):
            if packet.size:
                packet.stream = copies[packet.stream_index]
                outgoing.mux_one(packet)


def main() -> None:
    """Send; the last line of standard error says why it ended, if it ended with code 1."""
    import av

    av.logging.set_libav_level(av.logging.ERROR)
    av.logging.restore_default_callback()  # the server's reason for a refusal, on standard error
    url = sys.stdin.buffer.readline().decode().strip()
    try:
        # read() would wait for as many bytes as were asked for; read1() gives those that are there.
        send(url, SimpleNamespace(read=cast(Any, sys.stdin.buffer).read1))
    except (av.error.FFmpegError, OSError, ValueError) as error:
        sys.stderr.write(f"{reason(error)}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
