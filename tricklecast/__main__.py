"""The entry point: `tricklecast`, and `python -m tricklecast`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line. A Ctrl-C while modules are still being loaded ends it without a traceback, too."""
    try:
        fill_standard_streams()
        from tricklecast.app.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


def fill_standard_streams() -> None:
    """Open ``/dev/null`` in place of each standard stream that was closed when the process began (``>&-``).

    Output to it is lost, as its user wanted. Otherwise the first socket or file to be opened would get the stream's
    descriptor, and with it whatever a library prints. ``sys.stdin``, ``sys.__stdout__`` and ``sys.__stderr__`` stay
    ``None``: a command tells by them which streams were closed.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor, which the system takes, is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if descriptor and getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", closefd=False))


if __name__ == "__main__":
    main()
