"""Whether a stretch is a storm, how bad, and of which class: the report's rules, for a stretch that still grows.

The tables and thresholds are the report's own. Where the report looks at what came *after*, this one cannot: it goes by
what has happened so far.
"""

from __future__ import annotations

from analytics.answers import COUNTED, ONCE_PER_SEQ, Answer
from analytics.classes import StormClass
from analytics.episodes import SLOWABLE, Severity
from analytics.params import StormParams
from analytics.watch.figures import Figures
from analytics.watch.happenings import Context

RANK = {None: 0, Severity.WARN: 1, Severity.CRITICAL: 2}
"""Severities in rising order."""

_PLAIN = {
    Answer.ZERO_BYTE: StormClass.ZERO_BYTE_LOOP,
    Answer.SERVED: StormClass.SAME_SEGMENT_LOOP,
    Answer.ENDED: StormClass.ENDED_LOOP,
    Answer.POST: StormClass.REPOST_LOOP,
    Answer.SERVER_ERROR: StormClass.SERVER_ERROR_LOOP,
}


def severity(figures: Figures, params: StormParams) -> Severity | None:
    """How bad, on two axes: fast for a moment, or slowly for long; ``None`` if it is no storm so far."""
    hits, rate = figures.hits(params), _rate(figures, params)
    # Who asks each of ten servers once, for a channel that one of them has, is in no hurry.
    each_node = hits / max(1, len(figures.nodes))
    quickly = each_node >= params.critical_hits and rate >= params.critical_rps
    if quickly or hits >= params.critical_hits_alone:
        return Severity.CRITICAL
    if is_fast(figures, params) or hits >= params.warn_hits_alone:
        return Severity.WARN
    return None


def is_fast(figures: Figures, params: StormParams) -> bool:
    """Whether so many came so quickly that it is a storm whatever the rest of its time."""
    each_node = figures.hits(params) / max(1, len(figures.nodes))
    return each_node >= params.warn_hits and _rate(figures, params) >= params.warn_rps


def is_quick(figures: Figures, params: StormParams) -> bool:
    """Whether a stretch stands for itself, rather than being part of a slow one."""
    if figures.answer is not Answer.NOT_FOUND:
        return True
    return is_fast(figures, params) or figures.mean_rps(params) >= params.not_found_rps


def is_crowd(figures: Figures, params: StormParams, *, named: bool) -> bool:
    """Whether these are many clients behind one key: each of many connections asked about once, and it is over soon."""
    if figures.answer not in COUNTED:
        return False
    if not named and figures.conn_bits is None:
        return True
    soon = params.crowd_s if named else params.anonymous_s
    return figures.n < params.crowd_per_conn * figures.connections() and figures.duration_s <= soon


def class_of(figures: Figures, context: Context, params: StormParams, *, slow: bool) -> StormClass | None:
    """The class; ``None`` for answers that repeat in a way that is nobody's fault.

    Args:
        slow: the stretch has pauses that are longer than ``gap_s``.
    """
    match figures.answer:
        case Answer.SEQ_MISSING:
            return _seq_missing(figures, slow=slow)
        case Answer.NOT_FOUND:
            if not slow or figures.mean_rps(params) >= params.not_found_rps:
                return StormClass.NOT_FOUND_LOOP
            ended = context.ended_us is not None or 2 * figures.closed >= figures.n
            return StormClass.NOT_FOUND_DRIP if ended and context.born_us is None else None
        case Answer.OVERLOAD:
            return None if _is_polite(figures, params, slow=slow) else StormClass.OVERLOAD_CLIENT
    return _PLAIN.get(figures.answer)


def may_be_slow(figures: Figures) -> bool:
    """Whether a client can loop on this answer so slowly that the usual gap would break its storm into pieces."""
    return figures.answer in SLOWABLE


def requests(figures: Figures, params: StormParams) -> int:
    """A storm's requests: where most of the stretch was healthy, those that were repeated."""
    hits = figures.hits(params)
    return hits if figures.answer in ONCE_PER_SEQ and 2 * hits < figures.n else figures.n


def retry_after(figures: Figures, params: StormParams) -> str | None:
    """Whether it came back no sooner than told: ``honoured``, ``ignored``; ``None`` if it was not told."""
    if not figures.retry_after_ms or figures.gap_ms is None:
        return None
    return "ignored" if figures.gap_ms < params.early * figures.retry_after_ms else "honoured"


def _rate(figures: Figures, params: StormParams) -> float:
    return max(figures.mean_rps(params), figures.peak_rps)


def _seq_missing(figures: Figures, *, slow: bool) -> StormClass | None:
    lo, hi = figures.seq_lo, figures.seq_hi
    # With the head unknown (a log of another server), a range of seqs is a sweep and one seq is a client left behind.
    known = lo is not None and figures.head_lo is not None
    ahead = (lo or 0) >= (figures.head_lo or 0) if known else (hi or 0) > (lo or 0)
    if not ahead:
        return None if slow else StormClass.SEQ_BEHIND_LOOP
    # Falling behind now and then, and being told so, is no loop; asking on past a head that stands still is one.
    sweeps = figures.head_lo == figures.head_hi and 2 * ((hi or 0) - (lo or 0) + 1) >= figures.n
    return None if slow and not sweeps else StormClass.SEQ_AHEAD_SWEEP


def _is_polite(figures: Figures, params: StormParams, *, slow: bool) -> bool:
    """It waits as it was told; or, if it was not told, it is slow."""
    if retry_after(figures, params) == "ignored":
        return False
    return slow or figures.mean_rps(params) < params.overload_rps or figures.retry_after_ms is not None
