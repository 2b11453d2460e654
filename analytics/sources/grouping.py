"""Sorts files by format, so that each format is read in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.inputs import REMOTE, suffixes
from tricklecast.analytics.sources.footer import NotParquet, parquet_columns
from tricklecast.analytics.sources.native import FITTING
from tricklecast.analytics.sources.recognise import PARQUET, Format, UnknownFormat, recogniser
from tricklecast.analytics.sources.samples import first_lines, first_lines_by_spark, is_parquet
from tricklecast.trickle.records import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES: Final = dict(SCHEMA)


@dataclass(slots=True)
class Group:
    """Files that can be read in one go.

    Attributes:
        format: of all of them; fits: for Parquet: whether their columns have our types.
        names: the files.
    """

    format: Format
    fits: bool = True
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Grouped:
    """All files, by format.

    Attributes:
        groups: those that can be read.
        unreadable: Parquet files without a whole footer: nothing of them can be read.
        versions: other versions of the record than ours that were seen.
        strange: files that were found in a folder beside the others, and are of no known format.
    """

    groups: tuple[Group, ...]
    unreadable: tuple[str, ...]
    versions: tuple[str, ...] = ()
    strange: tuple[str, ...] = ()

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats' names, sorted."""
        return tuple(sorted({group.format.name for group in self.groups}))

    @property
    def coarse(self) -> bool:
        """Whether some have times in whole seconds: the pauses between their requests cannot be judged."""
        return any(group.format.coarse for group in self.groups)


def group_files(names: Iterable[str], asked: str, far: Far | None, searched: frozenset[str] = frozenset()) -> Grouped:
    """The files by format.

    Args:
        names: files; asked: ``--format``.
        far: looks into files that only Spark can read; ``None`` to leave them out.
        searched: those that nobody gave by name: what is no log among them is left out, if there is one that is.

    Raises:
        BadInput: a format cannot be told, or a file cannot be read.
        BadFormat: no such format, or its field map is wrong.
    """
    recognise = recogniser(asked)
    groups: dict[object, Group] = {}
    unreadable = []
    strange: dict[str, UnknownFormat] = {}
    versions: set[str] = set()
    for name in names:
        try:
            signature: object = True
            if is_far(name):
                if far is None:
                    continue
                found = far.format(name, recognise)
                signature = found.name != PARQUET
            elif is_parquet(name):
                found, signature = Format(PARQUET), _signature(name)
            else:
                found = recognise(name, first_lines(name))
        except NotParquet:
            unreadable.append(name)
            continue
        except UnknownFormat as error:
            if name not in searched:
                raise
            strange[name] = error
            continue
        except OSError as error:
            raise BadInput(f"cannot read {name!r}: {error.strerror or error}") from error
        versions.update(found.versions)
        key = (found.name, found.columns, found.fields and tuple(found.fields.fields.items()), signature)
        groups.setdefault(key, Group(found, signature is True)).names.append(name)
    if strange and not groups:
        raise next(iter(strange.values()))
    return Grouped(tuple(groups.values()), tuple(unreadable), tuple(sorted(versions)), tuple(strange))


def is_far(name: str) -> bool:
    """Whether only Spark can look into the file."""
    return bool(REMOTE.match(name)) or name.endswith(".zst")


class Far:
    """Looks into files that only Spark can read: into one of each kind, since each look is a job.

    Args:
        path: gives the path of a file as Spark can read it.
    """

    def __init__(self, spark: SparkSession, path: Callable[[str], str]) -> None:
        self._spark = spark
        self._path = path
        self._known: dict[object, Format] = {}

    def format(self, name: str, recognise: Callable[[str, list[bytes]], Format]) -> Format:
        """The format of a file."""
        endings = suffixes(name)
        if ".parquet" in endings:
            return Format(PARQUET)
        kind = tuple(sorted(endings & {".jsonl", ".ndjson", ".log", ".json"}))
        if kind not in self._known:
            lines = first_lines_by_spark(self._spark, self._path(name))
            if not lines:
                return recognise(name, lines)  # an empty file says nothing of the others
            self._known[kind] = recognise(name, lines)
        return self._known[kind]


def _signature(name: str) -> object:
    """True if the columns have our types, else those that they have: files that differ are read apart."""
    known = [(column, kind) for column, kind in parquet_columns(name) if column in _TYPES]
    if all(kind in FITTING[_TYPES[column]] for column, kind in known):
        return True
    return tuple(known)
