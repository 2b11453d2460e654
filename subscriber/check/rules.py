"""The rules: the figure that each of them measures, and when that is a problem.

``rules.toml`` is the table: a row for each line of the report, and in it level, text and advice of each problem. The
functions here measure, and name the problem. Pure.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from itertools import pairwise
from statistics import median
from typing import Any, Final, TypeAlias

from tricklecast.subscriber.check.media import ENCRYPTED, NEEDS_PYAV, Fault, Kind, Track
from tricklecast.subscriber.check.study import JUMP_S, Ended, Limits, Received, Run, Study, middle
from tricklecast.trickle.amounts import count, rate, size
from tricklecast.trickle.media.containers import Container
from tricklecast.trickle.pyav import codec_family

Value: TypeAlias = float | int | str | None

MAX_NAMED: Final = 20
"""How many segments a finding names."""


class Level(StrEnum):
    """How a finding is; the worst one comes last."""

    SKIP = "skip"
    """Could not be measured."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_ORDER: Final = tuple(Level)


IDLE_S: Final = 5.0
"""An empty segment that was open for this long is a sign of life. Publishers make one every 10 to 60 s while their
source is idle (``idle_rotation_s``); a segment that a publisher drops closes sooner."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        id: the rule; never changes its meaning.
        figure: the measurement, in a few words; or why there is none.
        text, advice: the meaning of the problem, and the remedy; empty if there is none.
        values: the measurement, for programs.
        segments: where the problem is, the first :data:`MAX_NAMED` seqs.
    """

    id: str
    title: str
    level: Level
    figure: str
    text: str = ""
    advice: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    segments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The report about a channel.

    Attributes:
        findings: one per rule.
    """

    study: Study
    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """The worst of all findings."""
        return max([Level.OK, *(finding.level for finding in self.findings)], key=_ORDER.index)

    def finding(self, id_: str) -> Finding:
        return next(finding for finding in self.findings if finding.id == id_)


def judge(run: Run, limits: Limits | None = None) -> Judgement:
    """Apply every rule."""
    study = Study(run, limits or Limits())
    return Judgement(study, tuple(_finding(id_, study) for id_ in RULES))


def _finding(id_: str, study: Study) -> Finding:
    row = RULES[id_]
    why_not = _NEEDS[row["needs"]](study) if "needs" in row else ""
    found = _skip(why_not) if why_not else MEASURES[id_](study)
    level, text, advice = row[found.problem] if found.problem else (found.level, "", "")
    if level.endswith("_s"):
        level = Level.FAIL if level in study.limits.given else Level.WARN
    seqs = tuple(found.segments[:MAX_NAMED])
    return Finding(id_, row["title"], Level(level), found.figure, text, advice, found.values, seqs)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The result of a rule; ``problem`` is its name in the rule's row of the table."""

    figure: str
    problem: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    segments: Sequence[int] = ()
    level: Level = Level.OK


def _skip(why: str) -> _Measured:
    return _Measured(why, level=Level.SKIP)


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that so large a share does not exceed (nearest rank); ``share`` is 0.5 for the median."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _spread(values: Sequence[float], name: str = "") -> dict[str, Value]:
    shares = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99, "min_s": 0.0, "max_s": 1.0}
    return {f"{name}{key}": round(quantile(values, share), 6) for key, share in shares.items()}


def _time(seconds: float) -> str:
    if abs(seconds) < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if abs(seconds) < 99.995 else f"{seconds:.0f} s"


# The segments that arrive.

DECLARED: Final = {
    Container.MPEGTS: ("video/mp2t", "audio/mp2t", "video/mpeg"),
    Container.FMP4: ("video/mp4", "audio/mp4", "application/mp4", "video/iso.segment"),
}
"""The media types that fit (RFC 3555, RFC 4337)."""

_VAGUE: Final = ("", "application/octet-stream")

FIRST_BYTE_S: Final = 1.0
"""A server sends no head before there is a byte (docs/reference/protocol.md, section 4), so this is all network."""

LAG_SEGMENTS: Final = 3
"""One segment behind the head is usual while a segment ends, and two where segments overlap."""

