"""Rules about what arrives, whatever it is."""

from __future__ import annotations

from itertools import pairwise
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
from tricklecast.subscriber.check.media import Container
from tricklecast.subscriber.check.observations import Ended
from tricklecast.subscriber.check.study import Study
from tricklecast.trickle.terminal import count, rate, size

DECLARED: Final = {
    Container.MPEGTS: ("video/mp2t", "audio/mp2t", "video/mpeg"),
    Container.FMP4: ("video/mp4", "audio/mp4", "application/mp4", "video/iso.segment"),
    Container.JSON: ("application/json", "application/x-ndjson", "application/jsonl", "text/plain", "text/json"),
}
"""The media types that fit (RFC 3555, RFC 4337, RFC 8259)."""

_VAGUE: Final = ("", "application/octet-stream")
_OF_MEDIA: Final = tuple(name for kind in (Container.MPEGTS, Container.FMP4) for name in DECLARED[kind])

FIRST_BYTE_S: Final = 1.0
"""A server sends no head before there is a byte (docs/reference/protocol.md, section 4), so this is all network."""

_DROPPED_CURE: Final = (
    "Look at what the publisher reports as dropped or lost: its uplink is too slow, or numbers were left out."
)

LAG_SEGMENTS: Final = 3
"""One segment behind the head is usual while a segment ends, and two where segments overlap."""


def _received(study: Study, limits: Limits) -> Result:
    received = sum(seen.size for seen in study.seen)
    values: dict[str, Value] = {"segments": len(study.seen), "bytes": received}
    if study.run.ended is Ended.ERROR:
        return Result(Verdict.FAIL, study.run.error, "The subscription broke off.", "See the message.", values)
    if not study.seen and study.run.ended is Ended.CHANNEL:
        cure = "Publish to it again, and have the check wait for it (--wait)."
        return Result(Verdict.FAIL, "no segment", "The channel has ended.", cure, values)
    if not study.seen:
        cure = "Is it being published to? Look longer (--for), or begin with what is there (--start current)."
        return Result(Verdict.FAIL, "no segment", "Nothing arrived in that time.", cure, values)
    bits_per_s = received * 8 / max(study.run.seconds, 0.001)
    return Result(Verdict.OK, f"{count(len(study.seen), 'segment')}, {rate(bits_per_s)}", values=values)


def _gaps(study: Study, limits: Limits) -> Result:
    where = [seen for seen in study.seen if seen.gap]
    missed = sum(seen.gap for seen in where) + study.run.missed_at_end
    if not missed:
        return Result(Verdict.OK, "none missed", values={"missed": 0})
    figure = f"{count(missed, 'segment')} missed"
    return Result(Verdict.FAIL, figure, values={"missed": missed}, segments=named([seen.seq for seen in where]))


def _truncated(study: Study, limits: Limits) -> Result:
    return _cut({seen.seq: seen.truncated for seen in study.seen if seen.truncated is not None}, "truncated")


def _skipped(study: Study, limits: Limits) -> Result:
    skipped = [seen.seq for seen in study.seen if seen.skipped]
    values: dict[str, Value] = {"skipped": len(skipped)}
    if not skipped:
        return Result(Verdict.OK, "none skipped", values=values)
    return Result(Verdict.FAIL, f"{count(len(skipped), 'segment')} skipped", values=values, segments=named(skipped))


def _broken(study: Study, limits: Limits) -> Result:
    result = _cut({seen.seq: seen.broken for seen in study.seen if seen.broken is not None}, "cut")
    if result.verdict is Verdict.FAIL or not study.run.resumed:
        return result
    note = "The connection to the server was cut in the middle of segments; their rest could be had all the same."
    return Result(Verdict.WARN, f"cut {count(study.run.resumed, 'time')}", note, values={"resumed": study.run.resumed})


def _cut(reasons: dict[int, str], word: str) -> Result:
    values: dict[str, Value] = {word: len(reasons)}
    if not reasons:
        return Result(Verdict.OK, f"none {word}", values=values)
    figure = f"{len(reasons)} {word}: {next(iter(reasons.values()))}"
    return Result(Verdict.FAIL, figure, values=values, segments=named(list(reasons)))


def _empty(study: Study, limits: Limits) -> Result:
    empty = [seen.seq for seen in study.seen if not (seen.size or seen.skipped or seen.left) and seen.broken is None]
    values: dict[str, Value] = {"empty": len(empty)}
    if not empty:
        return Result(Verdict.OK, "none empty", values=values)
    if study.dropped:
        values["dropped"] = len(study.dropped)
        figure = f"{count(len(study.dropped), 'segment')} dropped"
        note = "Segments are empty, and the media that belongs into them is missing."
        return Result(Verdict.FAIL, figure, note, _DROPPED_CURE, values, named(study.dropped))
    verdict = Verdict.WARN if study.is_media else Verdict.OK
    return Result(verdict, f"{len(empty)} of {len(study.seen)} empty", values=values, segments=named(empty))


def _restarts(study: Study, limits: Limits) -> Result:
    where = [seen.seq for seen in study.seen if seen.restarted]
    figure = count(len(where), "restart") if where else "none"
    verdict = Verdict.WARN if where else Verdict.OK
    return Result(verdict, figure, values={"restarts": len(where)}, segments=named(where))


