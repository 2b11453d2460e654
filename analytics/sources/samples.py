"""The first lines of a file: enough to tell its format."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Final

from tricklecast.analytics.content import open_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_LINES: Final = 200
"""Looked at per file, so that some damage at its beginning does not hide its format."""

MAX_SAMPLE: Final = 1 << 16
"""Bytes looked at of each line."""

MAX_READ: Final = 1 << 26
"""Bytes read per file, at most: a few lines of ten megabytes are passed over."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

MAGIC: Final = b"PAR1"
"""What a Parquet file begins with."""


def first_lines(name: str) -> list[bytes]:
    """The first lines of a local file, none of them blank, all of them cut; none if all is damaged."""
    lines: list[bytes] = []
    try:
        with open_log(name) as file:
            for line in _lines(file):
                lines.append(line)
                if len(lines) == SAMPLE_LINES:
                    break
    except (EOFError, OSError, zlib.error):
        pass  # what came before the damage will do
    return lines


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    left = MAX_READ
    begins = True
    while left > 0 and (part := file.readline(MAX_SAMPLE)):
        if left == MAX_READ:
            part = part.removeprefix(_BYTE_ORDER_MARK)
        left -= len(part)
        if begins and part.strip():
            yield part.rstrip(b"\r\n")
        begins = part.endswith(b"\n")


def first_lines_by_spark(spark: SparkSession, path: str) -> list[bytes]:
    """The same of a file that only Spark can read."""
    from pyspark.sql import functions as F

    text = spark.read.text(path).select(F.substring("value", 1, MAX_SAMPLE).alias("value")).limit(SAMPLE_LINES)
    return [row["value"].encode("utf-8", "replace") for row in text.collect() if row["value"].strip()]


def is_parquet(name: str) -> bool:
    """Whether a local file begins as Parquet does."""
    with open(name, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