_AT_ONCE_S: Final = 0.02
"""A segment whose reading began so soon after its answer was read at once."""


def _received(study: Study) -> _Measured:
    sizes = [segment.size for segment in study.filled if segment.whole]
    total = sum(segment.size for segment in study.segments)
    values: dict[str, Value] = {"segments": len(study.segments), "bytes": total}
    if study.run.ended is Ended.ERROR:
        return _Measured(study.run.error, "error", values)
    if not study.segments:
        return _Measured("no segment", "ended" if study.run.ended is Ended.CHANNEL else "nothing", values)
    figure = f"{count(len(study.segments), 'segment')}, {rate(total * 8 / max(study.run.seconds, 0.001))}"
    if sizes:
        low, usual, high = min(sizes), int(median(sizes)), max(sizes)
        values |= {"min_bytes": low, "median_bytes": usual, "max_bytes": high}
        figure += f"; a segment has {size(usual)} (from {size(low)} to {size(high)})"
    return _Measured(figure, values=values)


def _gaps(study: Study) -> _Measured:
    where = [segment.seq for segment in study.segments if segment.gap]
    missed = sum(segment.gap for segment in study.segments) + study.run.missed_at_end
    figure = f"{count(missed, 'segment')} missed" if missed else "none missed"
    return _Measured(figure, "bad" if missed else "", {"missed": missed}, where)


def _skipped(study: Study) -> _Measured:
    where = [segment.seq for segment in study.segments if segment.skipped]
    figure = f"{count(len(where), 'segment')} skipped" if where else "none skipped"
    return _Measured(figure, "bad" if where else "", {"skipped": len(where)}, where)


def _truncated(study: Study) -> _Measured:
    reasons = {segment.seq: segment.truncated for segment in study.segments if segment.truncated is not None}
    figure = f"{len(reasons)} truncated: {next(iter(reasons.values()))}" if reasons else "none truncated"
    return _Measured(figure, "bad" if reasons else "", {"truncated": len(reasons)}, list(reasons))


def _broken(study: Study) -> _Measured:
    reasons = {segment.seq: segment.broken for segment in study.segments if segment.broken is not None}
    values: dict[str, Value] = {"cut": len(reasons), "resumed": study.run.resumed}
    if reasons:
        return _Measured(f"{len(reasons)} cut: {next(iter(reasons.values()))}", "lost", values, list(reasons))
    if study.run.resumed:
        return _Measured(f"cut {count(study.run.resumed, 'time')}", "resumed", values)
    return _Measured("none cut", values=values)


def _empty(study: Study) -> _Measured:
    empty = [
        segment.seq
        for segment in study.segments
        if not (segment.size or segment.skipped or segment.left) and segment.broken is None
    ]
    values: dict[str, Value] = {"empty": len(empty)}
    if empty and study.dropped:
        values["dropped"] = len(study.dropped)
        return _Measured(f"{count(len(study.dropped), 'segment')} dropped", "dropped", values, study.dropped)
    if empty:
        quick = [segment.seq for segment in study.segments if segment.seq in empty and not _is_sign_of_life(segment)]
        figure = f"{len(empty)} of {len(study.segments)} empty" + ("" if quick else ", as signs of life")
        return _Measured(figure, "empty" if study.media and quick else "", values, quick or empty)
    return _Measured("none empty", values=values)


def _is_sign_of_life(segment: Received) -> bool:
    """Whether an empty segment was open for long: its publisher shows that it is there while its source is idle."""
    return segment.answered_s - segment.requested_s >= IDLE_S


def _restarts(study: Study) -> _Measured:
    where = [segment.seq for segment in study.segments if segment.restarted]
    figure = count(len(where), "restart") if where else "none"
    return _Measured(figure, "bad" if where else "", {"restarts": len(where)}, where)


