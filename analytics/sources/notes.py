"""What the reader of a report should know about how its logs were read, one sentence each."""

from __future__ import annotations

from typing import Final

from tricklecast.analytics.inputs import LogFiles
from tricklecast.analytics.sources.grouping import Grouped
from tricklecast.analytics.sources.recognise import PARQUET, TRICKLECAST
from tricklecast.trickle.records import VERSION

MAX_NAMES: Final = 10


def notes_on(files: LogFiles, grouped: Grouped) -> tuple[str, ...]:
    """The notes; none for logs of our own without anything unusual."""
    foreign = ", ".join(name for name in grouped.formats if name not in (TRICKLECAST, PARQUET))
    strange = ", ".join(grouped.strange[:MAX_NAMES]) + (", …" if len(grouped.strange) > MAX_NAMES else "")
    cut, versions = ", ".join(grouped.unreadable), ", ".join(grouped.versions)
    other = f"another version of the access log ({versions}; this program reads {VERSION})"
    notes = {
        f"read as logs of {foreign}: what they do not say, such as events, is not known": foreign,
        f"lines of {other} are unparsable": versions,
        f"Parquet files without a whole footer were left out: {cut}": cut,
        f"files in the folder that are no access logs were left out: {strange}": strange,
        f"{files.other_hours:,} files were left out: their partition is of another time": files.other_hours,
    }
    return tuple(note for note, applies in notes.items() if applies)
