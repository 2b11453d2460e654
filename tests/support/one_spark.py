"""How the tests are dealt out to processes: file by file, but all that need a Spark session to one of them."""

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
TAKES_SPARK: Final = re.compile(r'\bspark: (SparkSession|Any|object)\b|usefixtures\("spark"\)')


@cache
def group(file: str) -> str:
    """What runs in one process, in turn: a file, or all files whose tests take the fixture ``spark``.

    A session in each process would be a Java in each, which starts and compiles the same code: most of what such
    tests cost.
    """
    return "spark" if TAKES_SPARK.search((ROOT / file).read_text(encoding="utf-8")) else file


class OneSpark(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out the groups of tests."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark:
    """Called by pytest-xdist, once for a run in several processes."""
    return OneSpark(config, log)
