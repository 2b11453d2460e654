"""How the tests are dealt out to processes: file by file, but all that need a Spark session to one of them.

The session, and the longest files, come first: at the end of the run they would keep one processor waiting while the
other has nothing left to do. The files of each folder are spread over the rest of the run: those of some folders
compute, and those of others wait.
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
    "tests/integration/test_workers.py",
    "tests/analytics/watch/test_watch.py",
    "tests/examples/test_examples.py",
    "tests/test_docs.py",
    "tests/test_wheel.py",
)
"""The groups that run first. Each of these files takes 20 to 70 s. Most of them play media in real time, or wait for
timeouts and for servers that come back."""

TAKES_SPARK: Final = re.compile(r'\bspark: (SparkSession|Any|object)\b|usefixtures\("spark"\)')


@cache
def group(file: str) -> str:
    """What runs in one process, in turn: a file, or all files whose tests take the fixture ``spark``.

    A session in each process would be a Java in each, which starts and compiles the same code: most of what such
    tests cost.
    """
    return "spark" if TAKES_SPARK.search((ROOT / file).read_text(encoding="utf-8")) else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called by pytest, in each process: puts :data:`FIRST` first, and spreads the files of each folder over the rest.

    Example: of two folders with two files each, ``a/1 b/1 a/2 b/2``.
    """
    first = {name: place for place, name in enumerate(FIRST)}
    folders: dict[str, dict[str, int]] = {}
    for item in items:
        name = group(item.nodeid.partition("::")[0])
        groups = folders.setdefault(_folder(name), {})
        groups.setdefault(name, len(groups))

    def place(item: pytest.Item) -> tuple[int, float]:
        name = group(item.nodeid.partition("::")[0])
        groups = folders[_folder(name)]
        return first.get(name, len(FIRST)), groups[name] / len(groups)

    items.sort(key=place)


def _folder(name: str) -> str:
    """The folder right below ``tests`` of a group; the files beside these folders count as one."""
    return "/".join(name.split("/")[1:-1][:1])


class OneSpark(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out the groups of tests."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark:
    """Called by pytest-xdist, once for a run in several processes."""
    return OneSpark(config, log)
