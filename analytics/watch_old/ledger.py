"""What must not be forgotten: one file that says which batch was judged last, what is known, and what is to be told.

An alert is in this file before anybody is told of it, and leaves it after everybody was. So a process that is killed
loses none; and a batch that Spark repeats is known by its number, so that none is told twice. Only what a receiver had
acknowledged within the moment before the kill comes again, with the same key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, Final

import orjson

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.news import News

VERSION: Final = 2
FILE: Final = "watch.json"
Known = Mapping[str, Any] | orjson.Fragment
"""What a detector knows, for JSON."""

NOTHING: Final = -1
"""The batch before the first."""


class Ledger:
    """The file, and what stands in it.

    Attributes:
        batch: the last batch that was judged. dropped: alerts that a receiver never got, by receiver.
        detector: what the detector knew then, as it was read or is to be written; ``None`` if there is nothing yet.
    """

    def __init__(self, folder: Path, source: Mapping[str, Any], limits: WatchLimits) -> None:
        """Opens the ledger of a folder, or begins one.

        Args:
            folder: where it is; source: what is watched; limits: how much is kept.

        Raises:
            BadInput: it is another source's, or no ledger of this version.
        """
        self._path = folder / FILE
        self._source = dict(source)
        self._limits = limits
        self._lock = RLock()
        self._checkpoint: str | None = None
        self.batch = NOTHING
        self.detector: Any = None
        self._outbox: dict[str, list[dict[str, Any]]] = {}
        self._firing: dict[str, dict[str, Any]] = {}
        self._told: dict[str, None] = {}
        self.dropped: dict[str, int] = {}
        if self._path.exists():
            self._load()

    def _load(self) -> None:
        try:
            known = orjson.loads(self._path.read_bytes())
            if known["version"] != VERSION:
                raise BadInput(f"{self._path} was written by another version: use another --state, or remove it")
            same = known["source"] == self._source
            self._checkpoint, self.batch = known["checkpoint"], known["batch"]
            self.detector, self._outbox = known["detector"], known["outbox"]
            self._firing, self.dropped = known["firing"], known["dropped"]
            self._told = dict.fromkeys(known["told"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"cannot read {str(self._path)!r}: {error}") from error
        if not same:
            raise BadInput(f"{self._path.parent} is the state of another watch: use another --state")

    def follow(self, checkpoint: str) -> None:
        """Binds the batches' numbers to Spark's checkpoint: with a new one they begin anew."""
        with self._lock:
            if checkpoint != self._checkpoint:
                self._checkpoint, self.batch = checkpoint, NOTHING

    def commit(
        self, batch: int | None, detector: Known, news: Sequence[dict[str, Any]], to: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Writes down that a batch was judged, and what is to be told.

        Args:
            batch: its number; ``None`` if it was no batch that brought the news, but that nothing came.
            detector: what it knows now, which must not change any more; to: the receivers.

        Returns:
            the news that were not told before.
        """
        with self._lock:
            fresh = [each for each in news if each["key"] not in self._told]
            self._told |= dict.fromkeys(each["key"] for each in fresh)
            while len(self._told) > self._limits.told:
                del self._told[next(iter(self._told))]
            for each in fresh:
                if each["status"] == "resolved":
                    self._firing.pop(each["episode"]["id"], None)
                else:
                    self._firing[each["episode"]["id"]] = each
            for receiver in to:
                self._put(receiver, fresh)
            self.batch = self.batch if batch is None else batch
            self.detector = detector
            self._write()
        return fresh

    def _put(self, receiver: str, news: Sequence[dict[str, Any]]) -> None:
        waiting = self._outbox.setdefault(receiver, [])
        waiting.extend(news)
        excess = len(waiting) - self._limits.outbox
        if excess > 0:
            del waiting[:excess]
            self.dropped[receiver] = self.dropped.get(receiver, 0) + excess

    def waiting(self, receiver: str) -> list[News]:
        """What a receiver has not got yet, the oldest first."""
        with self._lock:
            return list(self._outbox.get(receiver, ()))

    def firing(self) -> list[News]:
        """The latest news of every storm that is not over."""
        with self._lock:
            return list(self._firing.values())

    def delivered(self, receiver: str, keys: Sequence[str], *, refused: bool = False) -> None:
        """Writes down that a receiver got these; or that it refused them for good, so that they are dropped."""
        with self._lock:
            gone = set(keys)
            waiting = self._outbox.get(receiver, [])
            self._outbox[receiver] = [each for each in waiting if each["key"] not in gone]
            if refused:
                self.dropped[receiver] = self.dropped.get(receiver, 0) + len(waiting) - len(self._outbox[receiver])
            self._write()

    def undelivered(self) -> int:
        """Alerts that somebody has not got yet."""
        with self._lock:
            return sum(map(len, self._outbox.values()))

    def _write(self) -> None:
        document = {
            "version": VERSION,
            "source": self._source,
            "checkpoint": self._checkpoint,
            "batch": self.batch,
            "detector": self.detector,
            "outbox": self._outbox,
            "firing": self._firing,
            "told": list(self._told),
            "dropped": self.dropped,
        }
        write_atomically(self._path, orjson.dumps(document))


def write_atomically(path: Path, data: bytes, replace: Callable[[Path, Path], None] = os.replace) -> None:
    """Whoever reads the file sees what it was or what it is to be, never half of it. Only its owner may."""
    unfinished = path.with_name(f"{path.name}.tmp")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    replace(unfinished, path)
