"""One run of ``tricklecast clip``: the media of a channel between two moments, as one file.

Theory of operation
===================

The clip has all segments from the one that was on its way at its begin to that of its end (:mod:`.moments`), whole: a
segment begins with a key picture, without which nothing could be shown. That makes the clip some seconds longer than
the user asked for, and a line says by how much.

The file is written under another name, and gets its own when all is in it. A run that ends before leaves nothing.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Final, Self

import anyio

from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.command.moments import NEAR_S, NOW, Listed, Moment, Timetable
from tricklecast.subscriber.command.recording import Recording
from tricklecast.subscriber.core import OnLag
from tricklecast.subscriber.events import Gap, Loss, SegmentTruncated, SubscriberEvent
from tricklecast.subscriber.media.joiner import MUXERS, JoinedFile, is_joined
from tricklecast.subscriber.sinks import SinkFailed, check_path
from tricklecast.trickle.amounts import count, rate, size
from tricklecast.trickle.client.arguments import channel_urls
from tricklecast.trickle.errors import ChannelNotFound, InvalidInput, Position, TrickleError
from tricklecast.trickle.terminal import NO_CREDENTIALS, Credentials, RateMeter, Screen

UNDER_WAY_S: Final = 10.0
"""The run waits this many seconds for a segment that is still being written when it begins."""


@dataclass(frozen=True, slots=True)
class Clip:
    """The user's request.

    Attributes:
        since: its begin. until: its end.
    """

    url: str
    output: Path
    since: Moment
    until: Moment = NOW
    credentials: Credentials = NO_CREDENTIALS

    @property
    def times(self) -> Timetable:
        """When the channel's segments were published."""
        return Timetable(self.url, self.credentials)


async def run(clip: Clip, screen: Screen | None = None) -> bool:
    """Make a clip.

    Returns:
        Whether the file has all of that time: no segment was missed, cut short, left out or given up by the server.

    Raises:
        InvalidInput: the file cannot be written, or PyAV is not installed.
        TrickleError: the channel has nothing of that time, or cannot be read.
    """
    path, screen = clip.output, screen or Screen()
    check_name(path)
    check_path(path)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")

    def final(name: str) -> str:
        return name.replace(temporary.stem, path.stem)

    output = JoinedFile(temporary, lambda text: screen.say(f"warning: {final(text)}"))
    span = await Span.ask(clip)
    screen.say(span.told(clip))
    reading = _Reading(clip, span, screen)
    try:
        with screen.live(reading.line):
            async with output:
                await reading.run(output)
        files = [*output.files]
        if not files:
            raise TrickleError(f"nothing of {span.segments} can be shown: none has a key picture")
        for file in files:
            file.replace(path.with_name(final(file.name)))
    except OSError as error:
        raise SinkFailed(f"cannot write to {path}: {error.strerror or error}") from error
    finally:
        for file in output.files:  # those that have their name are not there any more
            file.unlink(missing_ok=True)
    more = f" and {count(len(files) - 1, 'further file')}" if len(files) > 1 else ""
    screen.say(f"{path}{more}: {reading.told(output.left_out)}")
    return reading.is_whole and not output.left_out and not span.lacks_begin


def check_name(path: Path) -> None:
    """Check that a file of that name can be a clip.

    Raises:
        InvalidInput: it has another ending.
    """
    if not is_joined(path):
        raise InvalidInput(f"cannot make a clip of the name {path}: it ends with {', '.join(MUXERS)}")


