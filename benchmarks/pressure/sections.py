"""The sections: which cases each compares, and what is expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.pressure.bounds import Bound, difference, figure, ratio
from benchmarks.scenarios import Ask, Idle, Repeat, Scenario, Stream

LET_THEM_STALL = ("--reader-lag-s", "600")
"""Stalled readers stay for the whole measurement instead of being cut off."""

UNGUARDED = ("--storm-guard", "off")
LARGE = "kept, 64 KiB"
ENDED_FOR_LONG = ("--channel-drain-s", "600")


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: a scenario at a server with these settings."""

    scenario: Scenario
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A figure in the table: its title, its name in the samples, a factor, and how it is written."""

    title: str
    name: str
    factor: float = 1.0
    form: str = ".1f"


@dataclass(frozen=True, slots=True)
class Section:
    """Cases that are compared.

    Attributes:
        title: what it shows. cases: by name, in the order in which a round runs them.
        rounds: at most so many; ``None``: as many as are asked for.
        compared: whether other servers are measured in its cases, too.
    """

    title: str
    cases: dict[str, Case]
    columns: tuple[Column, ...]
    bounds: tuple[Bound, ...]
    rounds: int | None = None
    compared: bool = False


_CPU = Column("CPU us", "cpu_us", form=".2f")
_LATENCY = (Column("p50 ms", "p50_ms"), Column("p99 ms", "p99_ms"))
_BUSY = (
    Column("server core", "server_busy", 100, ".1f"),
    Column("load core", "load_busy", 100, ".0f"),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How large everything is; tests make it tiny.

    Attributes:
        healthy, stalled: readers beside readers that never read. loopers: naive clients. idle: waiting readers.
        many, few: readers of one channel that are compared. deliveries: chunks per second that both are sent.
        askers: clients whose answers are counted. neighbours: readers behind one address.
        warm_up_s, measure_s: of everything; streams of ``many`` take longer.
    """

    healthy: int = 200
    stalled: int = 1000
    loopers: int = 200
    idle: int = 10_000
    many: int = 5000
    few: int = 500
    deliveries: int = 15_000
    askers: int = 50
    neighbours: int = 20
    warm_up_s: float = 2.0
    measure_s: float = 3.0


def stalled(size: Size) -> Section:
    """Healthy readers and the publisher beside readers that never read."""
    # One segment for all: the stalled ones would otherwise be left behind with the segment that they asked for.
    alone = Stream(
        readers=size.healthy,
        chunk_bytes=8 << 10,
        chunks_per_segment=1 << 30,
        rate=30,
        warm_up_s=size.warm_up_s,
        measure_s=size.measure_s,
    )
    among = replace(alone, stalled=size.stalled)
    return Section(
        f"{size.healthy} readers, alone and among {size.stalled} that never read",
        {"alone": Case(alone, LET_THEM_STALL), "among stalled": Case(among, LET_THEM_STALL)},
        (
            _CPU,
            *_LATENCY,
            Column("chunks published/s", "pace"),
            Column("publisher blocked %", "blocked", 100, ".2f"),
            *_BUSY,
            Column("stalled at the end", "stalled", form=".0f"),
        ),
        (
            Bound("p50 of healthy readers, x alone", ratio("p50_ms", "among stalled", "alone"), 1.5),
            Bound("p99 of healthy readers, x alone", ratio("p99_ms", "among stalled", "alone"), 1.5),
            Bound("publisher's time per chunk, x alone", ratio("pace", "alone", "among stalled"), 1.02),
            Bound("publisher blocked, % of the time", figure("blocked", "among stalled", 100), 1),
            Bound("kB per stalled reader", difference("rss_kb", "among stalled", "alone", max(size.stalled, 1))),
        ),
        compared=True,
    )


def loopers(size: Size) -> Section:
    """Naive clients that repeat what cannot succeed."""
    cases, bounds = {}, []
    for ask in (Ask.MISSING, Ask.AHEAD, Ask.EMPTY, Ask.ENDED):
        for keep_alive in (True, False):
            scenario = Repeat(
                ask=ask,
                clients=size.loopers,
                keep_alive=keep_alive,
                # Until what is free to each is used up: 64 readers might stand behind an address.
                warm_up_s=5 * size.warm_up_s,
                measure_s=size.measure_s,
            )
            name = f"{ask}, {'keep-alive' if keep_alive else 'new connections'}"
            cases[f"{name}, unguarded"] = Case(scenario, (*ENDED_FOR_LONG, *UNGUARDED))
            cases[name] = Case(scenario, ENDED_FOR_LONG)
            bounds.append(Bound(f"{name}: % of a core", figure("server_busy", name, 100), 15))
    return Section(
        f"{size.loopers} naive clients in a loop, without the storm guard and with it",
        cases,
        (Column("answers/s", "rate", form=".0f"), _CPU, *_BUSY),
        tuple(bounds),
        rounds=1,
    )


