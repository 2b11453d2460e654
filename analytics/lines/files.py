"""Arguments to files, and files to lines: paths, folders, globs, compressed files, standard input.

What a URI leads to (``s3a://…``) is left to Spark. Everything else is looked into before any engine starts: what is
wrong is said at once. Copies of a file are read once: its double, a compressed one, and one that was made while the
log went on (the beginning of another). What can be read only once, a pipe, is copied to a file (:func:`spooled`).

A file's first bytes say whether it is compressed and how its text is encoded; its name says nothing.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast
from urllib.parse import quote, unquote

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.recognise import SAMPLE_LINES
from tricklecast.analytics.lines.records import MAX_LINE
from tricklecast.analytics.lines.wrapping import Unwrapper

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

_LOG_NAME: Final = re.compile(r"(^|[._-])(access|log|jsonl|ndjson|parquet)([._-]|\d*$)", re.IGNORECASE)
"""Names of logs in a folder: ``access.log``, ``access_log-20251124.gz``, ``app.jsonl.1``."""

STDIN: Final = "-"
STDIN_SHOWN: Final = "standard input"
SPOOLED: Final = "tricklecast-standard-input-"
"""The beginning of the name of a temporary file with the lines of standard input, or of a pipe."""
REMOTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
"""URIs that only Spark can read."""

COMPRESSED: Final = (".gz", ".bz2", ".zst", ".xz")
"""Names of what is not followed while it grows."""
PACKED: Final = 8
"""How many times larger a log is than its compressed file."""
BLOCK: Final = 4 << 20
"""Bytes that are read at a time. Lines of the engines' tables point into blocks, so they are not copied."""

UNFINISHED: Final = frozenset({".tmp", ".part", ".swp", ".crc"})
"""The mark in the name of a file that is still being written."""
_PARTITION: Final = re.compile(r"(?:^|/)dt=(\d{4}-\d\d-\d\d)(?:/(?:hr|hour)=(\d\d?))?/")
_HOUR: Final = re.compile(r"(dt|hr|hour)=[0-9-]*")
_ROTATED: Final = re.compile(r"((\.(jsonl|ndjson|json|log|txt|parquet|gz|bz2|zst|\d+))|(-\d{8}(T\d{6})?(-\d+)?))+$")
_HEAD: Final = 1 << 16
_MAX_SNIFFED: Final = 1 << 12
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_PARQUET: Final = b"PAR1"


@dataclass(frozen=True, slots=True)
class Window:
    """A time span, microseconds since 1970; ``None`` for no bound.

    Attributes:
        from_us: its first moment; to_us: the first one after it.
    """

    from_us: int | None = None
    to_us: int | None = None


ALWAYS: Final = Window()

