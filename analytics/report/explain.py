"""Why something is an incident: one incident in sentences, then the rows of the steps that led to it (``--explain``).

The rules stand in the SQL of :mod:`analytics.rules`, and only there. A sentence here holds a figure of an incident
against the threshold to which a rule holds it, so that a reader sees by how much it is one, and which ``--set`` would
change that. The figures are from the tables of the steps, the thresholds from the report's parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.report.formats import clock, counted, number, percent, rate, span
from tricklecast.analytics.report.json import as_dict
from tricklecast.analytics.report.mitigate import mitigations
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.report.text import shown
from tricklecast.analytics.report.words import TRIGGERS, client_name, line_of
from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.rules.engine import MOST, REASONS

if TYPE_CHECKING:
    from tricklecast.analytics.report.model import Report, ReportedIncident
    from tricklecast.analytics.rules.params import Params

MAX_ROWS: Final = 20
"""Rows of a step that are shown to people; JSON has more."""

Step = tuple[str, list[str], list[tuple[Any, ...]]]
"""A table of the rules, names of its columns, rows."""

Row = dict[str, Any]
_S = StormClass

# In these sentences `p` are the thresholds; behind a sentence stands the `--set` of each that it names.

_FLEETS: Final[dict[str, str]] = {
    "fleet_overload": "{n:,} refusals of {clients} {course}: {p.amplified_s} seconds are enough in which"
    " {p.many_clients} clients come back before {p.early:%} of Retry-After, and all together make"
    " {p.amplification} requests of each wanted one",
    "fleet_herd": "{n:,} failures of {clients} {course}: {p.herd_clients} clients in one second are enough, if these"
    " are {p.herd_ratio} times as many as usual there, and make {p.amplification} requests each in the mean",
    "fleet_retry": "{n:,} requests of {clients} {course}, {each} by each in the mean: {p.herd_clients} clients that try"
    " the same {p.tries} times and do not slow down are enough, at {p.fast_rps}/s in all",
    "fleet_miss": "{n:,} requests of {clients} {course}, {each} by each in the mean: {p.herd_clients} clients that try"
    " the same {p.slow_hits} times each and do not slow down are enough, at {p.fast_rps}/s in all",
}
"""Why a fleet is a storm, by what it was answered."""

_FAST: Final = "{hits:,} {what} of {who} {course}: {p.fast_hits} are enough at {p.fast_rps}/s"
_MANY: Final = "{hits:,} {what} of {who} {course}: {p.slow_hits} are enough at any pace"
_TOGETHER: Final = (
    "{hits:,} {what} of {who} {course}, and {together:,} with what it got right before and after: {p.slow_hits} are"
    " enough at any pace"
)

_SLOW: Final = "stays below {p.not_found_rps}/s in the mean and {p.fast_rps}/s at most: here {paced}"
_CUE: Final = "overload_amplification needs no cue for all: here "

_CLASSES: Final[tuple[tuple[StormClass, Callable[[Row], Any], str], ...]] = (
    (
        _S.NOT_FOUND_LOOP,
        bool,
        "not_found_drip is below {p.not_found_rps}/s of each client, on a channel that has ended: here {paced}, and"
        " {ended}",
    ),
    (
        _S.NOT_FOUND_DRIP,
        bool,
        "not_found_loop is faster than {p.not_found_rps}/s of each client: here {paced}, and {ended}",
    ),
    (_S.SEQ_AHEAD_SWEEP, bool, "seq_behind_loop is for segments below the head: here for {asked}, and {head}"),
    (_S.SEQ_AHEAD_SWEEP, bool, f"A client that waits for the next segment {_SLOW}"),
    (_S.SEQ_BEHIND_LOOP, bool, "seq_ahead_sweep is for segments from the head on: here for {asked}, and {head}"),
    (_S.SEQ_BEHIND_LOOP, bool, f"A client that falls behind now and then {_SLOW}"),
    (_S.ZERO_BYTE_LOOP, bool, "ended_loop takes answers that say that the channel has ended: here none did"),
    (_S.ENDED_LOOP, bool, "zero_byte_loop is for a channel that goes on: here {ended}"),
    (
        _S.SAME_SEGMENT_LOOP,
        bool,
        "A player that seeks takes a segment fewer than {p.browse_times} times, and fewer than {p.browse_rps} of all"
        " per second: here {times} times each, {paced}",
    ),
    (
        _S.REPOST_LOOP,
        bool,
        "On a bad network a segment is posted again after more than {p.gap_s} s: here after {pause} in the mean",
    ),
    (
        _S.OVERLOAD_CLIENT,
        lambda row: row["retry_after_ms"],
        "A polite client waits {p.early:%} of Retry-After, {told}, or longer: here {gap} in the mean",
    ),
    (
        _S.OVERLOAD_CLIENT,
        lambda row: not row["retry_after_ms"],
        "A polite client without Retry-After stays below {p.overload_rps}/s in the mean: here {paced}",
    ),
    (
        _S.OVERLOAD_CLIENT,
        bool,
        "overload_amplification takes {p.many_clients} clients at the same time: here {every}",
    ),
    (
        _S.OVERLOAD_AMPLIFICATION,
        bool,
        "overload_client is for fewer than {p.many_clients} clients at the same time: here {every}",
    ),
    (
        _S.OVERLOAD_AMPLIFICATION,
        lambda row: row["answer"] == "fleet_retry",
        "thundering_herd takes {p.herd_arrival_share:%} of the clients within {p.herd_arrival_s} s: here they came"
        " later",
    ),
    (
        _S.THUNDERING_HERD,
        lambda row: row["at_once"],
        _CUE + "{p.herd_arrival_share:%} of the clients came within {p.herd_arrival_s} s",
    ),
    (_S.THUNDERING_HERD, lambda row: row["trigger"], _CUE + "it is {trigger}"),
    (_S.THUNDERING_HERD, lambda row: row["restarted"], _CUE + "the server sent its clients away"),
    (
        _S.THUNDERING_HERD,
        lambda row: row["insistent"],
        _CUE + "most sent {p.herd_insists} requests or more, at {p.herd_insists_rps}/s or faster",
    ),
    (
        _S.THUNDERING_HERD,
        lambda row: not (row["at_once"] or row["trigger"] or row["restarted"] or row["insistent"]),
        _CUE + "the server was silent before it",
    ),
    (
        _S.SERVER_ERROR_LOOP,
        lambda row: not row["fleet"] and " /" in (row["channel"] or ""),
        "A health check stays at {p.overload_rps}/s: here {paced}; {statuses}",
    ),
    (
        _S.WEB_LOOP,
        lambda row: row["answer"] == "again",
        "A poll stays below {p.again_rps}/s if its answers are empty, else below {p.fast_rps}/s: here {paced};"
        " {statuses}",
    ),
    (
        _S.WEB_LOOP,
        lambda row: row["status_lo"] == 404 and not row["fleet"],
        f"A poll that gets 404 {_SLOW}",
    ),
)
"""Why a case is of its class, and where a neighbour begins: class, the cases of which it is said, and the sentence."""

_COST: Final = (
    "{cost} of what its servers did in these minutes: {p.share:%} make it warn, and {p.heavy_share:%} with the peak"
    " below critical"
)
_CHEAP: Final = "{mean} in the mean: below {p.share_rps}/s its cost does not count"
_PEAK: Final = "{peak}/s at its peak: {p.peak_rps}/s make it warn"
_HARM: Final = (
    "{refused:,} requests of others refused, {slowed:,} slow: {p.harm_n} of either that are {p.harm_share:%} of"
    " theirs make it critical, if its cost makes it warn"
)


def explanation(report: Report, wanted: str, steps: Sequence[Step]) -> Iterator[str]:
    """The lines for people.

    Args:
        wanted: the incident's id. steps: its rows (:func:`analytics.rules.engine.explain`).
    """
    entry = next(one for one in report.incidents if one.id == wanted)
    yield line_of(entry)
    for title, sentences in reasons(entry, steps, report.params).items():
        yield from ("", f"{title}:", *(f"  - {sentence}" for sentence in sentences))
    yield from ("", "Its lines:", *(f"    {shown(line)}" for line in entry.lines))
    # A report of thousands of incidents has none of the last ones'.
    for one in entry.mitigations or mitigations(entry, report.quality.formats):
        yield from ("", f"{one.title}:", *(f"    {line}".rstrip() for line in one.code.splitlines()))
    for name, columns, rows in steps:
        yield from ("", f"{name}: {counted(len(rows), 'row')}{' or more' if len(rows) == MOST else ''}")
        for row in rows[:MAX_ROWS]:
            values = {key: value for key, value in zip(columns, row, strict=True) if value is not None}
            yield f"  {' '.join(f'{key}={plain(str(value), 120)}' for key, value in values.items())}"
        if len(rows) > MAX_ROWS:
            yield f"  … {len(rows) - MAX_ROWS:,} more (--json-file has them)"


def explanation_json(report: Report, wanted: str, steps: Sequence[Step]) -> str:
    """The same as a JSON document."""
    entry = next(one for one in report.incidents if one.id == wanted)
    document = {
        "explanation": "tricklecast storms",
        "incident": as_dict(report)["incidents"][entry.number - 1],
        "reasons": reasons(entry, steps, report.params),
        "steps": [
            {"table": name, "rows": [dict(zip(columns, row, strict=True)) for row in rows]}
            for name, columns, rows in steps
        ],
    }
    return json.dumps(document, ensure_ascii=True, indent=2, default=str) + "\n"


def reasons(entry: ReportedIncident, steps: Sequence[Step], params: Params) -> dict[str, list[str]]:
    """Sentences on why it is a storm, why of its class and no neighbour's, and why of its severity, by their titles."""
    tables = {name: [dict(zip(columns, row, strict=True)) for row in rows] for name, columns, rows in steps}
    found: dict[str, list[str]] = {"Why it is a storm": []}
    phases = {phase.storm for phase in entry.phases}
    for row in tables[REASONS]:
        values = _values(row, entry)
        found["Why it is a storm"] += [_said(sentence, params, values) for sentence in _enough(row, params)]
        # What a fleet tells is not told again by the loops of its members.
        if row["class"] in phases:
            many = (row["class"], entry.storm) == (_S.OVERLOAD_CLIENT, _S.OVERLOAD_AMPLIFICATION)
            forms = [form for storm, holds, form in _CLASSES if storm == row["class"] and holds(row)]
            lines = [_said(form, params, values) for form in forms or ["The answers decide it: {statuses}"]]
            title = f"Why it is {entry.storm if many else row['class']}"
            found[title] = list(dict.fromkeys((*found.get(title, ()), *lines)))
    row, impact = tables["incidents"][0], entry.impact
    values = {
        "cost": percent(row["cost"]),
        "mean": rate(row["mean_rps"]),
        "peak": number(tables["peaks"][0]["peak_rps"]),
        "refused": impact.others_refused,
        "slowed": impact.others_slowed,
    }
    forms = [_CHEAP if row["mean_rps"] < params.share_rps else _COST, _PEAK, _HARM]
    return found | {f"Why it is {entry.severity}": [_said(form, params, values) for form in forms]}


