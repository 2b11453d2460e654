"""The figures of a report besides its episodes, as values: plain, frozen, without Spark.

Times are microseconds since the epoch, UTC. *Wanted* requests are those that would have been enough; the others are
*repeats*. Amplification is requests per wanted request: 1 in a healthy system.
"""

from __future__ import annotations

from dataclasses import dataclass

from tricklecast.analytics.report_old.quality import ClockStep as ClockStep
from tricklecast.analytics.report_old.quality import LogGap as LogGap
from tricklecast.analytics.report_old.quality import Quality as Quality


@dataclass(frozen=True, slots=True)
class Totals:
    """The traffic of the whole log.

    Attributes:
        requests: exchanges.
        repeats: those that would not have been needed (:mod:`analytics.metrics.wanted` says which).
        by_answer: requests by kind of answer.
        bytes_in, bytes_out: body bytes.
        handler_s: time in which requests were being handled, waits included, seconds.
        first_us, last_us: the first and the last arrival or event; ``None`` in an empty log.
        nodes: servers that wrote the log.
    """

    requests: int
    repeats: int
    by_answer: dict[str, int]
    bytes_in: int
    bytes_out: int
    handler_s: float
    first_us: int | None
    last_us: int | None
    nodes: int

    @property
    def wanted(self) -> int:
        """Requests that would have been enough: all without the repeats."""
        return self.requests - self.repeats

    @property
    def amplification(self) -> float:
        """Requests per wanted request."""
        return amplification(self.requests, self.repeats)


def amplification(requests: int, repeats: int) -> float:
    """Requests per wanted request: 1 in a healthy system and without traffic; all of them if none was wanted."""
    wanted = requests - repeats
    return requests / wanted if wanted > 0 else float(requests or 1)


@dataclass(frozen=True, slots=True)
class Share:
    """The traffic of one channel, release, node or network.

    Attributes:
        name: whose traffic; ``None`` if the log does not say.
        requests, repeats: exchanges, and those of them that would not have been needed.
        bytes_out: body bytes sent; wasted_bytes: body bytes moved for repeats, in either direction, about.
        clients: distinct clients in those answers that the report tells apart by client, about.
    """

    name: str | None
    requests: int
    repeats: int
    bytes_out: int
    wasted_bytes: int
    clients: int

    @property
    def amplification(self) -> float:
        """Requests per wanted request."""
        return amplification(self.requests, self.repeats)


@dataclass(frozen=True, slots=True)
class NodeMinute:
    """One server in one minute.

    Attributes:
        node: the server; minute_us: when the minute began.
        requests, repeats: as of :class:`Share`.
    """

    node: str | None
    minute_us: int
    requests: int
    repeats: int

    @property
    def amplification(self) -> float:
        """Requests per wanted request."""
        return amplification(self.requests, self.repeats)


@dataclass(frozen=True, slots=True)
class Success:
    """How well requests ended.

    Attributes:
        first_try, eventual: share of the wanted requests that succeeded at once, and in the end, 0 to 1; 1 without any.
        retry_ratio: repeats per wanted request.
        goodput: share of the body bytes, of either direction, that were moved for wanted requests; 1 without any.
        wasted_requests, wasted_bytes, wasted_handler_s: what the repeats cost: requests, body bytes, seconds.
    """

    first_try: float
    eventual: float
    retry_ratio: float
    goodput: float
    wasted_requests: int
    wasted_bytes: int
    wasted_handler_s: float


@dataclass(frozen=True, slots=True)
class Offender:
    """Somebody whose requests were repeats, in an order from the worst (Pareto).

    Attributes:
        name: the client, release or network (an IPv4 /24, an IPv6 /48); ``None`` if the log does not say.
        repeats: requests too many; share: of all repeats; cumulative: the same with those of all worse ones, 0 to 1.
        episodes: how many episodes it is named in.
    """

    name: str | None
    repeats: int
    share: float
    cumulative: float
    episodes: int


@dataclass(frozen=True, slots=True)
class BudgetBreak:
    """A minute in which retries exceeded their budget (docs: retry storms, budgets).

    Attributes:
        scope: ``client`` (more than 10 % of its requests) or ``node`` (more than 20 % and 10/s).
        name: of the client or node; minute_us: when the minute began.
        requests, retries: in this minute.
    """

    scope: str
    name: str | None
    minute_us: int
    requests: int
    retries: int

    @property
    def ratio(self) -> float:
        """Retries per request, 0 to 1."""
        return self.retries / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Blast:
    """What an episode did to the healthy: clients of the same node that are in no episode.

    Attributes:
        healthy_clients: how many there were meanwhile.
        p95_wait_ms, p95_before_ms: 95th percentile of their waits for the first byte, during the episode and in as
            long a time before it (at least a minute); milliseconds; ``None`` if nobody was there.
    """

    healthy_clients: int
    p95_wait_ms: float | None
    p95_before_ms: float | None

    @property
    def ratio(self) -> float | None:
        """How many times longer they waited; ``None`` where that cannot be told."""
        return self.p95_wait_ms / self.p95_before_ms if self.p95_wait_ms and self.p95_before_ms else None


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The pauses between an episode's requests, of its busiest client.

    Attributes:
        gaps: how many pauses were measured.
        median_ms: the median pause, milliseconds.
        cv: their coefficient of variation (standard deviation / mean), after growth was taken out.
        growth: how many times longer each pause is than the one before it, typically; 1 for a fixed pace.
    """

    gaps: int
    median_ms: float
    cv: float
    growth: float


@dataclass(frozen=True, slots=True)
class Sparkline:
    """An episode's requests over time.

    Attributes:
        start_us: when the first step begins; step_us: their width: one second, or as much as fits it into 600 steps.
        counts: requests per step.
    """

    start_us: int
    step_us: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Marker:
    """A lifecycle event, to be drawn into the timeline.

    Attributes:
        ts_us: when; event: what; node, channel: where, ``None`` if it does not apply.
    """

    ts_us: int
    event: str
    node: str | None
    channel: str | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The traffic over time, in steps of equal width, without gaps.

    Attributes:
        start_us: when the first step begins; step_us: their width.
        requests, failures, hits: per step: all exchanges; refusals (:data:`~analytics.answers.FAILURES`);
            requests that a storm counts.
        markers: lifecycle events, in order, at most ``max_markers`` of them (server events first).
        n_markers: how many there were.
    """

    start_us: int
    step_us: int
    requests: tuple[int, ...]
    failures: tuple[int, ...]
    hits: tuple[int, ...]
    markers: tuple[Marker, ...]
    n_markers: int


@dataclass(frozen=True, slots=True)
class RateRatio:
    """One figure, before and after.

    Attributes:
        name: what is counted, ``all repeats`` or a class of storm.
        before, after: how often; before_of, after_of: in how many requests.
        ratio: rate after / rate before; lo, hi: its 95 % confidence interval; ``None`` where it is undefined.
    """

    name: str
    before: int
    before_of: int
    after: int
    after_of: int
    ratio: float | None
    lo: float | None
    hi: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Before and after a release or a date, or against another folder's logs.

    Attributes:
        by: ``release``, ``date`` or ``logs``; before, after: names of the two sides.
        ratios: the worst change first.
    """

    by: str
    before: str
    after: str
    ratios: tuple[RateRatio, ...]
