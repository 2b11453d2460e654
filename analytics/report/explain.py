"""Why something is an incident: one incident in sentences, then the rows of the steps that led to it (``--explain``).

The rules stand in the SQL of :mod:`analytics.rules`, and only there. A sentence here holds a figure of an incident
against the threshold to which a rule holds it, so that a reader sees by how much it is one, and which ``--set`` would
change that. The figures are from the tables of the steps, the thresholds from the report's parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
    from tricklecast.analytics.report.model import Entry, Report
    from tricklecast.analytics.rules.params import Params

MAX_ROWS: Final = 20
"""Rows of a step that are shown to people; JSON has more."""

Step = tuple[str, list[str], list[tuple[Any, ...]]]
"""A table of the rules, names of its columns, rows."""

Row = dict[str, Any]

_S = StormClass


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


def reasons(entry: Entry, steps: Sequence[Step], params: Params) -> dict[str, list[str]]:
    """Sentences on why it is a storm, why of its class and no neighbour's, and why of its severity, by their titles."""
    tables = {name: [dict(zip(columns, row, strict=True)) for row in rows] for name, columns, rows in steps}
    found = {"Why it is a storm": [_storm(row, entry, params) for row in tables[REASONS]]}
    phases = {phase.storm for phase in entry.phases}
    for row in tables[REASONS]:
        # What a fleet tells is not told again by the loops of its members.
        if row["class"] in phases:
            many = (row["class"], entry.storm) == (_S.OVERLOAD_CLIENT, _S.OVERLOAD_AMPLIFICATION)
            told = found.setdefault(f"Why it is {entry.storm if many else row['class']}", [])
            told += [sentence for sentence in _class(row, entry, params) if sentence not in told]
    found[f"Why it is {entry.severity}"] = list(_severity(tables, entry, params))
    return found


def _storm(row: Row, entry: Entry, p: Params) -> str:
    """How many how fast the largest case of a class is, and how much is enough."""
    n, clients, hits = row["n"], len(row["clients"]), row["hits"]
    course = (
        f"in {span((row['last_us'] - row['first_us']) / 1e6)}, {rate(max(row['peak_rps'], row['mean_rps']))} at most"
    )
    if row["cases"] > 1:
        course += f", and {row['cases'] - 1:,} more like this"
    match row["answer"]:
        case "fleet_overload":
            return (
                f"{n:,} refusals of {clients:,} clients {course}: {p.amplified_s} seconds are enough in which"
                f" {p.many_clients} clients come back before {_share(p.early)} of Retry-After, and all together make"
                f" {number(p.amplification)} requests of each wanted one"
                f" ({_set(p, 'amplified_s', 'many_clients', 'early', 'amplification')})"
            )
        case "fleet_herd":
            return (
                f"{n:,} failures of {clients:,} clients {course}: {p.herd_clients} clients in one second are enough, if"
                f" these are {number(p.herd_ratio)} times as many as usual there, and come again"
                f" ({_set(p, 'herd_clients', 'herd_ratio', 'amplification')})"
            )
        case "fleet_retry" | "fleet_miss":
            return (
                f"{n:,} requests of {clients:,} clients {course}, {number(n / clients)} by each in the mean:"
                f" {p.herd_clients} clients that try the same {p.tries} times and do not slow down are enough, at"
                f" {number(p.fast_rps)}/s in all ({_set(p, 'herd_clients', 'tries', 'steady', 'fast_rps')})"
            )
    fast = f"{p.fast_hits} are enough at {number(p.fast_rps)}/s ({_set(p, 'fast_hits', 'fast_rps')})"
    many = f"{p.slow_hits} are enough at any pace ({_set(p, 'slow_hits')})"
    enough = [told for told, holds in ((fast, row["fast"]), (many, hits >= p.slow_hits)) if holds]
    what = "repeats" if hits < n else "requests"
    return f"{hits:,} {what} of {client_name(row['clients'][0], None, named=entry.named)} {course}: " + (
        "; ".join(enough) or f"with what it got right before and after there are {row['together']:,}, and {many}"
    )


