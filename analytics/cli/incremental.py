"""``--incremental``: a report from parts that were kept and files that are new; it says what it would say without.

Each file is a part (:mod:`analytics.store.parts`). Three things need more than one file, or less than a whole one:

* Requests whose ids are in several files count once: files that share an id are one part.
* Of a file that ``--since`` or ``--until`` cuts, the roll-up cannot be cut: it is read, and not kept. A file that has
  no line of that time is not looked at.
* Lines of incidents are read from the files again, and kept by incident.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from tricklecast.analytics.cli.pipeline import MAX_LINES
from tricklecast.analytics.errors import BadInput, CannotWrite
from tricklecast.analytics.lines import LINE
from tricklecast.analytics.lines.files import ALWAYS, REMOTE, LogFiles, Window, node_of
from tricklecast.analytics.lines.reading import (
    BadLine,
    Counts,
    Reading,
    Recognised,
    check_understood,
    first_samples,
    recognise_files,
)
from tricklecast.analytics.lines.recognise import Format
from tricklecast.analytics.report.model import LogLine
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.rollup import merge_sql
from tricklecast.analytics.spark.scan import SCHEMA
from tricklecast.analytics.store.parts import Facts, FileFacts, LocalParts, Part, SparkParts, identity, key_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

    from tricklecast.analytics.lines.embedded import Lines
    from tricklecast.analytics.rules.incidents import Incident
    from tricklecast.analytics.spark.lines import SparkLines

AT_ONCE: Final = 8
"""Files that Spark reads at the same time: with small ones most of the time is its latency."""

Numbers = tuple[int, ...]
"""Places of files in the report, ascending."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Files of the report that are one part."""

    numbers: Numbers
    part: Part


@dataclass(frozen=True, slots=True)
class Gathered:
    """All that was read or known.

    Attributes:
        names, formats, strange, unreadable, counts, damaged: as of what the engines read at once.
        units: the parts that have lines of the report.
        identities: of each file that was given. read: how many files were read now.
    """

    names: tuple[str, ...]
    formats: tuple[FileFacts, ...]
    strange: tuple[str, ...]
    unreadable: tuple[str, ...]
    counts: Counts
    damaged: tuple[str, ...]
    units: tuple[Unit, ...]
    identities: dict[str, str | None]
    read: int


class Reader(Protocol):
    """What differs between the engines."""

    at_once: int
    name: str

    def identities(self, files: LogFiles) -> dict[str, str | None]:
        """What tells each file from all others; ``None`` for one that is not to be kept."""

    def find(self, keys: Sequence[str]) -> dict[str, Part]:
        """Parts that are kept."""

    def recognise(self, files: LogFiles) -> Recognised:
        """The formats of files, or what is wrong with them as the report's only files."""

    def read(self, files: LogFiles, window: Window, key: str | None) -> tuple[Recognised, Part | None]:
        """Reads files as one part, and keeps it under a key if there is one; no part if one of them is no log."""

    def together(self, units: Sequence[Unit], files: LogFiles, window: Window) -> list[Numbers]:
        """Files that must be read together because requests are in several of them."""


def gather(
    reader: Reader,
    files: LogFiles,
    reading: Reading,
    generic: bool,
    progress: Callable[[int], object] = lambda taken: None,
) -> Gathered:
    """Finds or reads the parts of all files.

    Args: progress: is told how many bytes are read, or known.

    Raises:
        BadInput: as of reading all of them at once.
    """
    names, identities = files.names, reader.identities(files)
    every = range(len(names))

    def key_of_files(numbers: Numbers) -> str | None:
        # A line that names no server is of the one that its file is called after.
        known = [
            f"{one} {node_of(names[number])}" for number in numbers if (one := identities[names[number]]) is not None
        ]
        return key_of(reader.name, reading, generic, known) if len(known) == len(numbers) else None

    keys = {numbers: key_of_files(numbers) for numbers in [*((number,) for number in every), tuple(every)]}
    kept = reader.find([key for key in keys.values() if key])
    strange: dict[int, str] = {}
    unreadable: dict[int, str] = {}
    were_read: set[int] = set()

    def unit(numbers: Numbers, window: Window = ALWAYS) -> Unit | None:
        key = (keys.get(numbers) or key_of_files(numbers)) if window == ALWAYS else None
        if key and (part := kept.get(key) or next(iter(reader.find([key]).values()), None)):
            return Unit(numbers, part)
        were_read.update(numbers)
        chosen = tuple(names[number] for number in numbers)
        some = replace(files, names=chosen, searched=files.searched & set(chosen))
        recognised, made = reader.read(some, window, key)
        strange.update((names.index(name), name) for name in recognised.strange)
        unreadable.update((names.index(name), name) for name in recognised.unreadable)
        return None if made is None else Unit(numbers, made)

    with ThreadPoolExecutor(reader.at_once) as pool:
        units = []
        for number, one in zip(every, pool.map(unit, [(number,) for number in every]), strict=True):
            units += [one] if one else []
            progress(0 if REMOTE.match(names[number]) else os.path.getsize(names[number]))
        for group in reader.together(units, files, reading.window):
            joint = unit(group)
            units = [one for one in units if one.numbers[0] not in group] + ([joint] if joint else [])
        cut = [one for one in units if _cut(one.part.facts.counts, reading.window)]
        again = pool.map(lambda one: unit(one.numbers, reading.window), cut)
        units = [one for one in units if one not in cut] + [one for one in again if one]
    if not units:
        reader.recognise(files)
    return _gathered(files, reading, units, (strange, unreadable), (identities, len(were_read)))


