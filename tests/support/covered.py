"""Holds modules to 100 % coverage (lines and branches), each by its own test file.

``python -m tests.support.covered trickle/wire.py=tests/trickle/test_wire.py ...``
All files run in one process: to start Python for each of them would take longer than the tests. What a file runs is
recorded under its name, so that it covers no module but its own. What importing the modules runs counts for all.
"""

from __future__ import annotations

import io
import re
import sys

import coverage
import pytest
from coverage.exceptions import NoDataError


class Contexts:
    """A plugin of pytest that records under the name of the file that runs: its tests are together.

    Each change of the name stores what was recorded, which takes milliseconds.
    """

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self._file = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Before a test with its fixtures."""
        if item.location[0] != self._file:
            self._file = item.location[0]
            self._measured.switch_context(self._file)


def main(test_of: dict[str, str]) -> int:
    """Run the tests.

    Args:
        test_of: the path of each module, and of its test file.

    Returns:
        The exit code: 0 if all tests pass and cover their modules.
    """
    measured = coverage.Coverage(data_file=None, include=list(test_of))
    measured.start()
    failed = bool(pytest.main(["-q", "-p", "no:cacheprovider", *test_of.values()], plugins=[Contexts(measured)]))
    measured.stop()
    for module, test in test_of.items():
        said = io.StringIO()
        own = ["^$", f"^{re.escape(test)}$"]
        try:
            share = measured.report(include=[module], contexts=own, show_missing=True, file=said)
        except NoDataError:  # nothing imports it
            share = 0.0
        if share < 100:
            failed = True
            print(f"{said.getvalue()}{module} is not covered by {test}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(dict(pair.split("=", 1) for pair in sys.argv[1:])))