def _said(form: str, params: Params, values: Row) -> str:
    settings: dict[str, str] = {}

    def threshold(found: re.Match[str]) -> str:
        value = getattr(params, found[1])
        settings[found[1]] = f"--set {found[1]}={value:g}"
        return f"{number(100 * value)} %" if found[2] else f"{value:g}"

    said = re.sub(r"{p\.(\w+)(:%)?}", threshold, form).format_map(values)
    return said + (f" ({' '.join(settings.values())})" if settings else "")


def _enough(row: Row, params: Params) -> list[str]:
    """The rules that make a case a storm."""
    if row["fleet"]:
        return [_FLEETS[row["answer"]]]
    return [_FAST] * row["fast"] + [_MANY] * (row["hits"] >= params.slow_hits) or [_TOGETHER]


def _values(row: Row, entry: ReportedIncident) -> Row:
    """The figures of a case as the sentences have them."""
    n, hits, clients = row["n"], row["hits"], len(row["clients"])
    seconds, mean, peak = (
        (row["last_us"] - row["first_us"]) / 1e6,
        row["mean_rps"],
        max(row["peak_rps"], row["mean_rps"]),
    )
    more = f", and {row['cases'] - 1:,} more like this" if row["cases"] > 1 else ""
    statuses = [str(one) for one in dict.fromkeys((row["status_lo"], row["status_hi"])) if one is not None]
    return {
        "n": n,
        "hits": hits,
        "what": "repeats" if hits < n else "requests",
        "who": client_name(row["clients"][0], None, named=entry.named),
        "clients": counted(clients, "client"),
        "every": counted(entry.n_clients, "client"),
        "each": number(n / clients),
        "times": number(n / max(1, row["seqs"])),
        "together": row["together"],
        "course": f"in {span(seconds)}, {rate(peak)} at most{more}",
        "paced": f"{rate(mean / clients)} of each client in the mean"
        if clients > 1
        else f"{rate(mean)} in the mean, {rate(peak)} at most",
        "pause": span(seconds / max(1, hits - 1)),
        "gap": span((row["gap_ms"] or 0) / 1e3),
        "told": span(row["told_ms"] / 1e3),
        "asked": " to ".join(str(seq) for seq in dict.fromkeys((row["seq_lo"], row["seq_hi"]))),
        "head": "the log does not say the head" if row["head_hi"] is None else f"the head was at {row['head_hi']}",
        "ended": "no event says when it ended" if row["ended_us"] is None else f"it ended at {clock(row['ended_us'])}",
        "trigger": TRIGGERS.get(row["trigger"], ""),
        "statuses": f"status {' to '.join(statuses)}" if statuses else "none came before it was given up",
    }
