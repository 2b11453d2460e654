"""Follows growing and rotating logs: whole lines, from where the last batch ended, whatever the file is called by now.

Only bytes are moved here. What a line means is found out by Spark.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Final

from tricklecast.analytics.watch_old.finding import Finder, Found
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.positions import Place, Positions
from tricklecast.analytics.watch_old.reading import Health

TOO_LONG: Final = b'{"too_long":true}\n'
"""Stands for a line that is longer than a chunk: no record, and counted as such."""

FORGET_S: Final = 3600.0
"""A file that is nowhere to be found is remembered for so long: it may be out of reach for a while. Seconds."""

_TIME: Final = re.compile(rb'"ts_us":\s*(\d{1,17})')


class Follower:
    """Reads what was added to the files of a log, the oldest lines first.

    Attributes:
        health: how far behind it is, and what it cannot read.
    """

    def __init__(
        self,
        logs: Sequence[str],
        limits: WatchLimits | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            logs: files and folders.
            wall, clock, sleep: the time, seconds; and how to let it pass.
        """
        self._limits = limits or WatchLimits()
        self._finder = Finder(logs, self._limits, clock)
        self._wall = wall
        self._clock = clock
        self._sleep = sleep
        self._seen: dict[str, tuple[float, int]] = {}
        self.health = Health()

    def beginning(self, *, earliest: bool) -> Positions:
        """Where a first run begins: before everything that is there, or behind it."""
        files = {} if earliest else {file.identity: Place(file.size) for file in self._finder.look()}
        return Positions(self._now_us(0), files)

    def read(self, since: Positions) -> tuple[list[bytes], Positions]:
        """What was added since; waits a moment for it if there is nothing yet.

        Returns:
            blocks of whole lines, and where they end; the same positions if there was nothing. There may be no block
            although the positions are others: of a line that is too long nothing is left.
        """
        until = self._clock() + self._limits.wait_s
        while True:
            began = self._clock()
            blocks, files = self._added(since)
            if blocks or any(place != since.of(name) for name, place in files.items()):
                return blocks, Positions(self._now_us(since.read_us), files)
            if self._clock() >= until:
                return [], since
            # Many files take their time to look at; looking is never to take more than a tenth of it.
            self._sleep(max(self._limits.poll_s, (self._clock() - began) * 10))

    def again(self, since: Positions, until: Positions) -> list[bytes]:
        """What :meth:`read` gave between two positions, after a restart; a file that is gone by now is a problem."""
        found = {file.identity: file for file in self._finder.look()}
        blocks: list[bytes] = []
        for name, end in until.files.items():
            place = since.of(name)
            if end.at <= place.at:
                continue
            if name not in found:
                self.health.lost_bytes += end.at - place.at
                continue
            while place.at < end.at:
                data = self._bytes(found[name], place.at, min(self._limits.chunk_bytes, end.at - place.at))
                block, after = cut(data, place, self._limits.chunk_bytes)
                if after == place:  # the file is not what it was
                    self.health.lost_bytes += end.at - place.at
                    break
                place = after
                blocks.append(block)
        return blocks

    def _added(self, since: Positions) -> tuple[list[bytes], dict[str, Place]]:
        found = self._finder.look()
        places = self._remembered(since, found)
        unread = {file.identity: file for file in found if file.size > places[file.identity].at}
        times = {name: self._time_at(file, places[name]) for name, file in unread.items()}
        blocks: list[bytes] = []
        budget = self._limits.batch_bytes
        while times and budget > 0:
            # The oldest line of all files first: several rotated files, or nodes, are read in the order of time.
            name = min(times, key=lambda each: times[each])
            file, place = unread[name], places[name]
            block, after = cut(self._bytes(file, place.at, self._limits.chunk_bytes), place, self._limits.chunk_bytes)
            budget -= after.at - place.at
            places[name] = after
            if block:
                blocks.append(block)
            if after.at == place.at or after.at >= file.size:
                del times[name]
            else:
                times[name] = self._time_at(file, after)
        self._note(found, places, blocks)
        return blocks, places

    def _remembered(self, since: Positions, found: Sequence[Found]) -> dict[str, Place]:
        """Every place that is still of use; those of files that have gone are kept for a while."""
        now = self._clock()
        for file in found:
            self._seen[file.identity] = (now, file.size)
        places: dict[str, Place] = {file.identity: since.of(file.identity) for file in found}
        for name, place in since.files.items():
            if name in places:
                continue
            seen, size = self._seen.setdefault(name, (now, place.at))
            if now - seen < FORGET_S:
                places[name] = place
            else:
                self.health.lost_bytes += max(0, size - place.at)
                del self._seen[name]
        return places

    def _time_at(self, file: Found, place: Place) -> int:
        """The time of the line at that place, as far as a glance tells: microseconds, 0 if it does not."""
        stamp = _TIME.search(self._bytes(file, place.at, 512))
        return int(stamp[1]) if stamp else 0

    def _bytes(self, file: Found, at: int, count: int) -> bytes:
        try:
            descriptor = os.open(file.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._finder.problems[file.path] = error.strerror or str(error)
            return b""
        try:
            # Renamed since it was found, and another file stands in its place: not this one's bytes.
            if f"{os.fstat(descriptor).st_ino:x}" != file.identity.partition("-")[0]:
                return b""
            return os.pread(descriptor, count, at)
        finally:
            os.close(descriptor)

    def _note(self, found: Sequence[Found], places: dict[str, Place], blocks: Sequence[bytes]) -> None:
        health = self.health
        health.files = len(found)
        health.lag_bytes = sum(max(0, file.size - places[file.identity].at) for file in found)
        health.bytes += sum(map(len, blocks))
        health.lines += sum(block.count(b"\n") for block in blocks)
        health.problems = dict(self._finder.problems)

    def _now_us(self, before_us: int) -> int:
        return max(before_us, round(self._wall() * 1e6))


def cut(data: bytes, place: Place, longest: int) -> tuple[bytes, Place]:
    """The whole lines at the beginning of what was read, and the place behind them.

    Args:
        data: what stands at ``place``. longest: a line of so many bytes without an end is skipped.
    """
    begin = 0
    if place.skipping:
        begin = data.find(b"\n") + 1
        if not begin:
            return b"", Place(place.at + len(data), skipping=True)
    end = data.rfind(b"\n") + 1
    if end > begin:
        return data[begin:end], Place(place.at + end)
    if len(data) - begin >= longest:
        return TOO_LONG, Place(place.at + len(data), skipping=True)
    return b"", Place(place.at + begin)
