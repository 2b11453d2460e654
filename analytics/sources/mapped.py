"""Foreign lines to records, through a field map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.durations import SECOND_US
from tricklecast.analytics.schema import CORRUPT, log_schema
from tricklecast.analytics.sources import units
from tricklecast.analytics.sources.clients import DEFAULT, ClientKey, client_column
from tricklecast.analytics.sources.fieldmap import (
    IN_TIME,
    REQUEST,
    TARGETS,
    FieldMap,
    Layout,
    Source,
    Stamp,
    Tree,
    Unit,
    tree,
)
from tricklecast.analytics.sources.routes import with_route
from tricklecast.trickle.records import SCHEMA, VERSION, Kind, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_TYPES: Final = dict(SCHEMA)

NO_REQUEST: Final = "no request"
"""Stands in the column for broken lines for one that could be read, and is none of a request."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A field map, and what the command line says beside it.

    Attributes:
        fields: the map.
        columns: for ``words``: the names of the words that this file has.
        key: whom a line is from.
        prefix: instead of the map's.
        keep: what is no request is kept as it is, and not only counted.
    """

    fields: FieldMap
    columns: tuple[str, ...] = ()
    key: ClientKey = DEFAULT
    prefix: str | None = None
    keep: bool = False


def read_mapped(spark: SparkSession, paths: Sequence[str], mapping: Mapping, options: dict[str, str]) -> DataFrame:
    """The lines of foreign logs as records.

    Args:
        options: for Spark's reader.
    """
    reader = spark.read.options(**options).option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", CORRUPT)
    if mapping.fields.layout is Layout.WORDS:
        words = reader.schema(_words_schema(mapping.columns)).option("sep", " ").option("quote", '"')
        # Nothing is empty or a comment here, and no line is a header: every line is a request.
        return to_records(words.option("nullValue", "-").option("emptyValue", "").csv(list(paths)), mapping)
    return to_records(reader.schema(_json_schema(_sources(mapping))).json(list(paths)), mapping)


def to_records(lines: DataFrame, mapping: Mapping) -> DataFrame:
    """Foreign lines, all their values texts, as records; one row each, but for those of something else."""
    from pyspark.sql import functions as F

    fields = mapping.fields
    for source, value in fields.only:
        # What cannot be read at all may have been a line of ours: it is kept, to be counted.
        lines = lines.where(F.coalesce(_value(source, fields.layout) == value, F.col(CORRUPT).isNotNull()))
    rows = lines.select(*_taken(mapping), *_kept(lines, mapping))
    rows = _with_times(rows, fields)
    rows = with_route(_with_request(rows, fields), mapping.prefix if mapping.prefix is not None else fields.prefix)
    for name in ("op", "channel", "seq"):
        if name in fields.fields:
            rows = rows.withColumn(name, F.coalesce(f"_{name}", name))
    return rows.select(*_record(mapping))


def _sources(mapping: Mapping) -> list[Source]:
    return [*mapping.fields.sources(), *map(_key_source, _key_fields(mapping))]


def _key_source(name: str) -> Source:
    return Source(tuple(name.split(".")))


def _key_fields(mapping: Mapping) -> list[str]:
    """Fields of the client key that are the log's own, and not the record's."""
    return [part for choice in mapping.key for part in choice if part not in TARGETS]


def _json_schema(sources: list[Source]) -> StructType:
    from pyspark.sql.types import StringType, StructField

    schema = _struct(tree(sources))
    return schema.add(StructField(CORRUPT, StringType()))


def _struct(level: Tree) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(key, _type(below)) for key, below in level.items()])


def _type(below: Tree | None) -> DataType:
    from pyspark.sql.types import ArrayType, StringType

    if below is None:
        return StringType()  # whatever is there, as text: a status may be 200 or "200"
    if all(key.isdigit() for key in below):
        return ArrayType(_type(next(iter(below.values()))))
    return _struct(below)


def _words_schema(columns: tuple[str, ...]) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in (*columns, CORRUPT)])


def _value(source: Source, layout: Layout) -> Column:
    from pyspark.sql import functions as F

    if layout is Layout.WORDS and len(source.path) > 1:
        return F.concat_ws(" ", *map(_quoted, source.path))
    value = F.col(_quoted(source.path[0]))
    for key in source.path[1:]:
        value = F.get(value, F.lit(int(key))) if key.isdigit() else value.getField(key)
    return value


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _taken(mapping: Mapping) -> list[Column]:
    """Each field of the map, under its own name with a ``_``, converted."""
    from pyspark.sql import functions as F

    given, layout = mapping.fields.fields, mapping.fields.layout
    taken = [
        F.coalesce(*(_converted(name, _value(source, layout), source.unit) for source in given[name])).alias(f"_{name}")
        for name in given
    ]
    taken += [_value(_key_source(name), layout).alias(f"_key_{name}") for name in _key_fields(mapping)]
    gone = F.lit(False)
    for source, values in mapping.fields.gone:
        # Some write several flags between commas.
        for value in values:
            gone |= F.coalesce(F.find_in_set(F.lit(value), _value(source, layout)) > 0, F.lit(False))
    stamps = [(_converted("ts_us", _value(source, layout), source.unit), source.coarse) for source in given["ts_us"]]
    coarse = [F.when(stamp.isNotNull(), F.lit(whole)) for stamp, whole in stamps]
    stated = [_value(source, layout) for source in given.get("status", ())]
    return [*taken, gone.alias("_gone"), F.coalesce(*coarse, F.lit(False)).alias("_coarse"), _first(stated)]


def _first(stated: list[Column]) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(*(units.known(value) for value in stated), F.lit(None)).alias("_stated")


def _converted(name: str, text: Column, unit: Unit | None) -> Column:
    if unit is not None and name in IN_TIME:
        return units.moment(text, unit) if name == "ts_us" else units.quantity(text, unit, _per(name))
    match _TYPES.get(name, "string"):
        case "string":
            return units.address(units.known(text)) if name == "ip" else units.known(text)
        case "boolean":
            return units.flag(text)
        case kind:
            return units.identity(units.known(text)) if name == "conn" else units.whole(text, kind)


def _per(name: str) -> int:
    """Microseconds per unit of a field."""
    return 1 if name.endswith("_us") else 1000


def _kept(lines: DataFrame, mapping: Mapping) -> list[Column]:
    """What is kept of the line itself."""
    from pyspark.sql import functions as F

    whole = F.struct(*map(_quoted, lines.columns)).alias("_line")
    return [F.col(CORRUPT), whole] if mapping.keep else [F.col(CORRUPT)]


def _said(mapping: Mapping) -> Column:
    """A line that was read and is no request: nearly as it was, or only that."""
    from pyspark.sql import functions as F

    return F.to_json("_line") if mapping.keep else F.lit(NO_REQUEST)


def _with_times(rows: DataFrame, fields: FieldMap) -> DataFrame:
    """Replaces the stamp by the arrival."""
    from pyspark.sql import functions as F

    arrival = F.col("_ts_us")
    if fields.stamped is Stamp.END and "dur_us" in fields.fields:
        spent = F.coalesce("_dur_us", F.lit(0))
        # A fraction that comes from the duration alone would look like one of the clock.
        whole = F.floor(spent / SECOND_US + 0.5) * SECOND_US
        arrival -= F.when(F.col("_coarse"), whole).otherwise(spent)
    return rows.withColumn("_ts_us", arrival)


def _with_request(rows: DataFrame, fields: FieldMap) -> DataFrame:
    from pyspark.sql import functions as F

    # "GET /path HTTP/1.1"; a path with spaces in it is no path.
    words = {"method": F.split_part(f"_{REQUEST}", F.lit(" "), F.lit(1)) if REQUEST in fields.fields else None}
    words["path"] = F.split_part(f"_{REQUEST}", F.lit(" "), F.lit(2)) if REQUEST in fields.fields else None
    for name, word in words.items():
        choices = [F.col(f"_{name}")] if name in fields.fields else []
        rows = rows.withColumn(name, F.coalesce(*choices, *([word] if word is not None else [])))
    return rows


def _record(mapping: Mapping) -> list[Column]:
    """The record's columns, in their order."""
    from pyspark.sql import functions as F

    given = mapping.fields.fields
    status = F.col("_status") if "status" in given else F.lit(None)
    answered = F.when(status.between(100, 999) & ~F.col("_gone"), status)
    made: dict[str, Column] = {
        "v": F.lit(VERSION),
        "kind": F.lit(Kind.EXCHANGE.value),
        "op": F.col("op"),
        "method": F.col("method"),
        "path": F.col("path"),
        "channel": F.col("channel"),
        "seq": F.col("seq"),
        "status": answered,
        "client": client_column(mapping.key, lambda name: _key_column(name, mapping)),
        CORRUPT: F.when(_unusable(), F.coalesce(CORRUPT, _said(mapping))),
    }
    made["reason"] = F.coalesce(
        F.col("_reason") if "reason" in given else F.lit(None), F.when(F.col("_gone"), Reason.CLIENT_GONE.value)
    )
    if "release" not in given and "ua" in given:
        made["release"] = units.product(F.col("_ua"))
    if "conn" in given:
        # A line is told from its double by time and connection. Whole seconds are no time for that.
        made["conn"] = F.when(~F.col("_coarse"), F.col("_conn"))
    columns = []
    for field in log_schema():
        column = made.get(field.name)
        if column is None:
            column = F.col(f"_{field.name}") if field.name in given else F.lit(None)
        columns.append(column.cast(field.dataType).alias(field.name))
    return columns


def _unusable() -> Column:
    """Whether a line is no request: without a time, with a status that is no number, or with neither status nor method.

    A request line of garbage is a request all the same: the internet sends such, and the proxy has answered it.
    """
    from pyspark.sql import functions as F

    lost = F.col("_stated").isNotNull() & F.col("_stated").try_cast("int").isNull()
    return F.col("_ts_us").isNull() | lost | (F.col("_stated").isNull() & F.col("method").isNull())


def _key_column(name: str, mapping: Mapping) -> Column:
    from pyspark.sql import functions as F

    if name not in TARGETS:
        return units.known(F.col(f"_key_{name}"))
    return F.col(f"_{name}") if name in mapping.fields.fields else F.lit(None).cast("string")
