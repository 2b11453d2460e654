"""Samples in, tables out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.scenarios import EXPECTATIONS, Audience, Exchanges, Expectation, Idle, Repeat, Scenario, Stream

Sample = dict[str, float]
COST = {Stream: "cpu_us", Exchanges: "cpu_us", Idle: "kb", Repeat: "cpu_us", Audience: "server_busy"}
"""Which figure of a sample is the one that is compared."""

BUSY = 0.9
"""A process that uses more of its core than this may be what limits the run."""


@dataclass(slots=True)
class Series:
    """All samples of one scenario: for each server one per round, an empty one where the run failed."""

    name: str
    scenario: Scenario
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, server: str, sample: Sample) -> None:
        """Take in a sample."""
        self.samples.setdefault(server, []).append(sample)

    def values(self, server: str, figure: str) -> list[float]:
        """A figure in every round."""
        return [sample[figure] for sample in self.samples.get(server, []) if figure in sample]

    def cost(self, server: str) -> list[float]:
        """What is compared, in every round."""
        return self.values(server, COST[type(self.scenario)])

    def both_us(self, server: str) -> list[float]:
        """CPU time of server and load generator per delivered chunk, microseconds, in every round."""
        figures = (self.values(server, name) for name in ("server_busy", "load_busy", "rate"))
        return [1e6 * (one + other) / rate for one, other, rate in zip(*figures, strict=True)]

    def ratios(self, server: str, beside: str, figure: str | None = None) -> list[float]:
        """Ratio of a figure (the cost), round by round: the two runs of a round lie next to each other in time."""
        name = figure or COST[type(self.scenario)]
        pairs = zip(self.samples.get(server, []), self.samples.get(beside, []), strict=False)
        return [a[name] / b[name] for a, b in pairs if name in a and b.get(name, 0) > 0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """An expectation, and what was found."""

    expectation: Expectation
    found: float

    @property
    def met(self) -> bool:
        """Whether it holds."""
        return self.found <= self.expectation.at_most

    def __str__(self) -> str:
        beside = f" x {self.expectation.beside}" if self.expectation.beside else " kB per reader"
        sign = "met   " if self.met else "MISSED"
        what = f" {self.expectation.figure}" if self.expectation.figure else ""
        bound = f"(at most {self.expectation.at_most:g})"
        return f"{sign} {self.expectation.scenario}{what}: {self.found:.2f}{beside} {bound}"


def verdicts(all_series: list[Series], server: str) -> Iterator[Verdict]:
    """Which expectations a server has met, of those that were measured."""
    for series in all_series:
        for expectation in EXPECTATIONS:
            if expectation.scenario == series.name:
                beside = expectation.beside
                figure = expectation.figure
                found = series.ratios(server, beside, figure) if beside else series.cost(server)
                if found:
                    yield Verdict(expectation, median(found))


def warnings(series: Series) -> Iterator[str]:
    """What makes a figure doubtful."""
    for server in series.samples:
        if max(series.values(server, "load_busy"), default=0.0) > BUSY:
            yield f"{server}: the load generator was the bottleneck (more than {BUSY:.0%} of its core)"
        if isinstance(series.scenario, Stream) and series.scenario.rate:
            if max(series.values(server, "server_busy"), default=0.0) > BUSY:
                yield f"{server}: saturated at this rate; its latency shows the queue"
            wanted = series.scenario.readers * series.scenario.rate
            if (rate := min(series.values(server, "rate"), default=wanted)) < 0.95 * wanted:
                yield f"{server}: only {rate:.0f} of {wanted:.0f} chunks/s arrived in time in one of its runs"
        if (share := min(series.values(server, "share"), default=1.0)) < 1:
            yield f"{server}: {1 - share:.2%} of the chunks never arrived in one of its runs"


def describe(series: Series) -> str:
    """A scenario in one line."""
    match series.scenario:
        case Stream(readers=readers, chunk_bytes=size, rate=rate):
            pace = f"{rate:g} chunks/s" if rate else "as fast as it goes"
            return f"{series.name}: 1 publisher, {readers} readers, chunks of {size >> 10} KiB, {pace}"
        case Exchanges(channels=channels, chunk_bytes=size):
            return f"{series.name}: {channels} channels with 1 reader each, segments of {size} bytes, closed loop"
        case Idle(readers=readers):
            return f"{series.name}: {readers} readers that wait"
        case Repeat(clients=clients, ask=ask):
            return f"{series.name}: {clients} clients ask for what is {ask}, again and again"
        case Audience(readers=readers, way=way):
            return f"{series.name}: {readers} readers ({way})"


def print_series(console: Console, series: Series) -> None:
    """Print the table of one scenario."""
    idle = isinstance(series.scenario, Idle)
    unit = "kB per reader" if idle else "CPU us/chunk"
    table = Table(title=describe(series), title_justify="left", title_style="bold")
    table.add_column("server")
    columns: list[tuple[str, Callable[[str], str]]] = [(unit, lambda server: spread(series.cost(server)))]
    if not idle:
        columns += [
            ("p50 ms", lambda server: f"{median(series.values(server, 'p50_ms')):.1f}"),
            ("p99 ms", lambda server: f"{median(series.values(server, 'p99_ms')):.1f}"),
            ("chunks/s", lambda server: f"{median(series.values(server, 'rate')):.0f}"),
            ("server core", lambda server: f"{median(series.values(server, 'server_busy')):.0%}"),
            ("load core", lambda server: f"{median(series.values(server, 'load_busy')):.0%}"),
            ("both us", lambda server: f"{median(series.both_us(server)):.1f}"),
        ]
    columns += [
        ("delivered", lambda server: f"{min(series.values(server, 'share')):.2%}"),
        ("x floor", lambda server: spread(series.ratios(server, "floor"))),
        ("x nchan", lambda server: spread(series.ratios(server, "nchan"))),
        ("x go", lambda server: spread(series.ratios(server, "go"))),
        ("x fastapi", lambda server: spread(series.ratios(server, "fastapi"))),
    ]
    for title, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for server in filter(series.cost, series.samples):
        table.add_row(server, *[cell(server) for _, cell in columns])
    console.print(table)
    for text in warnings(series):
        console.print(f"! {text}", markup=False)


def spread(values: list[float]) -> str:
    """Median, and the range if there is one."""
    if not values:
        return "-"
    digits = 2 if median(values) < 10 else 1
    text = f"{median(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f}-{max(values):.{digits}f})"
