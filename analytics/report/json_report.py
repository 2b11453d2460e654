"""``report.json``: the report for programs, versioned."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from analytics.report.model import Episode, Report

REPORT_VERSION: Final = 1
"""Raised when a field changes its meaning or goes away; new fields do not raise it."""


def as_json(report: Report) -> str:
    """The report as a JSON document.

    It is ASCII: names come from whoever sent the requests, and a terminal that shows the file must not obey them.
    """
    return json.dumps(as_dict(report), ensure_ascii=True, allow_nan=False, indent=2) + "\n"


def as_dict(report: Report) -> dict[str, Any]:
    """The JSON object of a report."""
    totals, quality = report.totals, report.quality
    return {
        "report": "tricklecast storms",
        "version": REPORT_VERSION,
        "inputs": list(report.inputs),
        "window": {"start_us": totals.first_us, "end_us": totals.last_us},
        "totals": {
            "requests": totals.requests,
            "wanted": totals.wanted,
            "repeats": totals.repeats,
            "amplification": round(totals.amplification, 4),
            "by_answer": totals.by_answer,
            "bytes_in": totals.bytes_in,
            "bytes_out": totals.bytes_out,
            "handler_s": round(totals.handler_s, 6),
            "nodes": totals.nodes,
        },
        "quality": {
            "lines": quality.lines,
            "unparsable": quality.unparsable,
            "unparsable_share": round(quality.unparsable_share, 6),
            "events": quality.events,
            "dropped": quality.dropped,
            "anonymous": quality.anonymous,
            "missing_columns": list(quality.missing_columns),
            "damaged_files": list(quality.damaged_files),
        },
        "n_episodes": report.n_episodes,
        "episodes": [_episode(episode) for episode in report.episodes],
        "params": asdict(report.params),
    }


def _episode(episode: Episode) -> dict[str, Any]:
    return {
        "id": episode.id,
        "class": episode.storm.value,
        "severity": episode.severity.value,
        "start_us": episode.start_us,
        "end_us": episode.end_us,
        "n": episode.n,
        "hits": episode.hits,
        "clients": list(episode.clients),
        "n_clients": episode.n_clients,
        "channels": list(episode.channels),
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
        "retry_after": episode.retry_after,
        "bytes_out": episode.bytes_out,
        "handler_s": round(episode.handler_s, 6),
        "cause": episode.why.cause,
        "advice": episode.why.advice,
    }
