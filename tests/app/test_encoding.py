"""JSON when memory runs out."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest

from tricklecast.app.encoding import encode

EXHAUSTED = """
import resource, sys
from tricklecast.app.encoding import encode

record = {"path": "/trickle/" + "c" * 3000, "status": 200}
encode(record)
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 20), size + (4 << 20)))
held, place = [None] * 100_000, 0
for piece in (1 << 20, 1 << 16, 1 << 14, 1 << 12, 1 << 11, 1 << 10, 600):
    try:
        while True:
            held[place] = bytes(piece)
            place += 1
    except MemoryError:
        pass
try:
    encode(record)
except MemoryError:
    sys.exit(7)
"""


def test_it_is_that_of_orjson() -> None:
    """With its options."""
    value = {"b": [1, "ä", None], "a": True}
    assert encode(value) == orjson.dumps(value)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep to the limit")
def test_a_process_without_memory_is_told_so() -> None:
    """It gets an exception, where orjson alone ends it by a segmentation fault."""
    assert subprocess.run([sys.executable, "-c", EXHAUSTED], check=False).returncode == 7