def _content_type(study: Study) -> _Measured:
    if not study.filled:
        return _skip("no bytes")
    wrong = [segment for segment in study.filled if not _fits(segment)]
    first = (wrong or study.filled)[0]
    declared, found = first.content_type or "none", first.media.container
    values: dict[str, Value] = {"declared": declared, "found": found.value}
    if wrong:
        kinds = ", ".join(dict.fromkeys(segment.media.container for segment in wrong))
        where = f" in {len(wrong)} of {count(len(study.filled), 'segment')}" if len(wrong) < len(study.filled) else ""
        figure = f"declared {declared}, found {kinds}{where}"
        return _Measured(figure, "wrong", values, [segment.seq for segment in wrong])
    if any(segment.media.container in DECLARED and _declared(segment) in _VAGUE for segment in study.filled):
        return _Measured(f"declared {declared}, found {found}", "vague", values)
    return _Measured(declared, values=values)


def _declared(segment: Received) -> str:
    return segment.content_type.partition(";")[0].strip().lower()


def _fits(segment: Received) -> bool:
    """Whether the content may be called that; a type is believed if the content is not recognised."""
    declared, container = _declared(segment), segment.media.container
    if declared in _VAGUE:
        return True
    if container in DECLARED:
        return declared in DECLARED[container]
    return not any(declared in names for names in DECLARED.values())


def _first_byte(study: Study) -> _Measured:
    awaited = [segment for segment in study.filled if study.was_awaited(segment)]
    if not awaited:
        return _skip("the check waited for no segment")
    waits = [segment.answered_s - segment.requested_s for segment in awaited]
    values = _spread(waits, "wait_")
    # Bytes can be timed only of segments that were read at once, not after the one before.
    at_once = [segment for segment in awaited if segment.taken_s - segment.answered_s < _AT_ONCE_S]
    if not at_once:
        return _Measured(f"after {_time(median(waits))}", values=values)
    bodies = [segment.first_s - segment.answered_s for segment in at_once]
    late = quantile(bodies, 0.95)
    figure = f"after {_time(median(waits))}, {_time(late)} behind its head"
    return _Measured(figure, "bad" if late > FIRST_BYTE_S else "", values | _spread(bodies, "body_"))