LATE_US: Final = 3_600_000_000
"""Partitions that begin so long after a window's end are read, too. Microseconds."""


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of one report.

    Attributes:
        names: the files, in order, each once; a URI stands for itself, ``-`` for standard input.
        size: bytes of the local ones.
        copies: files whose lines are all in another one; they are not among the names.
        searched: those of the names that nobody gave, but that were found in a folder: they may be something else.
        other_hours: how many files were left out because their partition is of another time.
        passed: files in a folder that are not called like logs, and are none.
        pipes: those of the names that can be read only once.
        large: those in an object store that no worker is given whole (:mod:`analytics.spark.objects`).
    """

    names: tuple[str, ...]
    size: int = 0
    copies: tuple[str, ...] = ()
    searched: frozenset[str] = frozenset()
    other_hours: int = 0
    passed: tuple[str, ...] = ()
    pipes: frozenset[str] = frozenset()
    large: frozenset[str] = frozenset()

    @property
    def remote(self) -> tuple[str, ...]:
        """Those that only Spark can read."""
        return tuple(name for name in self.names if REMOTE.match(name))


def find_logs(arguments: Sequence[str], window: Window = ALWAYS) -> LogFiles:
    """The files that the arguments mean: files, folders (searched for logs), globs, ``-``, or URIs that Spark knows.

    Args:
        window: files in partitions (``dt=2025-10-09/hr=08``) of another time are left out.

    Raises:
        BadInput: an argument matches nothing, or a file cannot be read.
    """
    found: dict[str, str] = {}
    given: set[str] = set()
    passed: list[str] = []
    for argument in arguments:
        if argument.startswith("file:///"):
            argument = unquote(argument.removeprefix("file://"))
        for name in _expand(argument, passed):
            identity = name if name == STDIN or REMOTE.match(name) else os.path.realpath(name)
            found.setdefault(identity, name)
            if not os.path.isdir(argument):
                given.add(identity)
    wanted = {identity: name for identity, name in found.items() if in_window(identity, window)}
    if not wanted:
        raise BadInput("no partition of these logs is between --since and --until")
    try:
        pipes = frozenset(name for name in wanted.values() if is_pipe(name))
        local = [name for name in wanted.values() if name not in pipes and not REMOTE.match(name)]
        copies = set(_copies(local))
        return LogFiles(
            names=tuple(name for name in wanted.values() if name not in copies),
            size=sum(os.path.getsize(name) for name in local if name not in copies),
            copies=tuple(name for name in local if name in copies),
            searched=frozenset(name for identity, name in wanted.items() if identity not in given),
            other_hours=len(found) - len(wanted),
            passed=tuple(passed),
            pipes=pipes,
        )
    except OSError as error:
        raise BadInput(f"cannot read {error.filename!r}: {error.strerror or error}") from error


def is_pipe(name: str) -> bool:
    """Whether a name is of something that can be read only once: standard input, a named pipe, ``<(zcat …)``."""
    return name == STDIN or (not REMOTE.match(name) and not stat.S_ISREG(os.stat(name).st_mode))


@contextmanager
def spooled(files: LogFiles) -> Iterator[LogFiles]:
    """The same with a temporary file in place of each pipe, which can be read twice, and whose reading Ctrl-C ends."""
    with ExitStack() as held:
        names = {}
        for name in files.names:
            if name not in files.pipes:
                continue
            # A Ctrl-C between the making of the file and the object that removes it would leave the file.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
            try:
                spool = held.enter_context(
                    tempfile.NamedTemporaryFile(prefix=f"{SPOOLED}{quote(name, safe='')[-100:]}=")
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            try:
                with open(name, "rb") if name != STDIN else nullcontext(sys.stdin.buffer) as pipe:
                    shutil.copyfileobj(pipe, spool, 1 << 20)
            except OSError as error:
                raise BadInput(f"cannot read {name!r}: {error.strerror or error}") from error
            spool.flush()
            names[name] = spool.name
        size = files.size + sum(map(os.path.getsize, names.values()))
        yield replace(files, names=tuple(names.get(name, name) for name in files.names), size=size, pipes=frozenset())


def shown_name(name: str) -> str:
    """The name of a file in messages and reports: for the copy of a pipe, that of the pipe."""
    if not Path(name).name.startswith(SPOOLED):
        return name
    was = unquote(Path(name).name.removeprefix(SPOOLED).rpartition("=")[0])
    return STDIN_SHOWN if was == STDIN else was


def in_window(path: str, window: Window) -> bool:
    """Whether the file may hold requests of that time, as far as its partition says; one without partition may.

    A request stands in the hour in which it ended, which may be the one after that of its arrival.
    """
    found = _PARTITION.search(path)
    if found is None or window == ALWAYS:
        return True
    try:
        start = datetime.strptime(found[1], "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(hours=int(found[2] or 0))
    except ValueError:
        return True
    start_us = round(start.timestamp()) * 1_000_000
    end_us = start_us + (3600 if found[2] else 86_400) * 1_000_000
    after = window.from_us is not None and end_us <= window.from_us
    return not (after or (window.to_us is not None and start_us >= window.to_us + LATE_US))


def _expand(argument: str, passed: list[str]) -> list[str]:
    """The logs that an argument means; ``passed`` gets the other files of folders."""
    if argument == STDIN or REMOTE.match(argument):
        return [argument]
    try:
        if os.path.isdir(argument):
            names, others = _looked(argument)
            passed += others
        elif os.path.exists(argument):
            names = [argument]
        else:
            matches = sorted(glob.glob(argument, recursive=True))
            names = [name for name in matches if not os.path.isdir(name)]
            names = names or [found for name in matches if os.path.isdir(name) for found in _expand(name, passed)]
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {argument!r}: {error}") from error
    if not names:
        if not os.path.isdir(argument):
            raise BadInput(f"no such log: {argument!r}")
        raise BadInput(
            f"no logs in {argument!r}: no file is called like one (access.log, access_log-20251124.gz, *.jsonl,"
            " *.parquet) or has lines of a known format; pass files of other names by name"
        )
    return names


def _looked(folder: str) -> tuple[list[str], list[str]]:
    """The logs below a folder, and the files that are none; not those below hidden ones.

    A file that is not called like a log is one if its first lines are.
    """
    logs, others = list[str](), list[str]()
    for path in sorted(Path(folder).rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith((".", "_")) for part in parts[:-1]) or parts[-1][0] == "." or not path.is_file():
            continue
        if looks_like_log(path.name) or (not set(path.suffixes) & UNFINISHED and _is_log(str(path))):
            logs.append(str(path))
        else:
            others.append(str(path))
    return logs, others


def _is_log(name: str) -> bool:
    """Whether a file's first lines are of a format that is known."""
    from tricklecast.analytics.lines.recognise import recognise

    try:
        if is_parquet(name):
            return True
        with open_log(name) as file:
            head = piece_of(file, _MAX_SNIFFED)[0]
        lines = [line for line in head.replace(b"\r", b"\n").split(b"\n")[:-1] if line.strip()]
        return bool(lines) and bool(recognise(name, lines))
    except (OSError, BadInput):
        return False