def _class(row: Row, entry: Entry, p: Params) -> Iterator[str]:
    """The figures by which a case has its class, and not a neighbour's."""
    storm, clients = row["class"], len(row["clients"])
    mean = rate(row["mean_rps"] / clients)
    paced = (
        f"{mean} of each client in the mean" if clients > 1 else f"{mean} in the mean, {rate(row['peak_rps'])} at most"
    )
    asked = " to ".join(str(seq) for seq in dict.fromkeys((row["seq_lo"], row["seq_hi"])))
    head = f"the head was at {row['head_hi']}" if row["head_hi"] is not None else "the log does not say the head"
    statuses = " to ".join(str(one) for one in dict.fromkeys((row["status_lo"], row["status_hi"])) if one is not None)
    ended = f"the channel ended at {clock(row['ended_us'])}" if row["ended_us"] is not None else ""
    drip = f"{number(p.not_found_rps)}/s of each client ({_set(p, 'not_found_rps')})"
    slow = (
        f"{number(p.not_found_rps)}/s in the mean and {number(p.fast_rps)}/s at most"
        f" ({_set(p, 'not_found_rps', 'fast_rps')}): here {paced}"
    )
    here = counted(entry.n_clients, "client")
    few = f"{p.many_clients} clients at the same time ({_set(p, 'many_clients')}): here {here}"
    together = (
        f"{_share(p.herd_arrival_share)} of the clients within {span(p.herd_arrival_s)}"
        f" ({_set(p, 'herd_arrival_share', 'herd_arrival_s')})"
    )
    match storm:
        case _S.NOT_FOUND_LOOP:
            yield (
                f"{_S.NOT_FOUND_DRIP} is below {drip}, on a channel that has ended: here {paced}, and"
                f" {ended or 'no event says that the channel ended'}"
            )
        case _S.NOT_FOUND_DRIP:
            yield (
                f"{_S.NOT_FOUND_LOOP} is faster than {drip}: here {paced}, and"
                f" {ended or 'the log shows that the channel has been'}"
            )
        case _S.SEQ_AHEAD_SWEEP:
            yield f"{_S.SEQ_BEHIND_LOOP} is for segments below the head: here for {asked}, and {head}"
            yield f"A client that waits for the next segment stays below {slow}"
        case _S.SEQ_BEHIND_LOOP:
            yield f"{_S.SEQ_AHEAD_SWEEP} is for segments from the head on: here for {asked}, and {head}"
            yield f"A client that falls behind now and then stays below {slow}"
        case _S.ZERO_BYTE_LOOP:
            yield f"{_S.ENDED_LOOP} takes answers that say that the channel has ended: here none did"
        case _S.ENDED_LOOP:
            yield f"{_S.ZERO_BYTE_LOOP} is for a channel that goes on: {ended or 'the answers said that it has ended'}"
        case _S.SAME_SEGMENT_LOOP:
            yield (
                f"A player that seeks takes a segment fewer than {p.browse_times} times, and fewer than"
                f" {number(p.browse_rps)} of all per second ({_set(p, 'browse_times', 'browse_rps')}): here"
                f" {number(row['n'] / max(1, row['seqs']))} times each, {paced}"
            )
        case _S.REPOST_LOOP:
            pause = (row["last_us"] - row["first_us"]) / 1e6 / max(1, row["hits"] - 1)
            yield (
                f"On a bad network a segment is posted again after more than {span(p.gap_s)} ({_set(p, 'gap_s')}): here"
                f" after {span(pause)} in the mean"
            )
        case _S.OVERLOAD_CLIENT:
            if row["retry_after_ms"]:
                yield (
                    f"A polite client waits {_share(p.early)} of Retry-After, {span(row['told_ms'] / 1e3)}, or longer"
                    f" ({_set(p, 'early')}): here {span((row['gap_ms'] or 0) / 1e3)} in the mean"
                )
            else:
                yield (
                    f"A polite client without Retry-After stays below {number(p.overload_rps)}/s in the mean"
                    f" ({_set(p, 'overload_rps')}): here {paced}"
                )
            yield f"{_S.OVERLOAD_AMPLIFICATION} takes {few}"
        case _S.OVERLOAD_AMPLIFICATION:
            yield f"{_S.OVERLOAD_CLIENT} is for fewer than {few}"
            if row["answer"] == "fleet_retry":
                yield f"{_S.THUNDERING_HERD} takes {together}: here they came later"
        case _S.THUNDERING_HERD:
            cues = {
                together: row["at_once"],
                f"{TRIGGERS.get(row['trigger'], '')} before it": row["trigger"] is not None,
                "a server that sent its clients away": row["restarted"],
                f"clients that mostly sent {p.herd_insists} requests or more, at {number(p.herd_insists_rps)}/s or"
                f" faster ({_set(p, 'herd_insists', 'herd_insists_rps')})": row["insistent"],
            }
            found = [cue for cue, holds in cues.items() if holds] or ["a server that was silent before it"]
            yield f"{_S.OVERLOAD_AMPLIFICATION} needs no cue for all: here it is {'; '.join(found)}"
        case _S.SERVER_ERROR_LOOP if not row["fleet"] and " /" in (row["channel"] or ""):
            yield (
                f"A health check stays at {number(p.overload_rps)}/s ({_set(p, 'overload_rps')}): here {paced};"
                f" status {statuses}"
            )
        case _S.WEB_LOOP if row["answer"] == "again":
            yield (
                f"A poll stays below {number(p.again_rps)}/s if its answers are empty, else below"
                f" {number(p.fast_rps)}/s ({_set(p, 'again_rps', 'fast_rps')}): here {paced}; status {statuses}"
            )
        case _S.WEB_LOOP if row["status_lo"] == 404 and not row["fleet"]:
            yield f"A poll that gets 404 stays below {slow}"
        case _:
            yield f"The answers decide it: {f'status {statuses}' if statuses else 'none came before it was given up'}"


def _severity(tables: dict[str, list[Row]], entry: Entry, p: Params) -> Iterator[str]:
    """Cost, peak and harm against what is enough."""
    row, impact = tables["incidents"][0], entry.impact
    if row["mean_rps"] < p.share_rps:
        yield (
            f"{rate(row['mean_rps'])} in the mean: below {number(p.share_rps)}/s its cost does not count"
            f" ({_set(p, 'share_rps')})"
        )
    else:
        yield (
            f"{percent(row['cost'])} of what its servers did in these minutes: {_share(p.share)} make it warn, and"
            f" {_share(p.heavy_share)} with the peak below critical ({_set(p, 'share', 'heavy_share')})"
        )
    peak = tables["peaks"][0]["peak_rps"]
    yield f"{number(peak)}/s at its peak: {number(p.peak_rps)}/s make it warn ({_set(p, 'peak_rps')})"
    yield (
        f"{impact.others_refused:,} requests of others refused, {impact.others_slowed:,} slow: {p.harm_n} of either"
        f" that are {_share(p.harm_share)} of theirs make it critical, if its cost makes it warn"
        f" ({_set(p, 'harm_n', 'harm_share')})"
    )


def _set(params: Params, *names: str) -> str:
    """The thresholds as a command line has them."""
    return " ".join(f"--set {name}={getattr(params, name):g}" for name in names)


def _share(share: float) -> str:
    return f"{number(100 * share)} %"
