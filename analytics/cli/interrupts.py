"""Ctrl-C and SIGTERM end a report in order: Spark is stopped, its Java process ends, temporary files go."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from tricklecast.analytics.signals import deferred, is_interruption


@contextmanager
def interruptible() -> Iterator[None]:
    """Turns an interruption into the exit code that shells have for it, after all clean-up.

    Raises:
        typer.Exit: it was interrupted; 130 for Ctrl-C, 143 for SIGTERM.
    """

    terminated = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        # A shell's script has what it starts in the background ignore Ctrl-C, but not this.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        # As Ctrl-C, for which Spark has a handler: torn out of a call to Java by anything else, it cannot be stopped.
        signal.raise_signal(signal.SIGINT)

    # Only the main thread may choose handlers.
    before = signal.signal(signal.SIGTERM, stop) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if not is_interruption(error):
            raise
        raise typer.Exit(128 + (signal.SIGTERM if terminated else signal.SIGINT)) from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def load_duckdb() -> None:
    """Import DuckDB, and find the folder for temporary files; a signal takes effect after both.

    DuckDB would make an ImportError of it, or end the process. Python tries the folder with a file, which would stay.
    """
    with deferred():
        import duckdb  # noqa: F401

        tempfile.gettempdir()
