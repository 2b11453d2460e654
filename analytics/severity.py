"""How bad it is, on two axes, and what is added up to tell: as SQL that single clients and fleets share."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tricklecast.analytics.params import StormParams
from tricklecast.analytics.repeats import counted_sql

_RATE: Final = "greatest(mean_rps, peak_rps)"

_EACH_NODE: Final = f"(hits / greatest(1, round(coalesce({counted_sql('node_bits')}, 1))))"
"""Hits per node: who asks each of ten servers once, for a channel that one of them has, is in no hurry."""


class Severity(StrEnum):
    """How bad, in rising order."""

    WARN = "warn"
    CRITICAL = "critical"


def fast(params: StormParams) -> str:
    """Whether so many came so quickly that it is a storm whatever the rest of its time."""
    return f"({_EACH_NODE} >= {params.warn_hits} AND {_RATE} >= {params.warn_rps})"


def severity(params: StormParams) -> str:
    """``warn``, ``critical`` or null, on two axes: fast for a moment, or slowly for long. As SQL."""
    quickly = f"({_EACH_NODE} >= {params.critical_hits} AND {_RATE} >= {params.critical_rps})"
    return f"""CASE WHEN {quickly} OR hits >= {params.critical_hits_alone} THEN '{Severity.CRITICAL}'
        WHEN {fast(params)} OR hits >= {params.warn_hits_alone} THEN '{Severity.WARN}' END"""


def sums(side: str = "") -> str:
    """What is added up, or ranged over, whenever rows are put together, as SQL.

    Args:
        side: the alias of the rows in a join, with its dot.
    """
    added = [f"try_sum({side}{name}) AS {name}" for name in ("n", "bytes_out", "dur_us")]
    lowest = [f"min({side}{name}) AS {name}" for name in ("first_us", "seq_lo", "head_lo")]
    highest = [f"max({side}{name}) AS {name}" for name in ("last_us", "seq_hi", "head_hi", "retry_after_ms")]
    return ", ".join(added + lowest + highest)


def worst_names(name: str, params: StormParams) -> str:
    """The distinct names with the most lines, the worst first, at most ``max_names``, as SQL."""
    ranked = f"sort_array(collect_list(struct(n, {name} AS name)), false)"
    return f"slice(array_distinct(array_compact(transform({ranked}, one -> one.name))), 1, {params.max_names})"
