"""One incremental run: take new logs in, forget what is too old, and give the roll-up of what is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tricklecast.analytics.durations import HOUR_US, MINUTE_US
from tricklecast.analytics.incremental.folder import clean, held
from tricklecast.analytics.incremental.intake import Intake, look_through
from tricklecast.analytics.incremental.manifest import Manifest, load, save
from tricklecast.analytics.inputs import ALWAYS, LogFiles, Window
from tricklecast.analytics.progress import Stage, silent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

RollUp = Callable[[LogFiles, bool], "DataFrame"]
"""Makes the roll-up of some files, its rows told apart by :data:`analytics.incremental.store.SOURCE`, of
each line once if so told (:func:`analytics.duplicates.once`)."""


@dataclass(frozen=True, slots=True)
class State:
    """A folder that this run holds, and what is known of it before Spark starts.

    Attributes:
        folder: where it is; manifest: what it held; intake: what the given logs are to it.
        files: the given logs.
    """

    folder: Path
    manifest: Manifest
    intake: Intake
    files: LogFiles

    @property
    def unread(self) -> int:
        """Bytes of the logs that are new to it."""
        return sum(log.size for log in self.intake.fresh.values())


@dataclass(frozen=True, slots=True)
class Kept:
    """What a state gives for one report.

    Attributes:
        rollup: of the hours that were asked for.
        names: of the logs that it is made from; damaged, doubles: as of :class:`analytics.inputs.LogFiles`.
        duplicates: lines that were left out, being there already.
        unsure: names of logs of which lines may count twice.
        hours: those that were asked for, hours since the epoch.
    """

    rollup: DataFrame
    names: tuple[str, ...]
    damaged: tuple[str, ...]
    doubles: tuple[str, ...]
    duplicates: int
    unsure: tuple[str, ...]
    hours: tuple[int, ...]


@contextmanager
def opened(path: str, files: LogFiles, reading: Mapping[str, str | None]) -> Iterator[State]:
    """Holds a state for one run, and looks through the logs; needs no Spark yet.

    Raises:
        BadInput: the folder is no state, of another version or damaged, or a log cannot be read.
        Busy: another run has it.
    """
    with held(path) as folder:
        manifest = load(folder, reading)
        clean(folder, manifest)
        yield State(folder, manifest, look_through(files, manifest), files)


def update(spark: SparkSession, state: State, roll_up: RollUp, keep_us: int | None, stage: Stage = silent) -> Manifest:
    """Takes the new logs in, and makes the result what counts, in one step.

    Args:
        keep_us: what is older than this is forgotten, counted from the newest hour; microseconds.

    Raises:
        BadInput: a log was replaced while it was being read. Nothing has changed then.
    """
    from tricklecast.analytics.incremental.sharing import take_in

    intake = state.intake
    logs = {key: log for key, log in state.manifest.logs.items() if key not in intake.outdated} | intake.seen
    hours = dict(state.manifest.hours)
    if intake.fresh or intake.outdated:
        with stage(_what(state)):
            changed, read = take_in(spark, state, logs, roll_up, stage)
        logs |= read
        hours |= changed
    manifest = state.manifest.with_changes(logs=logs, hours={hour: parts for hour, parts in hours.items() if parts})
    manifest = _forget(manifest, keep_us, set(intake.fresh) | set(intake.seen))
    save(state.folder, manifest)
    clean(state.folder, manifest)
    return manifest


def kept_of(spark: SparkSession, state: State, manifest: Manifest, window: Window = ALWAYS) -> Kept:
    """The roll-up of a span of time, cut at whole minutes, and what the report should say about it."""
    from pyspark.sql import functions as F

    from tricklecast.analytics.incremental.store import NO_HOUR, read_hours

    # The widest bucket of a roll-up: a state cannot be cut more finely.
    since = 0 if window.from_us is None else window.from_us - window.from_us % MINUTE_US
    until = None if window.to_us is None else window.to_us + -window.to_us % MINUTE_US
    hours = tuple(
        hour
        for hour in sorted(manifest.hours)
        if hour == NO_HOUR or ((hour + 1) * HOUR_US > since and (until is None or hour * HOUR_US < until))
    )
    rollup = read_hours(spark, state.folder, manifest, hours)
    bucket = F.col("bucket_us")
    inside = bucket >= since if until is None else (bucket >= since) & (bucket < until)
    logs = sorted((log for log in manifest.logs.values() if set(log.hours) & set(hours)), key=lambda log: log.name)
    return Kept(
        rollup=rollup.where(bucket.isNull() | inside),
        names=tuple(log.name for log in logs),
        damaged=tuple(log.name for log in logs if log.damaged),
        doubles=state.intake.doubles,
        duplicates=sum(lines for log in logs for hour, lines in log.left_out.items() if hour in hours),
        unsure=tuple(log.name for log in logs if log.unsure),
        hours=tuple(hour for hour in hours if hour != NO_HOUR),
    )


def _what(state: State) -> str:
    fresh, known = len(state.intake.fresh), len(state.intake.seen)
    return f"reading {fresh:,} new log{'' if fresh == 1 else 's'}, {state.unread / 1e6:,.1f} MB ({known:,} known)"


def _forget(manifest: Manifest, keep_us: int | None, given: set[str]) -> Manifest:
    """Drops hours that are too old, and logs of which nothing is left; those that were given would come back."""
    from tricklecast.analytics.incremental.store import NO_HOUR

    oldest = manifest.forgotten
    if keep_us is not None and (timed := [hour for hour in manifest.hours if hour != NO_HOUR]):
        # Not from the present: logs of last year can be looked at, too. But no wrong clock may reach into the future.
        newest = min(max(timed), time.time_ns() // 1000 // HOUR_US)
        oldest = max(oldest, newest + 1 - keep_us // HOUR_US)
    hours = {hour: parts for hour, parts in manifest.hours.items() if hour == NO_HOUR or hour >= oldest}
    logs = {
        key: replace(
            log,
            hours=tuple(hour for hour in log.hours if hour in hours or (hour in log.left_out and hour >= oldest)),
            left_out={hour: lines for hour, lines in log.left_out.items() if hour >= oldest},
        )
        for key, log in manifest.logs.items()
    }
    left = {key: log for key, log in logs.items() if log.hours or key in given}
    return manifest.with_changes(logs=left, hours=hours, forgotten=oldest)
