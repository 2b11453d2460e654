"""The watch for more than one machine: Spark Structured Streaming brings what is new, and the watch's code judges it.

One query follows folders, prefixes of an object store, or topics of Kafka, and gives a batch every few seconds. Of
files it gives only the names, and the report's reader reads them: formats, compression, wrappings and damage are those
of ``tricklecast storms``. Executors roll a batch up; a bounded number of rows comes to the driver, into the
:class:`~tricklecast.analytics.watch.window.Window` of the watch, its rules, its SQLite file and its outbox
(docs/adr/0041).

Spark's checkpoint says how far the query has read. All that follows from a batch is one transaction of the SQLite file,
with the number of the batch: one that comes again after a kill adds nothing if it is there, and everything if not.

Time is that of the lines. A batch may have the lines of a day; those of one server may come late, and the clock of
another may be wrong. So *now* is the newest time of any line so far, at most that of this machine. The newest lines of
a server were read now when it is first heard of, and from then on its time goes on as its lines do: with the same
distance to now, unless that grows beyond a minute. While nothing is to be read, now goes on as the clock of this
machine does.
"""

from __future__ import annotations

import glob
import heapq
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from threading import Event, RLock, Thread
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from tricklecast.analytics.errors import BadInput, BadMaster, SparkFailed, SparkUnavailable
from tricklecast.analytics.lines.files import REMOTE, STDIN, UNFINISHED, LogFiles
from tricklecast.analytics.lines.reading import Reading, Recognised
from tricklecast.analytics.lines.recognise import AUTO, Format
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan.normalise import AHEAD_US
from tricklecast.analytics.spark import scan
from tricklecast.analytics.spark.frames import rows_of
from tricklecast.analytics.spark.lines import Parse, SparkLines, read_lines
from tricklecast.analytics.spark.objects import name_of
from tricklecast.analytics.spark.session import CONNECT, LOCAL, failures_as_one_line, one_line, spark_session
from tricklecast.analytics.store.store import Store
from tricklecast.analytics.watch.alerts import AlertBody, Known
from tricklecast.analytics.watch.deliver import receiver
from tricklecast.analytics.watch.run import ENOUGH_LINES, Watching, WatchRequest, running

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

INTERVAL_S: Final = 10.0
"""How often it is looked for what is new. Seconds."""

LATE_S: Final = 60.0
"""An incident on a server of which nothing was read just now is over so much later: more of it may come. Seconds."""

BATCH_BYTES: Final = 4 << 30
BATCH_MESSAGES: Final = 10_000_000
"""Bytes of files, or messages of Kafka, in one batch; the rest waits for the next one."""

BATCH_ROWS: Final = 40_000
"""Rows of one batch that come to the driver: as many as the window keeps."""

MAX_PROBLEMS: Final = 100
"""Files that are remembered because something is wrong with them."""

MAX_NODES: Final = 10_000
"""Servers of which it is remembered how late their lines come."""

LOOK_S: Final = 0.2
"""How often alerts are handed on, and it is looked whether this is to end. Seconds."""

END_S: Final = 10.0
"""How long the batch that is being worked on may take at the end. The next run repeats it if that is not enough."""

KAFKA: Final = "kafka://"
EMPTY_AT_FIRST: Final = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
_NOT_CONNECT: Final = (
    "Spark Connect would run on its server what is done with a batch, where the state and the receivers are not: run "
    "storms stream with spark-submit, or with --master spark://HOST:7077"
)
_FILES: Final = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"


def _checked(request: StreamRequest) -> StreamRequest:
    """The request with the whole paths of local folders.

    Raises:
        BadInput: a source is no folder, no URI, or no topic; or some are folders, and some are topics.
    """
    logs = []
    for log in request.logs:
        log = unquote(log.removeprefix("file://")) if log.startswith("file:///") else log
        if log.startswith(KAFKA):
            _topics(log)
            logs.append(log)
        elif REMOTE.match(log):
            logs.append(log)
        elif os.path.isdir(log) or (glob.has_magic(log) and glob.glob(log)):
            logs.append(os.path.abspath(log))
        elif os.path.exists(log):
            raise BadInput(f"{log!r} is no folder: storms watch follows files that grow")
        else:
            raise BadInput(f"no such folder: {log!r}")
    for own in (request.state, request.checkpoint):
        if own is not None and any(Path(own).absolute().is_relative_to(log) for log in logs):
            raise BadInput(f"{str(own)!r} is in a folder that is followed: use another one")
    topics = [log for log in logs if log.startswith(KAFKA)]
    if topics and len(topics) < len(logs):
        raise BadInput("one stream follows folders or topics of Kafka: run two, each with its own --state")
    return replace(request, logs=tuple(logs))