@dataclass(frozen=True, slots=True)
class Span:
    """The segments of a clip.

    Attributes:
        epoch: of the channel.
        first, last: both are in the clip.
        now_at: when the server answered, in seconds of Unix time, by its clock.
        lacks_begin: the server had more of that time, and has it no longer.
        recording: the channel is over, and this has its segments.
    """

    epoch: int
    first: Listed
    last: Listed
    now_at: float
    lacks_begin: bool
    recording: Recording | None = None

    @classmethod
    async def ask(cls, clip: Clip) -> Self:
        """Ask the server.

        Raises:
            TrickleError: it has nothing of that time, or does not answer.
        """
        times = clip.times
        channel = channel_urls(clip.url)[0].channel
        try:
            answer = await times.since(clip.since)
        except ChannelNotFound:
            return cls.past(clip, channel, await Recording.of(times))
        if not answer.segments:
            raise TrickleError(f"{channel} has nothing of that time: its newest segment is older")
        first, now_at = answer.segments[0], answer.now_at
        last, _ = await times.last(clip.until, first.seq)
        if last is None:
            later_s = first.opened_at - clip.until.on(now_at)
            raise TrickleError(f"{channel} has nothing of that time: it goes on {later_s:.1f} s later")
        lacks_begin = False
        if first.seq and first.opened_at > clip.since.on(now_at) + NEAR_S:
            oldest = await times.ask("limit=1")
            lacks_begin = oldest.segments[0].seq >= first.seq
        return cls(answer.epoch, first, last, now_at, lacks_begin)

    @classmethod
    def past(cls, clip: Clip, channel: str, recording: Recording) -> Self:
        """Find it in the recording of a channel that is over.

        Raises:
            TrickleError: it has nothing of that time.
        """
        wanted = recording.between(clip.since, clip.until)
        if not wanted:
            pieces = recording.pieces
            begin, end = (datetime.fromtimestamp(round(at)) for at in (pieces[0].opened_at, pieces[-1].closed_at))
            raise TrickleError(f"{channel} has nothing of that time: it is over, and was there from {begin} to {end}")
        first, last = wanted[0], wanted[-1]
        begins_late = first.seq > 0 and first.opened_at > clip.since.on(recording.now_at) + NEAR_S
        lacks_begin = begins_late and first is recording.pieces[0]
        return cls(0, first, last, recording.now_at, lacks_begin, replace(recording, pieces=wanted))

    @property
    def segments(self) -> str:
        """Their numbers, for people."""
        if self.first.seq == self.last.seq:
            return f"segment {self.first.seq}"
        return f"segments {self.first.seq} to {self.last.seq}"

    def told(self, clip: Clip) -> str:
        """Where the clip begins and ends, for people."""
        begins_s = clip.since.on(self.now_at) - self.first.opened_at
        if self.lacks_begin:
            begin = f"warning: the server has nothing older: the clip begins {-begins_s:.1f} s after --since"
        elif begins_s < -NEAR_S:
            begin = f"the clip begins {-begins_s:.1f} s after --since, when the channel goes on"
        else:
            begin = f"the clip begins {max(0.0, begins_s):.1f} s before --since, with a key picture"
        ends_at = self.now_at if self.last.closed_at is None else self.last.closed_at
        ends_s = ends_at - clip.until.on(self.now_at)
        if clip.until == NOW:
            end = "with the newest segment"
        elif ends_s >= 0:
            end = f"{ends_s:.1f} s after --until, with its segment"
        else:
            end = f"{-ends_s:.1f} s before --until, where the channel stopped"
        return f"{begin}, and ends {end}"


