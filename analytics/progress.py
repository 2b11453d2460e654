"""What the command is doing, on stderr: a spinner on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.text import Text

Stage = Callable[[str], AbstractContextManager[None]]
"""Announces a stage of the work for as long as its context is open."""


@contextmanager
def silent(name: str) -> Iterator[None]:
    """A :data:`Stage` that says nothing."""
    yield


@contextmanager
def on_stderr() -> Iterator[Stage]:
    """A :data:`Stage` for stderr.

    The spinner writes to a copy of the terminal's descriptor: Spark's start redirects the original for a while
    (:mod:`analytics.spark`).
    """
    if not sys.stderr.isatty():
        yield _lines
        return
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8", errors="replace") as terminal:
        console = Console(file=terminal, force_terminal=True)

        @contextmanager
        def spinner(name: str) -> Iterator[None]:
            started = time.monotonic()
            with console.status(Text(f"{name} …")):
                yield
            console.print(Text(f"{name}: {time.monotonic() - started:.1f} s", style="dim"))

        yield spinner


@contextmanager
def _lines(name: str) -> Iterator[None]:
    print(f"storms: {name} …", file=sys.stderr, flush=True)
    yield
