"""Ctrl-C and SIGTERM at a moment that suits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


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


def _restore(before: Mapping[signal.Signals, object]) -> None:
    for number, handler in before.items():
        # None: set by something that is not Python, and not to be had back.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]  # as it was given