def idle(size: Size) -> Section:
    """What a waiting reader costs."""
    return Section(
        f"{size.idle} readers that wait",
        {"idle": Case(Idle(readers=size.idle))},
        (Column("kB per reader", "kb", form=".2f"), Column("delivered at last %", "share", 100, ".2f")),
        (Bound("kB per waiting reader", figure("kb", "idle"), 4),),
        rounds=1,
        compared=True,
    )


def many(size: Size) -> Section:
    """One channel with many readers, beside one with few, at the same number of chunks delivered per second."""

    def stream(readers: int, measure_s: float) -> Stream:
        # A segment per 15 chunks in both, so that the requests weigh the same; whole segments are measured.
        return Stream(
            readers=readers,
            chunk_bytes=8 << 10,
            chunks_per_segment=15,
            rate=size.deliveries / readers,
            warm_up_s=size.warm_up_s,
            measure_s=measure_s,
        )

    few, lots = f"{size.few} readers", f"{size.many} readers"
    cases = {
        few: Case(stream(size.few, size.measure_s)),
        lots: Case(stream(size.many, max(size.measure_s, 15 * size.many / size.deliveries))),
    }
    return Section(
        f"{size.many} readers of one channel, beside {size.few}, both at {size.deliveries} deliveries/s",
        cases,
        (_CPU, *_LATENCY, Column("deliveries/s", "rate", form=".0f"), *_BUSY, Column("delivered %", "share", 100)),
        (
            Bound("CPU per delivered chunk, x few", ratio("cpu_us", lots, few), 1.3),
            # Who comes last waits for everybody else: it cannot be better than proportional.
            Bound("p99 / readers, x few", _per_reader("p99_ms", (lots, size.many), (few, size.few)), 1.3),
        ),
        compared=True,
    )


def _per_reader(name: str, case: tuple[str, int], beside: tuple[str, int]) -> Callable[..., float]:
    return lambda samples: (samples[case[0]][name] / case[1]) / (samples[beside[0]][name] / beside[1])


def refusals(size: Size) -> Section:
    """What a refusal costs beside the cheapest request that is served."""
    settings = {Ask.FULL: ("--max-readers", "1"), Ask.CHANNEL_FULL: ("--max-readers-per-channel", "1")}
    refused = (Ask.FULL, Ask.CHANNEL_FULL, Ask.MISSING, Ask.AHEAD)
    small = Repeat(ask=Ask.KEPT, clients=size.askers, warm_up_s=size.warm_up_s / 2, measure_s=size.measure_s / 2)
    cases = {
        ask.value: Case(replace(small, ask=ask), (*UNGUARDED, *settings.get(ask, ()))) for ask in (Ask.KEPT, *refused)
    }
    cases[LARGE] = Case(replace(small, body_bytes=64 << 10), UNGUARDED)
    return Section(
        f"{size.askers} clients: kept segments of 200 bytes and of 64 KiB, and refusals",
        cases,
        (_CPU, Column("answers/s", "rate", form=".0f"), *_BUSY),
        (
            *[Bound(f"{ask}, x kept", ratio("cpu_us", ask, Ask.KEPT), 0.5) for ask in refused],
            Bound(f"full, x {LARGE}", ratio("cpu_us", Ask.FULL, LARGE)),
        ),
    )


def one_address(size: Size) -> Section:
    """Readers that catch up, each at an address of its own, and all behind the same one."""
    apart = Stream(
        readers=size.neighbours,
        chunk_bytes=64 << 10,
        chunks_per_segment=64,
        lead=128,
        warm_up_s=size.warm_up_s / 4,
        measure_s=size.measure_s,
    )
    together = replace(apart, one_address=True)
    return Section(
        f"{size.neighbours} readers that are behind, each at its own address, and all behind one without names",
        {"apart": Case(apart), "one address": Case(together), "one address, unguarded": Case(together, UNGUARDED)},
        (_CPU, *_LATENCY, Column("chunks/s", "rate", form=".0f"), *_BUSY),
        (
            Bound("p99 behind one address, x apart", ratio("p99_ms", "one address", "apart"), 1.5),
            Bound("p99 behind one address, x unguarded", ratio("p99_ms", "one address", "one address, unguarded"), 1.5),
        ),
    )


SECTIONS: dict[str, Callable[[Size], Section]] = {
    "stalled": stalled,
    "loopers": loopers,
    "idle": idle,
    "many": many,
    "refusals": refusals,
    "one-address": one_address,
}
QUICK = Size(warm_up_s=1.0, measure_s=1.5)
