"""Writes a simulated log: the fleet and the scenes, a slice of time at a time, each server's lines in their order."""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Final

from tricklecast.analytics.errors import CannotWrite
from tricklecast.analytics.simulate.fleet import Probe, Show, probes, shows
from tricklecast.analytics.simulate.formats import FormatName
from tricklecast.analytics.simulate.lines import TimedLine, micros, when
from tricklecast.analytics.simulate.plan import Program, Sizes
from tricklecast.analytics.simulate.truth import FILE, Set, Truth, log_name

START_US: Final = 1_760_000_400_000_000
"""2025-10-09 09:00:00 UTC: logs begin on a full hour, the same one each time."""

SLICE_LINES: Final = 30_000
"""About so many lines are held at a time."""

ROTATE_BYTES: Final = 256 << 20
ROTATE_US: Final = micros(3600)
"""When a server begins its next file: its defaults (docs/reference/access-log.md)."""

Progress = Callable[[str, float], None]
"""Told what is being done, and which share of it is done, 0 to 1."""


def simulate_logs(
    out: Path,
    seed: int,
    kind: Set,
    size: Sizes,
    form: FormatName = FormatName.JSONL,
    *,
    force: bool = False,
    progress: Progress = lambda doing, done: None,
) -> Truth:
    """Writes the log and its truth.

    Args:
        out: the folder. seed: what everything is drawn from. kind: which scenes.
        size: of the log. form: of its lines. force: replace an earlier simulation.

    Raises:
        CannotWrite: the folder cannot be used.
    """
    names = [f"edge-{number + 1}" for number in range(size.nodes)]
    program = Program(seed, START_US, size.duration_us, names)
    with _complete_folder(out, force=force) as folder:
        program.fill(kind, size.planted, lambda done: progress("choosing scenes", done))
        fleet: list[Show | Probe] = [*shows(size, seed, START_US, names, program.outages, program.lines)]
        for name in names if size.probed else ():
            fleet += probes(name, seed, START_US, program.outages)
        logs = {name: _NodeLog(folder, name, form) for name in names}
        lines = _write(fleet, program, logs, size, progress)
        storms, traps = (tuple(form.tells(one) for one in found) for found in (program.storms, program.traps))
        truth = Truth(seed, kind, lines, storms, traps, tuple(program.left_out))
        truth.write(folder)
    return truth


@dataclass(slots=True)
class _NodeLog:
    """The log of one server: its files, renamed when they are large or old, and the lines whose time has not come."""

    folder: Path
    node: str
    form: FormatName
    waiting: list[TimedLine] = field(default_factory=list)
    _file: IO[bytes] | None = None
    _size: int = 0
    _opened_us: int = 0
    _rotations: int = 0

    def write(self, now_us: int, *, everything: bool = False) -> int:
        """Writes what has ended before a moment of the log's own clock, and keeps the rest.

        Returns:
            how many lines were written: some forms have none for events.
        """
        self.waiting.sort(key=when)
        cut = len(self.waiting) if everything else bisect_left(self.waiting, now_us, key=when)
        if not cut:
            return 0
        data = self.form.render([line for _, line in self.waiting[:cut]])
        del self.waiting[:cut]
        if self._file and (self._size >= ROTATE_BYTES or now_us - self._opened_us >= ROTATE_US):
            self.close()
            self._rotations += 1
            stamp = datetime.fromtimestamp(now_us / 1e6, UTC).strftime("%Y%m%dT%H%M%S")
            self._path().rename(self._path(f"-{stamp}-{self._rotations:04d}"))
        if not self._file:
            self._file = self._path().open("wb", buffering=1 << 20)
            self._size, self._opened_us = 0, now_us
        self._file.write(data)
        self._size += len(data)
        return data.count(b"\n")

    def close(self) -> None:
        """No more lines will come."""
        if self._file:
            self._file.close()
            self._file = None

    def _path(self, rotated: str = "") -> Path:
        return self.folder / f"{log_name(self.node)}{rotated}{self.form.suffix}"


def _write(
    fleet: list[Show | Probe], program: Program, logs: dict[str, _NodeLog], size: Sizes, progress: Progress
) -> int:
    """Writes the lines of the fleet and of the scenes; returns how many there were."""
    slice_us = max(micros(0.2), min(micros(10), SLICE_LINES * size.duration_us // size.lines))
    scenes, now, end, lines = program.placed[::-1], START_US, START_US + size.duration_us, 0
    try:
        while now < end:
            now = min(now + slice_us, end)
            while scenes and scenes[-1].at_us < now:
                for entry in scenes.pop().entries():
                    logs[entry[1]["node"]].waiting.append(entry)
            for source in fleet:
                source.advance(now, logs[source.node].waiting)
            lines += sum(log.write(now) for log in logs.values())
            progress(f"{lines:,} lines", (now - START_US) / size.duration_us)
        return lines + sum(log.write(end, everything=True) for log in logs.values())
    finally:
        for log in logs.values():
            log.close()


@contextmanager
def _complete_folder(out: Path, *, force: bool) -> Iterator[Path]:
    """A folder to write into, which takes its place when all is written, and vanishes if it is not.

    Raises:
        CannotWrite: there is something already, and ``force`` is not set; or nothing can be written there.
    """
    if out.exists() and not out.is_dir():
        raise CannotWrite(f"{str(out)!r} is not a folder")
    if out.exists() and any(out.iterdir()):
        if not force:
            raise CannotWrite(f"{str(out)!r} is not empty; --force replaces an earlier simulation")
        if not (out / FILE).is_file():
            raise CannotWrite(f"{str(out)!r} has files that are not of a simulation; --force does not replace them")
    place = out.absolute()
    unfinished: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        made, former = unfinished / "made", unfinished / "former"
        made.mkdir(mode=0o755)
        yield made
        if place.exists():
            place.rename(former)
        try:
            made.rename(place)
        except BaseException:
            if former.exists():
                former.rename(place)
            raise
    except OSError as error:
        raise CannotWrite(f"cannot write {str(out)!r}: {error.strerror or error}") from error
    finally:
        if unfinished:
            shutil.rmtree(unfinished, ignore_errors=True)
