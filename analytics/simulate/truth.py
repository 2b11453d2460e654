"""What is true of a simulated log: the storms that were planted, and the look-alikes that must stay silent."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final, Self

import msgspec

from tricklecast.analytics.errors import BadInput

FILE: Final = "truth.json"


class Set(StrEnum):
    """Which scenes a log has."""

    STANDARD = "standard"
    """Clear cases: storms far above the thresholds, look-alikes as they come."""
    GREY = "grey"
    """Cases just above the thresholds, and near misses just below."""
    HEALTHY = "healthy"
    """A fleet with nothing planted."""


def log_name(node: str) -> str:
    """How the log of a server is called, without what rotation and the form of its lines append.

    >>> log_name("edge-1")
    'access-edge-1'
    """
    return f"access-{node}"


class Planted(msgspec.Struct, frozen=True):
    """One planted storm, or something that looks like one and is none: a trap.

    Attributes:
        name: which script, and its number.
        storm: its class; ``None`` for a trap. also: other classes that are as right, where the definitions overlap.
        start_us, end_us: arrivals of its first and last request, microseconds.
        n: its requests, counted from the lines.
        clients, channels: all of their names; no clients where the log does not say.
        node: the server.
        trigger: the event that set it off; ``None`` if there was none.
    """

    name: str
    storm: str | None
    start_us: int
    end_us: int
    n: int
    clients: tuple[str, ...]
    channels: tuple[str, ...]
    node: str
    trigger: str | None = None
    also: tuple[str, ...] = ()


class Truth(msgspec.Struct, frozen=True, rename={"kind": "set"}, tag_field="version", tag=2):
    """All that is known about a simulated log: the content of ``truth.json``.

    Attributes:
        seed: what it was drawn from. kind: which scenes. lines: how many were written.
        storms, traps: what was planted, in the order of time.
        left_out: scripts that the log was too short for.
    """

    seed: int
    kind: Set
    lines: int
    storms: tuple[Planted, ...]
    traps: tuple[Planted, ...]
    left_out: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Writes the ``truth.json`` of a folder."""
        (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file, or the ``truth.json`` of a folder.

        Raises:
            BadInput: there is none, or it is something else.
        """
        path = path / FILE if path.is_dir() else path
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise BadInput(f"cannot read {str(path)!r}: {error.strerror or error}") from error
        except msgspec.DecodeError as error:
            raise BadInput(f"{str(path)!r} is not a truth.json of this release: {error}") from error
