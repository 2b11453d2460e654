"""Our own access logs without the product's reader, for tests of what comes after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tricklecast.analytics.scan.normalise import COLUMNS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def read_jsonl(connection: DuckDBPyConnection, paths: Sequence[Path]) -> None:
    """Makes the view ``line`` of our own access logs; what is no record is a row of nulls.

    Args:
        paths: files of JSON lines, plain or compressed.
    """
    shape = ", ".join(f"'{name}': '{kind}'" for name, kind in COLUMNS.items() if name not in ("request", "blind"))
    names = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
    read = f"read_json([{names}], format = 'newline_delimited', columns = {{{shape}}}, ignore_errors = true)"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW line AS SELECT *, '' AS blind FROM {read}")
