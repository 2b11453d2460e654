"""What a server says once it can be reached: one line, at once."""

from __future__ import annotations

import sys
from typing import Final

ANNOUNCEMENT: Final = "tricklecast is listening on "
"""What comes before the address."""


def announce_on_stdout(address: str) -> None:
    """Say it on standard output. The server serves, too, if nobody reads that."""
    try:
        sys.stdout.write(f"{ANNOUNCEMENT}{address}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # or the interpreter tries again at its end


def announce_on_stderr(address: str) -> None:
    """Say it where it does not get among the lines of an access log on standard output."""
    sys.stderr.write(f"{ANNOUNCEMENT}{address}\n")
