"""Results and the list of rules, for people and for programs. Colours appear on a terminal only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tricklecast.app.conformance.case import Case
from tricklecast.app.conformance.profiles import PROFILES
from tricklecast.app.conformance.runner import Outcome, Result
from tricklecast.trickle.wire import redacted

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {Outcome.PASS: "green", Outcome.FAIL: "bold red", Outcome.SKIP: "yellow"}


def console(*, stderr: bool = False) -> Console:
    """Where to print: lines stay whole, so that they can be searched when they go into a file."""
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)


class Report:
    """Prints results as they come.

    Args:
        out: where to.
        verbose: whether to name the reason of each skipped case.
    """

    def __init__(self, out: Console, *, verbose: bool = False) -> None:
        self.out = out
        self._verbose = verbose
        self.results: list[Result] = []

    def add(self, result: Result) -> None:
        """Print one result; a failure with what was expected, what came, and the way there."""
        self.results.append(result)
        self.out.print(f"{result.outcome}", style=_STYLES[result.outcome], end=" ")
        self.out.print(f"{result.case.name} — {result.case.rule}")
        if result.outcome is Outcome.SKIP and self._verbose:
            self.out.print(f"       {result.reason}", style="dim")
        if result.outcome is Outcome.FAIL:
            self._explain(result)

    def _explain(self, result: Result) -> None:
        self.out.print(f"       expected: {result.expected}")
        self.out.print(f"       got:      {result.got}")
        self.out.print(f"       rule of:  {result.case.section}")
        for line in result.transcript:
            self.out.print(f"       {line}", style="dim")

    def close(self) -> bool:
        """Print the sums, and why cases were skipped; whether nothing failed."""
        counts = Counter(result.outcome for result in self.results)
        reasons = Counter(result.reason for result in self.results if result.outcome is Outcome.SKIP)
        for reason, count in reasons.items():
            self.out.print(f"{count} skipped: {reason}", style="dim")
        self.out.print(
            f"{counts[Outcome.PASS]} passed, {counts[Outcome.FAIL]} failed, {counts[Outcome.SKIP]} skipped",
            style=_STYLES[Outcome.FAIL if counts[Outcome.FAIL] else Outcome.PASS],
        )
        return not counts[Outcome.FAIL]


def write_json(path: Path, url: str, profile: str, results: Sequence[Result]) -> None:
    """Write all results to a file.

    Raises:
        OSError: the file cannot be written.
    """
    counts = Counter(result.outcome for result in results)
    document = {
        "version": 1,
        "url": redacted(url),
        "profile": profile,
        "passed": counts[Outcome.PASS],
        "failed": counts[Outcome.FAIL],
        "skipped": counts[Outcome.SKIP],
        "cases": [result.as_dict() for result in results],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def print_rules(out: Console, cases: Iterable[Case]) -> None:
    """Print every rule below its section, and the configurations that some of them need."""
    section = needed = ""
    for case in cases:
        if case.section != section:
            section = case.section
            out.print(f"\n{section}", style="bold")
        needed = "" if "default" in case.profiles else f"  [--profile {case.profiles[0]}]"
        out.print(f"  {case.name}", style="cyan", end="")
        out.print(f" — {case.rule}{needed}")
    out.print("\nProfiles", style="bold")
    for profile in PROFILES.values():
        flags = " ".join(profile.flags)
        out.print(f"  {profile.name}", style="cyan", end="")
        out.print(f" — {profile.what}{f': tricklecast serve {flags}' if flags else ''}")
