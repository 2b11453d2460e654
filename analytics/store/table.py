"""The table: roll-ups of logs, kept by hour in a folder. ``--table`` adds logs to it, and reports on what is in it.

    rollup/dt=2025-10-09/hr=08/COMMIT.parquet   rows of the roll-up; the column ``source`` says which log they are of
    sources/COMMIT.json                         the sources that a run has added, and which former ones they replace
    incidents/, mutes/                          what reports have told (:mod:`analytics.store.memory`)

A *source* is one log, or several that share requests and were therefore read together. A run writes the rows of new
sources first and its commit last. Rows of a source that no commit names do not count, so that a run that is killed
leaves rubbish and no wrong row. A log that has grown or changed is a new source, which names those that it replaces.
A late line goes into its own hour.

A log on a local disk is known by its content, decompressed: rotation renames it, something else compresses it, and it
grows meanwhile. An object in a store, where nothing grows, is known by its name, size and time. On a local disk one run
at a time adds logs, and others wait. In an object store two may add the same log: the first commit counts.

Commits and rows carry checksums (in an object store, numbers of rows). What is damaged is as good as none: it is told,
and read again if its log is still there.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from tricklecast.analytics.errors import CannotWrite
from tricklecast.analytics.lines import ALWAYS, LINE, BadLine, Counts, Format, LogFiles, Reading, Window
from tricklecast.analytics.lines.files import MARKS, REMOTE, beginnings, open_log, piece_of
from tricklecast.analytics.lines.reading import Recognised, check_understood, first_samples, recognise_files
from tricklecast.analytics.report.formats import counted
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.normalise import AHEAD_US
from tricklecast.analytics.scan.rollup import IDS, VERSION, merge_sql, sketch_of
from tricklecast.analytics.store.place import (
    HOUR_US,
    Commit,
    Form,
    Log,
    Place,
    Seen,
    Source,
    digest_of,
    folder_of,
    hash_of,
    is_in,
    living,
    text_of,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from tricklecast.analytics.lines.embedded import Lines

KEEP_US: Final = 400 * 86_400_000_000
"""Hours that are older than the newest one by more than this are removed, unless ``--keep`` says another time."""


@dataclass(slots=True)
class Unit:
    """Logs to be read as one source.

    Attributes:
        replaces: ids of sources that it takes the place of. instead: which of their logs these are: id and name.
    """

    logs: list[Log]
    replaces: set[str] = field(default_factory=set)
    instead: set[tuple[str, str]] = field(default_factory=set)

    def joined(self, others: Iterable[Unit]) -> Unit:
        """This one and others as one."""
        every = (self, *others)
        return Unit(
            [log for one in every for log in one.logs],
            set().union(*(one.replaces for one in every)),
            set().union(*(one.instead for one in every)),
        )

    def source(
        self, id_: str, how: str, found: Lines, counts: Counts, hours: dict[int, int], sketch: Iterable[int]
    ) -> Source:
        """What it was when it had been read."""
        numbers = {name: number for number, name in enumerate(found.recognised.names)}

        def told(log: Log) -> Log:
            number = numbers[log.name]
            form = found.recognised.formats[number]
            good, bad = found.good.get(number, 0), found.bad.get(number, 0)
            damaged = log.name in found.damaged
            return replace(log, form=Form(form.name, form.coarse), damaged=damaged, good=good, bad=bad)

        places = {log.name: str(place) for place, log in enumerate(self.logs)}
        samples = tuple(replace(bad, file=places[bad.file]) for bad in counts.samples if bad.file in places)
        logs = tuple(map(told, self.logs))
        return Source(
            id_, logs, how, replace(counts, samples=samples), hours, tuple(sorted(self.replaces)), tuple(sketch)
        )


@dataclass(frozen=True, slots=True)
class TableLogs:
    """What a report tells of the logs behind its rows.

    Attributes:
        names, formats, strange, unreadable, counts, damaged: as of what the engines read at once.
        spans: the first and last time of each log that was given, by its name.
    """

    names: tuple[str, ...]
    formats: tuple[Form, ...]
    strange: tuple[str, ...]
    unreadable: tuple[str, ...]
    counts: Counts
    damaged: tuple[str, ...]
    spans: dict[str, tuple[int, int]]


class Reader(Protocol):
    """Reads logs for a table, with one of the engines."""

    def versions(self, uris: Sequence[str]) -> Mapping[str, str | None]:
        """For each URI a text that changes when its object is written again; ``None`` if there is none."""

    def recognise(self, files: LogFiles) -> Recognised:
        """The formats of files, or what is wrong with them as the only ones."""

    def read(self, units: Mapping[int, Unit], table: Table) -> dict[int, Source]:
        """Rolls up units, by their numbers; those are left out in which there is something else than a log."""

    def shared(self, units: Mapping[int, Unit], made: Mapping[int, Source]) -> list[set[int]]:
        """Groups of sources that share requests, by number: those read now exactly; below 0 are former runs."""

    def write(self, table: Table, name: str, sources: Sequence[Source]) -> dict[str, str]:
        """Writes the rows of sources for a commit; returns the checksums of the files."""


# --- the table


class Table:
    """The table of one place, for one run.

    Attributes:
        place: where it is. notes: what the run has to tell of it. doubts: why rows are missing, or count twice.
        caveats: what else the reader should know of its rows. strange, unreadable: files that are no logs.
        commits: those that are whole, the oldest first.
    """

    def __init__(self, place: Place, keep_us: int | None = None) -> None:
        """Args: keep_us: how long hours are kept; ``None`` for the usual time."""
        self.place, self._keep = place, (keep_us or KEEP_US) // HOUR_US
        self.notes: list[str] = []
        self.doubts: list[str] = []
        self.caveats: list[str] = []
        self.commits: dict[str, Commit] = {}
        # Commits that are damaged.
        self._torn: list[str] = []
        # By source and name of a log in it: what the log that was given is called now.
        self._names: dict[tuple[str, str], str] = {}
        # The places of logs that were given.
        self._order: dict[str, int] = {}
        # Files that were found to be known, and are not noted yet.
        self._seen: list[Seen] = []
        self.strange: list[str] = []
        self.unreadable: list[str] = []
        self._load()

    def _load(self) -> None:
        self.commits, self._torn = {}, []
        for name, text in self.place.texts("sources").items():
            digest, _, body = text.strip().partition("\n")
            try:
                if digest != hash_of(body.encode()):
                    raise ValueError("damaged")
                self.commits[name] = msgspec.json.decode(body, type=Commit)
            except ValueError:  # msgspec's, too: it is of another version
                self._torn.append(name)
        self.commits = dict(sorted(self.commits.items(), key=lambda one: (one[1].at, one[0])))

    def live(self) -> dict[str, Source]:
        """The sources that count, by id."""
        return living(self.commits)

    def _commit(self, name: str, sources: Sequence[Source], files: Mapping[str, str]) -> None:
        commit = Commit(time.time(), tuple(sources), dict(files), tuple(self._seen))
        body = msgspec.json.encode(commit)
        self.place.put("sources", name, f"{hash_of(body)}\n{body.decode()}")
        self._seen = []
        self.commits[name] = commit

    def hours(self, window: Window) -> range:
        """The hours of a window that are kept."""
        newest = max(chain.from_iterable(source.hours for source in self.live().values()), default=0)
        first = max(1, newest - self._keep, (window.from_us or 0) // HOUR_US)
        return range(first, newest + 1 if window.to_us is None else -(-window.to_us // HOUR_US))

    # -- adding

    def add(self, files: LogFiles, reading: Reading, generic: bool, reader: Reader) -> None:
        """Adds what is new in some logs.

        Raises:
            BadInput: as of reading all of them at once. CannotWrite: the table cannot be written to.
        """
        how = how_read(reading, generic)
        self._order = {name: place for place, name in enumerate(files.names)}
        given = replace(files, names=tuple(one for one in files.names if REMOTE.match(one) or os.path.getsize(one)))
        with self.place.locked():
            self._load()
            units = self._sorted_out(given, how, reader, self.hours(reading.window))
            sources = self._read(units, reader)
            if sources or self._seen:
                name = uuid.uuid4().hex
                self._commit(name, sources, reader.write(self, name, sources) if sources else {})
            were_read = sum(len(unit.logs) for unit in units)
            self._names |= {(source.id, log.name): log.name for source in sources for log in source.logs}
            known = max(0, len(given.names) - were_read)
            self.notes.append(f"{counted(known, 'file')} known from {self.place.root}, {were_read:,} read")
            if self._torn:
                self.notes.append(f"{counted(len(self._torn), 'damaged commit')} in {self.place.root}: removed")
                self.place.remove("sources", self._torn)
                self._torn = []
            self.place.clean(self.commits, self.hours(ALWAYS).start)
        if given.names and not self._names:
            reader.recognise(given)
        self._check(given, reading.window)

    def _sorted_out(self, files: LogFiles, how: str, reader: Reader, hours: range) -> list[Unit]:
        """The logs that have to be read; notes what the others are."""
        _, broken = self.place.intact(self.commits, hours)
        if broken:
            self.notes.append(
                f"{counted(len(broken), 'damaged source')} in {self.place.root}: read again if its log is there"
            )
        live = self.live()
        every = [(log, source) for source in live.values() for log in source.logs]
        known = chain.from_iterable(commit.seen for commit in self.commits.values())
        seen = {one.stat: (live[one.source], one.name) for one in known if one.source in live}
        stats = reader.versions([name for name in files.names if REMOTE.match(name)])
        units = []
        for name in files.names:
            log, old, same = _looked_at(name, stats.get(name), every, seen)
            if same:
                former, source = old[0]
                if source.how == how and source.id not in broken and not source.counts.future:
                    self._names[source.id, former.name] = name
                    if log.stat not in (former.stat, *seen):
                        self._seen.append(Seen(log.stat, source.id, former.name))
                    continue
            units.append(Unit([log], {one.id for _, one in old}, {(one.id, other.name) for other, one in old}))
        return self._completed(units)

    def _completed(self, units: Iterable[Unit]) -> list[Unit]:
        """Units with all logs of the sources that they replace; those that replace the same one are one."""
        live, found = self.live(), list[Unit]()
        for unit in units:
            same = [other for other in found if other.replaces & unit.replaces]
            found = [*(other for other in found if other not in same), unit.joined(same)]
        for unit in found:
            others = [(id_, log) for id_ in sorted(unit.replaces) for log in live[id_].logs]
            for id_, log in others:
                if (id_, log.name) in unit.instead:
                    continue
                unit.instead.add((id_, log.name))
                if (name := self._there(id_, log)) is None:
                    self.doubts.append(f"{log.name!r} is gone: what was in the table of it had to be left out.")
                else:
                    unit.logs.append(replace(log, name=name))
                    self._names.pop((id_, log.name), None)
            # Of requests that stand in two logs, the first log's count: as without a table.
            unit.logs.sort(key=lambda log: self._order.get(log.name, -1))
        return found

    def leave_out(self, recognised: Recognised) -> None:
        """Notes files that are no logs, or not there any more."""
        self.strange += recognised.strange
        self.unreadable += recognised.unreadable
        self.caveats += [f"{name!r} had gone before it could be read, and is left out." for name in recognised.gone]

    def _there(self, id_: str, log: Log) -> str | None:
        """What a log of a source is called now; ``None`` if it is not there any more."""
        there = not REMOTE.match(log.name) and _stat(log.name) == log.stat
        return self._names.get((id_, log.name), log.name if there else None)

    def _read(self, units: list[Unit], reader: Reader) -> list[Source]:
        """Reads units; those that share requests with each other, or with what is known, are one source."""
        if not units:
            return []
        gone = set(chain.from_iterable(unit.replaces for unit in units))
        known = {
            -number: source
            for number, source in enumerate(self.live().values(), 1)
            if source.sketch and source.id not in gone
        }
        numbered = dict(enumerate(units))
        made, groups = reader.read(numbered, self), list[set[int]]()
        for one in reader.shared(numbered, made | known):
            same = [other for other in groups if other & one]
            groups = [*(other for other in groups if other not in same), one.union(*same)]
        for group in groups:
            new = [numbered[number] for number in sorted(group) if number in made]
            old = [known[number] for number in group if number in known]
            lost = [source for source in old if any(self._there(source.id, log) is None for log in source.logs)]
            for source in lost if new else ():
                names = (new[0].logs[0].name, source.logs[0].name)
                self.doubts.append(
                    "Some requests of {!r} count twice: they are those of {!r}, which is gone.".format(*names)
                )
            replaced = {source.id for source in old if source not in lost}
            if new and len(new) + len(replaced) > 1:
                for number in group & set(made):
                    del made[number]
                joint = self._completed([Unit([], replaced).joined(new)])
                made |= reader.read({len(numbered) + max(group): joint[0]}, self)
        return list(made.values())

    def _check(self, files: LogFiles, window: Window) -> None:
        logs = [(source.id, log) for source in self.live().values() for log in source.logs]
        told = {self._names[id_, log.name]: log for id_, log in logs if (id_, log.name) in self._names}
        names = [name for name in files.names if name in told]
        check_understood(
            Recognised(tuple(names), tuple(Format(told[name].form.name) for name in names)),
            files.searched,
            {number: told[name].good for number, name in enumerate(names) if told[name].good},
            {number: told[name].bad for number, name in enumerate(names)},
            window,
        )

    # -- reading

    def rows(self, window: Window) -> tuple[list[str], dict[str, Source]]:
        """The files with rows of a window, and the sources that count and have such."""
        hours, kept = self.hours(window), self.hours(ALWAYS).start
        paths, broken = self.place.intact(self.commits, hours)
        live = {
            id_: source
            for id_, source in self.live().items()
            if not source.hours or any(is_in(hour, hours) for hour in source.hours)
        }
        for id_, source in sorted(live.items()):
            if id_ in broken or not source.how.startswith(VERSION):
                why = "damaged" if id_ in broken else "of another version of tricklecast"
                self.doubts.append(f"The rows of {live.pop(id_).logs[0].name!r} are {why}, and left out.")
        if self._torn:
            self.doubts.append(
                f"{counted(len(self._torn), 'commit')} cannot be read: the rows of its logs are left out."
            )
        if hours.start == kept and any(0 < hour < kept for one in self.live().values() for hour in one.hours):
            self.caveats.append(f"Hours before {text_of(kept)} are not kept (--keep).")
        return paths, live

    def found(self, files: LogFiles, sources: Mapping[str, Source], rows: Mapping[str, int]) -> TableLogs:
        """What a report tells of the logs behind its rows.

        Args:
            files: those that were given. sources: those that have rows of its time. rows: of how many lines.
        """
        places = {name: place for place, name in enumerate(files.names)}
        shown: list[tuple[int, str, Log]] = []
        counts, samples, spans = Counts(), list[tuple[int, BadLine]](), dict[str, tuple[int, int]]()
        for source in sources.values():
            has = source.counts
            good = has.lines - has.bad - has.other
            share = min(1.0, rows.get(source.id, 0) / good) if good else 1.0
            parts = {one.name: round(getattr(has, one.name) * share) for one in fields(Counts) if one.type == "int"}
            counts += replace(has, **parts)
            for place, log in enumerate(source.logs):
                name = self._names.get((source.id, log.name), log.name)
                shown.append((places.get(name, len(places)), name, log))
                samples += [(shown[-1][0], replace(bad, file=name)) for bad in has.samples if bad.file == str(place)]
                if has.first_us is not None and has.last_us is not None and name in places:
                    spans[name] = (has.first_us, has.last_us)
        shown.sort(key=lambda one: one[:2])
        return TableLogs(
            tuple(name for _, name, _ in shown),
            tuple(log.form for _, _, log in shown),
            tuple(self.strange),
            tuple(self.unreadable),
            replace(counts, samples=tuple(first_samples(samples))),
            tuple(name for _, name, log in shown if log.damaged),
            {name: spans[name] for name in files.names if name in spans},
        )


# --- logs

Known = list[tuple[Log, Source]]


def how_read(reading: Reading, generic: bool) -> str:
    """A hash of how logs are read."""
    form = Path(reading.format).read_text() if reading.format.endswith(".toml") else reading.format
    return f"{VERSION} {hash_of(repr((form, reading.client_key, reading.path_prefix, generic)).encode())}"


def _looked_at(
    name: str, version: str | None, every: Known, seen: Mapping[str, tuple[Source, str]]
) -> tuple[Log, Known, bool]:
    """A log as it is now; the former ones that it is or takes the place of; and whether nothing in it is new.

    Args:
        version: of an object: what changes when it is written again. seen: by ``stat``, files that were known before.
    """
    if REMOTE.match(name):
        old = [one for one in every if one[0].name == name]
        return Log(name, version or ""), old, version is not None and [one[0].stat for one in old] == [version]
    stat = _stat(name)
    same = [one for one in every if one[0].stat == stat]
    if not same and stat in seen:
        same = [(log, seen[stat][0]) for log in seen[stat][0].logs if log.name == seen[stat][1]]
    if same:
        return replace(same[0][0], name=name, stat=stat), same[:1], True
    head = _head(name)
    alike = [one for one in every if head and one[0].head == head]
    hashes, damaged = beginnings(name, {*MARKS, *(log.size for log, _ in alike)})
    hashes = {} if damaged else hashes
    size = max(hashes, default=0)
    marks = {mark: hashes[mark] for mark in MARKS if mark <= size}
    log = Log(name, stat, head, size, hashes.get(size, ""), marks)
    old = []
    for other, source in alike:
        if other.size and hashes.get(other.size) == other.digest:
            if other.size == size:
                return log, [(other, source)], True
            old.append((other, source))
        elif other.name == name or other.stat.split()[:2] == stat.split()[:2]:
            old.append((other, source))
        elif size < other.size and marks and marks.items() <= other.marks.items():
            # A copy that was made while the log went on? What follows its last mark is compared if the log is there.
            there = _stat(other.name) == other.stat
            if not there or beginnings(other.name, {size})[0].get(size) == log.digest:
                return log, [(other, source)], True
    return log, old, False


def _stat(name: str) -> str:
    """What changes when somebody writes to a file, and not when it is renamed; empty if there is none."""
    try:
        status = os.stat(name)
    except OSError:
        return ""
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def _head(name: str) -> str:
    """A hash of the first line that is no comment: in it is the time of a request."""
    with open_log(name) as file:
        lines = piece_of(file, 1 << 16)[0].split(b"\n")
    first = next((line for line in lines if line.strip() and not line.startswith(b"#")), b"")
    return hash_of(first) if first else ""


def within(window: Window) -> str:
    """SQL for rows of a window."""
    first = "" if window.from_us is None else f" AND bucket_us >= {window.from_us}"
    last = "" if window.to_us is None else f" AND bucket_us < {window.to_us}"
    return f"(bucket_us = 0 OR true{first}{last})"


# --- the embedded engine


class Embedded:
    """Reads logs with DuckDB."""

    def __init__(
        self,
        con: DuckDBPyConnection,
        files: LogFiles,
        reading: Reading,
        generic: bool,
        now_us: int,
        progress: Callable[[int], object] = lambda taken: None,
    ) -> None:
        """Args: con: holds rows until they are written. generic, now_us, progress: as elsewhere."""
        self._files, self._reading, self._generic = files, replace(reading, window=ALWAYS), generic
        self._how, self._now_us, self._progress = how_read(reading, generic), now_us, progress
        self._con = con
        self._con.execute("CREATE TEMP TABLE ids (unit INT, id UBIGINT)")

    def versions(self, uris: Sequence[str]) -> Mapping[str, str | None]:
        """Files are known by their heads, so none is needed."""
        return {}

    def recognise(self, files: LogFiles) -> Recognised:
        return recognise_files(files, self._reading)

    def read(self, units: Mapping[int, Unit], table: Table) -> dict[int, Source]:
        from tricklecast.analytics.lines.embedded import read_lines

        con, made = self._con, dict[int, Source]()
        for number, unit in units.items():
            names = tuple(log.name for log in unit.logs)
            some = replace(self._files, names=names, searched=self._files.searched & set(names))
            found = read_lines(con, some, self._reading, self._now_us, part=True)
            self._progress(sum(map(os.path.getsize, names)))
            table.leave_out(found.recognised)
            if len(found.recognised.names) < len(names):
                continue
            line = embedded.any_server(con) if self._generic else "line"
            embedded.roll_up(con, line, latest_us=self._now_us + AHEAD_US)
            con.execute("CREATE TEMP TABLE IF NOT EXISTS fresh AS SELECT ''::VARCHAR AS source, * FROM rollup LIMIT 0")
            id_ = f"{uuid.uuid4().hex} {names[0]}"
            con.execute("INSERT INTO fresh SELECT ?, * FROM rollup", [id_])
            con.execute(f"INSERT INTO ids SELECT {number}, id FROM ({IDS})")
            hours = con.execute(f"SELECT bucket_us // {HOUR_US}, count(*) FROM rollup GROUP BY 1").fetchall()
            sketch = sketch_of(con, f"SELECT id FROM ids WHERE unit = {number}")
            made[number] = unit.source(id_, self._how, found, found.counts, dict(hours), sketch)
        return made

    def shared(self, units: Mapping[int, Unit], made: Mapping[int, Source]) -> list[set[int]]:
        for number, source in made.items():
            if number < 0:
                self._con.execute("INSERT INTO ids SELECT ?, unnest(?::UBIGINT[])", [number, list(source.sketch)])
        rows = self._con.execute(
            "SELECT DISTINCT list_sort(list(DISTINCT unit)) FROM ids GROUP BY id HAVING count(DISTINCT unit) > 1"
        )
        return [set(row[0]) for row in rows.fetchall()]

    def write(self, table: Table, name: str, sources: Sequence[Source]) -> dict[str, str]:
        import duckdb

        files, ids = dict[str, str](), [source.id for source in sources]
        for hour in sorted({hour for source in sources for hour in source.hours}):
            path = Path(table.place.root, "rollup", folder_of(hour), f"{name}.parquet")
            wanted = f"FROM fresh WHERE bucket_us // {HOUR_US} = {hour} AND list_contains($ids, source)"
            rows = self._con.sql(f"{wanted} ORDER BY source, answer, client", params={"ids": ids})
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                rows.write_parquet(str(path), compression="zstd")
            except (OSError, duckdb.IOException) as error:
                # DuckDB's own message has several lines, and the system's within.
                full = os.strerror(errno.ENOSPC)
                why = full if full in str(error) else getattr(error, "strerror", None) or str(error).partition("\n")[0]
                raise CannotWrite(f"cannot write to the table {str(table.place.root)!r}: {why}") from error
            files[str(path.relative_to(table.place.root))] = digest_of(path)
        return files


def embedded_rows(con: DuckDBPyConnection, table: Table, window: Window, files: LogFiles) -> TableLogs:
    """Makes the table ``rollup`` of the rows of a window."""
    paths, sources = table.rows(window)
    columns = ", ".join(f"{name} {kind}" for name, kind in LINE)
    con.execute(f"CREATE OR REPLACE TEMP TABLE nothing ({columns})")
    embedded.roll_up(con, "nothing")
    con.execute("CREATE OR REPLACE TEMP TABLE stored AS SELECT ''::VARCHAR AS source, * FROM rollup")
    if paths:
        con.execute(
            f"""INSERT INTO stored BY NAME SELECT * FROM read_parquet(?, hive_partitioning = false)
            WHERE source IN (SELECT unnest(?::VARCHAR[])) AND {within(window)}""",
            [paths, [*sources]],
        )
    con.execute(f"CREATE OR REPLACE TEMP TABLE rollup AS {merge_sql('stored')}")
    lines = con.execute("SELECT source, sum(n)::BIGINT FROM stored WHERE answer <> 'cured' GROUP BY source").fetchall()
    con.execute("DROP TABLE stored")
    return table.found(files, sources, dict(lines))
