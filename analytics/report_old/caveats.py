"""What in a log limits how far its report can be trusted, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.report.formats import counted, date_and_time, duration, percent
from tricklecast.analytics.report.plain import Name, Phrase

if TYPE_CHECKING:
    from tricklecast.analytics.report_old.figures import Quality

MAX_LISTED: Final = 20
"""Names and stretches listed for one caveat; the others are counted."""


def caveats(quality: Quality) -> tuple[Phrase, ...]:
    """Whatever the reader should know about the log before believing the report; empty for a log without faults."""
    return tuple(phrase for phrase in (*_lines(quality), *_files(quality), *_clocks(quality)) if phrase)


def _lines(quality: Quality) -> list[Phrase]:
    share = percent(quality.unparsable_share)
    return [
        _if(quality.unparsable, f"{counted(quality.unparsable, 'line')} could not be read ({share})"),
        _if(quality.dropped, f"records lost by the server ({counted(quality.dropped, 'log_dropped event')})"),
        _if(quality.anonymous, f"{counted(quality.anonymous, 'request')} without a client: in no client's episode"),
        _if(
            quality.duplicates, f"{counted(quality.duplicates, 'line')} were there more than once and are counted once"
        ),
        _if(quality.lines and not quality.events, "no lifecycle events: no storm has a trigger"),
        _if(quality.coarse, "times are whole seconds: how clients paced themselves cannot be judged"),
        _listed("fields that no line has: ", quality.missing_columns),
    ]


def _files(quality: Quality) -> list[Phrase]:
    return [
        _listed("compressed files that end early or are none: ", quality.damaged_files),
        _listed("files left out, being copies of others: ", quality.duplicate_files),
        *((Name(note),) for note in quality.notes[:MAX_LISTED]),
    ]


def _clocks(quality: Quality) -> list[Phrase]:
    gaps: list[Phrase] = [
        ("no lines from ", Name(gap.node), f" between {date_and_time(gap.from_us)} and {date_and_time(gap.to_us)} UTC")
        for gap in quality.gaps[:MAX_LISTED]
    ]
    steps: list[Phrase] = [
        ("the clock of ", Name(step.node), f" is {_skew(step.skew_s)} from {date_and_time(step.at_us)} UTC on")
        for step in quality.clock_steps[:MAX_LISTED]
    ]
    rest = len(quality.gaps) - len(gaps) + len(quality.clock_steps) - len(steps)
    return [*gaps, *steps, _if(rest, f"{rest:,} more gaps and steps of clocks")]


def _skew(seconds: float) -> str:
    return f"{duration(abs(seconds))} {'ahead' if seconds > 0 else 'behind'}"


def _if(condition: object, text: str) -> Phrase:
    return (text,) if condition else ()


def _listed(text: str, names: Sequence[str]) -> Phrase:
    if not names:
        return ()
    parts: list[str | Name] = [text]
    for at, name in enumerate(names[:MAX_LISTED]):
        parts += [", ", Name(name)] if at else [Name(name)]
    if len(names) > MAX_LISTED:
        parts.append(f" and {len(names) - MAX_LISTED:,} more")
    return tuple(parts)
