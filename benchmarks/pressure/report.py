"""Samples in, tables out."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.pressure.bounds import Sample, Verdict
from benchmarks.pressure.sections import Section
from benchmarks.report import BUSY
from benchmarks.scenarios import to_json


@dataclass(slots=True)
class Found:
    """The results of a section: each round has a sample of each case. A case of another server ends with its name."""

    name: str
    section: Section
    rounds: list[dict[str, Sample]] = field(default_factory=list)

    def verdicts(self) -> list[Verdict]:
        """What is expected, and what was found."""
        return [Verdict(bound, tuple(bound.found(samples) for samples in self.rounds)) for bound in self.section.bounds]

    def labels(self) -> list[str]:
        """The cases that were measured, in any round."""
        return list(dict.fromkeys(label for samples in self.rounds for label in samples))

    def values(self, case: str, name: str) -> list[float]:
        """A figure of a case in each round that has it."""
        return [samples[case][name] for samples in self.rounds if name in samples.get(case, {})]

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "cases": {
                name: {"settings": case.settings, "scenario": to_json(case.scenario)}
                for name, case in self.section.cases.items()
            },
            "rounds": self.rounds,
            "verdicts": [
                {"what": verdict.bound.what, "found": verdict.found, "at_most": verdict.bound.at_most}
                for verdict in self.verdicts()
            ],
        }


def print_found(console: Console, found: Found) -> None:
    """Print a section's table, its verdicts, and what makes them doubtful."""
    section = found.section
    console.print(f"{found.name}: {section.title}", style="bold")
    table = Table()
    table.add_column("")
    for column in section.columns:
        table.add_column(column.title, justify="right")
    for case in found.labels():
        cells = [f"{median(found.values(case, one.name)) * one.factor:{one.form}}" for one in section.columns]
        table.add_row(case, *cells)
    console.print(table)
    for verdict in found.verdicts():
        console.print(str(verdict), markup=False)
    for case in found.labels():
        if max(found.values(case, "load_busy"), default=0.0) > BUSY:
            console.print(f"! {case}: the load generator was the bottleneck (more than {BUSY:.0%} of its core)")
