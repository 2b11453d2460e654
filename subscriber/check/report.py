"""The report, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tricklecast.subscriber.check.findings import Finding, Verdict
from tricklecast.subscriber.check.judge import Judgement
from tricklecast.subscriber.check.media import Track
from tricklecast.subscriber.check.observations import Seen
from tricklecast.trickle.wire import redacted

VERSION: Final = 1
"""Raised when a field changes its meaning or goes away; new fields do not raise it."""

_STYLES: Final = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red", Verdict.SKIP: "dim"}
_WORDS: Final = {Verdict.OK: "OK", Verdict.WARN: "WARN", Verdict.FAIL: "FAIL", Verdict.SKIP: "-"}


def as_json(url: str, judgement: Judgement) -> str:
    """The report as a JSON document (docs/reference/check.md).

    It is ASCII: names and messages come from whoever published them, and a terminal must not obey them.
    """
    return json.dumps(as_dict(url, judgement), ensure_ascii=True, allow_nan=False, indent=1) + "\n"


def as_dict(url: str, judgement: Judgement) -> dict[str, Any]:
    """The JSON object of a report."""
    run = judgement.run
    began_s = min((seen.requested_s for seen in run.seen), default=0.0)
    return {
        "report": "tricklecast check",
        "version": VERSION,
        "url": redacted(url),
        "verdict": judgement.verdict.value,
        "seconds": round(run.seconds, 3),
        "ended": run.ended.value,
        "error": run.error or None,
        "limits": {name: value for name, value in asdict(judgement.limits).items() if name != "given"},
        "limits_given": sorted(judgement.limits.given),
        "checks": [_finding(finding) for finding in judgement.findings],
        "segments": [_segment(seen, began_s, judgement.lengths.get(seen.number)) for seen in run.seen],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.name,
        "title": finding.title,
        "verdict": finding.verdict.value,
        "figure": finding.figure,
        "means": finding.means or None,
        "cure": finding.cure or None,
        "values": dict(finding.values),
        "segments": list(finding.segments),
    }


def _segment(seen: Seen, began_s: float, length_s: float | None) -> dict[str, Any]:
    picture = seen.picture
    return {
        "seq": seen.seq,
        "epoch": seen.epoch,
        "gap": seen.gap,
        "restarted": seen.restarted,
        "content_type": seen.content_type,
        "container": seen.media.container.value,
        "bytes": seen.size,
        "skipped": seen.skipped,
        "truncated": seen.truncated,
        "broken": seen.broken,
        "left": seen.left,
        "length_s": None if length_s is None else round(length_s, 6),
        "requested_s": round(seen.requested_s - began_s, 6),
        "answered_s": round(seen.answered_s - began_s, 6),
        "first_byte_s": round(seen.first_s - began_s, 6),
        "last_byte_s": round(seen.last_s - began_s, 6),
        "answered_us": seen.wall_us,
        "producer_us": seen.producer_us,
        "picture_clock_ms": None if picture is None else picture.clock_ms,
        "decoded": None if picture is None else picture.decoded,
        "tables": seen.media.tables,
        "faults": {fault.value: number for fault, number in seen.media.faults.items()},
        "tracks": [_track(track) for track in seen.media.tracks],
    }


def _track(track: Track) -> dict[str, Any]:
    return {
        "name": track.name,
        "codec": track.codec,
        "samples": track.samples,
        "hz": track.hz,
        "first_dts": track.first_dts,
        "last_dts": track.last_dts,
        "first_pts": track.first_pts,
        "keyframe_first": track.opening.key,
    }


def print_report(url: str, judgement: Judgement, console: Console) -> None:
    """Print a table: one line per check, and below it what is wrong, what that means and what to do."""
    run = judgement.run
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in judgement.findings:
        if not run.seen and finding.verdict is not Verdict.FAIL:
            continue  # of nothing, nothing can be told
        table.add_row(
            Text(_WORDS[finding.verdict], _STYLES[finding.verdict]),
            Text(finding.title),
            _text(finding),
        )
    console.print(Text(printable(redacted(url)), "bold"))
    console.print(table)
    words = {Verdict.OK: "fine", Verdict.WARN: "fine, with warnings", Verdict.FAIL: "not fine", Verdict.SKIP: ""}
    end = f"{words[judgement.verdict]}, after {run.seconds:.0f} s ({run.ended})"
    console.print(Text(end, _STYLES[judgement.verdict]))


def _text(finding: Finding) -> Text:
    style = "dim" if finding.verdict is Verdict.SKIP else ""
    text = Text(printable(finding.figure), style)
    if finding.segments:
        text.append(f"\nsegments {', '.join(map(str, finding.segments))}", "dim")
    if finding.means:
        text.append(f"\n{printable(finding.means)}")
    if finding.cure:
        text.append(f"\n{printable(finding.cure)}", "italic")
    return text


def printable(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)
