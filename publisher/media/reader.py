"""From an input to segments: opens sources, opens them again when they break, and divides them into steps.

Everything here blocks and runs in a worker thread (:func:`tricklecast.publisher.feed.stepping`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Final

from tricklecast.publisher.media.encode import Encoding, Transcoder, turn_of
from tricklecast.publisher.media.inputs import Input, Kind, Opened
from tricklecast.publisher.media.muxers import CONTAINERS, UNPLAYABLE_IN_TS, ContainerName, MpegTs
from tricklecast.publisher.media.pace import Pace
from tricklecast.publisher.media.segmenter import MIN_SEGMENT_S, SEGMENT_S, Segmenter
from tricklecast.publisher.media.source import MediaSource
from tricklecast.publisher.media.texts import is_text
from tricklecast.publisher.steps import IsStopped, Report, SegmentEnd, Step
from tricklecast.trickle import wire
from tricklecast.trickle.amounts import count, size
from tricklecast.trickle.client.retry import RECONNECT_S, Retries
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.media.timeline import fill_first_dts
from tricklecast.trickle.pyav import codec_name, is_attached, packet_errors, reason

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream

MIN_LIFE_S: Final = 5.0
"""A source that lasted less has not come back: it must not be opened again and again without a limit."""

MIN_OPEN_S: Final = 1.0
"""Each attempt to open it again may take at least this many seconds, also the last one."""

MAX_REFUSED: Final = 64
"""If the container refuses more packets in a row than this, a stream is not damaged, but of the wrong kind."""

LOOK_AHEAD: Final = " ".join(
    f"--input-option {option}" for option in ("probesize=50M", "analyzeduration=60M", "scan_all_pmts=1")
)
"""Lets libavformat look for streams in the first 50 MB or 60 s, in place of 5 MB or 5 s, and also behind the first
tables of MPEG-TS."""


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """How media is read and written.

    Attributes:
        container: the format of segments; ``None``: MPEG-TS, or fragmented MP4 where that carries more of the source.
        min_segment_s: with video, a segment ends at the first keyframe that is this many seconds behind its beginning.
        segment_s: without video, a segment ends after this many seconds.
        realtime: a source that could be read faster is read at the pace at which it plays.
        encoding: how it is encoded anew; ``None``: it is copied.
        reconnect: whether a source that ends or breaks is opened again; ``None``: if it is live and on the network.
        reconnect_for_s: for how long the reader tries that; ``None``: for ever.
        plays: how often a file is played; ``None``: without end.
    """

    container: ContainerName | None = None
    min_segment_s: float = MIN_SEGMENT_S
    segment_s: float = SEGMENT_S
    realtime: bool = True
    encoding: Encoding | None = None
    reconnect: bool | None = None
    reconnect_for_s: float | None = RECONNECT_S
    plays: int | None = 1


class SourceBroke(InvalidInput):
    """A source could be opened, and broke later; the packets before that have been handed out."""


class MediaInput:
    """A :class:`~tricklecast.publisher.steps.Source` of media.

    Attributes:
        drops: it cannot wait: segments are dropped when the network is too slow.
        content_type: media type of the segments, once it is open.
    """

    def __init__(self, source: Input, options: MediaOptions) -> None:
        self.drops: Final = options.realtime
        self.content_type = wire.MPEG_TS
        self._input = source
        self._options = options
        self._segmenter: Segmenter | None = None
        self._rng: Final = Random()
        self._said: set[str] = set()
        self._retries = Retries(reconnect_s=options.reconnect_for_s)
        self._clock: Callable[[], float] = time.monotonic  # when the last packet came

    def shorten(self, size: int) -> None:
        """End the segment under way, and make the next ones smaller."""
        if self._segmenter is not None:
            self._segmenter.shorten(size)

    def open(self, report: Report, is_stopped: IsStopped) -> Iterator[Step]:
        """Open it; the steps are its chunks, and the cuts between segments.

        Args:
            is_stopped: the steps end soon after it returns ``True``, at the latest with the read under way.

        Raises:
            InvalidInput: it cannot be read. The steps raise it, too, if the input broke and does not come back.
        """
        self._report, self._is_stopped = report, is_stopped
        if self._input.listens:
            report.say(f"waiting for a sender to connect to {self._input.name}")
        opened = self._open()
        options = self._options
        is_paced = options.realtime and not opened.is_live
        self._segmenter = Segmenter(
            options.container or self._fitting(opened.source),
            min_segment_s=options.min_segment_s,
            segment_s=options.segment_s,
            pace=(lambda: Pace(1.0, is_stopped, begun_at=opened.begun_at)) if is_paced else None,
        )
        self.content_type = self._segmenter.container.content_type
        remuxer = Remuxer(self._segmenter, warn=self._warn, advice=self._input.advice, clock=self._clock)
        remuxer.choose(opened.source, self._input.name)  # before anything is published
        return self._steps(remuxer, opened)

    def _fitting(self, source: MediaSource) -> ContainerName:
        """MPEG-TS, unless players can have more video in fragmented MP4, or as much of it and more sound."""
        streams = [stream for stream in source.streams.values() if not is_attached(stream)]
        playable = {name: kind.carried for name, kind in CONTAINERS.items()}
        playable["mpegts"] -= UNPLAYABLE_IN_TS
        fits = {
            name: {
                stream.index for stream in streams if stream.type in ("video", "audio") and codec_name(stream) in codecs
            }
            for name, codecs in playable.items()
        }
        videos = {stream.index for stream in streams if stream.type == "video"}
        best = max(CONTAINERS, key=lambda name: (len(fits[name] & videos), len(fits[name])))
        if best != "mpegts":
            gained = [codec_name(stream) for stream in streams if stream.index in fits[best] - fits["mpegts"]]
            self._warn(f"published as fragmented MP4, since players take {', '.join(gained)} there, and not in MPEG-TS")
        return best

    def _open(self, within_s: float | None = None) -> Opened:
        opened = self._input.open(self._is_stopped, within_s=within_s)
        if opened.note:
            self._warn(opened.note)
        if self._options.encoding is None:
            return opened
        return replace(opened, source=Transcoder(opened.source, [self._options.encoding], self._warn))

    def _steps(self, remuxer: Remuxer, opened: Opened | None) -> Iterator[Step]:
        played = 0
        while opened is not None:
            begun_at, broke = time.monotonic(), None
            was_empty = True
            try:
                for step in remuxer.steps(opened.source, self._input.name, live=opened.is_live):
                    was_empty = False
                    yield step
            except SourceBroke as error:
                broke = error
            played += 1
            yield SegmentEnd()  # readers of the last segment need not wait for the next one
            again = not was_empty and (self._options.plays is None or played < self._options.plays)
            opened = self._next(opened, broke, time.monotonic() - begun_at, again)

    def _warn(self, message: str) -> None:
        """Say it once, however often the source is opened."""
        if message not in self._said:
            self._said.add(message)
            self._report.say(message)

    def _next(self, opened: Opened, broke: SourceBroke | None, lived_s: float, again: bool) -> Opened | None:
        """The source behind one that is over; ``None`` at the end."""
        if self._is_stopped():
            return None
        reconnect = self._options.reconnect
        if reconnect is None:
            reconnect = opened.is_live and self._input.kind is Kind.NETWORK
        if reconnect:
            return self._reopen(broke, lived_s)
        if broke is not None:
            raise broke
        return self._open() if again and self._input.kind is Kind.FILE else None

    def _reopen(self, broke: SourceBroke | None, lived_s: float) -> Opened | None:
        name, limit_s = self._input.name, self._options.reconnect_for_s
        if lived_s >= MIN_LIFE_S:
            self._retries.worked()
        if self._input.listens:  # senders that stop and senders that break look the same: RTMP is cut in both cases
            how_long = "" if limit_s is None else f"{limit_s:g} s "
            self._report.say(f"the sender to {name} is gone; waiting {how_long}for a sender")
        else:
            how_long = "" if limit_s is None else f"for {limit_s:g} s "
            self._report.say(f"{broke or f'{name} ended'}; trying {how_long}to open it again")
        try:
            return self._open_again(limit_s)
        except InvalidInput as error:
            if broke is None or self._input.listens:  # it ended, and nothing follows
                self._report.say(f"{name} did not come back within {limit_s:g} s")
                return None
            raise InvalidInput(f"{name} did not come back within {limit_s:g} s: {error}") from error
        finally:
            self._report.source("")

    def _open_again(self, limit_s: float | None) -> Opened | None:
        lost_at = time.monotonic()
        error = InvalidInput("it breaks each time as soon as it is open")
        while (delay_s := self._retries.outlast(time.monotonic(), self._rng)) is not None:
            self._report.source(f"reconnecting, attempt {self._retries.tries}")
            if not Pace(1.0, self._is_stopped).wait(delay_s):
                return None
            try:
                left_s = None if limit_s is None else max(MIN_OPEN_S, lost_at + limit_s - time.monotonic())
                opened = self._open(within_s=left_s)
            except InvalidInput as failure:
                error = failure
            else:
                self._report.say(f"{self._input.name} is back after {time.monotonic() - lost_at:.1f} s")
                return opened
        raise error


@dataclass(slots=True)
class Damage:
    """Damaged packets of a source."""

    flawed: int = 0  # published as they are: a decoder makes the best of them
    left_out: int = 0  # the container does not take them
    strays: int = 0  # bytes between packets
    in_a_row: Counter[int] = field(default_factory=Counter)  # of these, behind the last good one of a stream
    is_said: bool = False  # people know of it

    def said(self, name: str) -> str:
        """All of it in a line; empty if there was none."""
        if not self.is_said:
            return ""
        lost = [count(self.left_out, "unreadable packet")] if self.left_out else []
        lost += [f"{size(self.strays)} of other bytes"] if self.strays else []
        left_out = f", and {' and '.join(lost)} left out" if lost else ""
        return f"{name}: {count(self.flawed, 'damaged packet')} published{left_out}"


class Remuxer:
    """Turns the packets of sources, one after the other, into the steps of one segmenter.

    Args:
        warn: called with a line about every stream that is left out, and about the number of packets left out.
        advice: for the user, behind a message that video or sound cannot be carried.
    """

    def __init__(
        self,
        segmenter: Segmenter,
        *,
        warn: Callable[[str], None],
        advice: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._segmenter = segmenter
        self._warn = warn
        self._advice = advice
        self._clock = clock
        self._arrived_at: float | None = None
        self._damage = Damage()  # of the present source
        self._undecodable = 0  # packets of all sources in front of a first keyframe that people know of
        self._streams: Mapping[int, Stream] = {}  # of it, those that are published
        self._late: dict[int, str] = {}  # of it, those that began too late to be published

    def choose(self, source: MediaSource, name: str) -> dict[int, Stream]:
        """The streams that the container can carry; ``warn`` gets a line about each other one.

        Raises:
            InvalidInput: there is no video or audio among them; the source is closed.
        """
        carried = {track: stream for track, stream in source.streams.items() if self._segmenter.carries(stream)}
        others = {track: stream for track, stream in source.streams.items() if track not in carried}
        lost = [stream for stream in others.values() if stream.type == "video" and not is_attached(stream)]
        no_picture = bool(lost) and not any(stream.type == "video" for stream in carried.values())
        if no_picture or not any(stream.type in ("video", "audio") for stream in carried.values()):
            codecs = ", ".join(sorted({codec_name(stream) for stream in (others or carried).values()})) or "none at all"
            container = self._segmenter.container.name
            kind = "video" if no_picture and carried else "video or audio"
            problem = f"{name} has no {kind} that {container} can carry ({codecs}){self._advice_on(*others.values())}"
            source.close()  # its streams are gone with it
            raise InvalidInput(problem)
        for track, stream in others.items():
            self._warn(f"left out: stream {track} ({stream.type}, {codec_name(stream)}){self._advice_on(stream)}")
        for stream in carried.values():
            if isinstance(self._segmenter.container, MpegTs) and turn_of(stream):
                advice = ": --container fmp4 keeps that, --transcode turns it" if self._advice else ""
                self._warn(f"the picture lies on its side or head, which MPEG-TS cannot say{advice}")
        return carried

    def steps(self, source: MediaSource, name: str, *, live: bool = False) -> Iterator[Step]:
        """Read a source to its end; blocks as the source does.

        A source behind another one goes on with its time line, and must begin a segment.

        Args:
            source: is closed at the end.
            live: the time since the last packet of the source before has passed in the media, too.

        Raises:
            InvalidInput: the container can carry nothing of it, or does not accept a stream.
            SourceBroke: it broke.
        """
        from av.error import FFmpegError

        failure: Exception | None = None
        is_empty = True
        self._damage, self._late = Damage(), {}
        with closing(source):
            streams = self._streams = self.choose(source, name)
            try:
                self._segmenter.start(streams)
            except FFmpegError as error:  # a muxer does not accept the parameters of a stream
                raise InvalidInput(f"{name} cannot be written: {reason(error)}") from error
            arriving = ((track, packet) for track, packet in self._arriving(source, name, live) if track in streams)
            added = (self._added(track, packet, name) for track, packet in fill_first_dts(arriving))
            for steps in (chain.from_iterable(added), self._segmenter.finish()):
                try:
                    for step in steps:
                        is_empty = False
                        yield step
                        if isinstance(step, SegmentEnd):
                            self._look_for_late(source)
                except (FFmpegError, OSError) as error:
                    failure = failure or error
            self._look_for_strays(source, name)
            so_far = len(self._late)
            self._look_for_late(source)
            rest = list(self._late.values())[so_far:]  # the published streams have ended where these began
        self._tell_undecodable(name)
        if said := self._damage.said(name):
            self._warn(said)
        if any(stream.startswith("video") for stream in rest):
            raise SourceBroke(f"{name} goes on in other streams ({', '.join(rest)}); publish the rest on its own")
        if failure is not None:
            raise SourceBroke(f"reading {name} failed half-way: {reason(failure)}") from failure
        if is_empty:
            raise SourceBroke(
                f"nothing of {name} could be published: it has no keyframe, or nothing that can be decoded"
            )

    def _look_for_late(self, source: MediaSource) -> None:
        """Name the streams that were announced when all had been chosen."""
        for track, stream in source.late().items():
            if track not in self._late:
                self._late[track] = stream
                advice = f"; {LOOK_AHEAD} looks further ahead" if self._advice else "; let all streams begin together"
                left_out = f"stream {track} ({stream}), which was announced after the input was opened"
                self._warn(f"left out: {left_out}{advice}")

    def _added(self, track: int, packet: Packet[Stream], name: str) -> Iterator[Step]:
        """The steps of a packet. One that is too damaged for the container is left out, and counted."""
        damage, is_corrupt, forced = self._damage, packet.is_corrupt, self._segmenter.forced
        left_out = self._segmenter.left_out
        try:
            yield from self._segmenter.add(track, packet)
            damage.in_a_row[track] = 0
            damage.flawed += is_corrupt
        except packet_errors():
            damage.in_a_row[track] += 1
            damage.left_out += 1
            if damage.in_a_row[track] > MAX_REFUSED:
                raise
        if not self._segmenter.is_blind:
            self._tell_undecodable(name)
        if forced == 0 < self._segmenter.forced:
            self._warn(
                f"{name} has too few keyframes: segments begin without one, and readers that join there see broken "
                "pictures; set the encoder's keyframe interval (ffmpeg: -g)"
            )
        left_out = max(0, self._segmenter.left_out - left_out)
        damage.left_out += left_out
        if is_corrupt or left_out or damage.in_a_row[track]:
            marks = " (continuity errors)" if self._streams[track].container.format.name == "mpegts" else ""
            how = f"bytes were lost before they came here{marks}" if is_corrupt else "not all can be read"
            self._tell_damage(name, how)

    def _look_for_strays(self, source: MediaSource, name: str) -> None:
        """Count the bytes between packets, of which libavformat says nothing."""
        if (strays := source.strays) > self._damage.strays:
            self._damage.strays = strays
            self._tell_damage(name, "it has bytes that are not MPEG-TS")

    def _tell_damage(self, name: str, how: str) -> None:
        """Tell once for each source."""
        if not self._damage.is_said:
            self._damage.is_said = True
            self._warn(f"{name} is damaged: {how}; the rest is published")

    def _tell_undecodable(self, name: str) -> None:
        """Tell once for each source, with all of its packets."""
        if (blind := self._segmenter.blind) > self._undecodable:
            self._undecodable = blind
            self._warn(f"{name} did not begin with a keyframe: {count(blind, 'packet')} before one left out so far")

    def _arriving(self, source: MediaSource, name: str, live: bool) -> Iterator[tuple[int, Packet[Stream]]]:
        begins = True
        for track, packet in source.packets():
            now = self._clock()
            if begins and self._arrived_at is not None:
                self._segmenter.timeline.rebase(now - self._arrived_at if live else 0.0)
            begins, self._arrived_at = False, now
            self._look_for_strays(source, name)
            yield track, packet

    def _advice_on(self, *streams: Stream) -> str:
        """How streams that cannot be carried may be published after all, if they may."""
        moving = [stream for stream in streams if stream.type in ("video", "audio") and not is_attached(stream)]
        moving = moving or [stream for stream in streams if is_text(stream)]
        if not moving or not self._advice:
            return ""
        for name, kind in CONTAINERS.items():
            is_other = not isinstance(self._segmenter.container, kind)
            if is_other and all(codec_name(stream) in kind.carried for stream in moving):
                return f"; --container {name} can carry it"
        return self._advice
