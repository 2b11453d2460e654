"""Plain bytes, split into segments by size, by line or by time. Joined, the segments are the input.

The splitters do no I/O: they take bytes and the time, and return steps. :func:`read_steps` reads for them.
"""

from __future__ import annotations

import os
import select
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tricklecast.publisher.steps import POLL_S, Chunk, IsStopped, SegmentEnd, Step
from tricklecast.trickle import wire
from tricklecast.trickle.amounts import parse_duration, parse_size
from tricklecast.trickle.errors import InvalidInput

READ_BYTES: Final = 65536
MAX_LINE_BYTES: Final = 1 << 20
"""A line is held back until it is complete, so that it arrives as one chunk; a longer one is passed on in parts."""


class Splitter(ABC):
    """Divides bytes into segments."""

    deadline: float | None = None
    """When :meth:`expire` is to be called if no bytes arrive before, in monotonic seconds."""

    @abstractmethod
    def feed(self, data: bytes, now: float) -> Iterator[Step]:
        """Take bytes that arrived at ``now`` (seconds, monotonic)."""

    def expire(self, now: float) -> Iterator[Step]:
        """Time has passed without new bytes."""
        yield from ()

    def finish(self) -> Iterator[Step]:
        """The input has ended: return the bytes that are still held."""
        yield from ()


class BySize(Splitter):
    """Segments of ``size`` bytes; the last one has the rest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._room = size

    def feed(self, data: bytes, now: float) -> Iterator[Step]:
        while data:
            head, data = data[: self._room], data[self._room :]
            yield Chunk(head)
            self._room -= len(head)
            if not self._room:
                self._room = self._size
                yield SegmentEnd()


class ByLine(Splitter):
    """A segment per line, with its line end, as one chunk; the last line may have none."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes, now: float) -> Iterator[Step]:
        *lines, rest = data.split(b"\n")
        for line in lines:
            yield Chunk(self._held + line + b"\n")
            yield SegmentEnd()
            self._held = b""
        self._held += rest
        if len(self._held) >= MAX_LINE_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[Step]:
        """Pass on the beginning of a line that has no end."""
        if self._held:
            yield Chunk(self._held)
            self._held = b""


class ByTime(Splitter):
    """Segments that last ``seconds`` from their first byte."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def feed(self, data: bytes, now: float) -> Iterator[Step]:
        yield from self.expire(now)
        if self.deadline is None:
            self.deadline = now + self._seconds
        yield Chunk(data)

    def expire(self, now: float) -> Iterator[Step]:
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            yield SegmentEnd()


def parse_by(text: str) -> Splitter:
    """Make a splitter from ``size:1MiB``, ``line`` or ``time:1s``.

    Raises:
        InvalidInput: the text is none of these.
    """
    kind, _, amount = text.strip().lower().partition(":")
    wrong = f"segments are split by size:1MiB, line or time:1s, not {text!r}"
    try:
        match kind:
            case "line" if not amount:
                return ByLine()
            case "size":
                return BySize(parse_size(amount))
            case "time":
                return ByTime(parse_duration(amount))
    except InvalidInput as error:
        raise InvalidInput(f"{wrong}: {error}") from error
    raise InvalidInput(wrong)


@dataclass(frozen=True, slots=True)
class RawSource:
    """A file, or standard input, read as plain bytes.

    Attributes:
        path: of a file; ``None`` for standard input.
    """

    path: str | None
    splitter: Splitter
    content_type = wire.DEFAULT_CONTENT_TYPE  # nothing is known about the bytes
    drops = False  # they wait while the network is slow

    def shorten(self, size: int) -> None:
        """The user says how long segments are."""

    def open(self, report: object, is_stopped: IsStopped) -> Iterator[Step]:
        """Open it, and read its steps.

        Raises:
            InvalidInput: it cannot be read.
        """
        name = self.path or "standard input"
        try:
            descriptor = standard_input() if self.path is None else os.open(self.path, os.O_RDONLY)
            os.read(descriptor, 0)  # a directory can be opened, but not read
        except OSError as error:
            raise InvalidInput(f"cannot read {name}: {error.strerror}") from error
        return self._steps(descriptor, name, is_stopped)

    def _steps(self, descriptor: int, name: str, is_stopped: IsStopped) -> Iterator[Step]:
        try:
            yield from read_steps(descriptor, self.splitter, is_stopped)
        except OSError as error:
            raise InvalidInput(f"cannot read on from {name}: {error.strerror}") from error
        finally:
            if self.path is not None:
                os.close(descriptor)


def standard_input() -> int:
    """The descriptor of standard input.

    Raises:
        InvalidInput: the program was started without one.
    """
    if sys.stdin is None:
        raise InvalidInput("cannot read standard input: it is closed")
    return sys.stdin.fileno()


def read_steps(
    descriptor: int, splitter: Splitter, is_stopped: IsStopped, clock: Callable[[], float] = time.monotonic
) -> Iterator[Step]:
    """Read a file, pipe or terminal to its end; blocks, but not for longer than :data:`POLL_S` once stopped.

    The descriptor is left open.
    """
    while not is_stopped():
        timeout_s = POLL_S if splitter.deadline is None else min(POLL_S, max(0.0, splitter.deadline - clock()))
        if not readable(descriptor, timeout_s):
            yield from splitter.expire(clock())
        elif data := os.read(descriptor, READ_BYTES):
            yield from splitter.feed(data, clock())
        else:
            yield from splitter.finish()
            return


def readable(descriptor: int, timeout_s: float) -> bool:
    """Whether a read would not block, after at most ``timeout_s`` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class StoppableReader:
    """A binary file, for libraries that read files, whose end comes when it is stopped.

    Args:
        descriptor: open for reading; it is left open.
        is_stopped: asked while nothing can be read.

    Attributes:
        begun_at: when its first byte came, in seconds (monotonic); ``None`` before that.
    """

    def __init__(self, descriptor: int, is_stopped: IsStopped) -> None:
        self.begun_at: float | None = None
        self._descriptor = descriptor
        self._is_stopped = is_stopped

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes, as soon as there are any; none at the end."""
        while not self._is_stopped():
            if readable(self._descriptor, POLL_S):
                if self.begun_at is None:
                    self.begun_at = time.monotonic()
                return os.read(self._descriptor, size)
        return b""