def node_of(name: str) -> str | None:
    """The name of a server whose lines do not say it: folder and name of its log, without what rotation appends.

    >>> node_of("/var/log/nginx/access.log.2.gz")
    'nginx/access'
    """
    if name in (STDIN, STDIN_SHOWN) or SPOOLED in name:
        return None
    path = name if REMOTE.match(name) else os.path.abspath(name)
    *folders, last = (part for part in path.split("/") if part and not _HOUR.fullmatch(part))
    return "/".join((*folders[-1:], _ROTATED.sub("", last)))


def looks_like_log(name: str) -> bool:
    """Whether a file that was found in a folder is a log, by its name."""
    base = os.path.basename(name)
    return bool(_LOG_NAME.search(base)) and not set(Path(name).suffixes) & UNFINISHED and base[0] != "."


# --- copies -----------------------------------------------------------------------------------------------------------


def _copies(names: list[str]) -> list[str]:
    """Files whose bytes are the beginning of another one's, decompressed; empty ones are nobody's copy.

    Only files with the same beginning are compared, so that as a rule nothing but that is read.
    """
    alike: dict[bytes, list[str]] = defaultdict(list)
    for name in names:
        if head := _head(name):
            # A log's first line has the time of a request in it: rarely is it the same in two logs.
            alike[head.partition(b"\n")[0]].append(name)
    found = []
    for group in alike.values():
        if len(group) > 1:
            found += _copies_in(group)
    return found


def _copies_in(names: list[str]) -> list[str]:
    sizes = {name: max(beginnings(name, ())[0]) for name in names}
    hashes = {name: beginnings(name, sizes.values())[0] for name in names}
    found: list[str] = []
    ordered = sorted(names, key=lambda name: -sizes[name])
    for place, name in enumerate(ordered):
        size = sizes[name]
        own = hashes[name].get(size)  # none if the file was cut meanwhile
        if own and any(hashes[longer].get(size) == own for longer in ordered[:place] if longer not in found):
            found.append(name)
    return found


def _head(name: str) -> bytes:
    with open_log(name) as file:
        return piece_of(file, _HEAD)[0]


MARKS: Final = tuple(4096 << 4 * power for power in range(8))
"""Sizes of the beginnings by which a file is known that is a copy of a part of another one."""


def beginnings(name: str, sizes: Iterable[int]) -> tuple[dict[int, str], bool]:
    """Hashes of a file's beginnings of some sizes, and of all of it, decompressed; and whether it ends early."""
    found: dict[int, str] = {}
    wanted, content, at = sorted(set(sizes), reverse=True), hashlib.blake2b(digest_size=16), 0
    with open_log(name) as file:
        while True:
            block, damaged = piece_of(file)
            while wanted and wanted[-1] <= at + len(block):
                size = wanted.pop()
                found[size] = hash_with(content, block[: size - at])
            content.update(block)
            at += len(block)
            if damaged or not block:
                return found | {at: content.hexdigest()}, damaged


def hash_with(content: hashlib.blake2b, more: bytes) -> str:
    """The hash of some content and what follows it."""
    copy = content.copy()
    copy.update(more)
    return copy.hexdigest()


# --- lines ------------------------------------------------------------------------------------------------------------


def open_log(name: str) -> IO[bytes]:
    """A file's bytes, decompressed if its first bytes say that it is compressed, and as UTF-8 if it is UTF-16.

    Raises:
        OSError: it cannot be opened.
    """
    with open(name, "rb") as file:
        first = file.read(_MAX_SNIFFED) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    coding = utf16(first)
    if is_compressed(first):
        with _decompressed(name, first) as file:
            coding = utf16(piece_of(file, 64)[0])
    found = _decompressed(name, first)
    return cast("IO[bytes]", _Utf16(found, coding)) if coding else found


