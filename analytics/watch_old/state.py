"""The folder of a watch's state, which one process, and one Spark, at a time may use."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.watch_old.ledger import write_atomically

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAST_BREATH_S: Final = 30.0
"""How long the Spark of a process that was killed may take to notice. Seconds."""

PAUSE_S: Final = 0.1

MAKER: Final = "made-by"
"""The file that says which version made the checkpoint."""


@contextmanager
def state_folder(state: Path | None) -> Iterator[Path]:
    """The folder of the state, which one process at a time may use."""
    if state is None:
        folder = Path(mkdtemp(prefix="tricklecast-watch-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = open(state / "lock", "w", encoding="ascii")  # noqa: SIM115  # it is held as long as the folder is
    except OSError as error:
        raise BadInput(f"cannot use {str(state)!r} for the state: {error.strerror}") from error
    with lock:
        _only_one(lock.fileno(), state)
        yield state.absolute()


def _only_one(descriptor: int, state: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such lock on Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BadInput(f"{str(state)!r} is in use by another watch") from None


def carried_over(checkpoint: Path, made_by: str) -> dict[str, Any] | None:
    """Where to go on if another version made the checkpoint: what Spark has counted means nothing to this one.

    The checkpoint is removed then. What is lost with it are the counts of the last moments, and no line.

    Args:
        checkpoint: Spark's folder; made_by: what tells this version from others.

    Returns:
        the offset of its last batch that was finished; ``None`` if the checkpoint can be used, or there is none.
    """
    maker, since = checkpoint.parent / MAKER, None
    with suppress(FileNotFoundError):
        if maker.read_text(encoding="utf-8") != made_by:
            finished = [int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdecimal()]
            offsets = checkpoint / "offsets" / str(max(finished, default=0))
            since = json.loads(offsets.read_text(encoding="utf-8").splitlines()[-1])
            shutil.rmtree(checkpoint)
    write_atomically(maker, made_by.encode())
    return since


@contextmanager
def only_spark(
    spark: SparkSession,
    folder: Path,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Has Spark's Java process hold a lock of its own.

    Where a command is killed, its Java process lives on for a moment, and may write another batch into the checkpoint.

    Args:
        folder: of the state; clock, sleep: the time in seconds, and how to let it pass.

    Raises:
        BadInput: another Java process does not let go of it.
    """
    java: Any = spark._jvm
    channel = java.java.io.RandomAccessFile(str(folder / "spark.lock"), "rw").getChannel()
    try:
        until = clock() + LAST_BREATH_S
        while channel.tryLock() is None:
            if clock() >= until:
                raise BadInput(f"{str(folder)!r} is in use by the Spark of another watch")
            sleep(PAUSE_S)
        yield
    finally:
        channel.close()
