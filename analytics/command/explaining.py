"""``--explain ID``: one episode's evidence, for people and for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.command.outputs import STDOUT, write_at_once
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.explain import GAP_BOUNDS_MS, Evidence, Line
from tricklecast.analytics.report.formats import counted, date_and_time
from tricklecast.analytics.report.plain import as_text, plain, spelled
from tricklecast.analytics.report_old.evidence import (
    OUTCOMES,
    RETRY_AFTER,
    blast_of,
    cost_of,
    evidence,
    rhythm_of,
    span_of,
)
from tricklecast.analytics.report_old.json_report import episode_dict
from tricklecast.analytics.verbatim import verbatim

if TYPE_CHECKING:
    from tricklecast.analytics.params import StormParams
    from tricklecast.analytics.report_old.model import Episode, Report

VERSION: Final = 1
"""Of the JSON form."""

MAX_SHOWN: Final = 2_000
"""Characters of a line that are shown."""

_NAMES: Final = 200
_BAR: Final = 40


def find_episode(report: Report, wanted: str) -> Episode:
    """The episode with this id, or whose id begins so.

    Raises:
        BadInput: there is none, or more than one.
    """
    found = [episode for episode in report.episodes if episode.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadInput(f"{len(found)} episodes have an id that begins with {wanted}: {found[0].id}, {found[1].id} ...")
    if not report.episodes:
        raise BadInput(f"there is no episode {wanted}: these logs have no storm")
    listed = f", of which the worst {len(report.episodes):,} have an id" if _cut(report) else ""
    worst = report.episodes[0]
    raise BadInput(
        f"there is no episode {wanted} in these logs: they have {report.n_episodes:,}{listed};"
        f" the worst is {worst.id} ({worst.storm.value})"
    )


def _cut(report: Report) -> bool:
    return report.n_episodes > len(report.episodes)


def show(found: Evidence, params: StormParams, json_file: str | None, *, quiet: bool = False) -> None:
    """Writes the evidence to a file, and prints it unless standard output is that file."""
    texts = verbatim([*found.first, *found.last, *([found.trigger] if found.trigger else [])])
    if json_file is not None:
        write_at_once(json_file, _as_json(found, params, texts))
    if json_file != STDOUT and not quiet:
        sys.stdout.write("".join(f"{line}\n" for line in _as_text(found, params, texts)))


def _as_json(found: Evidence, params: StormParams, texts: dict[Line, str]) -> str:
    def line(one: Line) -> dict[str, Any]:
        return {"ts_us": one.ts_us, "file": one.file, "line": texts.get(one), "record": json.loads(one.record)}

    document = {
        "explanation": "tricklecast storms",
        "version": VERSION,
        "episode": episode_dict(found.episode),
        "arithmetic": [as_text(phrase, _NAMES) for phrase in evidence(found.episode, params)],
        "trigger": line(found.trigger) if found.trigger else None,
        "n_lines": found.n_lines,
        "first": [line(one) for one in found.first],
        "last": [line(one) for one in found.last],
        "gaps": {"client": found.gaps.client, "bounds_ms": GAP_BOUNDS_MS, "counts": found.gaps.counts},
    }
    return json.dumps(document, ensure_ascii=True, allow_nan=False, indent=2) + "\n"


def _as_text(found: Evidence, params: StormParams, texts: dict[Line, str]) -> Iterator[str]:
    episode = found.episode
    yield f"{episode.severity.value.upper()} {episode.storm.value} {episode.id}"
    yield f"{date_and_time(episode.start_us)} UTC ({span_of(episode)})"
    yield from _facts(episode)
    yield ""
    yield "Arithmetic"
    yield from (f"  {as_text(phrase, _NAMES)}" for phrase in evidence(episode, params))
    yield ""
    yield from _trigger(found, texts)
    yield from _lines(found, texts)
    yield from _gaps(found)
    yield f"Likely cause: {episode.why.cause}."
    yield f"What helps: {episode.why.advice}."


def _facts(episode: Episode) -> Iterator[str]:
    known = {
        "node": plain(episode.node, _NAMES),
        "release": plain(episode.release, _NAMES),
        "clients": _named(episode.clients, episode.n_clients),
        "channels": _named(episode.channels, episode.n_channels),
        "rhythm": as_text(rhythm_of(episode), _NAMES) or "-",
        "Retry-After": RETRY_AFTER.get(episode.retry_after or "", "-"),
        "outcome": OUTCOMES.get(episode.outcome or "", "-"),
        "the healthy": blast_of(episode) or "-",
        "cost": cost_of(episode),
    }
    yield from (f"  {name:<12} {text}" for name, text in known.items() if text != "-")


def _named(names: tuple[str, ...], count: int) -> str:
    shown = ", ".join(plain(name) for name in names[:5])
    return f"{shown} and {count - len(names[:5]):,} more" if count > len(names[:5]) else shown or "-"


def _trigger(found: Evidence, texts: dict[Line, str]) -> Iterator[str]:
    if found.trigger is not None:
        yield "Trigger"
        yield _shown(found.trigger, texts)
        yield ""


def _lines(found: Evidence, texts: dict[Line, str]) -> Iterator[str]:
    hidden = found.n_lines - len(found.first) - len(found.last)
    understood = "" if texts else " (as they were understood: this log is not of JSON lines on this machine)"
    yield f"Lines: {counted(found.n_lines, 'line')} of the log{understood}"
    yield from (_shown(line, texts) for line in found.first)
    if hidden > 0:
        yield f"  … {hidden:,} more …"
    yield from (_shown(line, texts) for line in found.last)
    yield ""


def _shown(line: Line, texts: dict[Line, str]) -> str:
    text = texts.get(line, line.record)
    cut = f" … ({len(text):,} characters)" if len(text) > MAX_SHOWN else ""
    return f"  {spelled(text[:MAX_SHOWN])}{cut}"


def _gaps(found: Evidence) -> Iterator[str]:
    counts = found.gaps.counts
    if not sum(counts):
        return
    yield f"Pauses of {plain(found.gaps.client)}"
    for place, count in enumerate(counts):
        if count:
            bar = "#" * max(1, round(_BAR * count / max(counts)))
            yield f"  {_bound(place):>10} {count:>8,} {bar}"
    yield ""


def _bound(place: int) -> str:
    if place == len(GAP_BOUNDS_MS):
        return f">= {_ms(GAP_BOUNDS_MS[-1])}"
    return f"< {_ms(GAP_BOUNDS_MS[place])}"


def _ms(bound: int) -> str:
    return f"{bound} ms" if bound < 1000 else f"{bound // 1000} s"
