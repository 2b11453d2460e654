"""Tools that exercise whole systems: a demo, a stress test and the conformance suite.

A tool may import every package. No other module imports a tool; ``app/cli.py`` loads each tool by name.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console


EXIT_SIGNAL: Final = 128
"""Plus the number of the signal, as in shells."""


def console(*, stderr: bool = False) -> Console:
    """A console for reports. It keeps lines whole, so that a user can search a report in a file.

    Args:
        stderr: print to standard error instead of standard output.
    """
    from rich.console import Console  # --help must not wait for rich

    return Console(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a closing terminal, end the block as Ctrl-C does, unless the process ignores them.

    Raises:
        KeyboardInterrupt: with the number of the signal.
    """

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
