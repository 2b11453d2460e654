"""The manifest of a state: which logs it knows, and which Parquet files hold their roll-ups.

It is the one file that is ever replaced, and in one step: what it does not name does not count.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tricklecast.analytics.answers import GRAINS, PATIENCE_US
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.incremental.identity import Stamp
from tricklecast.analytics.incremental.merge import MEASURES
from tricklecast.analytics.rollup import KEY, SLOTS, WAIT_CLASS_BITS, WAIT_CLASSES_US

NAME: Final = "manifest.json"
VERSION: Final = 2

ROLLUP_VERSION: Final = 1
"""Raised when the same line gives another row than before though the columns are the same."""


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A log whose lines are in the state.

    Attributes:
        name: where it was last seen; size: bytes of its content, decompressed; stamp: of its file.
        first_line: checksum; see :class:`analytics.incremental.identity.Identity`.
        damaged: it was a cut archive.
        hours: those that have rows of it, or would have without :attr:`left_out`.
        left_out: lines by hour that other logs have, too, and that count there.
        shared: it had lines that other logs have, wherever they count.
        unsure: it seems to have lines of logs that could no longer be read, and they count twice.
    """

    name: str
    size: int
    stamp: Stamp
    first_line: str
    damaged: bool
    hours: tuple[int, ...]
    left_out: Mapping[int, int] = field(default_factory=dict)
    shared: bool = False
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file.

    Attributes:
        name: in the folder ``hours``; size: its bytes.
    """

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a state holds.

    Attributes:
        reading: how the lines were read: format, client key, path prefix.
        logs: by the id of their content.
        hours: Parquet files by hour (hours since the epoch; -1 for lines without a time).
        forgotten: hours before this one have been dropped, and are not taken in again.
    """

    reading: Mapping[str, str | None]
    logs: Mapping[str, KnownLog] = field(default_factory=dict)
    hours: Mapping[int, tuple[Part, ...]] = field(default_factory=dict)
    forgotten: int = 0

    def parts(self) -> set[str]:
        """Names of all Parquet files that count."""
        return {part.name for parts in self.hours.values() for part in parts}

    def with_changes(self, **changes: Any) -> Manifest:
        """The same with some attributes replaced."""
        return replace(self, **changes)


def fingerprint() -> str:
    """Of everything that makes the rows of two roll-ups comparable."""
    grains = [(answer.value, grain.bucket_s, grain.by_client) for answer, grain in GRAINS.items()]
    shape = (ROLLUP_VERSION, KEY, sorted(MEASURES), grains, PATIENCE_US, SLOTS, WAIT_CLASSES_US, WAIT_CLASS_BITS)
    return hashlib.sha256(repr(shape).encode()).hexdigest()[:16]


def load(folder: Path, reading: Mapping[str, str | None]) -> Manifest:
    """The manifest of a folder; an empty one for a folder that has none.

    Args:
        reading: how lines are read now.

    Raises:
        BadInput: it is of another version, its lines were read otherwise, or files are missing.
    """
    try:
        document = json.loads((folder / NAME).read_text(encoding="ascii"))
        found = _from_dict(document)
    except FileNotFoundError:
        return Manifest(reading)
    except OSError as error:
        raise BadInput(f"cannot read the state in {str(folder)!r}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"the state in {str(folder)!r} is damaged ({NAME}): start again in a new folder") from error
    if found is None or document["rollup"] != fingerprint():
        raise BadInput(f"the state in {str(folder)!r} was kept by another version: start again in a new folder")
    for name, value in found.reading.items():
        if reading.get(name) != value:
            was, now = value or "(default)", reading.get(name) or "(default)"
            raise BadInput(f"the logs in {str(folder)!r} were read with {name} {was}, not {now}: use another folder")
    _check_parts(folder, found)
    return found


def save(folder: Path, manifest: Manifest) -> bool:
    """Makes this the manifest, in one step, unless it is so already.

    Returns:
        whether anything changed.
    """
    text = json.dumps(_as_dict(manifest), ensure_ascii=True, indent=1, sort_keys=True) + "\n"
    target = folder / NAME
    if target.exists() and target.read_text(encoding="ascii") == text:
        return False
    unfinished = folder / f"{NAME}.tmp"
    with unfinished.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(target)
    return True


def _check_parts(folder: Path, manifest: Manifest) -> None:
    for part in (part for parts in manifest.hours.values() for part in parts):
        path = folder / "hours" / part.name
        if not path.is_file() or path.stat().st_size != part.size:
            raise BadInput(f"the state in {str(folder)!r} is damaged ({part.name}): start again in a new folder")


def _as_dict(manifest: Manifest) -> dict[str, Any]:
    return {
        "state": "tricklecast storms",
        "version": VERSION,
        "rollup": fingerprint(),
        "reading": dict(manifest.reading),
        "logs": {key: asdict(log) for key, log in manifest.logs.items()},
        "hours": {str(hour): [asdict(part) for part in parts] for hour, parts in manifest.hours.items()},
        "forgotten": manifest.forgotten,
    }


def _from_dict(document: Any) -> Manifest | None:
    """``None`` if it is of another version."""
    if document["state"] != "tricklecast storms" or document["version"] != VERSION:
        return None
    return Manifest(
        reading=dict(document["reading"]),
        logs={key: _log(log) for key, log in document["logs"].items()},
        hours={int(hour): tuple(Part(**part) for part in parts) for hour, parts in document["hours"].items()},
        forgotten=document["forgotten"],
    )


def _log(fields: dict[str, Any]) -> KnownLog:
    left_out = {int(hour): lines for hour, lines in fields["left_out"].items()}
    known = {"stamp": Stamp(**fields["stamp"]), "hours": tuple(fields["hours"]), "left_out": left_out}
    return KnownLog(**fields | known)
