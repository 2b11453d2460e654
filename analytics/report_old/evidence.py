"""Why an episode is called a storm, in words: the arithmetic against each threshold, and what is known besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.report.formats import clock, counted, duration, millis, rate, size, times
from tricklecast.analytics.report.plain import Name, Phrase

if TYPE_CHECKING:
    from tricklecast.analytics.params import StormParams
    from tricklecast.analytics.report_old.model import Episode

OUTCOMES: Final = {
    "recovered": "recovered: its clients were served afterwards",
    "gave_up": "gave up: its clients were not served again",
    "ongoing": "ongoing: the log ends first",
}
RETRY_AFTER: Final = {
    "honoured": "honoured: the clients came back no sooner than they were told",
    "ignored": "ignored: the clients came back sooner than they were told",
}


def evidence(episode: Episode, params: StormParams) -> tuple[Phrase, ...]:
    """What an episode was judged by, one phrase for each fact that is known."""
    phrases = [_hits(episode), _pace(episode, params), _seqs(episode), trigger_of(episode)]
    return tuple(phrase for phrase in phrases if phrase)


def seqs_of(episode: Episode) -> str | None:
    """``7`` or ``10 to 12``; ``None`` if no seq is known."""
    if episode.seq_lo is None or episode.seq_hi is None:
        return None
    return f"{episode.seq_lo}" if episode.seq_lo == episode.seq_hi else f"{episode.seq_lo} to {episode.seq_hi}"


def trigger_of(episode: Episode) -> Phrase:
    """When the event came that the episode is joined to, and how long the storm outlived it; empty without one."""
    if episode.trigger is None or episode.trigger_us is None:
        return ()
    event = Name(episode.trigger)
    from_first, from_last = episode.trigger_us - episode.start_us, episode.trigger_us - episode.end_us
    if from_first <= 0:
        outlived = f"; the storm outlived it by {duration(-from_last / 1e6)}"
        return (event, f" {duration(-from_first / 1e6)} before the first request", outlived)
    if from_last > 0:
        return (event, f" {duration(from_last / 1e6)} after the last request: it went on until then")
    return (event, f" {duration(from_first / 1e6)} after the first request")


def rhythm_of(episode: Episode) -> Phrase:
    """How the client paced itself, with the figures that it was told from; empty where it cannot be told."""
    if episode.backoff is None:
        return ()
    if episode.rhythm is None:
        return (Name(episode.backoff),)
    rhythm = episode.rhythm
    whose = " of its busiest client" if episode.n_clients > 1 else ""
    whose = " of its busiest client" if episode.n_clients > 1 else ""
    pauses = f"{counted(rhythm.gaps, 'pause')}{whose}"
    figures = f"median pause {millis(rhythm.median_ms)} over {pauses}, varying by {rhythm.cv * 100:.0f} %"
    growth = "" if abs(rhythm.growth - 1) < 0.05 else f", each about {times(rhythm.growth)} the one before"
    return (Name(episode.backoff), f": {figures}{growth}")


def blast_of(episode: Episode) -> str | None:
    """What it did to the healthy clients of the same server; ``None`` where that was not computed."""
    blast = episode.blast
    if blast is None:
        return None
    if not blast.healthy_clients:
        return "no healthy client was on the server meanwhile"
    who = counted(blast.healthy_clients, "healthy client")
    if blast.p95_wait_ms is None:
        return f"{who}; how long they waited is not known"
    waited = f"{who} waited {millis(blast.p95_wait_ms)} for the first byte (95th percentile)"
    if blast.p95_before_ms is None:
        return waited
    compared = "" if blast.ratio is None else f": {times(blast.ratio)}"
    return f"{waited}, {millis(blast.p95_before_ms)} before{compared}"


def cost_of(episode: Episode) -> str:
    """What it cost the server."""
    return f"{size(episode.bytes_out)} sent, {duration(episode.handler_s)} of handling, waits included"


def _hits(episode: Episode) -> Phrase:
    requests = counted(episode.n, "request")
    if episode.hits >= episode.n:
        return (f"{requests}, all of them too many for any healthy client",)
    return (f"{requests}, of which {episode.hits:,} were too many for any healthy client (hits)",)


def _pace(episode: Episode, params: StormParams) -> Phrase:
    mean = episode.hits / max(1.0, episode.duration_s)
    hits = f"{counted(episode.hits, 'hit')} in {duration(episode.duration_s)} = {rate(mean)}"
    return (f"{hits}, {rate(episode.peak_rps)} in the worst second; {_threshold(episode, params)}",)


def _threshold(episode: Episode, params: StormParams) -> str:
    match episode.storm:
        case StormClass.OVERLOAD_AMPLIFICATION:
            seconds = counted(params.amplified_s, "second")
            return (
                f"a fleet's overload from {params.many_clients} clients with {params.amplification:g} requests per"
                f" wanted one, in at least {seconds}"
            )
        case StormClass.THUNDERING_HERD:
            return (
                f"a herd from {params.herd_clients} clients in one second, {params.herd_ratio:g} times the server's"
                " usual second"
            )
        case _ if episode.severity is Severity.CRITICAL:
            fast = f"{params.critical_hits} hits at {rate(params.critical_rps)}"
            return f"critical from {fast}, or from {params.critical_hits_alone} at any pace"
    return (
        f"a storm from {params.warn_hits} hits at {rate(params.warn_rps)}, or from {params.warn_hits_alone} at any pace"
    )


def _seqs(episode: Episode) -> Phrase:
    seqs = seqs_of(episode)
    if seqs is None:
        return ()
    same = f"always seq {seqs}" if episode.seq_lo == episode.seq_hi else f"seqs {seqs}"
    head = "" if episode.head is None else f"; the head stood at {episode.head}"
    return (same + head,)


def span_of(episode: Episode) -> str:
    """``09:05:04 to 09:08:32 UTC``."""
    return f"{clock(episode.start_us)} to {clock(episode.end_us)} UTC"
