"""``report.json``: the report for programs, versioned. ``report.schema.json`` beside this file says what is in it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tricklecast.analytics.report_old.figures import Blast, BudgetBreak, NodeMinute, Share
    from tricklecast.analytics.report_old.model import Episode, Report

REPORT_VERSION: Final = 2
"""Raised when a field changes its meaning or goes away; new fields do not raise it."""

_DIGITS: Final = 6
"""Decimals of a float: what is beyond them is not known, and would make two equal reports differ."""


def as_json(report: Report) -> str:
    """The report as a JSON document.

    It is ASCII: names come from whoever sent the requests, and a terminal that shows the file must not obey them.
    """
    return json.dumps(as_dict(report), ensure_ascii=True, allow_nan=False, indent=2) + "\n"


def as_dict(report: Report) -> dict[str, Any]:
    """The JSON object of a report: every field always, in the same order; what is not known is ``null``."""
    totals = report.totals
    document = {
        "report": "tricklecast storms",
        "version": REPORT_VERSION,
        "inputs": report.inputs,
        "window": {"start_us": totals.first_us, "end_us": totals.last_us},
        "totals": {
            "requests": totals.requests,
            "wanted": totals.wanted,
            "repeats": totals.repeats,
            "amplification": totals.amplification,
            "by_answer": totals.by_answer,
            "bytes_in": totals.bytes_in,
            "bytes_out": totals.bytes_out,
            "handler_s": totals.handler_s,
            "nodes": totals.nodes,
        },
        "success": None if report.success is None else asdict(report.success),
        "quality": {
            "lines": report.quality.lines,
            "unparsable": report.quality.unparsable,
            "unparsable_share": report.quality.unparsable_share,
            **asdict(report.quality),
        },
        "n_episodes": report.n_episodes,
        "episodes": [_episode(episode) for episode in report.episodes],
        "worst_minute": None if report.worst_minute is None else _amplified(report.worst_minute),
        "by_node": [_amplified(share) for share in report.by_node],
        "by_channel": [_amplified(share) for share in report.by_channel],
        "by_release": [_amplified(share) for share in report.by_release],
        "offending_clients": [asdict(offender) for offender in report.offending_clients],
        "offending_releases": [asdict(offender) for offender in report.offending_releases],
        "offending_networks": [asdict(offender) for offender in report.offending_networks],
        "n_budget_breaks": report.n_budget_breaks,
        "budget_breaks": [_with_ratio(broken) for broken in report.budget_breaks],
        "timeline": None if report.timeline is None else asdict(report.timeline),
        "comparison": None if report.comparison is None else asdict(report.comparison),
        "params": asdict(report.params),
    }
    plain: dict[str, Any] = _plain(document)
    return plain


def episode_dict(episode: Episode) -> dict[str, Any]:
    """The JSON object of one episode, as in the report's ``episodes``."""
    plain: dict[str, Any] = _plain(_episode(episode))
    return plain


def _episode(episode: Episode) -> dict[str, Any]:
    return {
        "id": episode.id,
        "class": episode.storm.value,
        "severity": episode.severity.value,
        "start_us": episode.start_us,
        "end_us": episode.end_us,
        "n": episode.n,
        "hits": episode.hits,
        "clients": episode.clients,
        "n_clients": episode.n_clients,
        "channels": episode.channels,
        "n_channels": episode.n_channels,
        "node": episode.node,
        "release": episode.release,
        "seq_lo": episode.seq_lo,
        "seq_hi": episode.seq_hi,
        "head": episode.head,
        "trigger": episode.trigger,
        "trigger_us": episode.trigger_us,
        "outlived_trigger_s": episode.outlived_trigger_s,
        "peak_rps": episode.peak_rps,
        "backoff": episode.backoff,
        "rhythm": None if episode.rhythm is None else asdict(episode.rhythm),
        "retry_after": episode.retry_after,
        "outcome": episode.outcome,
        "blast": None if episode.blast is None else _with_ratio(episode.blast),
        "sparkline": None if episode.sparkline is None else asdict(episode.sparkline),
        "bytes_out": episode.bytes_out,
        "handler_s": episode.handler_s,
        "cause": episode.why.cause,
        "advice": episode.why.advice,
    }


def _amplified(figure: Share | NodeMinute) -> dict[str, Any]:
    return asdict(figure) | {"amplification": figure.amplification}


def _with_ratio(figure: Blast | BudgetBreak) -> dict[str, Any]:
    return asdict(figure) | {"ratio": figure.ratio}


def _plain(value: Any) -> Any:
    """The same with lists for tuples and rounded floats; one that is no number is not known."""
    match value:
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case float():
            return round(value, _DIGITS) if math.isfinite(value) else None
    return value