_MAGIC: Final = {
    b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst", b"\x04\x22\x4d\x18": "lz4",
}  # fmt: skip


def is_compressed(first: bytes) -> bool:
    """Whether a file that begins so is compressed."""
    return any(map(first.startswith, _MAGIC))


def packed(name: str) -> bool:
    """Whether a local file is compressed; a pipe is not known to be."""
    try:
        if is_pipe(name):
            return False
        with open(name, "rb") as file:
            return is_compressed(file.read(8))
    except OSError:
        return name.endswith(COMPRESSED)


def unpacked(names: Iterable[str]) -> int:
    """Bytes of local logs, compressed ones as large as they are as a rule; pipes and URIs count nothing."""
    size = 0
    for name in names:
        with suppress(OSError):
            if not REMOTE.match(name) and not is_pipe(name):
                size += os.path.getsize(name) * (PACKED if packed(name) else 1)
    return size


def _decompressed(name: str, first: bytes) -> IO[bytes]:
    kind = next((kind for magic, kind in _MAGIC.items() if first.startswith(magic)), "")
    if kind in ("zst", "lz4"):
        import pyarrow as pa

        return cast("IO[bytes]", pa.CompressedInputStream(pa.OSFile(name), "zstd" if kind == "zst" else "lz4"))
    if kind == "gz":
        return cast("IO[bytes]", gzip.open(name))
    if kind == "bz2":
        return cast("IO[bytes]", bz2.open(name))
    return cast("IO[bytes]", lzma.open(name)) if kind == "xz" else open(name, "rb")


def utf16(first: bytes) -> str | None:
    """The encoding of text that begins so, if it is UTF-16; Windows' programs write it, not all of them with a mark."""
    if first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16-le" if first[:2] == codecs.BOM_UTF16_LE else "utf-16-be"
    some = first[:64]
    if len(some) >= 8 and not some[1::2].strip(b"\0") and all(some[::2]):
        return "utf-16-le"
    return "utf-16-be" if len(some) >= 8 and not some[::2].strip(b"\0") and all(some[1::2]) else None


class _Utf16:
    """A file of UTF-16 as UTF-8."""

    def __init__(self, file: IO[bytes], coding: str) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder(coding)("replace")
        # Text that was decoded and that read1() has not returned yet. UTF-8 is at most half as long again as UTF-16,
        # so that this is at most 6 MiB: one and a half times BLOCK.
        self._left = b""

    def read1(self, size: int) -> bytes:
        while not self._left:
            part = self._file.read1(min(size, BLOCK))  # type: ignore[attr-defined]  # as in piece_of
            self._left = self._decode.decode(part, not part).encode()
            if not part:
                break
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> _Utf16:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def piece_of(file: IO[bytes], size: int = BLOCK) -> tuple[bytes, bool]:
    """The next bytes of a file, and whether it turned out to be damaged after them; none at its end.

    In small steps, since what one step has read is lost if it ends in an error.
    """
    parts: list[bytes] = []
    length = 0
    while length < size:
        try:
            part = file.read1(size - length)  # type: ignore[attr-defined]  # every file that is opened here has it
        except (EOFError, zlib.error, lzma.LZMAError, OSError):
            return b"".join(parts), True
        if not part:
            break
        parts.append(part)
        length += len(part)
    return (parts[0] if len(parts) == 1 else b"".join(parts)), False


def is_parquet(name: str) -> bool:
    """Whether a local file begins as Parquet does."""
    with open(name, "rb") as file:
        return file.read(len(_PARQUET)) == _PARQUET


Span = tuple[int, int | None]
"""Some bytes of a log, decompressed: the first one, and the first that is not of them."""


