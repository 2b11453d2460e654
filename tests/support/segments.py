"""Clips cut into segments that stand alone, as publishers cut them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
from av import Packet
from av.stream import Stream

CLOCK_HZ: Final = 90_000

_OPTIONS: Final[dict[str, dict[str, str]]] = {
    "mpegts": {"mpegts_copyts": "1", "avoid_negative_ts": "disabled"},
    # frag_discont: the first fragment says its decoding time, which is not 0.
    "mp4": {"movflags": "+frag_keyframe+delay_moov+default_base_moof+frag_discont", "avoid_negative_ts": "disabled"},
}


def cut(clip: Path, format_: str = "mpegts", *, at: Fraction | int = 1) -> list[bytes]:
    """One segment per GOP (without video: per second), with the clip's own times, moved by ``at`` seconds.

    Args:
        clip: a file. format_: ``mpegts``, or ``mp4`` for fragments after an init segment of their own.
        at: where the first segment begins; what is before 0 in the clip would not fit into MPEG-TS.
    """
    return list(_cut(clip, format_, Fraction(at)))


def _cut(clip: Path, format_: str, at: Fraction) -> Iterator[bytes]:
    with av.open(str(clip)) as source:
        streams = [*source.streams.video, *source.streams.audio]
        lead = streams[0]
        packets: list[Packet[Any]] = []
        begun = Fraction(0)
        for packet in source.demux(streams):
            if not packet.size:
                continue
            assert packet.dts is not None
            assert packet.time_base is not None
            time = packet.dts * packet.time_base
            begins = packet.stream_index == lead.index and packet.is_keyframe
            if packets and begins and (lead.type == "video" or time - begun >= 1):
                yield _mux(packets, streams, format_, at)
                packets = []
            begun = begun if packets else time
            packets.append(packet)
        yield _mux(packets, streams, format_, at)


def _mux(packets: list[Packet[Any]], streams: list[Any], format_: str, at: Fraction) -> bytes:
    file = io.BytesIO()
    with av.open(file, mode="w", format=format_, container_options=_OPTIONS[format_]) as muxer:
        copies: dict[int, Stream] = {stream.index: muxer.add_stream_from_template(stream) for stream in streams}
        for packet in packets:
            assert packet.dts is not None
            assert packet.pts is not None
            assert packet.time_base is not None
            ticks = CLOCK_HZ * packet.time_base
            index = packet.stream_index
            packet.pts, packet.dts = (
                round(packet.pts * ticks + at * CLOCK_HZ),
                round(packet.dts * ticks + at * CLOCK_HZ),
            )
            packet.duration = round((packet.duration or 0) * ticks)
            packet.time_base = Fraction(1, CLOCK_HZ)
            packet.stream = copies[index]
            muxer.mux_one(packet)
    return file.getvalue()
