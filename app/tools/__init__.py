"""Tools that exercise whole systems: a demo, a stress test and the conformance suite.

A tool may import every package. No other module imports a tool; ``app/cli.py`` loads each tool by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """A console for reports. It keeps lines whole, so that a user can search a report in a file.

    Args:
        stderr: print to standard error instead of standard output.
    """
    from rich.console import Console  # --help must not wait for rich

    return Console(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)
