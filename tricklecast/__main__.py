"""The way in: `tricklecast`, and `python -m tricklecast`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. A Ctrl-C that comes while modules are still being loaded ends it, too, without a trace."""
    try:
        from tricklecast.app.standard_streams import fill_standard_streams

        fill_standard_streams()
        from tricklecast.app.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