class LineReader:
    """The lines of one log as Arrow batches, the whole of it in one pass.

    Nothing that a file may hold is an error: bytes that are no UTF-8 are replaced, a line that is longer than
    :data:`~tricklecast.analytics.lines.records.MAX_LINE` is cut, so that whoever parses it sees that it is broken, and
    an archive that ends early is read as far as it goes.

    Attributes:
        name: the file.
        damaged: whether the file ended early; lines: how many there are; unfinished: whether the last one has no end.
            All three are known when all of the file was read.
    """

    def __init__(self, name: str, span: Span = (0, None)) -> None:
        """Open a file.

        Args:
            span: the bytes that are read: the first one, and the first that is not; ``None`` reads to the end.

        Raises:
            BadInput: it cannot be read.
        """
        self.name = name
        self.damaged = False
        self.lines = 0
        self.unfinished = False
        start, end = span
        self._left = None if end is None else end - start
        self._begins = start == 0
        try:
            self._file = open_log(name)
            while start > 0 and (skipped := len(piece_of(self._file, min(start, BLOCK))[0])):
                start -= skipped
            self._blocks = self._read()
            self._first = next(self._blocks, b"")
        except OSError as error:
            raise BadInput(f"cannot read {name!r}: {error.strerror or error}") from error

    def sample(self) -> list[bytes]:
        """The first lines of the file, without blank ones, without their ends: before any are read.

        Half of them are from the beginning, and half from all over the first block.
        """
        lines = [line for line in io.BytesIO(self._first) if not line.isspace()]
        rest = lines[SAMPLE_LINES // 2 :]
        some = lines[: SAMPLE_LINES // 2] + rest[:: max(1, -(-len(rest) // (SAMPLE_LINES // 2)))]
        return [line.rstrip(b"\r\n")[:_HEAD] for line in some]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self) -> Iterator[bytes]:
        """Blocks that end where a line does."""
        rest = b""
        old_mac = False
        while piece := self._piece():
            if self._begins:
                piece, self._begins = piece.removeprefix(BYTE_ORDER_MARK), False
                # A file of whole lines that end in CR alone.
                old_mac = b"\n" not in piece and b"\r" in piece
            if old_mac:
                piece = piece.replace(b"\r", b"\n")
            # A log that was emptied while its writer went on begins with zeros; joined files have marks in them.
            piece = piece.replace(b"\0", b"")
            if not piece.isascii():
                piece = piece.replace(b"\n" + BYTE_ORDER_MARK, b"\n")
            end = piece.rfind(b"\n") + 1
            if end:
                yield b"".join((rest, memoryview(piece)[:end]))
                rest = piece[end:]
            else:
                # A line that is longer than a block is kept only as far as anybody would look at it.
                rest = (rest + piece)[: MAX_LINE + 1]
        if rest:
            yield rest

    def _piece(self) -> bytes:
        if self.damaged:
            return b""
        piece, self.damaged = piece_of(self._file, BLOCK if self._left is None else min(self._left, BLOCK))
        if self._left is not None:
            self._left -= len(piece)
        return piece

    def blocks(self) -> Iterator[bytes]:
        """The file's bytes in blocks of whole lines; they are read once, and then the file is closed."""
        try:
            block: bytes | None = self._first
            while block:
                yield block
                block = next(self._blocks, None)
        finally:
            self.close()

    def batches(self, number: int, wrapping: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """The lines, with the columns ``file``, ``no`` and ``line``; they are read once.

        Args:
            number: the file's, for the column ``file``. wrapping: is taken off each line.
        """
        no = 1
        unwrapper = Unwrapper(wrapping)
        for block in self.blocks():
            batch = line_batch(unwrapper.feed(block), number, no)
            no += len(batch)
            self.lines, self.unfinished = no - 1, not block.endswith(b"\n")
            yield batch


def sample_of(name: str) -> list[bytes]:
    """The first lines of a local file, without blank ones, without their ends.

    Raises:
        BadInput: it cannot be read.
    """
    reader = LineReader(name)
    reader.close()
    return reader.sample()


def line_schema() -> pa.Schema:
    """The schema of :func:`line_batch`."""
    import pyarrow as pa

    return pa.schema([("file", pa.int32()), ("no", pa.int64()), ("line", pa.string())])


def line_batch(block: bytes, number: int, no: int) -> pa.RecordBatch:
    """The lines of a block as a batch whose texts point into the block.

    Args:
        block: whole lines, with their ends; number: the file's; no: that of the block's first line.
    """
    import pyarrow as pa

    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError:
            block = block.decode("utf-8", "replace").encode()
    offsets = array("i", accumulate(map(len, io.BytesIO(block)), initial=0))
    count = len(offsets) - 1
    numbers = pa.py_buffer(array("q", range(no, no + count)))
    files = pa.py_buffer(array("i", [number]) * count)
    return pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(pa.int32(), count, [None, files]),
            pa.Array.from_buffers(pa.int64(), count, [None, numbers]),
            pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(block)),
        ],
        schema=line_schema(),
    )
