"""One run of ``tricklecast clip``: what a channel carried between two moments, as one file.

Theory of operation
===================

The server lists closed segments by the time at which they closed, by its own clock, those in its data directory, too.
So the first segment that closed after a moment is the one that was being written at that moment. The clip has all from
that of its begin to that of its end, whole: a segment begins with a key picture, without which nothing could be shown.
That makes the clip some seconds longer than was asked for, and a line says how much.

The file is written under another name, and gets its own when all is in it. Whatever ends the run before leaves nothing.
"""

from __future__ import annotations

import os
import secrets
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Self

import anyio
import httpx

from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.command.listing import segments_of
from tricklecast.subscriber.core import OnLag
from tricklecast.subscriber.events import Gap, Restarted, SegmentBroken, SegmentTruncated, SubscriberEvent
from tricklecast.subscriber.media.joiner import MUXERS, JoinedFile, is_joined
from tricklecast.subscriber.sinks import SinkFailed, check_path
from tricklecast.trickle.amounts import count, parse_duration, rate, size
from tricklecast.trickle.bearer import Bearer
from tricklecast.trickle.client.arguments import channel_urls
from tricklecast.trickle.client.control import json_of
from tricklecast.trickle.client.listing import error_of
from tricklecast.trickle.errors import ChannelNotFound, InvalidInput, RemoteProtocolError, TrickleError
from tricklecast.trickle.terminal import RateMeter, Screen

UNDER_WAY_S: Final = 10.0
"""A segment that is still being written when the run begins is waited for so long, in seconds."""

NEAR_S: Final = 1.5
"""Differences up to this are not told as missing: the server's clock comes in whole seconds."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment as a person names it.

    Attributes:
        ago_s: how long ago it was, in seconds; 0.0 is now.
        at: the moment itself, in seconds of Unix time; ``None``: ``ago_s`` counts.
    """

    ago_s: float = 0.0
    at: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a time before now (``10m``), or a time of day or date (``2026-11-23T18:00:00``, here or with a zone).

        Raises:
            ValueError: it is neither.
        """
        with suppress(InvalidInput):
            return cls(parse_duration(text, zero=True))
        try:
            return cls(at=datetime.fromisoformat(text).timestamp())
        except ValueError:
            raise ValueError(
                f"use a time before now (10m), or one with its date (2026-11-23T18:00:00), not {text!r}"
            ) from None

    @property
    def query(self) -> str:
        """For the server's list of segments."""
        if self.at is None:
            return f"{max(1, round(self.ago_s * 1000))}ms"  # a server takes no 0
        return f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"

    def on(self, now_at: float) -> float:
        """In seconds of Unix time."""
        return now_at - self.ago_s if self.at is None else self.at


@dataclass(frozen=True, slots=True)
class Clip:
    """What was asked for.

    Attributes:
        since: its begin. until: its end.
        tls: the authorities that https servers are checked against; ``None``: the system's.
    """

    url: str
    output: Path
    since: Moment
    until: Moment = Moment()
    tls: ssl.SSLContext | None = None
    auth: Bearer | None = None


async def run(clip: Clip, screen: Screen | None = None) -> bool:
    """Make a clip.

    Returns:
        Whether the file has all of that time: no segment was missed, cut short or given up by the server.

    Raises:
        InvalidInput: the file cannot be written, or PyAV is not installed.
        TrickleError: the channel has nothing of that time, or cannot be read.
    """
    path, screen = clip.output, screen or Screen()
    if not is_joined(path):
        raise InvalidInput(f"cannot make a clip of the name {path}: it ends with {', '.join(MUXERS)}")
    check_path(path)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")

    def note(text: str) -> None:
        screen.say(f"warning: {text.replace(temporary.stem, path.stem)}")

    output = JoinedFile(temporary, note)
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
        for number, file in enumerate(files, 1):
            os.replace(file, path if number == 1 else path.with_stem(f"{path.stem}-{number}"))
    except OSError as error:
        raise SinkFailed(f"cannot write to {path}: {error.strerror or error}") from error
    finally:
        for file in output.files:  # those that have their name are not there any more
            file.unlink(missing_ok=True)
    more = f" and {count(len(files) - 1, 'further file')}" if len(files) > 1 else ""
    screen.say(f"{path}{more}: {reading.told()}")
    return reading.is_whole and not span.lacks_begin


@dataclass(frozen=True, slots=True)
class _Listed:
    """A segment as the server lists it; times are in seconds of Unix time, by the server's clock."""

    seq: int
    opened_at: float
    closed_at: float | None

    @classmethod
    def of(cls, segment: dict[str, Any]) -> Self:
        closed = segment["closed_at"]
        return cls(
            int(segment["seq"]),
            datetime.fromisoformat(segment["opened_at"]).timestamp(),
            None if closed is None else datetime.fromisoformat(closed).timestamp(),
        )


