"""The entry point of `tricklecast` and `python -m tricklecast`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while modules are still being loaded.

    Without the extra that has the commands' packages (docs/adr/0056) it prints one line, and the exit code is 2;
    ``--version`` needs no extra.
    """
    try:
        fill_standard_streams()
        try:
            from tricklecast.app.cli import main as run
        except ModuleNotFoundError as error:
            if error.name != "typer":
                raise
            from tricklecast.trickle.errors import needs

            if sys.argv[1:] == ["--version"]:
                from tricklecast.trickle import version_line

                sys.stdout.write(f"{version_line()}\n")
                return
            sys.stderr.write(f"tricklecast: the command {needs('typer', 'server')}\n")
            sys.exit(2)
        run()
    except KeyboardInterrupt:
        sys.exit(130)


def fill_standard_streams() -> None:
    """Open ``/dev/null`` in place of each standard stream that was closed when the process began (``>&-``).

    Otherwise the first socket or file that is opened would get the stream's descriptor, and all that a library prints
    would go to that peer or file. ``sys.stdin``, ``sys.__stdout__`` and ``sys.__stderr__`` stay ``None``, so that a
    command can tell which streams were closed.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The system takes the lowest free descriptor, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if descriptor and getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", closefd=False))


if __name__ == "__main__":
    main()
