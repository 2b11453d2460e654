"""Writes a simulated log: the fleet and the scenes, a slice of time at a time, each server's lines in their order."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.catalogue import Set
from tricklecast.analytics.simulate.entries import Entry, Line, when
from tricklecast.analytics.simulate.fleet import Probe, Show, probes
from tricklecast.analytics.simulate.formats import FORMATS, FormatName
from tricklecast.analytics.simulate.output import ROTATE_BYTES, ROTATE_S, NodeLog, complete_folder
from tricklecast.analytics.simulate.plan import Placed, Planner, Program
from tricklecast.analytics.simulate.sizes import Sizes, shows
from tricklecast.analytics.simulate.truth import FILE, Truth

START_US: Final = 1_760_000_400_000_000
"""2025-10-09 09:00:00 UTC: logs begin on a full hour, the same one each time."""

SLICE_LINES: Final = 30_000
"""About so many lines are held at a time."""

COPIED_RUN: Final = (20, 300)
"""Lines that log shipping delivers twice in one go, from and to."""

Progress = Callable[[int, int], None]
"""Told how many microseconds of the log are done, and how many lines are written."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        out: the folder. seed: what everything is drawn from. kind: which scenes.
        size: of the log. form: of its lines. packed: with gzip. force: replace an earlier simulation.
        copies: share of lines that are delivered twice, 0 to 1.
        rotate_bytes, rotate_s: begin the next file at this size or age.
    """

    out: Path
    seed: int
    kind: Set
    size: Sizes
    form: FormatName = FormatName.JSONL
    packed: bool = False
    force: bool = False
    copies: float = 0.0
    rotate_bytes: int = ROTATE_BYTES
    rotate_s: float = ROTATE_S


@dataclass(slots=True)
class Server:
    """One server while its log is written.

    Attributes:
        log: its files. fleet: who goes on all the time.
        waiting: lines whose time has not come.
    """

    log: NodeLog
    fleet: list[Show | Probe]
    waiting: list[Entry] = field(default_factory=list)


def simulate_logs(request: Request, progress: Progress = lambda done_us, lines: None) -> Truth:
    """Write the log and its truth.

    Raises:
        CannotWrite: the folder cannot be used.
    """
    with complete_folder(request.out, force=request.force) as folder:
        truth = _Writing(request, folder).run(progress)
        (folder / FILE).write_bytes(truth.as_json())
    return truth


class _Writing:
    def __init__(self, request: Request, folder: Path) -> None:
        self._request = request
        size, seed = request.size, request.seed
        self._end = START_US + size.duration_us
        names = [f"edge-{number + 1}" for number in range(size.nodes)]
        self._rng = random.Random(f"{seed}/shipping")
        self._run = self._rng.randint(*COPIED_RUN)
        self._owed = 0.0
        self.program = _program(request, names)
        self._scenes = list(reversed(self.program.placed))
        fleet = shows(size, seed, START_US, names, self.program.outages, self.program.lines)
        self.servers: dict[str, Server] = {}
        for name in names:
            log = NodeLog(
                folder,
                name,
                FORMATS[request.form],
                packed=request.packed,
                rotate_bytes=request.rotate_bytes,
                rotate_us=micros(request.rotate_s),
            )
            machines = probes(name, seed, START_US, self.program.outages) if size.probed else []
            mine = [show for show in fleet if show.node == name]
            self.servers[name] = Server(log, [*mine, *machines])
        self._slice = max(micros(0.2), min(micros(10), SLICE_LINES * size.duration_us // size.lines))
        self.lines = 0

    def run(self, progress: Progress) -> Truth:
        """All slices, one after the other."""
        try:
            self._write_all(progress)
        finally:
            for server in self.servers.values():
                server.log.close()
        request, program = self._request, self.program
        form = FORMATS[request.form]
        storms, traps = tuple(form.tells(storm) for storm in program.storms), tuple(program.traps)
        return Truth(request.seed, request.kind, self.lines, storms, traps, tuple(sorted(program.left_out)))

    def _write_all(self, progress: Progress) -> None:
        now = START_US
        while now < self._end:
            now = min(now + self._slice, self._end)
            self._begin_scenes(now)
            for server in self.servers.values():
                for source in server.fleet:
                    source.advance(now, server.waiting)
                self._write(server, now)
            progress(now - START_US, self.lines)
        for server in self.servers.values():
            self._write(server, None)

    def _begin_scenes(self, until_us: int) -> None:
        while self._scenes and self._scenes[-1].at_us < until_us:
            placed: Placed = self._scenes.pop()
            for entry in placed.entries():
                self.servers[entry[1]["node"]].waiting.append(entry)

    def _write(self, server: Server, until_us: int | None) -> None:
        """Write what has ended before a moment, and keep the rest."""
        waiting = server.waiting
        waiting.sort(key=when)
        cut = len(waiting) if until_us is None else bisect_left(waiting, until_us, key=when)
        if not cut:
            return
        lines = [line for _, line in waiting[:cut]]
        lines += self._copies(lines)
        self.lines += server.log.write(lines, until_us or self._end)
        server.waiting = waiting[cut:]

    def _copies(self, lines: list[Line]) -> list[Line]:
        """What the shipping of logs delivers twice: runs of lines as they are."""
        # What is written at a time may be shorter than a run: the share is kept over all of it.
        self._owed += self._request.copies * len(lines)
        copied: list[Line] = []
        while self._owed >= self._run:
            first = self._rng.randrange(len(lines))
            run = lines[first : first + self._run]
            copied += run
            self._owed -= len(run)
            self._run = self._rng.randint(*COPIED_RUN)
        return copied


def _program(request: Request, names: list[str]) -> Program:
    planner = Planner(request.seed, START_US, request.size.duration_us, names)
    return planner.plan(request.kind, request.size.planted)
