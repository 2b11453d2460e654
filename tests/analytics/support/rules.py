"""The rules over many small logs: they are planned once for all of them, which takes longer than to run them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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

Line = dict[str, Any]

_TYPES: Final = {"BIGINT": pa.int64(), "INTEGER": pa.int32(), "VARCHAR": pa.string(), "BOOLEAN": pa.bool_()}
_SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])

APART_US: Final = 1_800_000_000
"""From the beginning of a scene to that of the next: nothing in one can be a cue of what is in another."""


class Rules:
    """Finds the incidents of one log after the other."""

    def __init__(self, params: Params | None = None) -> None:
        """
        Args:
            params: thresholds.
        """
        rows = normalise_sql().replace("FROM line\n", "FROM part line\n")
        self._planned = Planned(embedded.connect(0), _SCHEMA, roll_up_sql(f"({rows}) rows_"), params)

    def incidents(self, lines: Iterable[Line]) -> list[Incident]:
        """The incidents in some lines of our own format; ``blind`` has columns that the format cannot know."""
        return self._found(pa.Table.from_pylist([{"blind": ""} | line for line in lines], schema=_SCHEMA))

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


@dataclass(eq=False)
class Scenes:
    """Scenes that one run of the rules judges: it costs the same over one of them as over all.

    Each has servers, channels and half an hour of its own. Names of clients are no more than names in their scene.

    Attributes:
        params: thresholds.
    """

    params: Params | None = None
    _lines: list[Line] = field(default_factory=list)
    _scenes: list[Scene] = field(default_factory=list)
    _judged: bool = False

    def scene(self, *parts: Iterable[Line], blind: str = "") -> Scene:
        """A scene of some lines; blind: columns that its format cannot know."""
        assert not self._judged
        scene = Scene(self, len(self._scenes))
        self._scenes.append(scene)
        unknown = dict.fromkeys(blind.split(",") if blind else ()) | {"blind": blind}
        for line in (line for part in parts for line in part):
            own = {"ts_us": line["ts_us"] + scene.place * APART_US, "node": f"{scene.name}{line['node']}"}
            own |= {"channel": f"{scene.name}{line['channel']}"} if line.get("channel") else {}
            self._lines.append(line | own | unknown)
        return scene

    def judge(self) -> None:
        """Finds the incidents of all scenes, at the first call."""
        if self._judged:
            return
        self._judged = True
        for one in rules(self.params).incidents(self._lines):
            (name,) = {node.partition("/")[0] for node in one.nodes}
            scene = self._scenes[int(name)]
            scene.found.append(scene.alone(one))


@dataclass(eq=False)
class Scene:
    """Lines that are judged together with those of other scenes.

    Attributes:
        place: its number among them. found: its incidents, as if it were alone, when they have been judged.
    """

    scenes: Scenes
    place: int
    found: list[Incident] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Before the names of its servers and channels."""
        return f"{self.place}/"

    def incidents(self) -> list[Incident]:
        """Its incidents, in the order of time."""
        self.scenes.judge()
        return self.found

    def alone(self, one: Incident) -> Incident:
        """An incident with names and times as the scene's lines have them."""
        later_us = self.place * APART_US
        return replace(
            one,
            nodes=tuple(node.removeprefix(self.name) for node in one.nodes),
            channels=tuple(channel.removeprefix(self.name) for channel in one.channels),
            since_us=one.since_us - later_us,
            until_us=one.until_us - later_us,
            trigger_us=one.trigger_us and one.trigger_us - later_us,
            ended_us=one.ended_us and one.ended_us - later_us,
            phases=tuple(
                replace(each, since_us=each.since_us - later_us, until_us=each.until_us - later_us)
                for each in one.phases
            ),
            samples=tuple(
                replace(each, node=each.node.removeprefix(self.name), ts_us=each.ts_us - later_us)
                for each in one.samples
            ),
        )