def _content_type(study: Study, limits: Limits) -> Result:
    if not study.filled:
        return skip("no bytes")
    wrong: list[int] = []
    vague = ""
    for seen in study.filled:
        declared = seen.content_type.partition(";")[0].strip().lower()
        container = seen.media.container
        if declared in _VAGUE:
            vague = container if container in (Container.MPEGTS, Container.FMP4) else vague
        elif not _fits(declared, container):
            wrong.append(seen.seq)
    declared, found = study.filled[0].content_type or "none", study.filled[0].media.container
    values: dict[str, Value] = {"declared": declared, "found": found.value}
    if wrong:
        figure = f"declared {declared}, found {found}"
        return Result(Verdict.FAIL, figure, values=values, segments=named(wrong))
    if vague:
        note = "Players and gateways choose their demuxer by it."
        return Result(Verdict.WARN, f"declared {declared}, found {found}", note, values=values)
    return Result(Verdict.OK, declared, values=values)


def _fits(declared: str, container: Container) -> bool:
    """Whether content may be called that; what is not recognised is believed."""
    if container in (Container.MPEGTS, Container.FMP4):
        return declared in DECLARED[container]
    return declared not in _OF_MEDIA


def _sizes(study: Study, limits: Limits) -> Result:
    sizes = [seen.size for seen in study.filled if seen.whole]
    if not sizes:
        return skip("no whole segment")
    low, middle, high = min(sizes), int(median(sizes)), max(sizes)
    values: dict[str, Value] = {"min_bytes": low, "median_bytes": middle, "max_bytes": high}
    return Result(Verdict.OK, f"{size(middle)} (from {size(low)} to {size(high)})", values=values)


def _first_byte(study: Study, limits: Limits) -> Result:
    awaited = [seen for seen in study.filled if study.was_awaited(seen)]
    if not awaited:
        return skip("no segment had to be waited for")
    waits = [seen.answered_s - seen.requested_s for seen in awaited]
    values = spread(waits, "wait")
    # Bytes can be timed only of segments that were read at once, not after the one before.
    bodies = [seen.first_s - seen.answered_s for seen in awaited if seen.taken_s - seen.answered_s < 0.02]
    if not bodies:
        return Result(Verdict.OK, f"after {seconds(median(waits))}", values=values)
    values |= spread(bodies, "body")
    late = quantile(bodies, 0.95)
    figure = f"after {seconds(median(waits))}, {seconds(late)} behind its head"
    return Result(Verdict.WARN if late > FIRST_BYTE_S else Verdict.OK, figure, values=values)


def _lag(study: Study, limits: Limits) -> Result:
    heads = study.run.heads
    if len(heads) < 3:
        return skip("the server was not asked often enough, or does not say")
    lags = [max(0, head.head - 1 - head.reading) for head in heads]
    third = max(1, len(lags) // 3)
    first, last = median(lags[:third]), median(lags[-third:])
    values: dict[str, Value] = {"median_segments": median(lags), "max_segments": max(lags), "last_segments": last}
    # Whoever begins in the past catches up first; what is published faster than it plays is always ahead.
    is_behind = last >= LAG_SEGMENTS and last >= first and not (study.speed is not None and study.speed > 1.25)
    figure = f"{last:g} segments behind at the end, {max(lags)} at most"
    return Result(Verdict.WARN if is_behind else Verdict.OK, figure, values=values)


def _head(study: Study, limits: Limits) -> Result:
    heads = study.run.heads
    if len(heads) < 2:
        return skip("the server was not asked often enough, or does not say")
    back = [later.head for earlier, later in pairwise(heads) if later.head < earlier.head]
    values: dict[str, Value] = {"head": heads[-1].head, "went_back": len(back)}
    if not back or any(seen.restarted for seen in study.seen):
        return Result(Verdict.OK, f"at {heads[-1].head}", values=values)
    return Result(Verdict.FAIL, f"went back {len(back)} times, to {min(back)}", values=values)


TRANSPORT_RULES: Final = (
    Rule("received", "Received", _received),
    Rule(
        "gaps",
        "No segment missed",
        _gaps,
        "Segments that were published, or should have been, never came.",
        "If “behind the head” warns, too, this side or its network is too slow: the server dropped what was not read"
        " in time. Otherwise the publisher left numbers out: look at what it reports as dropped or lost.",
    ),
    Rule(
        "skipped",
        "No segment skipped",
        _skipped,
        "The publisher passed segments over: it dropped them, or left their numbers out.",
        _DROPPED_CURE,
    ),
    Rule(
        "truncated",
        "No segment truncated",
        _truncated,
        "The publisher broke off in the middle of segments.",
        "Look at the publisher's connection and log; segments beyond the server's size limit are cut, too.",
    ),
    Rule(
        "broken",
        "No connection cut",
        _broken,
        "The connection to the server was cut in the middle of segments.",
        "Look at proxies' time-outs between here and there, and whether the server cuts slow readers off (its log:"
        " evicted).",
    ),
    Rule(
        "empty",
        "No segment empty",
        _empty,
        "The publisher opened segments and put nothing into them; some do so when their source is silent.",
        "Look whether its source stalls.",
    ),
    Rule(
        "restarts",
        "One life",
        _restarts,
        "The channel was ended and created again, or the server has restarted: players begin anew.",
        "Start publishers with resume, and look at the server's log.",
    ),
    Rule(
        "content_type",
        "Content type",
        _content_type,
        "What the channel is said to carry is not what it carries.",
        "Publish with the right Content-Type (tricklecast publish --content-type). A type once set stays until the"
        " channel is created again.",
    ),
    Rule("sizes", "Segment sizes", _sizes),
    Rule(
        "first_byte",
        "First byte",
        _first_byte,
        "A segment's bytes come long after its answer has begun.",
        "Look for proxies that hold answers back.",
    ),
    Rule(
        "lag",
        "Behind the head",
        _lag,
        "This reader does not keep up with the channel.",
        "Check from a better network: what is judged here is then this side, not the channel.",
    ),
    Rule(
        "head",
        "The head goes forward",
        _head,
        "The server's head went back: readers ask for what they had, or wait for what will not come.",
        "Use a server whose head never decreases (tricklecast serve).",
    ),
)
