"""The rules over many small logs: they are planned once for all of them, which takes longer than to run them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from tricklecast.analytics.rules.engine import Planned
from tricklecast.analytics.rules.incidents import Incident, found
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.normalise import COLUMNS, line_sql, normalise_sql
from tricklecast.analytics.scan.rollup import roll_up_sql

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from tricklecast.analytics.rules.params import Params

_TYPES: Final = {"BIGINT": pa.int64(), "INTEGER": pa.int32(), "VARCHAR": pa.string(), "BOOLEAN": pa.bool_()}
_SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])


class Rules:
    """Finds the incidents of one log after the other."""

    def __init__(self, params: Params | None = None) -> None:
        """
        Args:
            params: thresholds.
        """
        rows = normalise_sql().replace("FROM line\n", "FROM part line\n")
        self._planned = Planned(embedded.connect(0), _SCHEMA, roll_up_sql(f"({rows}) rows_"), params)

    def incidents(self, lines: Iterable[dict[str, Any]], blind: str = "") -> list[Incident]:
        """The incidents in some lines of our own format.

        Args:
            blind: columns that the format cannot know.
        """
        unknown = dict.fromkeys(blind.split(",") if blind else ()) | {"blind": blind}
        return self._found(pa.Table.from_pylist([line | unknown for line in lines], schema=_SCHEMA))

    def of(self, connection: DuckDBPyConnection) -> list[Incident]:
        """The incidents in the relation ``line`` of a connection, which may lack columns."""
        present = {row[0] for row in connection.execute("DESCRIBE line").fetchall()}
        return self._found(connection.sql(line_sql("line", present)).to_arrow_table().cast(_SCHEMA))

    def _found(self, lines: pa.Table) -> list[Incident]:
        with self._planned.run(lines.to_batches()) as connection:
            return found(connection)


@cache
def rules(params: Params | None = None) -> Rules:
    """The rules with some thresholds, planned once for all tests of a process."""
    return Rules(params)
