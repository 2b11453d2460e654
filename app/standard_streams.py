"""Standard streams that were closed when the process began (``>&-``)."""

from __future__ import annotations

import os
import sys
from typing import Final

STREAMS: Final = ("stdin", "stdout", "stderr")
"""By their descriptors."""


def fill_standard_streams() -> None:
    """Put ``/dev/null`` where a standard stream was closed.

    What is written there is lost, as was wished, and a command ends as it would have. Without, the first socket or
    file to be opened would get the stream's descriptor, and whatever a library prints. ``sys.stdin`` stays ``None``,
    and so do ``sys.__stdout__`` and ``sys.__stderr__``: that is how a command tells which of them were closed.
    """
    for descriptor, name in enumerate(STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free, which is this one
        if descriptor and getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", closefd=False))
