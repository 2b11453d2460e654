"""Whether a stretch is a storm, how bad, and of which class: the report's rules, for a stretch that still grows.

The tables and thresholds are the report's own. Where the report looks at what came *after*, this one cannot: it goes by
what has happened so far.
"""

from __future__ import annotations

from tricklecast.analytics.answers import COUNTED, ONCE_PER_SEQ, REPEATABLE, Answer
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.episodes import SLOWABLE, Severity
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.watch_old.figures import Figures
from tricklecast.analytics.watch_old.happenings import Context

RANK = {None: 0, Severity.WARN: 1, Severity.CRITICAL: 2}
"""Severities in rising order."""

_PLAIN = {
    Answer.ZERO_BYTE: StormClass.ZERO_BYTE_LOOP,
    Answer.SERVED: StormClass.SAME_SEGMENT_LOOP,
    Answer.ENDED: StormClass.ENDED_LOOP,
    Answer.ABANDONED: StormClass.ABANDONED_LOOP,
    Answer.POST: StormClass.REPOST_LOOP,
    Answer.SERVER_ERROR: StormClass.SERVER_ERROR_LOOP,
    Answer.REJECTED: StormClass.REJECTED_LOOP,
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


def is_sparse(figures: Figures, params: StormParams) -> bool:
    """Whether a segment is asked for again only now and then, as on a network that is bad."""
    return figures.answer in REPEATABLE and (figures.hits(params) - 1) * params.gap_s < figures.duration_s


def is_browsing(figures: Figures, params: StormParams) -> bool:
    """Whether somebody looks at what is current, or seeks: nothing was waited for, and all was taken a few times."""
    few = figures.n < params.browse_times * figures.seqs * figures.readers(params)
    unhurried = figures.hits(params) < params.browse_rps * figures.duration_s
    return figures.answer is Answer.SERVED and 2 * figures.waited < figures.seqs and few and unhurried


def may_be_patient(figures: Figures, params: StormParams) -> bool:
    """Whether it is not known after how long requests were given up, and they come slowly enough for long polls."""
    return figures.answer is Answer.ABANDONED and not figures.dur_us and not is_fast(figures, params)


def is_of_several_lives(figures: Figures, context: Context, params: StormParams) -> bool:
    """Whether what repeats are the seqs of a channel that began anew: in each life they were asked for once."""
    if figures.answer not in ONCE_PER_SEQ or context.lives == 1:
        return False
    hits = figures.hits(params) - (context.lives - 1) * figures.seqs * figures.readers(params)
    quickly = hits >= params.warn_hits and figures.peak_rps >= params.warn_rps
    return not quickly and hits < params.warn_hits_alone


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
            return _seq_missing(figures, params, slow=slow)
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
    healthy = figures.answer is Answer.SERVED or (figures.answer in ONCE_PER_SEQ and 2 * hits < figures.n)
    return hits if healthy else figures.n


def retry_after(figures: Figures, params: StormParams) -> str | None:
    """Whether it came back no sooner than told: ``honoured``, ``ignored``; ``None`` if it was not told."""
    if not figures.retry_after_ms or figures.gap_ms is None:
        return None
    return "ignored" if figures.gap_ms < params.early * figures.retry_after_ms else "honoured"


def _rate(figures: Figures, params: StormParams) -> float:
    return max(figures.mean_rps(params), figures.peak_rps)


def _seq_missing(figures: Figures, params: StormParams, *, slow: bool) -> StormClass | None:
    lo, hi, head = figures.seq_lo, figures.seq_hi, figures.head_hi
    span = None if lo is None or hi is None else hi - lo + 1
    unhurried = figures.mean_rps(params) < params.not_found_rps and figures.peak_rps < params.warn_rps
    # Who goes on from the head each time it fell behind leaves seqs out, each time.
    at_head = None if lo is None or figures.head_lo is None else lo >= figures.head_lo
    if unhurried and not at_head and span is not None and span >= 2 * figures.n:
        return None
    if not (at_head if at_head is not None else _seems_ahead(lo, hi, head)):
        return None if slow else StormClass.SEQ_BEHIND_LOOP
    # Asking about once a second whether the next segment is there is waiting for it.
    rises = span is not None and 2 * span >= figures.n
    waits = unhurried and not rises and (hi is None or head is None or hi <= head + 1)
    # Falling behind now and then, and being told so, is no loop; asking on past a head that stands still is one.
    sweeps = figures.head_lo == figures.head_hi and rises
    return None if waits or (slow and not sweeps) else StormClass.SEQ_AHEAD_SWEEP


def _seems_ahead(lo: int | None, hi: int | None, head: int | None) -> bool:
    """Where the head, or the seq, is not known: a range of seqs is a sweep, one seq is a client left behind; but there
    is nothing before the first segment, and where no seq was resolved there is no segment at all."""
    if lo is not None and hi is not None:
        return hi > lo or hi == 0
    return head == 0 or head is None


def _is_polite(figures: Figures, params: StormParams, *, slow: bool) -> bool:
    """It waits about as long as it was told; or, if it was not told, it is slow."""
    if not figures.retry_after_ms:
        return slow or (figures.mean_rps(params) < params.overload_rps and figures.peak_rps < params.warn_rps)
    told_ms = params.early * figures.retry_after_ms
    late = figures.gap_ms is None or figures.gap_ms >= told_ms
    return late and figures.peak_rps <= 1 + 1000 / max(1.0, told_ms)
