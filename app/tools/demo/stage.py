"""The parts that both demonstrations share: steps with their results, and the checks at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tricklecast.trickle.errors import TrickleError

if TYPE_CHECKING:
    from rich.console import Console


class DemoFailed(TrickleError):
    """A step failed, or a check at the end."""


@dataclass
class Stage:
    """The things that all steps need.

    Attributes:
        directory: for logs and received media.
        console: the steps print to it.
        checks: each proof, and whether it held.
    """

    directory: Path
    console: Console
    checks: list[tuple[str, bool]] = field(default_factory=list)

    @contextmanager
    def step(self, text: str, *, quiet: bool = True) -> Iterator[Callable[[str], None]]:
        """Show that a step runs, and its result in one line; yields a function that adds a detail to the result.

        A step that is not quiet shows its own progress.
        """
        details: list[str] = []
        begun = time.monotonic()
        with ExitStack() as shown:
            if quiet and self.console.is_terminal:
                shown.enter_context(self.console.status(f"{text} …"))
            else:
                self.console.print(f"{text} …", style="dim", highlight=False, soft_wrap=True)
            yield details.append
        result = f"{', '.join(details) or 'done'} [dim]{time.monotonic() - begun:.1f} s[/dim]"
        self.console.print(f"[green]•[/green] {text}: {result}", highlight=False, soft_wrap=True)

    @property
    def held(self) -> bool:
        """Whether all checks held."""
        return all(holds for _, holds in self.checks)

    def judge(self) -> None:
        """Print the checks."""
        self.console.print()
        for text, holds in self.checks:
            mark = "[green]✓[/green]" if holds else "[red]✗[/red]"
            self.console.print(f"{mark} {text}", highlight=False, soft_wrap=True)
