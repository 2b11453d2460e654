"""Rules about when things come: pace, cadence and latency."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from tricklecast.subscriber.check.findings import (
    Limits,
    Result,
    Rule,
    Value,
    Verdict,
    named,
    quantile,
    seconds,
    skip,
    spread,
)
from tricklecast.subscriber.check.study import Study
from tricklecast.subscriber.check.timeline_rules import NOT_MEDIA

FAST: Final = 1.25
"""What is published at this speed or more is not live, but a file at full speed."""

SLOW: Final = 0.97
VERY_SLOW: Final = 0.9
"""Clocks differ by thousandths of a percent; whatever is slower than these has no other excuse than being slow."""

LUMP: Final = 0.5
"""A segment that is written as it is made arrives over all of its length, but for its last frame."""

LUMP_MIN_S: Final = 0.2
LUMP_MIN_SAMPLES: Final = 5
"""Shorter segments, or of fewer samples, have nothing to spread."""

SKEWED_S: Final = 0.05
"""No clock synchronised by NTP is further off than this; nothing arrives before it was made."""

STALE_S: Final = 3600.0
"""No live channel is an hour behind: such a time comes from a recording, or from a clock that was never set."""

_AT_LEAST: Final = 3


def _no_pace(study: Study) -> str:
    """Why pace cannot be judged; nothing if it can."""
    if not study.is_media:
        return NOT_MEDIA
    if study.speed is None:
        return "too few segments that had to be waited for"
    return f"published at {study.speed:.1f} times its speed: not live" if study.speed >= FAST else ""


def _trickles(study: Study, limits: Limits) -> Result:
    if why := _no_pace(study):
        return skip(why)
    shares: dict[int, float] = {}
    for point in study.line:
        seen, lead = point.seen, point.seen.media.lead
        length = study.lengths.get(seen.number, 0.0)
        if lead is not None and lead.samples >= LUMP_MIN_SAMPLES and length >= LUMP_MIN_S and study.was_awaited(seen):
            shares[seen.seq] = (seen.last_s - seen.answered_s) / length
    if len(shares) < _AT_LEAST:
        return skip("too few segments that had to be waited for")
    usual = median(shares.values())
    values: dict[str, Value] = {"median_share": round(usual, 4), "segments": len(shares)}
    figure = f"arrive over {min(1.0, usual):.0%} of their length"
    if usual >= LUMP:
        return Result(Verdict.OK, figure, values=values)
    return Result(
        Verdict.WARN, figure, values=values, segments=named([seq for seq, share in shares.items() if share < LUMP])
    )


def _real_time(study: Study, limits: Limits) -> Result:
    if why := _no_pace(study):
        return skip(why)
    speed = study.speed
    assert speed is not None
    points = study.awaited
    wall_s = points[-1].seen.answered_s - points[0].seen.answered_s
    behind_s = (1 - speed) * wall_s
    values: dict[str, Value] = {"speed": round(speed, 4), "over_s": round(wall_s, 3)}
    verdict = Verdict.OK
    if speed < VERY_SLOW and behind_s > 0.5:
        verdict = Verdict.FAIL
    elif speed < SLOW and behind_s > 0.5:
        verdict = Verdict.WARN
    return Result(verdict, f"{speed:.3f} s of media per second", values=values)


def _jitter(study: Study, limits: Limits) -> Result:
    if why := _no_pace(study):
        return skip(why)
    speed = study.speed or 1.0
    # A publisher that is slow throughout is told of by its own rule.
    delays = [(point.seen.seq, point.seen.answered_s - point.media_s / speed) for point in study.awaited]
    late: list[float] = []
    where: list[int] = []
    quickest = delays[0][1]
    for seq, delay in delays:
        quickest = min(quickest, delay)
        if delay - quickest > limits.jitter_s and (not late or late[-1] <= limits.jitter_s):
            where.append(seq)
        late.append(delay - quickest)
    values: dict[str, Value] = {"max_late_s": round(max(late), 6), "p95_late_s": round(quantile(late, 0.95), 6)}
    verdict = limits.exceeded("jitter_s") if where else Verdict.OK
    return Result(verdict, f"up to {seconds(max(late))} late", values=values, segments=named(where))


def _latency(study: Study, limits: Limits) -> Result:
    timed = [seen for seen in study.media if seen.producer_us is not None]
    if not timed:
        return skip("segments carry no producer time" if study.is_media else NOT_MEDIA)
    delays = [(seen.seq, (seen.wall_us - (seen.producer_us or 0)) / 1e6) for seen in timed if study.was_awaited(seen)]
    return _delay(delays, limits)


def _picture_latency(study: Study, limits: Limits) -> Result:
    clocks = [
        (seen, seen.picture.clock_ms)
        for seen in study.media
        if seen.picture is not None and seen.picture.clock_ms is not None
    ]
    if not clocks:
        return skip("no clock in the picture (tricklecast publish URL testsrc has one)")
    return _delay([(seen.seq, seen.wall_us / 1e6 - ms / 1e3) for seen, ms in clocks if study.was_awaited(seen)], limits)


def _delay(times: Sequence[tuple[int, float]], limits: Limits) -> Result:
    """Judge latencies, and say when clocks cannot be trusted."""
    if not times:
        return skip("no segment had to be waited for")
    delays = [delay for _, delay in times]
    values = spread(delays)
    usual, most = quantile(delays, 0.5), quantile(delays, 0.95)
    if abs(usual) > STALE_S:
        note = "The time in the segments is no time of today: a recording, or a clock that was never set."
        return Result(Verdict.WARN, f"{usual / 3600:.1f} h", note, "Set the publisher's clock (NTP).", values)
    if min(delays) < -SKEWED_S:
        values["clock_skew_s"] = round(-min(delays), 6)
        figure = f"{seconds(min(delays))}: clocks differ"
        note = (
            f"Segments seem to arrive before they were made: the publisher's clock is at least {seconds(-min(delays))}"
            " ahead of this one, and each latency here is too small by at least that."
        )
        return Result(Verdict.WARN, figure, note, "Synchronise both clocks (NTP), then check again.", values)
    figure = f"{seconds(usual)} (95 %: {seconds(most)}, most: {seconds(max(delays))})"
    where = [seq for seq, delay in times if delay > limits.latency_s] if most > limits.latency_s else []
    verdict = limits.exceeded("latency_s") if where else Verdict.OK
    return Result(verdict, figure, values=values, segments=named(where))


TIME_RULES: Final = (
    Rule(
        "trickles",
        "Segments trickle",
        _trickles,
        "Segments arrive in one piece after they were made: readers are behind by a whole segment.",
        "Write each segment while it is being encoded (chunked), and let no proxy buffer requests or answers (nginx:"
        " proxy_request_buffering off, proxy_buffering off).",
    ),
    Rule(
        "real_time",
        "Keeps up with real time",
        _real_time,
        "Media comes more slowly than it plays: every player stalls, again and again.",
        "Look at the encoder's speed and at the publisher's uplink; lower bitrate, size or preset.",
    ),
    Rule(
        "jitter",
        "Steady cadence",
        _jitter,
        "Some segments begin late: players need a buffer of that much, or stall.",
        "Look whether the source pauses, and at the publisher's network.",
    ),
    Rule(
        "latency",
        "Latency, by producer time",
        _latency,
        "From the capture of a segment's first frame until its first byte was here takes long.",
        "Look at the buffers of encoder and source; the server adds milliseconds.",
    ),
    Rule(
        "picture_latency",
        "Latency, by the picture's clock",
        _picture_latency,
        "From the drawing of a segment's first frame until its first byte was here takes long.",
        "Look at the buffers of encoder and source; the server adds milliseconds.",
    ),
)
