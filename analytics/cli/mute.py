"""``tricklecast storms mute`` and ``unmute``: incidents of which nobody wants to hear for a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tricklecast.analytics.errors import AnalyticsError, BadInput
from tricklecast.analytics.times import parse_duration, parse_time

MOST_US: Final = 100 * 365 * 86_400_000_000
"""Nobody mutes for longer: it is a slip of the keys."""

if TYPE_CHECKING:
    from tricklecast.analytics.store.memory import Memory

Name = Annotated[
    str,
    typer.Argument(metavar="FINGERPRINT", help="Of an incident, as a report or an alert has it; or the incident's id."),
]
Place = Annotated[
    str | None, typer.Option("--table", metavar="DIR|URL", help="The table of the reports (storms --table).")
]
State = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="The state of a watch (storms watch --state), or a stream."),
]


def mute(
    fingerprint: Name,
    until: Annotated[str, typer.Option(metavar="TIME|DURATION", help="Until when: 2026-12-01, or 7d from now.")],
    table: Place = None,
    state: State = None,
) -> None:
    """Mute incidents of a kind: reports show them last, and they count neither for the verdict nor for the exit code.

    A watch sends no alert of them. It hears of it while it runs.

    Exit codes: 0 muted; 2 wrong usage; 3 there is no such incident.

    Examples:

    \b
      tricklecast storms mute 1f0c3a9be27d --until 7d --table /var/lib/storms
      tricklecast storms mute 1f0c3a9be27d --until 2026-12-01T08:00 --state /var/lib/storms-watch
    """
    now_us = time.time_ns() // 1000
    until_us = _until(until, now_us)
    from tricklecast.analytics.report.formats import date_and_time

    with _memory(table, state) as memory:
        name = memory.mute(fingerprint, until_us, now_us, _known(state))
    print(f"{name} is muted until {date_and_time(until_us)} UTC")


def unmute(fingerprint: Name, table: Place = None, state: State = None) -> None:
    """Mute incidents of a kind no longer.

    Exit codes: 0 done; 2 wrong usage; 3 there is no such incident.

    Example:

    \b
      tricklecast storms unmute 1f0c3a9be27d --table /var/lib/storms
    """
    from tricklecast.analytics.store.memory import mutes

    with _memory(table, state) as memory:
        now_us = time.time_ns() // 1000
        before = mutes(memory.place, now_us)
        name = memory.mute(fingerprint, 0, now_us, _known(state))
        ended = mutes(memory.place, now_us) != before
    print(f"{name} is no longer muted" if ended else f"{name} was not muted")


def _until(text: str, now_us: int) -> int:
    """A moment to come, microseconds since the epoch."""
    forms = "write 7d, 2h or 2030-12-01T08:00 (UTC)"
    try:
        try:
            until_us = now_us + parse_duration(text)
        except ValueError:
            until_us = parse_time(text, now_us)
    except ValueError:
        raise typer.BadParameter(f"--until takes a time to come, not {text!r}; {forms}") from None
    if until_us <= now_us:
        raise typer.BadParameter(f"--until {text} is not a time to come; {forms}")
    if until_us > now_us + MOST_US:
        raise typer.BadParameter(f"--until {text} is more than 100 years ahead; {forms}")
    return until_us


def _known(state: Path | None) -> dict[str, str] | None:
    from tricklecast.analytics.store.store import fingerprints

    return None if state is None else fingerprints(state)


@contextmanager
def _memory(table: str | None, state: Path | None) -> Iterator[Memory]:
    if (table is None) == (state is None):
        raise typer.BadParameter("pass either --table PLACE or --state DIR")
    from tricklecast.analytics.lines.files import REMOTE
    from tricklecast.analytics.store.memory import Memory
    from tricklecast.analytics.store.place import Folder
    from tricklecast.analytics.store.store import FILE

    try:
        # A mute in any other folder is one that no watch hears of.
        if state is not None and not (state / FILE).is_file():
            raise BadInput(f"there is no state of a watch in {str(state)!r}: pass the folder of its --state")
        if table is None or not REMOTE.match(table):
            if table is not None and not Path(table).is_dir():
                raise BadInput(f"there is no table in {table!r}")
            yield Memory(Folder(str(state or table)))
            return
        from tricklecast.analytics.spark.session import failures_as_one_line, spark_session
        from tricklecast.analytics.spark.table import Bucket

        with spark_session(small=True) as spark, failures_as_one_line():
            yield Memory(Bucket(table, spark))
    except AnalyticsError as error:
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
