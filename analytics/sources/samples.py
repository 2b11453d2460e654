"""The first lines of a file: enough to tell its format."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from analytics.content import open_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_BYTES: Final = 1 << 18
"""Looked at per file: a few hundred lines, so that some damage at its beginning does not hide its format."""

SAMPLE_LINES: Final = 200

_BLOCK: Final = 1 << 13
"""Bytes read at once: where a compressed file is cut, the block in which it is cut is lost."""


MAGIC: Final = b"PAR1"
"""What a Parquet file begins with."""


def first_lines(name: str) -> list[bytes]:
    """The first lines of a local file, none of them blank, the last perhaps cut; none if all is damaged."""
    data = b""
    try:
        with open_log(name) as file:
            while len(data) < SAMPLE_BYTES and (block := file.read(_BLOCK)):
                data += block
    except (EOFError, OSError, zlib.error):
        pass  # what came before the damage will do
    return _lines(data)


def first_lines_by_spark(spark: SparkSession, path: str) -> list[bytes]:
    """The same of a file that only Spark can read."""
    from pyspark.sql import functions as F

    text = spark.read.text(path).select(F.substring("value", 1, SAMPLE_BYTES).alias("value")).limit(SAMPLE_LINES)
    return [row["value"].encode("utf-8", "replace") for row in text.collect() if row["value"].strip()]


def is_parquet(name: str) -> bool:
    """Whether a local file begins as Parquet does."""
    with open(name, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _lines(data: bytes) -> list[bytes]:
    lines: Iterable[bytes] = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r", b"\n").split(b"\n")
    return [line for line in lines if line.strip()][:SAMPLE_LINES]
