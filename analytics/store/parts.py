"""Roll-ups of log files, kept between runs. It is a cache: the logs say all that is in it.

A part is the roll-up of one file, or of several that overlap, with the facts that a report tells besides. It is a
folder, ``KEY-UUID``, that appears when all of it is written and never changes. The key is a hash of what the files
contain and of how they were read, so that a file that was renamed is known, one that has grown is not, and two runs at
the same time can only add the same twice. A part that is damaged is as good as none.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tricklecast.analytics.errors import CannotWrite
from tricklecast.analytics.lines.files import REMOTE
from tricklecast.analytics.lines.reading import Counts, Reading
from tricklecast.analytics.spark.scan import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNUSED_S: Final = 30 * 86_400
"""A part that no run has used for so long is removed."""

MAX_BYTES: Final = 10 << 30
"""Of all parts. Beyond, those go that were not used for longest; none that was used within the last hour."""

IN_USE_S: Final = 3600
UNFINISHED_S: Final = 86_400
"""After so long no run is at work any more on what has been left unfinished."""

FACTS: Final = "facts"
ROLLUP: Final = "rollup"
_HEX: Final = "[0-9a-f]{32}"
_PART: Final = f"{_HEX}-{_HEX}"
_OURS: Final = re.compile(rf"{_PART}|[.]new-{_HEX}|lines-{_HEX}")
_END: Final = 1 << 16
_COMPRESSED: Final = frozenset({".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"})


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of one file: its format, whether times are whole seconds, whether it ends early, whether requests
    have ids; how many lines are good and bad."""

    name: str
    coarse: bool
    damaged: bool
    ids: bool
    good: int
    bad: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a report tells of a part's files besides the roll-up; in the samples a file's name is its place in it."""

    files: tuple[FileFacts, ...]
    counts: Counts


@dataclass(frozen=True, slots=True)
class Part:
    """A roll-up below a folder, and its facts."""

    folder: str
    facts: Facts


def identity(name: str) -> str:
    """What tells a local file from all others, whatever it is called; it changes when the file does.

    Raises:
        OSError: the file cannot be read.
    """
    with open(name, "rb") as file:
        size, when = os.fstat(file.fileno()).st_size, os.fstat(file.fileno()).st_mtime_ns
        ends = file.read(_END)
        file.seek(max(0, size - _END))
        ends += file.read(_END)
    packed = Path(name).suffix if Path(name).suffix in _COMPRESSED else ""
    return f"{size} {when} {hashlib.blake2b(ends).hexdigest()} {packed}"


def key_of(engine: str, reading: Reading, generic: bool, identities: Sequence[str]) -> str:
    """The key of the part of some files, in their order.

    Args:
        engine: its name and version. reading: how they are read; its window is no part of the key.
    """
    how = (reading.client_key, reading.path_prefix, generic)
    form = Path(reading.format).read_text() if reading.format.endswith(".toml") else reading.format
    return hashlib.blake2b(repr((_version(), engine, form, how, *identities)).encode(), digest_size=16).hexdigest()


@cache
def _version() -> str:
    """A hash of the code that reads lines and adds them up: another one may find something else."""
    code = Path(__file__).parents[2]
    folders = (
        code / "analytics" / "lines",
        code / "analytics" / "scan",
        code / "analytics" / "store",
        code / "trickle",
    )
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".sql", ".toml"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in files)).hexdigest()


def _pack(facts: Facts, rollup: Path | None = None) -> bytes:
    body = msgspec.json.encode(facts)
    return f"{_digest(body, rollup)}\n".encode() + body


def _unpack(text: bytes, rollup: Path | None = None) -> Facts:
    digest, _, body = text.rstrip().partition(b"\n")
    if digest.decode() != _digest(body, rollup):
        raise ValueError("damaged")
    return msgspec.json.decode(body, type=Facts)


def _digest(body: bytes, rollup: Path | None) -> str:
    digest = hashlib.blake2b(body)
    for path in sorted(rollup.glob("*.parquet")) if rollup else ():
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


class LocalParts:
    """Parts in a folder on this machine, which the embedded engine writes. A rename makes a part appear.

    Attributes:
        damaged: how many parts were found damaged.
    """

    def __init__(self, root: str) -> None:
        """Open the folder, or make it.

        Raises:
            CannotWrite: it cannot be made.
        """
        self.root = Path(root)
        self.damaged = 0
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotWrite(f"cannot write {root!r}: {error.strerror or error}") from error

    def find(self, keys: Collection[str]) -> dict[str, Part]:
        """The parts that there are of these keys."""
        wanted, found = set(keys), dict[str, Part]()
        for folder in sorted(self.root.iterdir()):
            key = folder.name[:32]
            if key not in wanted or key in found or not re.fullmatch(_PART, folder.name):
                continue
            try:
                found[key] = Part(str(folder), _unpack((folder / FACTS).read_bytes(), folder))
                os.utime(folder)
            except (OSError, ValueError, msgspec.MsgspecError):
                self.damaged += 1
                self._remove(folder)
        return found

    def new(self) -> Path:
        """An empty folder to write a part to."""
        folder = self.root / f".new-{uuid.uuid4().hex}"
        folder.mkdir()
        return folder

    def add(self, key: str, folder: Path, facts: Facts) -> Part:
        """Keeps what was written to a folder."""
        (folder / FACTS).write_bytes(_pack(facts, folder))
        target = self.root / f"{key}-{uuid.uuid4().hex}"
        folder.rename(target)
        return Part(str(target), facts)

    def text(self, key: str) -> bytes | None:
        """A text that was kept; ``None`` if there is none, or a damaged one."""
        path = self.root / f"lines-{key}"
        try:
            digest, _, body = path.read_bytes().partition(b"\n")
            os.utime(path)
        except OSError:
            return None
        return body if digest.decode("latin-1") == _digest(body, None) else None

    def keep_text(self, key: str, body: bytes) -> None:
        """Keeps a text."""
        path = self.root / f".new-{uuid.uuid4().hex}"
        path.write_bytes(f"{_digest(body, None)}\n".encode() + body)
        path.replace(self.root / f"lines-{key}")

    def clean(self) -> None:
        """Removes what nobody has used for long, and what killed runs have left."""
        total = 0
        for used, path in sorted(_used(self.root), reverse=True):
            total += _size(path)
            age = time.time() - used
            old = age > (UNFINISHED_S if path.name.startswith(".") else UNUSED_S)
            if old or (total > MAX_BYTES and age > IN_USE_S):
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Whoever is killed meanwhile leaves no part with a piece missing."""
        hidden = self.root / f".new-{uuid.uuid4().hex}"
        with suppress(OSError):
            path.rename(hidden)
            hidden.unlink() if hidden.is_file() else shutil.rmtree(hidden, ignore_errors=True)


