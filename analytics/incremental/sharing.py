"""New logs into a state, each line once: also where a known log has it, or two new ones.

Roll-ups cannot be told apart line by line. So where they show traces of lines that are there twice, the logs of those
hours are read again, all at once, as far as they are still there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tricklecast.analytics.content import has_repeated_line
from tricklecast.analytics.duplicates import suspected, traces_in
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.incremental.identity import stamp_of
from tricklecast.analytics.incremental.manifest import KnownLog, Part
from tricklecast.analytics.incremental.store import Lines, compared, lines_kept, linked, set_aside, write_hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tricklecast.analytics.incremental.update import RollUp, State
    from tricklecast.analytics.progress import Stage


def take_in(
    spark: SparkSession, state: State, known: Mapping[str, KnownLog], roll_up: RollUp, stage: Stage
) -> tuple[dict[int, tuple[Part, ...]], dict[str, KnownLog]]:
    """Writes the hours that change: with the rows of new logs, without those of outdated ones.

    Args:
        known: logs in the state that stay.

    Returns:
        the files by hour, of the hours that changed, and the logs that were read.

    Raises:
        BadInput: a log was replaced while it was being read.
    """
    folder, manifest, intake = state.folder, state.manifest, state.intake
    fresh, gone = intake.fresh, intake.outdated
    lines: Lines = {}
    if fresh:
        with linked(fresh, state.files) as files:
            lines = set_aside(spark, folder, roll_up(files, False))
    hours = {hour for found in lines.values() for hour in found}
    hours |= {hour for key in gone for hour in manifest.logs[key].hours}
    beside = {key: log for key, log in known.items() if hours & set(log.hours)}
    there = {key: log for key, log in beside.items() if _is_there(log)}
    names = [log.name for log in (*fresh.values(), *there.values())]
    # What a log that goes shared with others may count nowhere now.
    again = any(manifest.logs[key].shared for key in gone) and bool(fresh or there)
    if not again and lines:
        again = suspected(
            traces_in(compared(spark, folder, manifest, beside, hours)), partial(has_repeated_line, names)
        )
    if not again:
        changed = write_hours(spark, folder, manifest, lines, gone)
        _check_unmoved(fresh)
        return changed, {key: _read(log, lines.get(key, {}), {}) for key, log in fresh.items()}

    before = lines | _with_left_out(lines_kept(spark, folder, manifest, there, hours), there, hours)
    with stage("leaving out lines that are there twice"), linked({**fresh, **there}, state.files) as files:
        lines = set_aside(spark, folder, roll_up(files, True), there, hours)
    lost = beside.keys() - there.keys()
    unsure = bool(lost) and suspected(traces_in(compared(spark, folder, manifest, lost, hours)))
    changed = write_hours(spark, folder, manifest, lines, gone, there, hours)
    _check_unmoved({**fresh, **there})
    left_out = {key: _difference(counts, lines.get(key, {})) for key, counts in before.items()}
    shared = any(left_out.values())
    read = {
        key: replace(_read(log, lines.get(key, {}), left_out.get(key, {})), shared=shared, unsure=unsure)
        for key, log in fresh.items()
    }
    for key, log in there.items():
        elsewhere = {hour: count for hour, count in log.left_out.items() if hour not in hours}
        read[key] = replace(log, left_out=elsewhere | left_out.get(key, {}), shared=log.shared or shared)
    return changed, read


def _read(log: KnownLog, lines: Mapping[int, int], left_out: Mapping[int, int]) -> KnownLog:
    return replace(log, hours=tuple(sorted({*lines, *left_out})), left_out=left_out)


def _with_left_out(lines: Lines, logs: Mapping[str, KnownLog], hours: Collection[int]) -> Lines:
    """The lines as the logs have them."""
    return {
        key: {hour: count for hour in hours if (count := lines.get(key, {}).get(hour, 0) + log.left_out.get(hour, 0))}
        for key, log in logs.items()
    }


def _difference(before: Mapping[int, int], after: Mapping[int, int]) -> dict[int, int]:
    """By hour; negative where lines without a time have moved with the first hour of their log."""
    differences = {hour: before.get(hour, 0) - after.get(hour, 0) for hour in sorted({*before, *after})}
    return {hour: lines for hour, lines in differences.items() if lines}


def _is_there(log: KnownLog) -> bool:
    try:
        return stamp_of(log.name) == log.stamp
    except BadInput:
        return False


def _check_unmoved(logs: Mapping[str, KnownLog]) -> None:
    """A log that only grew is read again the next time; one that was rotated away was perhaps not read at all."""
    for log in logs.values():
        if stamp_of(log.name).inode != log.stamp.inode:
            raise BadInput(f"{log.name!r} was replaced while it was being read; run again")
