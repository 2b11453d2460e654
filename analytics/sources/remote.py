"""What a URI leads to: files that Spark finds, and only Spark can read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.inputs import Window, in_window, looks_like_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MISSING: Final = "PATH_NOT_FOUND"
_LOCAL: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")


def list_remote(spark: SparkSession, uri: str, window: Window) -> list[str]:
    """The files below a URI, or those that it is a glob for, without those of other hours; sorted.

    Raises:
        BadInput: there are none.
    """
    from pyspark.errors import AnalysisException

    # Names and sizes only: nothing of the contents is read.
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        paths = sorted(row["path"] for row in files.load(uri).select("path").collect())
    except AnalysisException as error:
        if error.getCondition() == _MISSING:
            raise BadInput(f"no such log: {uri!r}") from error
        raise
    named = len(paths) == 1 and paths[0].rstrip("/").endswith(uri.rstrip("/").rpartition("/")[2])
    found = paths if named or any(char in uri for char in "*?[{") else [path for path in paths if looks_like_log(path)]
    if not found:
        raise BadInput(f"no logs (*.jsonl, *.log, *.parquet, also compressed) in {uri!r}")
    # Hadoop writes file:/x for what is file:///x everywhere else.
    return [_LOCAL.sub(r"\1:///", path) for path in found if in_window(path, window)]