def _used(root: Path) -> Iterator[tuple[float, Path]]:
    """What of a folder is ours, and when it was last used."""
    for path in root.iterdir():
        if _OURS.fullmatch(path.name):
            with suppress(OSError):
                yield path.stat().st_mtime, path


def _size(path: Path) -> int:
    total = 0
    for one in (path, *path.rglob("*")):
        with suppress(OSError):
            total += one.stat().st_size
    return total


class SparkParts:
    """Parts that Spark writes, in any storage that it knows. A part is there when its facts are.

    Nothing is removed where Spark cannot remove anything: in an object store a life-cycle rule does.

    Attributes:
        damaged: how many parts were found damaged, or gone in part.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        """Args: root: a path or URL that all executors can read and write."""
        self._spark = spark
        self._local = None if REMOTE.match(root) else LocalParts(root)
        self.root = root.rstrip("/") if self._local is None else os.path.abspath(root)
        self.damaged = 0

    def find(self, keys: Collection[str]) -> dict[str, Part]:
        """The parts that there are of these keys."""
        found: dict[str, Part] = {}
        for name, text in self._texts(keys):
            try:
                found.setdefault(name[:32], Part(f"{self.root}/{name}", _unpack(text.encode())))
            except (ValueError, msgspec.MsgspecError):
                self.damaged += 1
        whole = self._lines(found.values())
        broken = {
            key
            for key, part in found.items()
            if whole.get(part.folder, 0) != part.facts.counts.lines - part.facts.counts.bad
        }
        self.damaged += len(broken)
        for key in broken:
            part = found.pop(key)
            if self._local:
                self._local._remove(Path(part.folder))
        for part in found.values() if self._local else ():
            with suppress(OSError):
                os.utime(part.folder)
        return found

    def _texts(self, keys: Collection[str]) -> list[tuple[str, str]]:
        from pyspark.errors import AnalysisException

        try:
            texts = self._spark.read.text(f"{_plain(self.root)}/*-*/{FACTS}", wholetext=True)
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return []
            raise
        name = f"regexp_extract(_metadata.file_path, '({_PART})/{FACTS}/[^/]+$', 1)"
        rows = texts.selectExpr(f"{name} AS name", "value").where(f"left(name, 32) IN ({_quoted(keys)})")
        return sorted((row.name, row.value) for row in rows.collect())

    def _lines(self, parts: Collection[Part]) -> dict[str, int]:
        """How many lines the roll-up of each part is of; of one that is damaged, too few."""
        from pyspark.errors import AnalysisException

        if not parts:
            return {}
        try:
            # A part that is gone is no error in a glob.
            rows = self.rollups([f"{{{','.join(part.folder[-65:] for part in parts)}}}"], glob=True)
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return {}
            raise
        name = f"regexp_extract(_metadata.file_path, '({_PART})/{ROLLUP}/[^/]+$', 1)"
        sums = rows.selectExpr(f"{name} AS name", "n").groupBy("name").sum("n").collect()
        return {f"{self.root}/{row[0]}": row[1] for row in sums}

    def rollups(self, names: Sequence[str], *, glob: bool = False) -> DataFrame:
        """The rows of some parts, by folder, or by a glob of their names."""
        paths = (
            [f"{_plain(self.root)}/{name}/{ROLLUP}" for name in names]
            if glob
            else [_plain(f"{name}/{ROLLUP}") for name in names]
        )
        reader = self._spark.read.schema(SCHEMA)
        if glob:
            reader = reader.option("ignoreCorruptFiles", "true").option("ignoreMissingFiles", "true")
        return reader.parquet(*paths)

    def new(self, key: str) -> str:
        """A folder that does not exist yet."""
        return f"{self.root}/{key}-{uuid.uuid4().hex}"

    def add(self, folder: str, facts: Facts) -> Part:
        """Keeps a part whose roll-up was written."""
        text = self._spark.sql("SELECT :text AS value", {"text": _pack(facts).decode()})
        text.coalesce(1).write.text(f"{folder}/{FACTS}")
        return Part(folder, facts)

    def clean(self) -> None:
        """Removes what nobody has used for long, where that can be done."""
        if self._local:
            self._local.clean()


def _plain(path: str) -> str:
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def _quoted(keys: Collection[str]) -> str:
    return ", ".join(f"'{key}'" for key in keys) or "''"
