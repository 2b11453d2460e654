"""What is true of a simulated log: the storms that were planted, and the look-alikes that must stay silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import orjson

from tricklecast.analytics.errors import BadInput

VERSION: Final = 1
FILE: Final = "truth.json"
LIVE: Final = "live"
"""What stands in place of the set where real clients misbehaved at a real server."""


@dataclass(frozen=True, slots=True)
class Storm:
    """One planted storm.

    Attributes:
        name: which script of the catalogue, and its number.
        storm: its class (``class`` in JSON); also: other names that are as right, where the definitions overlap.
        start_us, end_us: arrivals of its first and last request, microseconds.
        n: its requests, counted from the lines.
        clients, channels: all of their names; no clients where the log does not say.
        node: the server; empty if that is not known. release: the clients' product/version, ``None`` if they differ.
        seq_lo, seq_hi: the range of seqs it was about; ``None`` without.
        trigger: the event that set it off; ``None`` if there was none.
        backoff: its pace, as :class:`analytics.simulate.pace.Pace`; ``None`` if its clients differ.
    """

    name: str
    storm: str
    start_us: int
    end_us: int
    n: int
    clients: tuple[str, ...]
    channels: tuple[str, ...]
    node: str
    release: str | None
    seq_lo: int | None
    seq_hi: int | None
    trigger: str | None
    backoff: str | None = None
    also: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Its JSON object."""
        return {("class" if name == "storm" else name): value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Trap:
    """Something that looks like a storm and is none.

    Attributes:
        name, start_us, end_us, clients, channels, node: as of :class:`Storm`.
    """

    name: str
    start_us: int
    end_us: int
    clients: tuple[str, ...]
    channels: tuple[str, ...]
    node: str


@dataclass(frozen=True, slots=True)
class Truth:
    """All that is known about a simulated log.

    Attributes:
        seed: what it was drawn from. kind: ``standard``, ``grey``, ``healthy`` or ``live`` (``set`` in
            JSON).
        lines: how many lines were written, copies included.
        storms, traps: what was planted, in the order of time.
        left_out: scripts of the catalogue that the log was too short for.
    """

    seed: int
    kind: str
    lines: int
    storms: tuple[Storm, ...]
    traps: tuple[Trap, ...]
    left_out: tuple[str, ...] = ()

    def as_json(self) -> bytes:
        """The content of ``truth.json``."""
        document = {
            "version": VERSION,
            "seed": self.seed,
            "set": self.kind,
            "lines": self.lines,
            "storms": [storm.as_dict() for storm in self.storms],
            "traps": [asdict(trap) for trap in self.traps],
            "left_out": list(self.left_out),
        }
        return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read what :meth:`as_json` wrote.

        Raises:
            BadInput: it is something else.
        """
        try:
            found = orjson.loads(data)
            if found["version"] != VERSION:
                raise BadInput(f"truth.json has version {found['version']!r}, not {VERSION}")
            storms = tuple(_storm(entry) for entry in found["storms"])
            traps = tuple(Trap(**_tuples(entry)) for entry in found["traps"])
            left_out = tuple(found.get("left_out", ()))
            return cls(found["seed"], found["set"], found.get("lines", 0), storms, traps, left_out)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"this is no truth.json: {error}") from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file, or the ``truth.json`` of a folder.

        Raises:
            BadInput: there is none, or it is something else.
        """
        path = path / FILE if path.is_dir() else path
        try:
            return cls.from_json(path.read_bytes())
        except OSError as error:
            raise BadInput(f"cannot read {str(path)!r}: {error.strerror or error}") from error


def _storm(entry: Mapping[str, Any]) -> Storm:
    values = _tuples(entry)
    return Storm(storm=values.pop("class"), **values)


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}


def moved(storm: Storm, by_us: int, nodes: Sequence[str]) -> Storm:
    """A storm at its place in the log.

    Args:
        by_us: where its scene begins.
        nodes: the servers of the scene; ``storm.node`` is a number among them.
    """
    return replace(storm, start_us=storm.start_us + by_us, end_us=storm.end_us + by_us, node=nodes[int(storm.node)])


def moved_trap(trap: Trap, by_us: int, nodes: Sequence[str]) -> Trap:
    """The same for a trap."""
    return replace(trap, start_us=trap.start_us + by_us, end_us=trap.end_us + by_us, node=nodes[int(trap.node)])
