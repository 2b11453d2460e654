"""Segments as different publishers make them, and what a check would have noted of them on a perfect network."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, TypeAlias

import av
from av import Packet
from av.container import InputContainer, OutputContainer
from av.stream import Stream

from tricklecast.subscriber.check.media import Media, MediaReader, SegmentBytes
from tricklecast.subscriber.check.rules import Judgement, judge
from tricklecast.subscriber.check.study import Head, Limits, Received, Run, Study
from tricklecast.trickle import wire

MPEGTS: Final = {"mpegts_copyts": "1", "flush_packets": "1", "mpegts_flags": "pat_pmt_at_frames", "pcr_period": "20"}
COMMON: Final = {"avoid_negative_ts": "disabled", "max_interleave_delta": "1"}
FMP4: Final = {"movflags": "frag_keyframe+empty_moov+default_base_moof+frag_discont", "use_editlist": "0"}

Change: TypeAlias = "Callable[[Packet[Stream], int], int | None]"
"""Given a packet and the number of its segment: by how many 90 kHz ticks to move it; ``None`` to leave it out."""


def cut(
    path: Path,
    *,
    length_s: float = 0.0,
    fresh: bool = True,
    change: Change = lambda packet, number: 0,
    at_keyframes: bool = True,
    format_: str = "mpegts",
) -> list[bytes]:
    """Remux a clip into segments.

    Args:
        path: the clip.
        length_s: shortest segment, in seconds.
        fresh: a muxer of its own for each segment, as ffmpeg's segment muxer has it; otherwise one for all.
        change: of timestamps.
        at_keyframes: of the video, if there is one; otherwise wherever the time is over.
        format_: ``"mpegts"`` or ``"mp4"``.
    """
    segments: list[bytes] = []
    with av.open(str(path)) as container:
        muxer: _Muxer | None = None
        begun_s = 0.0
        for packet in _packets(container):
            is_lead = packet.stream.index == _lead(container).index
            assert packet.dts is not None
            assert packet.time_base is not None
            now_s = float(packet.dts * packet.time_base)
            ends = is_lead and (packet.is_keyframe or not at_keyframes) and now_s - begun_s >= length_s
            if muxer is None or (ends and muxer.has_lead):
                if muxer is not None:
                    segments.append(muxer.take(end=fresh))
                muxer = _Muxer(container, format_) if muxer is None or fresh else muxer
                muxer.has_lead, begun_s = False, now_s
            moved = change(packet, len(segments))
            if moved is not None:
                muxer.has_lead |= is_lead
                muxer.mux(packet, moved)
        assert muxer is not None
        segments.append(muxer.take(end=True))
    return segments


class _Muxer:
    def __init__(self, source: InputContainer, format_: str) -> None:
        self.has_lead = False
        self._sink = io.BytesIO()
        self._sink.seekable = lambda: False  # type: ignore[method-assign]
        options = MPEGTS if format_ == "mpegts" else FMP4
        self._out: OutputContainer = av.open(self._sink, "w", format=format_, container_options={**options, **COMMON})
        self._streams = {stream.index: self._out.add_stream_from_template(stream) for stream in source.streams}
        self._taken = 0

    def mux(self, packet: Packet[Stream], moved: int) -> None:
        assert packet.time_base is not None
        assert packet.dts is not None
        assert packet.pts is not None
        shift = round((Fraction(moved, 90_000) + 1) / packet.time_base)
        packet.stream = self._streams[packet.stream.index]
        packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
        self._out.mux_one(packet)

    def take(self, *, end: bool) -> bytes:
        if end:
            self._out.close()
        data = self._sink.getvalue()[self._taken :]
        self._taken += len(data)
        return data


def _lead(container: InputContainer) -> Stream:
    return min(container.streams, key=lambda stream: stream.type != "video")


def _packets(container: InputContainer) -> Iterator[Packet[Stream]]:
    for packet in container.demux():
        if packet.size:
            if packet.dts is None:
                packet.dts = packet.pts
            yield packet


def read(
    segments: Sequence[bytes],
    *,
    follows: bool = True,
    short: Collection[int] = (),
    decode: bool = False,
    step: int = 10_000,
) -> list[Media]:
    """What segments of one channel hold, as they arrive in pieces; the ``short`` ones were cut short by somebody."""
    reader = MediaReader()
    found = []
    for number, data in enumerate(segments):
        content = SegmentBytes()
        for at in range(0, len(data), step):
            content.add(data[at : at + step])
        joins = follows and number > 0 and number - 1 not in short
        found.append(reader.read(*content.take(), follows=joins, whole=number not in short, decode=decode))
    return found


def received(
    segments: Sequence[bytes],
    *,
    content_type: str = wire.MPEG_TS,
    truncated: Mapping[int, str] | None = None,
    decode: bool = False,
) -> list[Received]:
    """What a check notes of segments: each of them arrives over all of its length, the moment that it is made."""
    reasons = truncated or {}
    notes = [
        Received(
            number,
            number,
            epoch=1,
            content_type=content_type,
            size=len(data),
            media=media,
            truncated=reasons.get(number),
        )
        for number, (data, media) in enumerate(zip(segments, read(segments, short=reasons, decode=decode), strict=True))
    ]
    return in_time(notes)


def in_time(
    segments: Sequence[Received],
    *,
    speed: float = 1.0,
    share: float = 1.0,
    late_s: Callable[[int], float] | None = None,
) -> list[Received]:
    """Let segments arrive when their times say.

    Args:
        segments: as they were received.
        speed: of the publisher.
        share: over how much of its length each arrives.
        late_s: by how much the segment of that number is late.
    """
    study = Study(Run(tuple(segments)), Limits())
    times = {point.segment.number: point.media_s for point in study.line}
    found: list[Received] = []
    asked_s = now_s = 100.0
    for one in segments:
        length_s = study.lengths.get(one.number, 1.0)
        begun_s = 101.0 + times[one.number] / speed if one.number in times else now_s
        begun_s += late_s(one.number) if late_s is not None else 0.0
        begun_s = max(begun_s, asked_s + 0.001)  # nothing is answered before it was asked for
        now_s = begun_s + share * length_s
        wall_us = round(1_700_000_000_000_000 + begun_s * 1e6)
        found.append(
            replace(
                one,
                requested_s=asked_s,
                answered_s=begun_s,
                taken_s=begun_s,
                first_s=begun_s,
                last_s=now_s,
                wall_us=wall_us,
            )
        )
        asked_s = begun_s
        now_s = begun_s + length_s
    return found


def judged(segments: Sequence[Received], **run: Any) -> Judgement:
    """The judgement on segments; the server's head is where it should be."""
    heads = tuple(Head(one.answered_s, 0.001, one.seq + 1, one.seq) for one in segments)
    seconds = max((one.last_s for one in segments), default=0.0) - 100.0
    return judge(Run(tuple(segments), **{"heads": heads, "seconds": seconds, **run}))


def troubles(judgement: Judgement) -> dict[str, str]:
    """What is not fine: levels by rule."""
    return {one.id: one.level.value for one in judgement.findings if one.level in ("warn", "fail")}


def numbered(segments: Sequence[bytes]) -> list[bytes]:
    """MPEG-TS segments with continuity counters that go on."""
    last: dict[int, int] = {}
    found: list[bytes] = []
    for data in segments:
        packets = bytearray(data)
        for at in range(0, len(packets), 188):
            pid = int.from_bytes(packets[at + 1 : at + 3]) & 0x1FFF
            if packets[at + 3] & 0x10:
                last[pid] = last.get(pid, -1) + 1 & 0xF
            packets[at + 3] = packets[at + 3] & 0xF0 | last.get(pid, 0)
        found.append(bytes(packets))
    return found


def pairs(segments: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Neighbours."""
    return list(itertools.pairwise(segments))
