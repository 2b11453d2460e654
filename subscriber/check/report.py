"""The report, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tricklecast.subscriber.check.rules import Finding, Judgement, Level
from tricklecast.subscriber.check.study import Received
from tricklecast.trickle.wire import printable, redacted

VERSION: Final = 2
"""Raised when a field changes its meaning or goes away; new fields do not raise it."""

_OF_TRACKS: Final = ("name", "codec", "samples", "hz", "first_dts", "last_dts", "first_pts")
_STYLES: Final = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.SKIP: "dim"}
_WORDS: Final = {Level.OK: "OK", Level.WARN: "WARN", Level.FAIL: "FAIL", Level.SKIP: "-"}


def as_json(url: str, judgement: Judgement) -> str:
    """The report as a JSON document (docs/reference/check.md).

    It is ASCII: names and messages come from the publisher, and a terminal must not obey them.
    """
    study = judgement.study
    run, limits = study.run, asdict(study.limits)
    given = sorted(limits.pop("given"))
    began_s = min((one.requested_s for one in run.segments), default=0.0)
    report = {
        "report": "tricklecast check",
        "version": VERSION,
        "url": redacted(url),
        "level": judgement.level,
        "seconds": round(run.seconds, 3),
        "ended": run.ended,
        "error": run.error or None,
        "limits": limits,
        "limits_given": given,
        "checks": [
            asdict(one) | {"text": one.text or None, "advice": one.advice or None, "segments": list(one.segments)}
            for one in judgement.findings
        ],
        "segments": [_segment(one, began_s, study.lengths.get(one.number)) for one in run.segments],
    }
    return json.dumps(report, ensure_ascii=True, allow_nan=False, indent=1) + "\n"


def _segment(one: Received, began_s: float, length_s: float | None) -> dict[str, Any]:
    media, picture = one.media, one.media.picture
    plain = ("seq", "epoch", "gap", "restarted", "content_type", "skipped", "truncated", "broken", "left")
    times = {"requested_s": one.requested_s, "answered_s": one.answered_s, "first_byte_s": one.first_s}
    return {
        **{name: getattr(one, name) for name in plain},
        "container": media.container,
        "bytes": one.size,
        "length_s": None if length_s is None else round(length_s, 6),
        **{name: round(at_s - began_s, 6) for name, at_s in (times | {"last_byte_s": one.last_s}).items()},
        "answered_us": one.wall_us,
        "producer_us": media.producer_us,
        "picture_clock_ms": None if picture is None else picture.clock_ms,
        "decoded": None if picture is None else picture.decoded,
        "tables": media.tables,
        "faults": {str(fault): number for fault, number in media.faults.items()},
        "unread": media.unread or None,
        "tracks": [
            {name: getattr(track, name) for name in _OF_TRACKS} | {"keyframe_first": track.key}
            for track in media.tracks
        ],
    }


def print_report(url: str, judgement: Judgement, console: Console) -> None:
    """Print a table: one line per rule, and below it the place of a problem, its meaning, and advice."""
    run = judgement.study.run
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in judgement.findings:
        if not run.segments and finding.level is not Level.FAIL:
            continue  # without a segment there is nothing else to report
        table.add_row(
            Text(_WORDS[finding.level], _STYLES[finding.level]),
            Text(finding.title),
            _text(finding),
        )
    console.print(Text(printable(redacted(url)), "bold"))
    console.print(table)
    words = {Level.OK: "fine", Level.WARN: "fine, with warnings", Level.FAIL: "not fine", Level.SKIP: ""}
    end = f"{words[judgement.level]}, after {run.seconds:.0f} s ({run.ended})"
    console.print(Text(end, _STYLES[judgement.level]))


def _text(finding: Finding) -> Text:
    style = "dim" if finding.level is Level.SKIP else ""
    text = Text(printable(finding.figure), style)
    if finding.segments:
        text.append(f"\nsegments {', '.join(map(str, finding.segments))}", "dim")
    if finding.text:
        text.append(f"\n{finding.text}")
    if finding.advice:
        text.append(f"\n{finding.advice}", "italic")
    return text