def _topics(uri: str) -> dict[str, str]:
    """The options of Spark for ``kafka://BROKER,…/TOPIC,…?OPTION=VALUE``."""
    parts = urlsplit(uri)
    topics = parts.path.strip("/")
    if not parts.netloc or not topics or "/" in topics:
        raise BadInput(f"{uri!r} is no topic: kafka://BROKER:9092,BROKER:9092/TOPIC,TOPIC")
    return {"kafka.bootstrap.servers": parts.netloc, "subscribe": topics, **dict(parse_qsl(parts.query))}


def _followed(spark: SparkSession, request: StreamRequest) -> DataFrame:
    """The lines of the sources of a request."""
    from pyspark.errors import AnalysisException

    frames = []
    for log in request.logs:
        try:
            if log.startswith(KAFKA):
                start = "earliest" if request.earliest else "latest"
                options = {"startingOffsets": start, "maxOffsetsPerTrigger": str(BATCH_MESSAGES), **_topics(log)}
                lines = spark.readStream.format("kafka").options(**options).load()
                frames.append(lines.selectExpr("CAST(value AS STRING) AS value"))
                continue
            # Names and times only: nothing of the contents is read.
            files = spark.readStream.format("binaryFile").schema(_FILES).option("recursiveFileLookup", "true")
            files = files.option("maxBytesPerTrigger", str(BATCH_BYTES))
            frames.append(files.load(log).select("path", "modificationTime"))
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                raise BadInput(f"no such folder: {log!r}") from error
            if log.startswith(KAFKA) and "kafka" in str(error).lower():
                package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
                raise SparkUnavailable(f"Spark has no Kafka here: pass --conf spark.jars.packages={package}") from error
            raise
    return reduce(lambda above, frame: above.unionAll(frame), frames)


@dataclass(frozen=True, slots=True)
class StreamRequest(WatchRequest):
    """The sources to watch, and the receivers of alerts.

    Attributes:
        logs: folders, URIs of folders, or ``kafka://BROKER,…/TOPIC,…``; none for a DataFrame.
        checkpoint: where Spark notes how far it has read; ``None`` for a folder in that of the state.
        interval_s: how often it is looked for what is new. once: end when all that is there was read.
    """

    checkpoint: str | None = None
    interval_s: float = INTERVAL_S
    once: bool = False


@dataclass(slots=True)
class Batch:
    """The outcome of a batch.

    Attributes:
        rows: its roll-up. lines: how many; bad: how many of them could not be read.
        dropped: how many were left out, because there were too many rows.
        problems: what is wrong with a file, by its name. unread: files of which nothing was read.
        early: files that are older than the first run, and were passed over.
    """

    rows: pa.Table | None = None
    lines: int = 0
    bad: int = 0
    dropped: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    unread: int = 0
    early: int = 0


