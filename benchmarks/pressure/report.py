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
    """What a section's rounds have found, each by case."""

    name: str
    section: Section
    rounds: list[dict[str, Sample]] = field(default_factory=list)

    def verdicts(self) -> list[Verdict]:
        """What is expected, and what was found."""
        return [Verdict(bound, tuple(bound.found(samples) for samples in self.rounds)) for bound in self.section.bounds]

    def median(self, case: str, name: str) -> float:
        """A figure of a case, over all rounds."""
        return median(samples[case][name] for samples in self.rounds)

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
    for case in section.cases:
        cells = [f"{found.median(case, column.name) * column.factor:{column.form}}" for column in section.columns]
        table.add_row(case, *cells)
    console.print(table)
    for verdict in found.verdicts():
        console.print(str(verdict), markup=False)
    for case in section.cases:
        if max(samples[case].get("load_busy", 0.0) for samples in found.rounds) > BUSY:
            console.print(f"! {case}: the load generator was the bottleneck (more than {BUSY:.0%} of its core)")
