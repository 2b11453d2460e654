"""Rules about the times in the segments of MPEG-TS and fragmented MP4."""

from __future__ import annotations

from statistics import median
from typing import Final

from tricklecast.subscriber.check.findings import Limits, Result, Rule, Value, Verdict, named, seconds, skip
from tricklecast.subscriber.check.media import Kind, Track
from tricklecast.subscriber.check.observations import Seen
from tricklecast.subscriber.check.study import JUMP_S, Study, middle
from tricklecast.trickle.terminal import count

NOT_MEDIA: Final = "not MPEG-TS or MP4"

INSIDE_JUMP_S: Final = 3.0
INSIDE_JUMP_STEPS: Final = 10
"""A pause inside a segment is a jump if it is as long as both of these; cameras and screens may pause for a while."""


def _inside(study: Study, limits: Limits) -> Result:
    if not study.is_media:
        return skip(NOT_MEDIA)
    back = {seen.seq for seen in study.media if any(is_timed(track) and track.backwards for track in seen.media.tracks)}
    jumps = {seen.seq for seen in study.media if any(is_timed(track) and _leaps(track) for track in seen.media.tracks)}
    values: dict[str, Value] = {"backwards": len(back), "jumps": len(jumps)}
    if not back and not jumps:
        return Result(Verdict.OK, "increase", values=values)
    what = [f"run back in {len(back)}" if back else "", f"jump in {len(jumps)}" if jumps else ""]
    figure = f"{' and '.join(filter(None, what))} of {count(len(study.media), 'segment')}"
    return Result(Verdict.FAIL, figure, values=values, segments=named(sorted(back | jumps)))


def is_timed(track: Track) -> bool:
    """Whether a track's samples have to follow one another; subtitles and data come when they come."""
    return track.kind is not Kind.DATA


def _leaps(track: Track) -> bool:
    if not track.steps:
        return False
    return max(track.steps) > max(INSIDE_JUMP_S * track.hz, INSIDE_JUMP_STEPS * middle(track.steps))


def _seams(study: Study, limits: Limits) -> Result:
    if not study.is_media:
        return skip(NOT_MEDIA)
    seams = len(study.seams)
    if not seams:
        return skip("no two whole segments in a row")
    jumps = study.jumps
    if not jumps:
        return Result(Verdict.OK, f"go on over {count(seams, 'seam')}", values={"seams": seams, "jumps": 0})
    where = sorted({jump.seam.after.number: jump.seam.after.seq for jump in jumps}.items())
    largest = max(jumps, key=lambda jump: abs(jump.seconds))
    values: dict[str, Value] = {"seams": seams, "jumps": len(where), "largest_s": round(largest.seconds, 6)}
    verdict = Verdict.FAIL if abs(largest.seconds) >= JUMP_S else Verdict.WARN
    seqs = named([seq for _, seq in where])
    if len(where) > 1 and len(where) == seams and _begins_anew(study):
        note = "Every segment begins at the same time, as if it were a file of its own."
        cure = "Publish with continuous timestamps (ffmpeg -f segment: without -reset_timestamps; -copyts helps)."
        return Result(verdict, "begin anew in each segment", note, cure, values, seqs)
    what = "missing" if largest.seconds > 0 else "twice, or running back"
    figure = f"jump at {len(where)} of {count(seams, 'seam')}, by up to {seconds(abs(largest.seconds))} {what}"
    return Result(verdict, f"{figure} ({largest.track})", values=values, segments=seqs)


def _begins_anew(study: Study) -> bool:
    """All segments of the channel have the same times."""
    leads = [lead for seen in study.media if (lead := seen.media.lead) is not None]
    first = leads[0]
    return all(
        lead.hz == first.hz
        and lead.first_dts is not None
        and first.first_dts is not None
        and abs(lead.since(lead.first_dts, first.first_dts)) < 0.1 * lead.hz
        for lead in leads
    )


def _skew(study: Study, limits: Limits) -> Result:
    skews = [skew for seen in study.media if (skew := _skew_of(seen)) is not None]
    if not skews:
        return skip("no segment with both video and sound")
    low, high = min(skews), max(skews)
    values: dict[str, Value] = {"min_s": round(low, 6), "max_s": round(high, 6), "median_s": round(median(skews), 6)}
    verdict = limits.exceeded("skew_s") if max(abs(low), abs(high)) > limits.skew_s else Verdict.OK
    usual = median(skews)
    figure = (
        f"sound {seconds(abs(usual))} {'after' if usual >= 0 else 'before'} the picture, within {seconds(high - low)}"
    )
    return Result(verdict, figure, values=values)


def _skew_of(seen: Seen) -> float | None:
    """By how many seconds the first sound comes after the first picture."""
    first: dict[Kind, Track] = {}
    for track in seen.media.tracks:
        if track.first_pts is not None:
            first.setdefault(track.kind, track)
    video, audio = first.get(Kind.VIDEO), first.get(Kind.AUDIO)
    if video is None or audio is None or video.first_pts is None or audio.first_pts is None:
        return None
    if video.hz == audio.hz:
        return video.since(audio.first_pts, video.first_pts) / video.hz
    return audio.first_pts / audio.hz - video.first_pts / video.hz


def _lengths(study: Study, limits: Limits) -> Result:
    lengths = study.lengths
    if not lengths:
        return skip("no whole segment with times" if study.is_media else NOT_MEDIA)
    low, middle_s, high = min(lengths.values()), median(lengths.values()), max(lengths.values())
    values: dict[str, Value] = {
        "min_s": round(low, 6),
        "median_s": round(middle_s, 6),
        "max_s": round(high, 6),
        "deviation_s": round(median(abs(length - middle_s) for length in lengths.values()), 6),
    }
    figure = f"{seconds(middle_s)} (from {seconds(low)} to {seconds(high)})"
    # The last digit of a limit is not the ticks of a clock.
    long = [study.seen[number].seq for number, length in sorted(lengths.items()) if length > limits.segment_s + 0.05]
    verdict = limits.exceeded("segment_s") if long else Verdict.OK
    return Result(verdict, figure, values=values, segments=named(long))


TIMELINE_RULES: Final = (
    Rule(
        "times_inside",
        "Times increase",
        _inside,
        "Decoding times run back, or jump, inside a segment: players drop frames or stall.",
        "Look at the source's clock, and at what joins its parts.",
    ),
    Rule(
        "times_across",
        "Times across segments",
        _seams,
        "Where segments join, something is missing, twice, or runs back: players stall, skip or lose lip-sync.",
        "Use one muxer's time line for all segments, and never drop packets between them.",
    ),
    Rule(
        "skew",
        "Sound and picture start together",
        _skew,
        "At a segment's start one of them is missing for a while.",
        "Interleave more tightly (ffmpeg -max_interleave_delta, -muxdelay 0).",
    ),
    Rule(
        "lengths",
        "Segment lengths",
        _lengths,
        "Viewers join at the start of a segment: the longer it is, the more they wait, or are behind.",
        "Make keyframes more often (x264: -g, tricklecast publish --transcode --gop 2).",
    ),
)
