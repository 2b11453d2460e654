"""The same traffic gives the same incidents, counts and costs from a format with our headers, and from one without."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb
import pytest

from tricklecast.analytics.lines import find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.rules.incidents import Incident, incidents
from tricklecast.analytics.simulate.formats import FormatName
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.run import simulate_logs
from tricklecast.analytics.simulate.truth import Set

LINES: Final = 5_000


def found(folder: Path, form: FormatName) -> list[Incident]:
    """The incidents of a simulated log."""
    simulate_logs(folder / form, 5, Set.STANDARD, sizes(lines=LINES, kind=Set.STANDARD), form)
    with duckdb.connect() as con:
        read_lines(con, find_logs([str(folder / form)]))
        return incidents(con)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[Incident]:
    """The incidents of the server's own log."""
    return found(tmp_path_factory.mktemp("own"), FormatName.JSONL)


MISSING: Final = {FormatName.NGINX_JSON: 1, FormatName.NGINX: 6}
"""Of how many incidents storm, channels or number of requests may differ. A client without a name that changes its
user agent is one client to the server and several in a proxy's log. "combined" has no names at all. The rows of other
formats with our headers are those of the first one (test_formats.py)."""


@pytest.mark.long  # the rows, of which all follows, are the same: test_formats.py
@pytest.mark.parametrize("form", MISSING)
def test_incidents_counts_and_costs(form: FormatName, own: list[Incident], tmp_path: Path) -> None:
    """An incident has the same class, channels, number of requests and bytes; where it has not, it says so."""
    theirs = {(one.storm, one.channels, one.n): one for one in found(tmp_path, form)}
    mine = {(one.storm, one.channels, one.n): one for one in own}
    both = mine.keys() & theirs.keys()
    assert len(mine) - len(both) <= MISSING[form]
    assert len(theirs) - len(both) <= MISSING[form]
    for key in both:
        assert (theirs[key].impact.bytes or 0) <= (mine[key].impact.bytes or 0) + 4096
    # A format without the server's headers takes no side that it cannot know.
    unsure = [one for one in theirs.values() if one.instead is not None]
    assert bool(unsure) is (form is FormatName.NGINX)
