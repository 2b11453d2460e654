"""How the tests are dealt out to processes: file by file, but all that need a Spark session to one of them.

The session, and the files that mostly wait, come first: at the end of the run they would keep one processor waiting
while the other has nothing left to do.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it ships no types

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer  # type: ignore[import-untyped]

ROOT: Final = Path(__file__).parents[2]
FIRST: Final = (
    "spark",
    "tests/web/test_media.py",
    "tests/conformance/test_protocol.py",
    "tests/web/test_hls_player.py",
    "tests/conformance/test_faulty_servers.py",
    "tests/web/test_dashboard.py",
    "tests/integration/test_restart.py",
    "tests/integration/test_shutdown.py",
)
"""The groups that run first. Each of these files takes 20 to 70 s, and a third of that or less is CPU: they play media
in real time, or wait for timeouts and for servers that come back."""

TAKES_SPARK: Final = re.compile(r'\bspark: (SparkSession|Any|object)\b|usefixtures\("spark"\)')


@cache
def group(file: str) -> str:
    """What runs in one process, in turn: a file, or all files whose tests take the fixture ``spark``.

    A session in each process would be a Java in each, which starts and compiles the same code: most of what such
    tests cost.
    """
    return "spark" if TAKES_SPARK.search((ROOT / file).read_text(encoding="utf-8")) else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called by pytest, in each process: puts :data:`FIRST` first, and leaves all else in its order."""
    rank = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(group(item.nodeid.partition("::")[0]), len(FIRST)))


class OneSpark(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out the groups of tests."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark:
    """Called by pytest-xdist, once for a run in several processes."""
    return OneSpark(config, log)
