"""Ctrl-C and SIGTERM at a moment that suits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def is_interruption(error: BaseException) -> bool:
    """Whether it is Ctrl-C, of which DuckDB makes an error of its own, in one of two wordings."""
    if isinstance(error, KeyboardInterrupt):
        return True
    of_duckdb = "duckdb" in type(error).__module__ or type(error) is RuntimeError  # not one that quotes a log
    # The second where the rows came from Python.
    return of_duckdb and ("Query interrupted" in str(error) or "KeyboardInterrupt" in str(error))


@contextmanager
def deferred() -> Iterator[None]:
    """Lets what must not be interrupted end first; the signal takes effect then. A second one does at once."""
    if threading.current_thread() is not threading.main_thread():  # signals are not for us
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if caught:
            _restore(before)
            signal.raise_signal(number)
            return
        caught.append(number)

    try:
        for number in SIGNALS:
            signal.signal(number, note)
        yield
    finally:
        _restore(before)
        if caught:
            signal.raise_signal(caught[0])


@contextmanager
def for_us_alone() -> Iterator[None]:
    """Lets processes that are started meanwhile, that is: Spark's JVM, ignore SIGTERM for all their life.

    ``timeout`` and systemd send it to all processes of a group. Java would be gone before it could be asked to stop; it
    ends with us in any case, since it reads from us. (Of SIGINT pyspark takes care.) Only processes with a
    ``preexec_fn`` are reached, such as pyspark's: what is done in the child alone cannot lose a signal that is for us.
    """
    _sheltering.set()
    try:
        yield
    finally:
        _sheltering.clear()


_sheltering: Final = threading.Event()


def _in_child() -> None:
    if _sheltering.is_set():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_in_child)


def _restore(before: Mapping[signal.Signals, object]) -> None:
    for number, handler in before.items():
        # None: set by something that is not Python, and not to be had back.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]  # as it was given