def _outside(counts: Counts, window: Window) -> bool:
    """Whether no line is of that time; one without a time belongs to every time, if nothing can be read of it."""
    if counts.first_us is None or counts.last_us is None or counts.bad_timed:
        return False
    before = window.from_us is not None and counts.last_us < window.from_us
    return before or (window.to_us is not None and counts.first_us >= window.to_us)


def _cut(counts: Counts, window: Window) -> bool:
    if counts.first_us is None or counts.last_us is None or _outside(counts, window):
        return False
    begins = window.from_us is None or window.from_us <= counts.first_us
    return not (begins and (window.to_us is None or counts.last_us < window.to_us))


def _gathered(
    files: LogFiles,
    reading: Reading,
    units: list[Unit],
    left_out: tuple[dict[int, str], dict[int, str]],
    told_of_files: tuple[dict[str, str | None], int],
) -> Gathered:
    names, strange, unreadable = files.names, *left_out
    told: dict[int, FileFacts] = {}
    samples: list[tuple[int, BadLine]] = []
    counts = Counts()
    live = []
    for one in sorted(units, key=lambda one: one.numbers):
        facts, has = one.part.facts, one.part.facts.counts
        outside = _outside(has, reading.window)
        if outside:
            # Its bad lines have no time: they may be of any.
            has = Counts(has.bad, has.bad, samples=has.samples)
        else:
            live.append(one)
        told |= {
            number: replace(file, good=0 if outside else file.good)
            for number, file in zip(one.numbers, facts.files, strict=True)
        }
        for bad in has.samples:
            number = one.numbers[int(bad.file)]
            samples.append((number, replace(bad, file=names[number])))
        counts += has
    shown = tuple(first_samples(samples))
    numbers = sorted(told)
    formats = tuple(Format(told[number].name) for number in numbers)
    here = tuple(names[number] for number in numbers)
    check_understood(
        Recognised(here, formats),
        files.searched,
        {place: told[number].good for place, number in enumerate(numbers) if told[number].good},
        {place: told[number].bad for place, number in enumerate(numbers)},
        reading.window,
        shown,
    )
    return Gathered(
        here,
        tuple(told[number] for number in numbers),
        tuple(strange[number] for number in sorted(strange)),
        tuple(unreadable[number] for number in sorted(unreadable)),
        replace(counts, samples=shown),
        tuple(names[number] for number in numbers if told[number].damaged),
        tuple(live),
        *told_of_files,
    )


def _facts(found: Lines) -> Facts:
    """The facts of a part."""
    recognised, counts = found.recognised, found.counts
    places = {name: str(place) for place, name in enumerate(recognised.names)}

    def told(place: int, name: str) -> FileFacts:
        form = recognised.formats[place]
        ids = form.fields is not None and "request_id" in form.present
        good, bad = found.good.get(place, 0), found.bad.get(place, 0)
        return FileFacts(form.name, form.coarse, name in found.damaged, ids, good, bad)

    samples = tuple(replace(bad, file=places[bad.file]) for bad in counts.samples)
    return Facts(tuple(told(*one) for one in enumerate(recognised.names)), replace(counts, samples=samples))


