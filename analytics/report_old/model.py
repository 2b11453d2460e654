"""The report as values: plain, frozen, without Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tricklecast.analytics.causes import Cause, likely_cause
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.report_old.figures import (
    Blast,
    BudgetBreak,
    Comparison,
    NodeMinute,
    Offender,
    Quality,
    Rhythm,
    Share,
    Sparkline,
    Success,
    Timeline,
    Totals,
)
from tricklecast.analytics.rhythm import Tempo

EARLY: Final = 0.5
"""Coming back after less than this share of ``Retry-After``, on average, is ignoring it."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One storm.

    Attributes:
        id: the same for the same storm in the same log, whatever else is in it.
        start_us, end_us: arrivals of its first and last request, microseconds since the epoch.
        n: its requests; hits: those of them that were too many for any healthy client.
        clients, channels: the worst names; n_clients, n_channels: how many there are.
        node, release: the server, and the client's product/version; ``None`` if unknown or more than one.
        seq_lo, seq_hi: the range of seqs it was about; ``None`` if no seq is known.
        head: the channel's head at its end; ``None`` if the log does not say.
        trigger, trigger_us: the event that it followed, and when that was; ``None`` if there is none in the log.
        peak_rps: hits in its worst second, or a usual one of its own time, per second.
        backoff: the rhythm: ``hot_loop``, ``fixed``, ``fixed_jitter``, ``exponential``, ``exponential_jitter``,
            ``irregular``; ``None`` where it cannot be told.
        rhythm: the pauses that it was told from; ``None`` where it cannot be told.
        retry_after: whether the client came back no sooner than told: ``honoured``, ``ignored``; ``None`` if not told.
        outcome: ``recovered`` (its clients were served afterwards), ``gave_up`` (they were not), ``ongoing`` (the log
            ends first).
        bytes_out, handler_s: what it cost the server: body bytes sent, seconds spent handling.
        sparkline: its requests over time. blast: what it did to the healthy. ``None`` where it was not computed.
        why: likely cause and advice.
    """

    id: str
    storm: StormClass
    severity: Severity
    start_us: int
    end_us: int
    n: int
    hits: int
    clients: tuple[str, ...]
    n_clients: int
    channels: tuple[str, ...]
    n_channels: int
    node: str | None
    release: str | None
    seq_lo: int | None
    seq_hi: int | None
    head: int | None
    trigger: str | None
    trigger_us: int | None
    peak_rps: float
    backoff: str | None
    retry_after: str | None
    bytes_out: int
    handler_s: float
    why: Cause
    rhythm: Rhythm | None = None
    outcome: str | None = None
    sparkline: Sparkline | None = None
    blast: Blast | None = None

    @property
    def duration_s(self) -> float:
        """From the first to the last request, seconds."""
        return (self.end_us - self.start_us) / 1e6

    @property
    def outlived_trigger_s(self) -> float | None:
        """How long after its trigger the last request came, seconds; negative if the trigger came last."""
        return None if self.trigger_us is None else (self.end_us - self.trigger_us) / 1e6


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run found.

    Attributes:
        inputs: the files that were read.
        totals, success: the traffic as a whole, and how well it went.
        quality: how far the log can be trusted.
        episodes: the worst storms, the worst first; n_episodes: how many there are.
        worst_minute: the node and minute with the highest amplification, of those with at least
            ``params.busy_minute`` requests; ``None`` without any.
        by_node, by_channel, by_release: where the traffic was wasted, the worst first.
        offending_clients, offending_releases, offending_networks: who wasted it (Pareto), the worst first.
        budget_breaks: minutes in which retries exceeded their budget, the worst first; n_budget_breaks: how many.
        timeline: the traffic over time; ``None`` for an empty log.
        comparison: before and after; ``None`` if no baseline was asked for.
        params: what counted as a storm.
    """

    inputs: tuple[str, ...]
    totals: Totals
    quality: Quality
    episodes: tuple[Episode, ...]
    n_episodes: int
    params: StormParams
    success: Success | None = None
    worst_minute: NodeMinute | None = None
    by_node: tuple[Share, ...] = ()
    by_channel: tuple[Share, ...] = ()
    by_release: tuple[Share, ...] = ()
    offending_clients: tuple[Offender, ...] = ()
    offending_releases: tuple[Offender, ...] = ()
    offending_networks: tuple[Offender, ...] = ()
    budget_breaks: tuple[BudgetBreak, ...] = ()
    n_budget_breaks: int = 0
    timeline: Timeline | None = None
    comparison: Comparison | None = None

    def has(self, severity: str) -> bool:
        """Whether there is a storm at least so bad."""
        rank = list(Severity).index
        return any(rank(episode.severity) >= rank(Severity(severity)) for episode in self.episodes)


def episode_from(row: Mapping[str, Any], pace: Tempo) -> Episode:
    """A row with the columns of :data:`analytics.episodes.EPISODE`, and its pace, as an
    :class:`Episode`."""
    storm = StormClass(row["class"])
    clients, channels = tuple(row["clients"]), tuple(row["channels"])
    retry_after = _retry_after(row["retry_after_ms"], pace.gap_ms)
    return Episode(
        id=identity(storm, row["node"], row["release"], *clients[:1], *channels[:1], row["first_us"]),
        storm=storm,
        severity=Severity(row["severity"]),
        start_us=row["first_us"],
        end_us=row["last_us"],
        n=row["n"],
        hits=row["hits"],
        clients=clients,
        n_clients=row["n_clients"],
        channels=channels,
        n_channels=row["n_channels"],
        node=row["node"],
        release=row["release"],
        seq_lo=row["seq_lo"],
        seq_hi=row["seq_hi"],
        head=row["head_hi"],
        trigger=row["trigger"],
        trigger_us=row["trigger_us"],
        peak_rps=round(row["peak_rps"], 3),
        backoff=pace.backoff,
        rhythm=pace.rhythm,
        retry_after=retry_after,
        bytes_out=row["bytes_out"] or 0,
        handler_s=(row["dur_us"] or 0) / 1e6,
        why=likely_cause(storm, row["trigger"], passed=_passed(row["seq_hi"], row["head_hi"]), retry_after=retry_after),
    )


def _passed(seq: int | None, head: int | None) -> bool:
    return seq is not None and head is not None and head > seq


def _retry_after(told_ms: int | None, gap_ms: float | None) -> str | None:
    if not told_ms or gap_ms is None:
        return None
    return "ignored" if gap_ms < EARLY * told_ms else "honoured"


def identity(*parts: object) -> str:
    """What an episode is called: made of its class, node, release, first client and channel, and beginning."""
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:12]
