"""Rules about what is in the segments of MPEG-TS and fragmented MP4."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from tricklecast.subscriber.check.findings import Limits, Result, Rule, Value, Verdict, named, seconds, skip
from tricklecast.subscriber.check.media import Container, Fault, Kind, Track
from tricklecast.subscriber.check.observations import Seen
from tricklecast.subscriber.check.study import Study
from tricklecast.subscriber.check.timeline_rules import NOT_MEDIA, is_timed
from tricklecast.trickle.terminal import count

_DAMAGE: Final = (
    Fault.SYNC_LOST,
    Fault.PARTIAL_PACKET,
    Fault.TRANSPORT_ERROR,
    Fault.BAD_PACKET,
    Fault.BAD_TABLE,
    Fault.BAD_BOX,
)

LATE_S: Final = 0.2
"""Leading pictures of an open group are left out by a decoder that joins there; they come after the first picture."""

_LATE_MEANS: Final = "Whoever joins at such a segment waits for a whole picture: it is refreshed bit by bit."
_LATE_CURE: Final = "A shorter refresh (x264: intra-refresh and keyint), or keyframes, if joining has to be quick."


def _damage(study: Study, limits: Limits) -> Result:
    if not study.is_media:
        return skip(NOT_MEDIA)
    # A segment that was cut ends anywhere.
    at_end = (Fault.PARTIAL_PACKET, Fault.BAD_BOX)
    found = {
        fault: [seen for seen in study.media if seen.media.faults.get(fault) and (seen.whole or fault not in at_end)]
        for fault in _DAMAGE
    }
    return _counted({fault: seen for fault, seen in found.items() if seen}, Verdict.FAIL, "undamaged")


def _counted(found: dict[Fault, list[Seen]], verdict: Verdict, well: str) -> Result:
    if not found:
        return Result(Verdict.OK, well, values={"faults": 0})
    counts: dict[str, Value] = {
        fault.value.replace(" ", "_"): sum(seen.media.faults[fault] for seen in where) for fault, where in found.items()
    }
    seqs = sorted({seen.seq for where in found.values() for seen in where})
    figure = ", ".join(f"{name.replace('_', ' ')} ({number})" for name, number in counts.items())
    return Result(verdict, f"{figure}, in {count(len(seqs), 'segment')}", values=counts, segments=named(seqs))


def _counters(fault: Fault, verdict: Verdict) -> Callable[[Study, Limits], Result]:
    def find(study: Study, limits: Limits) -> Result:
        if not study.has(Container.MPEGTS):
            return skip("not MPEG-TS")
        where = [seen for seen in study.media if seen.media.faults.get(fault)]
        return _counted({fault: where} if where else {}, verdict, "go on")

    return find


def _stands_alone(study: Study, limits: Limits) -> Result:
    if not study.is_media:
        return skip(NOT_MEDIA)
    if any(seen.media.faults.get(Fault.SCRAMBLED) for seen in study.media):
        return skip("encrypted")
    tables = [seen.seq for seen in study.media if not seen.media.tables]
    parameters = [seen.seq for seen in study.media if any(track.opening.parameters is False for track in _video(seen))]
    what = [
        f"{len(tables)} without {_tables_of(study)}" if tables else "",
        f"{len(parameters)} without codec parameters" if parameters else "",
    ]
    values: dict[str, Value] = {"without_tables": len(tables), "without_parameters": len(parameters)}
    if not tables and not parameters:
        return Result(Verdict.OK, "tables and parameters first", values=values)
    figure = f"{' and '.join(filter(None, what))}, of {len(study.media)}"
    return Result(Verdict.FAIL, figure, values=values, segments=named(sorted({*tables, *parameters})))


def _tables_of(study: Study) -> str:
    return "PAT and PMT first" if study.has(Container.MPEGTS) else "an init segment"


def _video(seen: Seen) -> list[Track]:
    return [track for track in seen.media.tracks if track.kind is Kind.VIDEO]


def _keyframes(study: Study, limits: Limits) -> Result:
    known: list[Seen] = []
    wrong: list[int] = []
    for seen in study.media:
        if (key := _begins_with_key(seen)) is not None:
            known.append(seen)
            wrong += [] if key else [seen.seq]
    if not known:
        return skip("no video whose pictures can be told apart")
    values: dict[str, Value] = {"segments": len(known), "without": len(wrong)}
    if not wrong:
        return Result(Verdict.OK, f"at the start of {count(len(known), 'segment')}", values=values)
    return Result(
        Verdict.FAIL, f"none at the start of {len(wrong)} of {len(known)}", values=values, segments=named(wrong)
    )


def _begins_with_key(seen: Seen) -> bool | None:
    """The container's word counts; the decoder's where that is silent."""
    video = next(iter(_video(seen)), None)
    if video is None:
        return None
    if video.cut_in:
        return False
    if video.opening.key is None and seen.picture is not None and seen.picture.decoded:
        return seen.picture.key
    return video.opening.key


def _decodes(study: Study, limits: Limits) -> Result:
    if not study.is_media:
        return skip(NOT_MEDIA)
    asked = {seen.seq: seen.picture for seen in study.media if seen.picture is not None}
    if not asked:
        return skip("no video was decoded" if study.run.has_decoder else 'needs PyAV: pip install "tricklecast[media]"')
    failed = {seq: it.error for seq, it in asked.items() if not it.decoded and not it.refreshes}
    late = {seq: it.late_s for seq, it in asked.items() if it.refreshes or it.late_s > LATE_S}
    values: dict[str, Value] = {"asked": len(asked), "failed": len(failed), "late": len(late)}
    if failed:
        figure = f"{len(failed)} of {len(asked)} do not: {next(iter(failed.values()))}"
        return Result(Verdict.FAIL, figure, values=values, segments=named(list(failed)))
    if late:
        by = max(late.values())
        figure = f"{len(late)} of {len(asked)} show their first picture late, " + (
            "after their end" if any(it.refreshes for it in asked.values()) else f"by up to {seconds(by)}"
        )
        return Result(Verdict.WARN, figure, _LATE_MEANS, _LATE_CURE, values, named(list(late)))
    return Result(Verdict.OK, f"first picture of {count(len(asked), 'segment')}", values=values)


def _streams(study: Study, limits: Limits) -> Result:
    if not study.is_media:
        return skip(NOT_MEDIA)
    sets = [
        (seen, tuple(sorted(f"{track.codec} ({track.name})" for track in seen.media.tracks if is_timed(track))))
        for seen in study.media
        if seen.whole
    ]
    if not sets:
        return skip("no whole segment")
    changed = [after.seq for (_, before), (after, now) in pairwise(sets) if before != now]
    described = ", ".join(sets[0][1]) or "no video or sound"
    values: dict[str, Value] = {"streams": described, "changes": len(changed)}
    if not sets[0][1] and not changed:
        if not any(seen.media.tables for seen in study.media):
            return skip("nothing says what is in the segments")
        return Result(Verdict.FAIL, described, "There is nothing to see or hear.", "Look at the source.", values)
    if not changed:
        return Result(Verdict.OK, described, values=values)
    return Result(Verdict.WARN, f"change {count(len(changed), 'time')}", values=values, segments=named(changed))


MEDIA_RULES: Final = (
    Rule(
        "damage",
        "Bytes undamaged",
        _damage,
        "Packets or boxes are damaged or cut: pictures break, or the segment cannot be read.",
        "Look at the source (UDP loses packets) and at what cuts segments: each must end with a whole packet or box.",
    ),
    Rule(
        "stands_alone",
        "Segments stand alone",
        _stands_alone,
        "Whoever joins at such a segment cannot decode it.",
        "Write program tables or the init segment at each segment's start, and codec parameters before each keyframe"
        " (ffmpeg: -mpegts_flags +resend_headers, -bsf:v dump_extra=freq=keyframe).",
    ),
    Rule(
        "keyframes",
        "Keyframe first",
        _keyframes,
        "Whoever joins at such a segment sees nothing, or broken pictures, until the next keyframe.",
        "Cut segments at keyframes (ffmpeg -f segment does; or -force_key_frames at the wanted length).",
    ),
    Rule(
        "decodes",
        "Decodes alone",
        _decodes,
        "A decoder that has only this segment does not get its first picture.",
        "See “segments stand alone” and “keyframe first”; if both are fine, the source is damaged.",
    ),
    Rule(
        "streams",
        "Same streams throughout",
        _streams,
        "Players have to begin anew at each change, and many do not.",
        "Keep codecs, PIDs and tracks the same; a stream that is silent may be missing from the tables.",
    ),
    Rule(
        "counters_inside",
        "Continuity counters inside",
        _counters(Fault.LOST_INSIDE, Verdict.FAIL),
        "Packets were lost or mixed up before they were published.",
        "Look at how the source reaches the publisher: UDP loses packets.",
    ),
    Rule(
        "counters_across",
        "Continuity counters across",
        _counters(Fault.LOST_AT_SEAM, Verdict.WARN),
        "Joined segments look like lost packets: demuxers may drop the frame at each seam.",
        "Number packets on from segment to segment (tricklecast publish does), or set the discontinuity indicator.",
    ),
)