@dataclass(frozen=True, slots=True)
class Span:
    """The segments of a clip.

    Attributes:
        epoch: of the channel.
        first, last: both are in the clip.
        now_at: when the server was asked, in seconds of Unix time, by its clock.
        lacks_begin: the server had more of that time, and has it no longer.
    """

    epoch: int
    first: _Listed
    last: _Listed
    now_at: float
    lacks_begin: bool

    @classmethod
    async def ask(cls, clip: Clip) -> Self:
        """Ask the server.

        Raises:
            TrickleError: it has nothing of that time, or does not answer.
        """
        answer, now_at = await _listed(clip, f"since={clip.since.query}&limit=1")
        channel = channel_urls(clip.url)[0].channel
        if not answer["segments"]:
            raise TrickleError(f"{channel} has nothing of that time: its newest segment is older")
        first = _Listed.of(answer["segments"][0])
        until_at = clip.until.on(now_at)
        ends, _ = await _listed(clip, f"since={clip.until.query}&from={first.seq}&limit=1")
        if not ends["segments"]:
            ends, _ = await _listed(clip, f"from={max(first.seq, answer['next_seq'] - 1)}&limit=1")
        last = _Listed.of(ends["segments"][0]) if ends["segments"] else first
        if last.opened_at > until_at + NEAR_S:  # nothing was published at that moment: the one before it is the last
            before, _ = await _listed(clip, f"from={max(first.seq, last.seq - 1)}&limit=1")
            last = _Listed.of(before["segments"][0])
            if last.opened_at > until_at + NEAR_S:
                raise TrickleError(
                    f"{channel} has nothing of that time: it goes on {last.opened_at - until_at:.1f} s later"
                )
        lacks_begin = False
        if first.seq and first.opened_at > clip.since.on(now_at) + NEAR_S:
            oldest, _ = await _listed(clip, "limit=1")
            lacks_begin = _Listed.of(oldest["segments"][0]).seq >= first.seq
        return cls(int(answer["epoch"]), first, last, now_at, lacks_begin)

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
        if clip.until == Moment():
            end = "with the newest segment"
        elif ends_s >= 0:
            end = f"{ends_s:.1f} s after --until, with its segment"
        else:
            end = f"{-ends_s:.1f} s before --until, where the channel stopped"
        return f"{begin}, and ends {end}"


async def _listed(clip: Clip, query: str) -> tuple[dict[str, Any], float]:
    """Ask for segments: the server's answer, and its time.

    Raises:
        TrickleError: it is no list of segments.
    """
    response = await segments_of(clip.url, query, clip.tls, clip.auth)
    match response.status_code, json_of(response):
        case 200, {"epoch": int(), "next_seq": int(), "segments": [*_]} as answer:
            return dict(answer), _time_of(response)
        case 404, {"detail": "no such channel"}:
            raise ChannelNotFound(404)
        case status, _ if status == 404 or status < 400:
            raise RemoteProtocolError(status, detail="the server does not tell when segments were published")
    raise error_of(response)


def _time_of(response: httpx.Response) -> float:
    """The server's time, in the middle of the second that it names; ours if it names none."""
    try:
        return parsedate_to_datetime(response.headers["Date"]).timestamp() + 0.5
    except (KeyError, ValueError):
        return time.time()


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
        self._seq = span.first.seq
        self._read = self._bytes = 0
        self.is_whole = True

    async def run(self, output: JoinedFile) -> None:
        """Read all of them into a file."""
        clip, span = self._clip, self._span
        subscriber = Subscriber(
            clip.url,
            start=f"{span.first.seq}@{span.epoch}",
            on_lag=OnLag.EARLIEST,
            on_event=self._on_event,
            verify=clip.tls or True,
            auth=clip.auth,
        )
        async with subscriber:
            async for segment in subscriber:
                if segment.seq > span.last.seq or segment.restarted:
                    self.is_whole = False  # the last one is missing: its gap was told
                    break
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
        self.is_whole = False

    def _on_event(self, event: SubscriberEvent) -> None:
        if isinstance(event, Gap | Restarted | SegmentTruncated | SegmentBroken):
            self.is_whole = False
            self._screen.say(f"warning: {event}")

    def line(self) -> str:
        """The state in one line."""
        first, last = self._span.first.seq, self._span.last.seq
        share = (self._seq - first) / (last - first + 1)
        words = [f"{share:.0%}", f"segment {self._seq} of {first} to {last}"]
        words += [rate(self._rate.bits_per_s(self._bytes)), size(self._bytes)]
        return " · ".join(words)

    def told(self) -> str:
        """What was read, for people."""
        begin = datetime.fromtimestamp(self._span.first.opened_at)
        return f"{count(self._read, 'segment')} ({size(self._bytes)}), from {begin:%Y-%m-%d %H:%M:%S}"