def _identities(names: Sequence[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = identity(name)
        except OSError as error:
            raise BadInput(f"cannot read {name!r}: {error.strerror or error}") from error
    return found


def _groups(sets: Sequence[set[int]]) -> list[Numbers]:
    """Sets that share a number are one."""
    found: list[set[int]] = []
    for one in sets:
        joined = one.union(*(other for other in found if other & one))
        found = [other for other in found if not other & one] + [joined]
    return [tuple(sorted(one)) for one in found]


class EmbeddedReader:
    """Parts by DuckDB, in a folder on this machine."""

    at_once = 1

    def __init__(
        self,
        parts: LocalParts,
        reading: Reading,
        shape: Callable[[DuckDBPyConnection], str],
        now_us: int,
        latest_us: int,
    ) -> None:
        """Args: shape: what is added up, of a database with the view ``line``. now_us, latest_us: as elsewhere."""
        import duckdb

        self.name = f"embedded {duckdb.__version__}"
        self.parts = parts
        self.find = parts.find
        self._reading, self._shape, self._now_us, self._latest_us = reading, shape, now_us, latest_us
        self._new: list[Path] = []

    def identities(self, files: LogFiles) -> dict[str, str | None]:
        """As of :class:`Reader`."""
        return _identities(files.names)

    def recognise(self, files: LogFiles) -> Recognised:
        """As of :class:`Reader`."""
        return recognise_files(files, self._reading)

    def read(self, files: LogFiles, window: Window, key: str | None) -> tuple[Recognised, Part | None]:
        """As of :class:`Reader`."""
        from tricklecast.analytics.lines.embedded import read_lines

        before = _identities(files.names)
        folder = self.parts.new()
        self._new.append(folder)
        with embedded.bounded(files.size) as con:
            found = read_lines(con, files, replace(self._reading, window=window), self._now_us, part=True)
            if len(found.recognised.names) < len(files.names):
                return found.recognised, None
            embedded.roll_up(con, self._shape(con), latest_us=self._latest_us)
            _write(con, "FROM rollup", folder / "rollup.parquet")
            if con.execute("SELECT count(request) FROM parsed_line").fetchall()[0][0]:
                ids = "SELECT DISTINCT hash(request) AS id FROM parsed_line WHERE bad IS NULL AND request IS NOT NULL"
                _write(con, ids, folder / "ids.parquet")
        facts = _facts(found)
        # A line that is in the future now will not be so for ever.
        if key is None or facts.counts.future or _identities(files.names) != before:
            return found.recognised, Part(str(folder), facts)
        return found.recognised, self.parts.add(key, folder, facts)

    def together(self, units: Sequence[Unit], files: LogFiles, window: Window) -> list[Numbers]:
        """As of :class:`Reader`: by the ids of all requests, exactly."""
        paths = {
            f"{one.part.folder}/ids.parquet": one.numbers[0]
            for one in units
            if any(file.ids for file in one.part.facts.files) and not _outside(one.part.facts.counts, window)
        }
        paths = {path: number for path, number in paths.items() if Path(path).exists()}
        if len(paths) < 2:
            return []
        with embedded.connect() as con:
            rows = con.execute(
                """WITH ids AS (SELECT id, filename FROM read_parquet(?, filename = true)),
                    several AS (SELECT id FROM ids GROUP BY id HAVING count(*) > 1)
                SELECT DISTINCT list_sort(names) FROM (
                    SELECT list(filename) AS names FROM ids SEMI JOIN several USING (id) GROUP BY id)""",
                [list(paths)],
            ).fetchall()
        return _groups([{paths[path] for path in row[0]} for row in rows])

    def roll_up(self, con: DuckDBPyConnection, gathered: Gathered) -> None:
        """Makes the table ``rollup`` of all parts."""
        columns = ", ".join(f"{name} {kind}" for name, kind in LINE)
        con.execute(f"CREATE OR REPLACE TEMP TABLE line ({columns})")
        embedded.roll_up(con)
        paths = [f"{one.part.folder}/rollup.parquet" for one in gathered.units]
        if paths:
            con.execute("INSERT INTO rollup FROM read_parquet(?)", [paths])
            con.execute(f"CREATE OR REPLACE TEMP TABLE rollup AS {merge_sql('rollup')}")
        con.execute("DROP TABLE line")

    def close(self) -> None:
        """Removes what was not kept, and what nobody has used for long."""
        for folder in self._new:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            self.parts.clean()


def _write(con: DuckDBPyConnection, query: str, path: Path) -> None:
    import duckdb

    try:
        con.sql(query).write_parquet(str(path), compression="zstd")
    except duckdb.IOException as error:
        raise CannotWrite(f"cannot write {str(path.parent.parent)!r}: {error}") from error


class SparkReader:
    """Parts by Spark, wherever it can write."""

    at_once = AT_ONCE

    def __init__(
        self,
        parts: SparkParts,
        spark: SparkSession,
        reading: Reading,
        generic: bool,
        now_us: int,
        latest_us: int,
    ) -> None:
        """Args: generic: as of :func:`analytics.scan.spark.roll_up`. now_us, latest_us: as elsewhere."""
        self.name = f"spark {spark.version}"
        self.parts = parts
        self.find = parts.find
        self._spark, self._reading, self._generic = spark, reading, generic
        self._now_us, self._latest_us = now_us, latest_us

    def identities(self, files: LogFiles) -> dict[str, str | None]:
        """As of :class:`Reader`; in an object store that which changes when a file is written."""
        from tricklecast.analytics.spark.objects import versions

        local = [name for name in files.names if not REMOTE.match(name)]
        return _identities(local) | versions(self._spark, files.remote)

    def recognise(self, files: LogFiles) -> Recognised:
        """As of :class:`Reader`."""
        from tricklecast.analytics.spark.objects import recognise_in_spark

        return recognise_in_spark(self._spark, files, self._reading)

    def lines(self, files: LogFiles, window: Window) -> SparkLines:
        """The lines of some files."""
        from tricklecast.analytics.spark.lines import read_lines

        how = replace(self._reading, window=window)
        return read_lines(self._spark, files, how, overlap=len(files.names) > 1, part=True)

    def read(self, files: LogFiles, window: Window, key: str | None) -> tuple[Recognised, Part | None]:
        """As of :class:`Reader`."""
        from tricklecast.analytics.spark import scan

        local = [name for name in files.names if not REMOTE.match(name)]
        before = _identities(local)
        found = self.lines(files, window)
        if len(found.recognised.names) < len(files.names):
            return found.recognised, None
        folder = self.parts.new(key or "0" * 32)
        rolled = scan.roll_up(
            found, f"{folder}/rollup", now_us=self._now_us, latest_us=self._latest_us, generic=self._generic
        )
        facts = _facts(rolled.lines)
        if key is None or rolled.gone or facts.counts.future or _identities(local) != before:
            return found.recognised, Part(folder, facts)
        return found.recognised, self.parts.add(folder, facts)

    def together(self, units: Sequence[Unit], files: LogFiles, window: Window) -> list[Numbers]:
        """As of :class:`Reader`: all files with ids where one begins in another, as Spark does it at once."""
        from tricklecast.analytics.spark.lines import overlapping

        with_ids = [one.numbers[0] for one in units if any(file.ids for file in one.part.facts.files)]
        local = tuple(name for number in with_ids if not REMOTE.match(name := files.names[number]))
        if len(local) < 2 or not overlapping(self.recognise(replace(files, names=local))):
            return []
        return [tuple(with_ids)]

    def roll_up(self, gathered: Gathered) -> DataFrame:
        """The rows of all parts."""
        folders = [one.part.folder for one in gathered.units]
        return self.parts.rollups(folders) if folders else self._spark.createDataFrame([], SCHEMA)


def lines_of(
    shown: Sequence[Incident],
    gathered: Gathered,
    files: LogFiles,
    read: Callable[[LogFiles, Sequence[Incident]], dict[str, tuple[LogLine, ...]]],
    kept: tuple[LocalParts, str] | None = None,
) -> dict[str, tuple[LogLine, ...]]:
    """Lines of incidents, from those files that may have them.

    Args:
        read: gives the lines in some files. kept: where they are kept, and how lines are read: part of their key.
    """
    found: dict[str, tuple[LogLine, ...]] = {}
    missing: dict[str, tuple[Incident, list[str], str | None]] = {}
    for one in shown:
        moments = sorted({*(phase.since_us for phase in one.phases[: MAX_LINES - 1]), one.until_us})
        units = [unit for unit in gathered.units if any(_spans(unit.part.facts.counts, moment) for moment in moments)]
        names = [files.names[number] for number in sorted(chain.from_iterable(unit.numbers for unit in units))]
        key = None
        if kept is not None and not any(unit.part.facts.counts.doubled for unit in units):
            identities = [gathered.identities[name] for name in names]
            what = (kept[1], moments, one.nodes, one.named, one.clients, one.channels, identities)
            key = blake2b(repr(what).encode(), digest_size=16).hexdigest()
            if (text := kept[0].text(key)) is not None:
                told = msgspec.json.decode(text, type=tuple[tuple[str, int | None, int | None], ...])
                found[one.id] = tuple(
                    LogLine(line, None if file is None else names[file], no) for line, file, no in told
                )
                continue
        missing[one.id] = (one, names, key)
    if missing:
        wanted = set(chain.from_iterable(names for _, names, _ in missing.values()))
        some = replace(files, names=tuple(name for name in files.names if name in wanted))
        fresh = read(some, [one for one, _, _ in missing.values()])
        found |= fresh
        for id_, (_, names, key) in missing.items():
            if kept is not None and key is not None:
                told = tuple(
                    (line.text, None if line.file is None else names.index(line.file), line.no)
                    for line in fresh.get(id_, ())
                )
                kept[0].keep_text(key, msgspec.json.encode(told))
    return {key: lines for key, lines in found.items() if lines}


def _spans(counts: Counts, moment: int) -> bool:
    return counts.first_us is not None and counts.last_us is not None and counts.first_us <= moment <= counts.last_us