class Stream(Watching):
    """Has batches judged, in the time of their lines; knows nothing of Spark.

    Attributes:
        unread, early: sums of :class:`Batch`, as are ``lines`` and ``bad``.
        problems: faults of files by their names, the latest ones; a file that has gone has one.
        now_us: see the module. from_us: files that were written before this are passed over.
    """

    def __init__(
        self,
        request: StreamRequest,
        store: Store,
        receivers: Sequence[str],
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """
        Args:
            request, store, receivers: as of :class:`Watching`.
            wall_us: the clock of this machine, microseconds since the epoch.

        Raises:
            BadInput: the store is of other sources.
        """
        self.unread = self.early = 0
        self.problems = {}
        self._wall_us, self._lock = wall_us, RLock()
        self._heard_us, self._unheard_us = (round(s * 1e6) for s in (request.interval_s, LATE_S + request.interval_s))
        self.now_us: int = store.fact("now_us") or 0
        self._read_us = wall_us()
        # By server: how much later its lines are read than they are, the servers heard of last at the end.
        self._off_us: dict[str | None, int | None] = {}
        super().__init__(
            request,
            request.logs,
            store,
            receivers,
            clock=lambda: self.now_us / 1e6,
            wall_us=lambda: self.now_us,
            told_us=wall_us,
        )
        known = store.fact("from_us")
        self.from_us: int = known if known is not None else 0 if request.earliest else wall_us()
        store.set_fact("from_us", self.from_us)

    def follow(self, query: str) -> None:
        """Notes which query the batches are of. Each checkpoint is of one, and counts its batches from 0.

        Raises:
            BadInput: the store is of another one.
        """
        if self._store.fact("query") not in (None, query):
            raise BadInput("the checkpoint is not the one of this state: pass that one, or remove both")
        self._store.set_fact("query", query)

    def batch(self, number: int, read: Callable[[], Batch]) -> list[AlertBody]:
        """Judges a batch, unless that was done; everything that follows is in the store when this returns."""
        stored = self._store.fact("batch")
        if stored is not None and number <= stored:
            return []
        batch = read()
        with self._lock:
            self.lines, self.bad = self.lines + batch.lines, self.bad + batch.bad
            self.unread, self.early = self.unread + batch.unread, self.early + batch.early
            self.problems = dict([*self.problems.items(), *batch.problems.items()][-MAX_PROBLEMS:])
            self.judge.window.dropped += batch.dropped
            alerts = list[AlertBody]()
            if batch.rows is not None and batch.rows.num_rows:
                rows, late_us = self._aged(batch.rows)

                def written() -> None:
                    self._store.set_fact("batch", number)
                    self._store.set_fact("now_us", self.now_us)

                alerts = self.judge.step([rows], written, last=True, late_us=late_us)
            self._read_us = self._wall_us()
            return alerts

    def idle(self) -> list[AlertBody]:
        """Time passes, and there is nothing to be read."""
        with self._lock:
            wall_us = self._wall_us()
            self.now_us = max(self.now_us, min(wall_us, self.now_us + wall_us - self._read_us))
            self._read_us = wall_us
            return self.judge.step([], lambda: None, late_us=lambda known: self._unheard_us)

    @property
    def counts(self) -> dict[str, int]:
        """How much was left out, by what it is."""
        return {
            "files could not be read, or are of no known format": self.unread,
            "files are older than this watch, and were passed over (--start earliest)": self.early,
        }

    def close(self) -> None:
        """See :class:`~tricklecast.analytics.watch.run.Watching`."""
        with self._lock:
            super().close()

    def _aged(self, rows: pa.Table) -> tuple[pa.Table, Callable[[Known], int]]:
        """The rows with when they were read, as the module has it; and how late lines may be. It moves the time."""
        import pyarrow as pa

        nodes, times = rows.column("node").to_pylist(), rows.column("last_us").to_pylist()
        of_node: dict[str | None, list[int]] = defaultdict(list)
        for answer, node, at in zip(rows.column("answer").to_pylist(), nodes, times, strict=True):
            if at is not None and answer != "future":
                of_node[node].append(at)
        # One line with a wrong clock is not the newest.
        newest = {node: heapq.nlargest(3, some)[-1] for node, some in of_node.items()}
        offs = {node: self._off_us.pop(node, None) for node in newest}
        latest = [at + max(0, offs[node] or 0) for node, at in newest.items()]
        self.now_us = max(self.now_us, min(self._wall_us(), max(latest, default=0)))
        for node, at in newest.items():
            off = offs[node]
            far = off is None or at + off < self.now_us - round(LATE_S * 1e6)
            offs[node] = self.now_us - at if far else min(off or 0, self.now_us - at)
        self._off_us = dict([*self._off_us.items(), *offs.items()][-MAX_NODES:])
        seen = [
            min(self.now_us, at + (offs.get(node) or 0)) if at is not None else self.now_us
            for node, at in zip(nodes, times, strict=True)
        ]

        def late_us(known: Known) -> int:
            # A server of which there is no line may have had some that come later.
            if not newest.keys() >= set(known.incident.nodes):
                return self._unheard_us
            heard = min((newest[node] + (offs[node] or 0) for node in known.incident.nodes), default=self.now_us)
            return self._heard_us + self.now_us - heard

        return rows.append_column("seen_us", pa.array(seen, pa.int64())), late_us


# --- what a batch reads -----------------------------------------------------------------------------------------------


class Reader:
    """Reads batches: names of new files, or lines."""

    def __init__(self, request: StreamRequest, from_us: int, *, files: bool) -> None:
        """
        Args:
            from_us: files that were written before are passed over. files: whether batches are of files.
        """
        self._reading, self._from_us, self._files = request.reading, from_us, files
        self._form: Format | None = None

    def read(self, batch: DataFrame) -> Batch:
        """Reads a batch, and rolls it up on executors.

        Raises:
            BadInput: no executor can read any of the files, though they are there. UnknownFormat: that of the first
            lines cannot be told. SparkFailed: too many files cannot be read.
        """
        spark = batch.sparkSession
        if not self._files:
            self._form, rows = rows_of(batch, self._reading, self._form)
            frame = (rows, Parse(self._form, self._reading, "rows"))
            given = Recognised((STDIN,), (self._form,))
            return _rolled_up(Batch(), SparkLines(spark, given, frozenset(), self._reading, part=True, frame=frame))
        found = [
            (row.path.removeprefix("file:") if row.path.startswith("file:/") else name_of(row.path), row.at)
            for row in batch.selectExpr("path", "unix_micros(modificationTime) AS at").collect()
        ]
        # What is still being written has another name when it is whole.
        whole = [(name, at) for name, at in found if UNFINISHED.isdisjoint(Path(name).suffixes)]
        names = [name for name, at in whole if at >= self._from_us]
        made = Batch(early=len(whole) - len(names))
        try:
            lines = _opened(spark, names, self._reading)
        except BadInput:
            # One that cannot be read must not hold up the others, in this run and in every later one.
            good = []
            for name in names:
                try:
                    _opened(spark, [name], self._reading)
                    good.append(name)
                except BadInput as error:
                    made.problems[name] = str(error)
            lines = _opened(spark, good, self._reading)
        made.problems |= dict.fromkeys(lines.recognised.strange, "its format is not known")
        made.problems |= dict.fromkeys(lines.recognised.unreadable, "it is no whole Parquet file")
        made.unread = len(made.problems)
        return _rolled_up(made, lines) if lines.recognised.names else made


def _opened(spark: SparkSession, names: Sequence[str], reading: Reading) -> SparkLines:
    return read_lines(spark, LogFiles(tuple(names), searched=frozenset(names)), reading, overlap=False, part=True)


def _rolled_up(batch: Batch, lines: SparkLines) -> Batch:
    now_us, names = time.time_ns() // 1000, lines.recognised.names
    rolled = scan.roll_up(lines, now_us=now_us, latest_us=now_us + AHEAD_US)
    try:
        if len(rolled.gone) == len(names) and any(map(os.path.exists, rolled.gone)):
            raise BadInput(f"no executor can read {rolled.gone[0]!r}: every machine must see it under this path")
        batch.unread += len(rolled.gone)
        batch.problems |= dict.fromkeys(rolled.gone, "it has gone, or no executor can read it")
        batch.problems |= dict.fromkeys(rolled.lines.damaged, "it is damaged, and was read up to there")
        for number, bad in rolled.lines.bad.items():
            if bad >= ENOUGH_LINES and not rolled.lines.good.get(number):
                title = lines.recognised.formats[number].title
                batch.problems[names[number]] = f"none of its {bad:,} lines could be read as {title}"
        batch.lines, batch.bad = rolled.lines.counts.lines, rolled.lines.counts.bad
        batch.rows, batch.dropped = scan.brought(rolled.rows, rolled.size, BATCH_ROWS)
    finally:
        rolled.rows.unpersist()
    return batch


# --- the query --------------------------------------------------------------------------------------------------------


def stream(
    lines: DataFrame,
    *,
    state: str | os.PathLike[str],
    checkpoint: str | None = None,
    format: str = AUTO,
    client_key: str | None = None,
    path_prefix: str | None = None,
    params: Mapping[str, float] | None = None,
    alerts: Sequence[str] = (),
    json: bool = False,
    interval_s: float = INTERVAL_S,
    once: bool = False,
) -> None:
    """Watches the lines of a streaming DataFrame, in its session, until it is interrupted: ``storms stream``.

    Args:
        lines: as of :func:`~tricklecast.analytics.incidents`, from ``spark.readStream``.
        state, checkpoint, format, client_key, path_prefix, params, alerts, json, interval_s, once: the options of
            ``tricklecast storms stream`` (``--alert``, ``--set``, ``--interval``).

    Raises:
        BadInput: the lines are of an unknown format, or the state is of something else. SparkFailed: Spark has failed.
    """
    reading = Reading(format, client_key, path_prefix)
    reading.check()
    request = StreamRequest(
        logs=(),
        reading=reading,
        params=Params(**(params or {})),  # type: ignore[arg-type]  # whole numbers are floats, too
        state=Path(state),
        checkpoint=checkpoint,
        receivers=tuple(map(receiver, alerts)),
        json=json,
        interval_s=interval_s,
        once=once,
    )
    with failures_as_one_line():
        _run(request, lines.sparkSession, lines, sys.stdout, sys.stderr)


def run(
    request: StreamRequest,
    master: str | None = LOCAL,
    conf: Mapping[str, str] | None = None,
    *,
    verbose: bool = False,
    out: IO[str] | None = None,
    err: IO[str] | None = None,
) -> None:
    """Watches until it is interrupted, or until all is read if the request is for one run.

    Args:
        master, conf, verbose: as of :func:`~tricklecast.analytics.spark.session.spark_session`.
        out: where alerts go; err: where it is told how it goes; the process's own by default.

    Raises:
        BadInput: a source or the state is not to be used. Busy: another process uses the state.
        BadMaster: the master is of no known form, or Spark Connect's.
        SparkUnavailable, SparkFailed: Spark is missing, did not start, or failed.
    """
    request = _checked(request)
    if master is not None and master.startswith(CONNECT):
        raise BadMaster(_NOT_CONNECT)
    with spark_session(master, conf=conf, verbose=verbose) as spark, failures_as_one_line():
        _run(request, spark, None, out or sys.stdout, err or sys.stderr)


def _run(request: StreamRequest, spark: SparkSession, lines: DataFrame | None, out: IO[str], err: IO[str]) -> None:
    if "connect" in type(spark).__module__:
        raise SparkUnavailable(_NOT_CONNECT)
    made = partial(Stream, request)
    # A session of somebody else's is not ours to end.
    end_s = None if lines is not None else 3 * END_S
    with running(request, made, out, err, name="storms stream", durable=True, end_s=end_s) as (watch, now):
        files = not any(log.startswith(KAFKA) for log in request.logs) and lines is None
        frame = lines if lines is not None else _followed(spark, request)
        query = Query(frame, request, now.store.folder, watch, Reader(request, watch.from_us, files=files))
        try:
            while query.active and not now.stop.is_set():
                if query.waits:
                    watch.idle()
                now.tell()
                now.stop.wait(LOOK_S)
        finally:
            query.end()
        now.tell()
        query.check(interrupted=now.stop.is_set())


class Query:
    """The query of Spark, each of whose batches is judged."""

    def __init__(self, lines: DataFrame, request: StreamRequest, folder: Path, watch: Stream, reader: Reader) -> None:
        """Starts it.

        Args:
            lines: what it gives. folder: where it notes how far it has read, if the request does not say.
        """
        self._failed: Exception | None = None
        # None at the end: Spark never lets go of what it calls, and the databases are to be closed before Python is.
        self._work: Callable[[DataFrame, int], object] | None = lambda batch, number: watch.batch(
            number, lambda: reader.read(batch)
        )
        followed = Event()

        def each(batch: DataFrame, number: int) -> None:
            followed.wait()
            try:
                if self._work is not None:
                    self._work(batch, number)
            except Exception as error:
                # Spark would tell of it in its own words.
                self._failed = error
                raise

        place = request.checkpoint or str(folder / "checkpoint")
        writer = lines.writeStream.foreachBatch(each).option("checkpointLocation", place)
        if request.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(request.interval_s * 1000)} milliseconds")
        # A kill during the first batch leaves a part of its note, which Spark would take for another query's: it would
        # never start again. That the checkpoint is of this state is checked below.
        self._conf = lines.sparkSession.conf
        self._before = self._conf.get(EMPTY_AT_FIRST, "true") or "true"
        self._conf.set(EMPTY_AT_FIRST, "false")
        self._query: StreamingQuery = writer.start()
        try:
            watch.follow(str(self._query.id))
        except BadInput:
            self.end()
            raise
        finally:
            followed.set()

    @property
    def active(self) -> bool:
        """Whether it goes on."""
        return self._query.isActive

    @property
    def waits(self) -> bool:
        """Whether it has read all that is there."""
        return not self._query.status["isTriggerActive"]

    def end(self) -> None:
        """Ends it, when its batch is done; after some time in any case."""
        if self._work is None:
            return
        until = time.monotonic() + END_S
        while self._query.isActive and not self.waits and time.monotonic() < until:
            time.sleep(LOOK_S)
        self._work = None
        stopping = Thread(target=self._query.stop, daemon=True)
        stopping.start()
        stopping.join(END_S)
        self._conf.set(EMPTY_AT_FIRST, self._before)

    def check(self, *, interrupted: bool) -> None:
        """Raises what ended it, if nobody has asked it to end."""
        failed = self._query.exception()
        if interrupted or failed is None:
            return
        if self._failed is not None:
            raise self._failed
        raise SparkFailed(f"the stream has ended: {one_line(str(failed))}")