class _Reading:
    """Reads the segments of a clip.

    Attributes:
        is_whole: nothing of them was missed so far.
    """

    def __init__(self, clip: Clip, span: Span, screen: Screen) -> None:
        self._clip = clip
        self._span = span
        self._screen = screen
        self._rate = RateMeter()
        self._seq = span.first.seq - 1  # the last one that was read
        self._is_anew = False  # the channel goes on behind the last one, or has begun anew
        self._read = self._bytes = self._left_out = 0
        self.is_whole = True

    async def run(self, output: JoinedFile) -> None:
        """Read all of them into a file."""
        span = self._span
        left_out: frozenset[int] = frozenset()
        if span.recording is not None:
            await self._read_recording(span.recording, output)
        else:
            with suppress(ChannelNotFound):  # it is over since it was asked for
                await self._read_channel(output)
        if span.recording is None and self._seq < span.last.seq and not self._is_anew:
            # The channel has ended, and its segments have left it; its recording may have the rest.
            with suppress(ChannelNotFound):
                recording = await Recording.of(self._clip.times)
                rest = tuple(one for one in recording.pieces if self._seq < one.seq <= span.last.seq)
                left_out = recording.left_out
                await self._read_recording(replace(recording, pieces=rest), output)
        if self._seq < span.last.seq:
            self._miss(self._seq + 1, span.last.seq, left_out)

    async def _read_channel(self, output: JoinedFile) -> None:
        clip, span = self._clip, self._span
        subscriber = Subscriber(
            clip.url,
            start=Position(span.first.seq, span.epoch),
            on_lag=OnLag.EARLIEST,
            on_event=self._on_event,
            **clip.credentials.arguments,
        )
        async with subscriber:
            async for segment in subscriber:
                if segment.seq > span.last.seq or segment.restarted:
                    self._is_anew = True
                    return
                self._seq = segment.seq
                is_open = segment.seq == span.last.seq and span.last.closed_at is None
                with anyio.move_on_after(UNDER_WAY_S if is_open else None) as limit:
                    await output.begin(segment)
                    while chunk := await segment.read_some():
                        self._bytes += len(chunk)
                        await output.write(chunk)
                    await output.end()
                    self._read += 1
                if limit.cancelled_caught:
                    self._screen.say(f"segment {segment.seq} is still being written: the clip ends in it")
                if segment.seq == span.last.seq:
                    return

    async def _read_recording(self, recording: Recording, output: JoinedFile) -> None:
        async for segment, data in recording.read(self._seq + 1):
            if segment.gap:
                self._miss(segment.seq - segment.gap, segment.seq - 1, recording.left_out)
            if segment.truncated:
                self._lose(SegmentTruncated(segment.seq, segment.truncated))
            self._seq = segment.seq
            await output.begin(segment)
            await output.write(data)
            await output.end()
            self._read, self._bytes = self._read + 1, self._bytes + len(data)

    def _miss(self, first: int, last: int, left_out: frozenset[int]) -> None:
        """Tell of segments that are not there, and of those whose server has no media of them."""
        for is_left_out, run in groupby(range(first, last + 1), left_out.__contains__):
            seqs = list(run)
            if not is_left_out:
                self._lose(Gap(seqs[0], seqs[-1], "missing"))
                continue
            self.is_whole = False
            self._left_out += len(seqs)
            for seq in seqs:
                self._screen.say(f"warning: segment {seq} is left out: it has no media that can be shown")

    def _lose(self, loss: SubscriberEvent) -> None:
        self.is_whole = False
        self._screen.say(f"warning: {loss}")

    def _on_event(self, event: SubscriberEvent) -> None:
        if isinstance(event, Gap) and (event.first > self._span.last.seq or event.reason != "missing"):
            return  # it is not of this clip, or told when nothing else has it
        if isinstance(event, Loss):
            self._lose(event)

    def line(self) -> str:
        """The state in one line."""
        first, last = self._span.first.seq, self._span.last.seq
        share = (self._seq + 1 - first) / (last - first + 1)
        words = [f"{share:.0%}", f"segment {self._seq} of {first} to {last}"]
        words += [rate(self._rate.bits_per_s(self._bytes)), size(self._bytes)]
        return " · ".join(words)

    def told(self, unreadable: int) -> str:
        """A line for people about the media that was read.

        Args:
            unreadable: segments of which the file has nothing.
        """
        begin = datetime.fromtimestamp(self._span.first.opened_at)
        left_out = self._left_out + unreadable
        line = f"{count(self._read - unreadable, 'segment')} ({size(self._bytes)}), from {begin:%Y-%m-%d %H:%M:%S}"
        return line + (f"; {left_out} left out" if left_out else "")
