"""How well requests ended: first-try and eventual success, retry ratio, goodput, and what the repeats cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tricklecast.analytics.report_old.figures import Success

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tricklecast.analytics.metrics.parts import Row


def success(rows: Iterable[Row]) -> Success:
    """The one row of the cube about the whole log (none if it is empty), as shares.

    *At once* means: a wanted request that was not refused (:data:`~analytics.answers.FAILURES`). *In the
    end* also
    counts those that were refused, if the same client was answered on the same channel of the same node later on: after
    the last of its refusals all of them, after the first all but one.
    """
    for row in rows:
        return _success(row)
    return Success(1.0, 1.0, 0.0, 1.0, 0, 0, 0.0)


def _success(row: Row) -> Success:
    wanted = row["requests"] - row["repeats"]
    at_once = wanted - row["refused"]
    return Success(
        first_try=at_once / wanted if wanted else 1.0,
        eventual=(at_once + row["recovered"]) / wanted if wanted else 1.0,
        retry_ratio=row["repeats"] / wanted if wanted else float(row["repeats"]),
        goodput=1 - row["wasted_bytes"] / row["bytes"] if row["bytes"] else 1.0,
        wasted_requests=row["repeats"],
        wasted_bytes=round(row["wasted_bytes"]),
        wasted_handler_s=row["wasted_us"] / 1e6,
    )
