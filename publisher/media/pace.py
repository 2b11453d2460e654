"""The pace of media: packets are held back until they are due, and a media time has a wall-clock time. No I/O."""

from __future__ import annotations

import time

from tricklecast.publisher.steps import POLL_S, IsStopped


class Clock:
    """The machine's time, and a way to let it pass."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def unix_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Pace:
    """Maps media time onto the clock: from a moment on, at a constant speed.

    A late packet does not move the packets behind it: a source that was held up catches up, so that it keeps its rate
    over hours.

    Args:
        speed: seconds of media per second; ``None``: as fast as possible.
        is_stopped: whether to give up waiting.
        begun_at: when the media begins, in the clock's seconds; ``None``: now.
    """

    def __init__(
        self,
        speed: float | None,
        is_stopped: IsStopped = lambda: False,
        clock: Clock | None = None,
        *,
        begun_at: float | None = None,
    ) -> None:
        self._speed = speed
        self._is_stopped = is_stopped
        self._clock = clock or Clock()
        now = self._clock.monotonic()
        self._begun_at = now if begun_at is None else begun_at
        self._begun_us = self._clock.unix_us() - round((now - self._begun_at) * 1e6)

    def wait(self, media_s: float) -> bool:
        """Wait until a media time is due.

        Returns:
            ``True`` when it is due, ``False`` once the source is stopped.
        """
        while not self._is_stopped():
            left = self._late_s(media_s)
            if left >= 0:
                return True
            self._clock.sleep(min(-left, POLL_S))
        return False

    def unix_us(self, media_s: float) -> int:
        """The wall-clock time of a media time, in microseconds.

        It follows the wall clock when that is set anew. Without pacing, it runs with the media from the start.
        """
        if self._speed is None:
            return self._begun_us + round(media_s * 1e6)
        return self._clock.unix_us() - round(self._late_s(media_s) * 1e6)

    def _late_s(self, media_s: float) -> float:
        """How many seconds ago a media time was due."""
        if self._speed is None:
            return 0.0
        return self._clock.monotonic() - self._begun_at - media_s / self._speed
