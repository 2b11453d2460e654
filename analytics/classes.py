"""The classes of storm, and how an episode is told to be of one."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from analytics.answers import Answer
from analytics.params import StormParams

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class StormClass(StrEnum):
    """What kind of storm (docs: one page per class)."""

    ZERO_BYTE_LOOP = "zero_byte_loop"
    """The same empty segment again and again."""
    SAME_SEGMENT_LOOP = "same_segment_loop"
    """The same segment, with its bytes, again and again. A detector that looks for empty answers misses it."""
    ENDED_LOOP = "ended_loop"
    """Told that the channel has ended (200 and ``Lp-Trickle-Closed``), the client asks on. One such answer per
    subscriber is how channels end; what follows it when the drain is over is a ``not_found_loop``."""
    NOT_FOUND_LOOP = "not_found_loop"
    """404 at twice a second or more."""
    NOT_FOUND_DRIP = "not_found_drip"
    """404 more slowly but without end, for a channel that has ended. (Before a channel begins, it is waiting.)"""
    SEQ_BEHIND_LOOP = "seq_behind_loop"
    """470 for segments that have left the window: the publisher is ahead of the client."""
    SEQ_AHEAD_SWEEP = "seq_ahead_sweep"
    """470 for segments beyond the head, mostly rising ones: the publisher is not there yet."""
    REPOST_LOOP = "repost_loop"
    """The same segment published again and again."""
    OVERLOAD_CLIENT = "overload_client"
    """429 or 503 to one client that does not slow down."""
    OVERLOAD_AMPLIFICATION = "overload_amplification"
    """429 or 503 to many clients, whose retries keep the server overloaded."""
    THUNDERING_HERD = "thundering_herd"
    """Many clients at the same moment, after a restart or on several channels, and again."""
    SERVER_ERROR_LOOP = "server_error_loop"
    """5xx to one client that does not slow down."""


def classify(triggered: DataFrame, params: StormParams) -> DataFrame:
    """Adds ``class`` and drops what has none: answers that repeat in a way that is nobody's fault.

    Args:
        triggered: :func:`storms` after :func:`analytics.triggers.with_context` (needs ``ended_us``).
    """
    return triggered.withColumn("class", _class_of(params)).where(F.col("class").isNotNull())


def _class_of(params: StormParams) -> Column:
    answer = F.col("answer")
    # With the head unknown (a log of another server), a range of seqs is a sweep and one seq is a client left behind.
    ahead = F.coalesce(F.col("seq_lo") >= F.col("head_lo"), F.col("seq_hi") > F.col("seq_lo"), F.lit(False))
    return (
        F.when(answer == Answer.ZERO_BYTE.value, StormClass.ZERO_BYTE_LOOP.value)
        .when(answer == Answer.SERVED.value, StormClass.SAME_SEGMENT_LOOP.value)
        .when(answer == Answer.ENDED.value, StormClass.ENDED_LOOP.value)
        .when(answer == Answer.POST.value, StormClass.REPOST_LOOP.value)
        .when(answer == Answer.SERVER_ERROR.value, StormClass.SERVER_ERROR_LOOP.value)
        .when((answer == Answer.SEQ_MISSING.value) & ahead, StormClass.SEQ_AHEAD_SWEEP.value)
        .when(answer == Answer.SEQ_MISSING.value, StormClass.SEQ_BEHIND_LOOP.value)
        .when(_at_least(Answer.NOT_FOUND, params.not_found_rps), StormClass.NOT_FOUND_LOOP.value)
        .when((answer == Answer.NOT_FOUND.value) & F.col("ended_us").isNotNull(), StormClass.NOT_FOUND_DRIP.value)
        .when(_at_least(Answer.OVERLOAD, params.overload_rps), StormClass.OVERLOAD_CLIENT.value)
    )


def _at_least(answer: Answer, rps: float) -> Column:
    return (F.col("answer") == answer.value) & (F.col("mean_rps") >= rps)
