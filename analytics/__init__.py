"""Finds retry storms in access logs: which clients repeat which requests, since when, after what, why, and the fix.

The way of a line: ``lines`` (files of any format become one record shape) → ``scan`` (each line gets a kind of answer;
lines are rolled up; what could be a storm is kept) → ``rules`` (a chain of SQL files: stretches of one client, fleets
of many, triggers, classes, incidents) → ``report`` (incidents and figures as terminal text, HTML, JSON, Prometheus
gauges). Two engines read lines with the same expressions, DuckDB here or Spark on a cluster; the rules run in DuckDB
(docs/adr/0017). ``cli`` is ``tricklecast storms``; ``watch`` runs the same rules over the last minutes of logs that
grow, and sends alerts; ``store`` keeps its state.

``logs`` shows and compacts access logs, and ``simulate`` writes logs with storms of known place and kind.

From Python, in your own Spark session: :func:`incidents`, from a DataFrame of lines to one of incidents; and
:func:`stream`, which watches a streaming DataFrame of lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tricklecast.analytics.spark.frames import incidents
    from tricklecast.analytics.spark.stream import stream

__all__ = ("incidents", "stream")


def __getattr__(name: str) -> Any:
    if name == "incidents":  # imported when it is used: the command needs none of it
        from tricklecast.analytics.spark.frames import incidents

        return incidents
    if name == "stream":
        from tricklecast.analytics.spark.stream import stream

        return stream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
