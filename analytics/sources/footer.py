"""The columns of a Parquet file, read without Spark.

Spark takes the columns of one file for those of all, and fails in the middle of its work at the first that differs; so
files are told apart before.
"""

from __future__ import annotations


class NotParquet(ValueError):
    """The file has no whole footer: it is cut, or no Parquet."""


def parquet_columns(path: str) -> tuple[tuple[str, str], ...]:
    """Name and type of each column, in Arrow's words.

    Raises:
        NotParquet: the footer cannot be read.
        OSError: the file cannot.
    """
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, ValueError) as error:
        raise NotParquet(f"{path}: {error}") from error
    except OSError as error:
        # Arrow says so of damage, too; only the system gives a number.
        if error.errno is not None:
            raise
        raise NotParquet(f"{path}: {error}") from error
    return tuple((field.name, str(field.type)) for field in schema)
