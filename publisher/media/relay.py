"""From an input to segments: sources are opened, opened again when they break, and cut into steps.

Everything here blocks and runs in a worker thread (:mod:`tricklecast.publisher.worker`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Final, Protocol

from tricklecast.publisher.media.fmp4 import FragmentedMp4
from tricklecast.publisher.media.inputs import Input, Kind, Opened
from tricklecast.publisher.media.mpegts import MpegTs
from tricklecast.publisher.media.muxer import Container
from tricklecast.publisher.media.pace import Pace
from tricklecast.publisher.media.remux import Cutting, Remuxer, SourceBroke
from tricklecast.publisher.media.transcode import TranscodeOptions, Transcoder
from tricklecast.publisher.steps import Cut, Step
from tricklecast.trickle.backoff import Backoff
from tricklecast.trickle.errors import InvalidInput

RECONNECT_FOR_S: Final = 60.0
"""For how long a source that broke is tried again, in seconds: a camera or an encoder that restarts takes less."""

LIVED_S: Final = 5.0
"""A source that lasted less has not come back: it may not be opened again and again without a pause or an end."""

POLL_S: Final = 0.1
"""How soon a pause notices that it was stopped."""

_BACKOFF: Final = Backoff(base_s=0.5, cap_s=5.0)


class ContainerKind(Enum):
    """What segments are written in."""

    MPEGTS = "mpegts"
    FMP4 = "fmp4"

    def make(self) -> Container:
        """A new one."""
        return MpegTs() if self is ContainerKind.MPEGTS else FragmentedMp4()


class Report(Protocol):
    """Who is told what happens."""

    def say(self, message: str, /) -> None:
        """Something worth a line."""

    def source(self, state: str, /) -> None:
        """What the source does, if that is not what it should; else nothing."""


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """How media is read and written.

    Attributes:
        container: what segments are written in.
        cutting: where they end.
        realtime: what could be read faster is read at the pace at which it plays.
        transcode: how it is encoded anew; ``None``: it is copied.
        reconnect: whether a source that ends or breaks is opened again; ``None``: if it is live and on the network.
        reconnect_for_s: how long that is tried.
        plays: how often a file is played; ``None``: without end.
    """

    container: ContainerKind = ContainerKind.MPEGTS
    cutting: Cutting = field(default_factory=Cutting)
    realtime: bool = True
    transcode: TranscodeOptions | None = None
    reconnect: bool | None = None
    reconnect_for_s: float = RECONNECT_FOR_S
    plays: int | None = 1


class Relay:
    """One input on its way into segments.

    Args:
        what: the input.
        options: how it is read and written.
        report: is told what happens.
        is_stopped: the steps end soon after it returns ``True``, at the latest with the read under way.
        rng: where the jitter of pauses comes from.
    """

    def __init__(
        self,
        what: Input,
        options: MediaOptions,
        report: Report,
        is_stopped: Callable[[], bool],
        *,
        rng: Random | None = None,
    ) -> None:
        self._input = what
        self._options = options
        self._report = report
        self._is_stopped = is_stopped
        self._rng = rng or Random()
        self._said: set[str] = set()
        self._failures = 0
        self._lost_at: float | None = None

    def open(self) -> Iterator[Step]:
        """Open the input; its steps.

        Raises:
            InvalidInput: it cannot be read. The steps raise it, too, if the input broke and does not come back.
        """
        if self._input.listens:
            self._report.say(f"waiting for somebody to send to {self._input.name}")
        opened = self._open()
        remuxer = self._remuxer(opened)
        remuxer.choose(opened.source, self._input.name)  # before anything is published
        return self._steps(remuxer, opened)

    def _open(self, within_s: float | None = None) -> Opened:
        opened = self._input.open(self._is_stopped, within_s=within_s)
        if self._options.transcode is None:
            return opened
        return replace(opened, source=Transcoder(opened.source, self._options.transcode, warn=self._warn))

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
            yield Cut()  # readers of the last segment need not wait for the next one
            again = not was_empty and (self._options.plays is None or played < self._options.plays)
            opened = self._next(opened, broke, time.monotonic() - begun_at, again)

    def _warn(self, message: str) -> None:
        """Say it once, however often the source is opened."""
        if message not in self._said:
            self._said.add(message)
            self._report.say(message)

    def _remuxer(self, opened: Opened) -> Remuxer:
        paced = self._options.realtime and not opened.is_live
        return Remuxer(
            self._options.container.make(),
            cutting=self._options.cutting,
            warn=self._warn,
            pace=(lambda: Pace(1.0, self._is_stopped, begun_at=opened.begun_at)) if paced else None,
        )

    def _next(self, opened: Opened, broke: SourceBroke | None, lived_s: float, again: bool) -> Opened | None:
        """What follows a source that is over; nothing, if that was all."""
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
        now = time.monotonic()
        if self._lost_at is None or lived_s >= LIVED_S:
            self._failures, self._lost_at = 0, now
        limit_s = self._options.reconnect_for_s
        self._report.say(self._lost(broke, limit_s))
        try:
            return self._try_until(self._lost_at + limit_s)
        except InvalidInput as error:
            if broke is None or self._input.listens:  # it ended, and nothing follows: that was all
                self._report.say(f"{self._input.name} did not come back within {limit_s:g} s")
                return None
            raise InvalidInput(f"{self._input.name} did not come back within {limit_s:g} s: {error}") from error
        finally:
            self._report.source("")

    def _lost(self, broke: SourceBroke | None, limit_s: float) -> str:
        if self._input.listens:  # senders that stop and senders that break look the same: RTMP is cut in both cases
            return f"nobody sends to {self._input.name} any more; waiting {limit_s:g} s for somebody to come back"
        return f"{broke or f'{self._input.name} ended'}; trying for {limit_s:g} s to open it again"

    def _try_until(self, deadline: float) -> Opened | None:
        lost_at = time.monotonic()
        while True:
            self._failures += 1
            self._report.source(f"reconnecting, attempt {self._failures}")
            if not self._pause(_BACKOFF.delay(self._failures, self._rng)):
                return None
            try:
                opened = self._open(within_s=max(1.0, deadline - time.monotonic()))
            except InvalidInput:
                if time.monotonic() >= deadline:
                    raise
            else:
                self._report.say(f"{self._input.name} is back after {time.monotonic() - lost_at:.1f} s")
                return opened

    def _pause(self, seconds: float) -> bool:
        """Wait; whether it may go on after that."""
        until = time.monotonic() + seconds
        while not self._is_stopped():
            left = until - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, POLL_S))
        return False


@dataclass(frozen=True, slots=True)
class MediaSource:
    """An input with its options, as :mod:`tricklecast.publisher.run` opens it.

    Attributes:
        what: the input.
        options: how it is read and written.
    """

    what: Input
    options: MediaOptions

    @property
    def drops(self) -> bool:
        """Whether it cannot wait: segments are dropped when the network is too slow."""
        return self.options.realtime

    def open(self, report: Report, is_stopped: Callable[[], bool]) -> Iterator[Step]:
        """Open it, and make its steps.

        Raises:
            InvalidInput: it cannot be read.
        """
        return Relay(self.what, self.options, report, is_stopped).open()