def _lag(study: Study) -> _Measured:
    heads = study.run.heads
    if len(heads) < 3:
        return _skip("the server told its head too seldom")
    lags = [max(0, head.head - 1 - head.reading) for head in heads]
    third = max(1, len(lags) // 3)
    first, last = median(lags[:third]), median(lags[-third:])
    values: dict[str, Value] = {"median_segments": median(lags), "max_segments": max(lags), "last_segments": last}
    # A reader that begins in the past catches up first; a file at full speed is always ahead.
    is_behind = last >= LAG_SEGMENTS and last >= first and not (study.speed is not None and study.speed > FAST)
    return _Measured(f"{last:g} segments behind at the end, {max(lags)} at most", "bad" if is_behind else "", values)


def _head(study: Study) -> _Measured:
    heads = study.run.heads
    if len(heads) < 2:
        return _skip("the server told its head too seldom")
    back = [later.head for earlier, later in pairwise(heads) if later.head < earlier.head]
    values: dict[str, Value] = {"head": heads[-1].head, "went_back": len(back)}
    if not back or any(segment.restarted for segment in study.segments):
        return _Measured(f"at {heads[-1].head}", values=values)
    return _Measured(f"went back {count(len(back), 'time')}, to {min(back)}", "bad", values)


# The media in them.

LATE_S: Final = 0.2
"""Leading pictures of an open group are left out by a decoder that joins there; they come after the first picture."""

INSIDE_JUMP_S: Final = 3.0
INSIDE_JUMP_STEPS: Final = 10
"""A pause inside a segment is a jump if it is as long as both of these; cameras and screens may pause for a while."""

PAUSE_S: Final = 0.1
"""Sources that keep milliseconds, and cameras, are off by less."""

_NOT_DAMAGE: Final = (Fault.SCRAMBLED, Fault.LOST_INSIDE, Fault.LOST_AT_SEAM)


def _no_media(study: Study) -> str:
    """Why the content cannot be looked into; nothing if it can."""
    return "" if study.media else "not MPEG-TS or MP4"


def _no_demuxer(study: Study) -> str:
    """Why no segment can be demuxed; nothing if that is the segments' own fault."""
    unread = (segment.media.unread for segment in study.media)
    return _no_media(study) or next((why for why in unread if why in (ENCRYPTED, NEEDS_PYAV)), "")


def _no_tracks(study: Study) -> str:
    """Why no track can be looked into; nothing if some can."""
    unread = [segment.media.unread for segment in study.media]
    return _no_demuxer(study) or (unread[0] if all(unread) else "")


def _faults(study: Study, faults: Iterable[Fault], problem: str, well: str) -> _Measured:
    found = {fault: [one for one in study.media if one.media.faults.get(fault)] for fault in faults}
    numbers = {fault: sum(one.media.faults[fault] for one in where) for fault, where in found.items() if where}
    if not numbers:
        return _Measured(well, values={"faults": 0})
    seqs = sorted({one.seq for where in found.values() for one in where})
    figure = ", ".join(f"{fault} ({number})" for fault, number in numbers.items())
    values: dict[str, Value] = {fault.replace(" ", "_"): number for fault, number in numbers.items()}
    return _Measured(f"{figure}, in {count(len(seqs), 'segment')}", problem, values, seqs)


def _damage(study: Study) -> _Measured:
    ordinary = any(Fault.NOT_FRAGMENTED in segment.media.faults for segment in study.media)
    faults = [fault for fault in Fault if fault not in _NOT_DAMAGE]
    return _faults(study, faults, "ordinary" if ordinary else "bad", "undamaged")


def _counters_inside(study: Study) -> _Measured:
    problem = "lost" if study.has(Container.MPEGTS) else "order"
    return _faults(study, [Fault.LOST_INSIDE], problem, "go on")


def _counters_across(study: Study) -> _Measured:
    problem = "anew" if study.has(Container.MPEGTS) else "order"
    return _faults(study, [Fault.LOST_AT_SEAM], problem, "go on")


def _stands_alone(study: Study) -> _Measured:
    told = Fault.NOT_FRAGMENTED  # by the rule on damage
    tables = [one.seq for one in study.media if not one.media.tables and told not in one.media.faults]
    parameters = [
        segment.seq for segment in study.media if any(track.parameters is False for track in segment.media.tracks)
    ]
    values: dict[str, Value] = {"without_tables": len(tables), "without_parameters": len(parameters)}
    name = "PAT and PMT first" if study.has(Container.MPEGTS) else "an init segment"
    faults = [f"{len(tables)} without {name}"] if tables else []
    faults += [f"{len(parameters)} without codec parameters"] if parameters else []
    if not faults:
        return _Measured("tables and parameters first", values=values)
    figure = f"{' and '.join(faults)}, of {len(study.media)}"
    return _Measured(figure, "bad", values, sorted({*tables, *parameters}))


def _keyframes(study: Study) -> _Measured:
    keys = {segment.seq: key for segment in study.media if (key := _begins_with_key(segment)) is not None}
    if not keys:
        return _skip("no video")
    wrong = [seq for seq, key in keys.items() if not key]
    values: dict[str, Value] = {"segments": len(keys), "without": len(wrong)}
    if wrong:
        return _Measured(f"none at the start of {len(wrong)} of {len(keys)}", "bad", values, wrong)
    return _Measured(f"at the start of {count(len(keys), 'segment')}", values=values)


def _begins_with_key(segment: Received) -> bool | None:
    video = next((track for track in segment.media.tracks if track.kind is Kind.VIDEO and track.samples), None)
    if video is None or video.key or video.cut_in or segment.media.container is Container.FMP4:
        return None if video is None else video.key
    # An intra-coded picture without a mark: a decoder begins there all the same.
    picture = segment.media.picture
    return picture is not None and picture.decoded and picture.key and picture.late_s <= 0


def _decodes(study: Study) -> _Measured:
    pictures = {segment.seq: picture for segment in study.media if (picture := segment.media.picture) is not None}
    if not pictures:
        return _skip("no video was decoded")
    failed = {seq: picture.error for seq, picture in pictures.items() if not picture.decoded and not picture.refreshes}
    late = {seq: picture.late_s for seq, picture in pictures.items() if picture.refreshes or picture.late_s > LATE_S}
    values: dict[str, Value] = {"asked": len(pictures), "failed": len(failed), "late": len(late)}
    if failed:
        figure = f"{len(failed)} of {len(pictures)} do not: {next(iter(failed.values()))}"
        return _Measured(figure, "failed", values, list(failed))
    if late:
        after_end = any(picture.refreshes for picture in pictures.values())
        by = "after their end" if after_end else f"by up to {_time(max(late.values()))}"
        return _Measured(
            f"{len(late)} of {len(pictures)} show their first picture late, {by}", "late", values, list(late)
        )
    return _Measured(f"first picture of {count(len(pictures), 'segment')}", values=values)


def _streams(study: Study) -> _Measured:
    sets = [
        (segment.seq, sorted((track.name, track.codec) for track in segment.media.tracks if track.is_timed))
        for segment in study.media
        if segment.whole and not segment.media.unread
    ]
    if not sets:
        return _skip("no whole segment")
    seen = [(seq, [(name, codec_family(codec)) for name, codec in streams]) for seq, streams in sets]
    changed = [seq for (_, before), (seq, now) in pairwise(seen) if before != now]
    described = ", ".join(sorted(f"{codec} ({name})" for name, codec in sets[0][1])) or "no video or sound"
    values: dict[str, Value] = {"streams": described, "changes": len(changed)}
    if changed:
        return _Measured(f"change {count(len(changed), 'time')}", "change", values, changed)
    return _Measured(described, "" if sets[0][1] else "none", values)


def _times_inside(study: Study) -> _Measured:
    timed = {segment.seq: [track for track in segment.media.tracks if track.is_timed] for segment in study.media}
    back = {seq for seq, tracks in timed.items() if any(track.backwards for track in tracks)}
    jumps = {seq for seq, tracks in timed.items() if any(_has_jump(track) for track in tracks)}
    pauses = {
        seq: max(late) for seq, tracks in timed.items() if (late := [x for track in tracks if (x := _pause_s(track))])
    }
    values: dict[str, Value] = {"backwards": len(back), "jumps": len(jumps), "pauses": len(pauses)}
    if not back and not jumps and pauses:
        figure = (
            f"sound is off by up to {_time(max(pauses.values()))} in {len(pauses)} of {count(len(timed), 'segment')}"
        )
        return _Measured(figure, "pause", values, list(pauses))
    if not back and not jumps:
        return _Measured("increase", values=values)
    faults = ([f"run back in {len(back)}"] if back else []) + ([f"jump in {len(jumps)}"] if jumps else [])
    figure = f"{' and '.join(faults)} of {count(len(timed), 'segment')}"
    return _Measured(figure, "bad", values, sorted(back | jumps))


def _has_jump(track: Track) -> bool:
    if not track.steps:
        return False
    return max(track.steps) > max(INSIDE_JUMP_S * track.hz, INSIDE_JUMP_STEPS * middle(track.steps))


def _pause_s(track: Track) -> float:
    """How long frames of sound are missing or come twice, if that can be heard."""
    return track.pause / track.hz if track.pause > max(PAUSE_S * track.hz, 2 * track.frame) else 0.0


def _times_across(study: Study) -> _Measured:
    seams, jumps = len(study.seams), study.jumps
    if not seams:
        return _skip("no two whole segments in a row")
    if not jumps:
        return _Measured(f"go on over {count(seams, 'seam')}", values={"seams": seams, "jumps": 0})
    where = dict(sorted((jump.seam.after.number, jump.seam.after.seq) for jump in jumps))
    largest = max(jumps, key=lambda jump: abs(jump.seconds))
    values: dict[str, Value] = {"seams": seams, "jumps": len(where), "largest_s": round(largest.seconds, 6)}
    if 1 < len(where) == seams and _begin_anew(study):
        return _Measured("begin anew in each segment", "anew", values, list(where.values()))
    fault = "missing" if largest.seconds > 0 else "twice, or running back"
    figure = f"jump at {len(where)} of {count(seams, 'seam')}, by up to {_time(abs(largest.seconds))} {fault}"
    problem = "large" if abs(largest.seconds) >= JUMP_S else "small"
    return _Measured(f"{figure} ({largest.track})", problem, values, list(where.values()))


def _begin_anew(study: Study) -> bool:
    """All segments have the same times."""
    leads = [lead for segment in study.media if (lead := segment.media.lead) is not None]
    first = leads[0].first_dts or 0
    return all(lead.hz == leads[0].hz and abs(lead.since(lead.first_dts or 0, first)) < 0.1 * lead.hz for lead in leads)


def _skew(study: Study) -> _Measured:
    skews = {segment.seq: skew for segment in study.media if (skew := _skew_of(segment)) is not None}
    if not skews:
        return _skip("no segment with both video and sound")
    low, high, usual = min(skews.values()), max(skews.values()), median(skews.values())
    values: dict[str, Value] = {
        "median_s": round(usual, 6),
        "min_s": round(low, 6),
        "max_s": round(high, 6),
    }
    where = [seq for seq, skew in skews.items() if abs(skew) > study.limits.skew_s]
    side = "after" if usual >= 0 else "before"
    figure = f"sound {_time(abs(usual))} {side} the picture, within {_time(high - low)}"
    return _Measured(figure, "bad" if where else "", values, where)


def _skew_of(segment: Received) -> float | None:
    """By how many seconds the first sound comes after the first picture."""
    first: dict[Kind, Track] = {}
    for track in segment.media.tracks:
        if track.first_pts is not None:
            first.setdefault(track.kind, track)
    video, audio = first.get(Kind.VIDEO), first.get(Kind.AUDIO)
    if video is None or audio is None:
        return None
    shown, heard = video.first_pts or 0, audio.first_pts or 0
    return video.since(heard, shown) / video.hz if video.hz == audio.hz else heard / audio.hz - shown / video.hz


def _lengths(study: Study) -> _Measured:
    lengths = study.lengths
    if not lengths:
        return _skip("no whole segment with times")
    low, usual, high = min(lengths.values()), median(lengths.values()), max(lengths.values())
    values: dict[str, Value] = {
        "min_s": round(low, 6),
        "median_s": round(usual, 6),
        "max_s": round(high, 6),
        "deviation_s": round(median(abs(length - usual) for length in lengths.values()), 6),
    }
    # The last digit of a limit is not the ticks of a clock.
    long = [study.segments[number].seq for number in sorted(lengths) if lengths[number] > study.limits.segment_s + 0.05]
    return _Measured(f"{_time(usual)} (from {_time(low)} to {_time(high)})", "bad" if long else "", values, long)


# When it comes.

FAST: Final = 1.25
"""A source that is published at this speed or faster is not live, but a file at full speed."""

SLOW: Final = 0.97
VERY_SLOW: Final = 0.9
"""Clocks differ by thousandths of a percent: below these the publisher is slow."""

MIN_BEHIND_S: Final = 0.5
"""A slow publisher is reported once it is this much behind."""

LUMP: Final = 0.5
"""A segment that is written as it is made arrives over all of its length, but for its last frame."""

LUMP_MIN_S: Final = 0.2
LUMP_MIN_SAMPLES: Final = 5
"""Shorter segments, or of fewer samples, have nothing to spread."""

SKEWED_S: Final = 0.05
"""No clock synchronised by NTP is further off than this; nothing arrives before it was made."""

STALE_S: Final = 3600.0
"""No live channel is an hour behind: such a time comes from a recording, or from a clock that was never set."""

_ENOUGH: Final = 3


def _no_pace(study: Study) -> str:
    """Why pace cannot be measured; nothing if it can."""
    if why := _no_tracks(study):
        return why
    if study.speed is None:
        return "the check waited for too few segments"
    return f"published at {study.speed:.1f} times its speed: not live" if study.speed >= FAST else ""


def _trickles(study: Study) -> _Measured:
    shares: dict[int, float] = {}
    for point in study.awaited:
        segment, lead = point.segment, point.segment.media.lead
        length = study.lengths.get(segment.number, 0.0)
        if lead is not None and lead.samples >= LUMP_MIN_SAMPLES and length >= LUMP_MIN_S:
            shares[segment.seq] = (segment.last_s - segment.answered_s) / length
    if len(shares) < _ENOUGH:
        return _skip("the check waited for too few segments")
    usual = median(shares.values())
    values: dict[str, Value] = {"median_share": round(usual, 4), "segments": len(shares)}
    figure = f"arrive over {min(1.0, usual):.0%} of their length"
    if usual >= LUMP:
        return _Measured(figure, values=values)
    return _Measured(figure, "bad", values, [seq for seq, share in shares.items() if share < LUMP])


def _real_time(study: Study) -> _Measured:
    speed = study.speed or 1.0
    points = study.awaited
    wall_s = points[-1].segment.answered_s - points[0].segment.answered_s
    values: dict[str, Value] = {"speed": round(speed, 4), "over_s": round(wall_s, 3)}
    problem = ""
    if speed < SLOW and (1 - speed) * wall_s > MIN_BEHIND_S:
        problem = "very" if speed < VERY_SLOW else "slow"
    return _Measured(f"{speed:.3f} s of media per second", problem, values)


def _jitter(study: Study) -> _Measured:
    # A publisher that is slow throughout is the rule's before.
    speed = study.speed or 1.0
    late: list[float] = []
    where: list[int] = []
    quickest = math.inf
    for point in study.awaited:
        delay = point.segment.answered_s - point.media_s / speed
        quickest = min(quickest, delay)
        if delay - quickest > study.limits.jitter_s and (not late or late[-1] <= study.limits.jitter_s):
            where.append(point.segment.seq)
        late.append(delay - quickest)
    values: dict[str, Value] = {"max_late_s": round(max(late), 6), "p95_late_s": round(quantile(late, 0.95), 6)}
    return _Measured(f"up to {_time(max(late))} late", "bad" if where else "", values, where)


def _latency(study: Study) -> _Measured:
    made = [(segment, segment.media.producer_us) for segment in study.media]
    times = [(segment, us) for segment, us in made if us is not None]
    return _delays(study, times) if times else _skip("segments carry no producer time")


def _picture_latency(study: Study) -> _Measured:
    pictures = [(segment, segment.media.picture) for segment in study.media]
    times = [(one, picture.clock_ms * 1000) for one, picture in pictures if picture and picture.clock_ms is not None]
    if not times:
        return _skip("no clock in the picture (tricklecast publish URL testsrc has one)")
    return _delays(study, times)


def _delays(study: Study, times: Sequence[tuple[Received, int]]) -> _Measured:
    """Latencies, of segments and the microseconds at which they were made."""
    delays = {one.seq: (one.wall_us - us) / 1e6 for one, us in times if study.was_awaited(one)}
    if not delays:
        return _skip("the check waited for no segment")
    values = _spread(list(delays.values()))
    usual, most = quantile(delays.values(), 0.5), quantile(delays.values(), 0.95)
    least = min(delays.values())
    if abs(usual) > STALE_S:
        return _Measured(f"{usual / 3600:.1f} h", "stale", values)
    if least < -SKEWED_S:
        return _Measured(f"{_time(least)}: clocks differ", "clocks", {**values, "clock_skew_s": round(-least, 6)})
    figure = f"{_time(usual)} (95 %: {_time(most)}, most: {_time(max(delays.values()))})"
    limit_s = study.limits.latency_s
    where = [seq for seq, delay in delays.items() if delay > limit_s] if most > limit_s else []
    return _Measured(figure, "high" if where else "", values, where)


MEASURES: Final[dict[str, Callable[[Study], _Measured]]] = {
    measure.__name__.removeprefix("_"): measure
    for measure in (
        *(_received, _gaps, _skipped, _truncated, _broken, _empty, _restarts, _content_type, _first_byte, _lag, _head),
        *(_damage, _stands_alone, _keyframes, _decodes, _streams, _counters_inside, _counters_across),
        *(_times_inside, _times_across, _skew, _lengths),
        *(_trickles, _real_time, _jitter, _latency, _picture_latency),
    )
}


_NEEDS: Final[dict[str, Callable[[Study], str]]] = {
    "media": _no_media,
    "demuxer": _no_demuxer,
    "tracks": _no_tracks,
    "pace": _no_pace,
}
"""The requirements of rules, each with the function that tells why it is missing."""

RULES: Final[Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    files(__package__).joinpath("rules.toml").read_text("utf-8")
)
"""The table, in the order of the report: the title and the problems of each rule."""
