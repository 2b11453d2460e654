"""Why nobody may publish here: this server mirrors another one, or another one has taken its place.

The core asks for each request that would change a channel (``Registry.read_only``), and the client is told the reason
in one line, with 403. A server that has neither a mirror nor a successor is not asked at all.

That another server has taken this one's place outlasts a restart: it is in the file ``deposed.json`` of the data
directory. Without one it is forgotten, with all channels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import orjson

from tricklecast.app.access.rights import matches_any
from tricklecast.app.core.registry import Registry
from tricklecast.app.storage.database import sync_folder
from tricklecast.trickle.errors import TrickleError

FILE: Final = "deposed.json"


class DeposedUnreadable(TrickleError):
    """Nobody can tell whether another server has taken this one's place."""


class ReadOnly:
    """The names that are closed to publishers, and the reasons.

    Args:
        registry: whose channels these are. folder: the data directory; ``None`` without one.

    Attributes:
        source: the server that is mirrored; ``""``: none is.
        by: the server that has taken this one's place; ``""``: none has.
        deposed: patterns of the names whose place that server has taken.
        heir, handed_over: the server that is about to take this one's place, and patterns of the names; ``""``: none.

    Raises:
        DeposedUnreadable: the file that says it cannot be read.
    """

    def __init__(self, registry: Registry, folder: Path | None) -> None:
        self._registry = registry
        self._file = None if folder is None else folder / FILE
        self.source = self.by = self.heir = ""
        self._mirrored: Callable[[str], bool] = _nothing
        self.deposed: Sequence[str] = ()
        self.handed_over: Sequence[str] = ()
        if self._file is not None:
            self._read(self._file)
        self._tell()

    def mirror(self, source: str, selected: Callable[[str], bool]) -> None:
        """Refuse publishers, since this server mirrors another one.

        Args:
            source: its URL, as clients may see it. selected: whether a channel of this name is mirrored.
        """
        self.source, self._mirrored = source, selected
        self._tell()

    def stop(self) -> None:
        """This server mirrors no other one any more."""
        self.source, self._mirrored = "", _nothing
        self._tell()

    def hand_over(self, heir: str = "", patterns: Sequence[str] = ()) -> None:
        """Refuse new segments, since another server is about to take this one's place; without one, not any more."""
        self.heir, self.handed_over = heir, patterns
        self._tell()

    def depose(self, by: str, patterns: Sequence[str]) -> None:
        """Refuse publishers, since another server has taken this one's place, until :meth:`release`.

        Args:
            by: its URL. patterns: of the names of channels.

        Raises:
            OSError: the data directory does not take it; it holds for this start of the server only.
        """
        self.by, self.deposed = by, tuple(patterns)
        self.hand_over()
        if self._file is not None:
            new = self._file.with_suffix(".new")
            with open(new, "wb") as file:
                file.write(orjson.dumps({"by": by, "channels": list(patterns)}))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._file)
            sync_folder(self._file.parent)

    def release(self) -> None:
        """This server takes publishers again, as far as it mirrors no other one.

        Raises:
            OSError: the data directory does not take it.
        """
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            sync_folder(self._file.parent)
        self.by, self.deposed = "", ()
        self.hand_over()

    def why(self, name: str) -> str:
        """Why nobody may publish to a channel of this name; ``""``: everybody may."""
        if self._mirrored(name):
            return f"This server mirrors {self.source}: publish there, or promote this one (tricklecast mirror promote)"
        if matches_any(self.deposed, name):
            return f"{self.by} has taken this server's place: publish there"
        if matches_any(self.handed_over, name):
            return f"{self.heir} is about to take this server's place: publish there"
        return ""

    def _read(self, file: Path) -> None:
        try:
            about = orjson.loads(file.read_bytes())
            self.by, self.deposed = str(about["by"]), tuple(map(str, about["channels"]))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DeposedUnreadable(f"cannot read {file}, which says whose channels these are: {error}") from error

    def _tell(self) -> None:
        self._registry.read_only = self.why if self.source or self.by or self.heir else None


def _nothing(name: str) -> bool:
    """No mirror is set."""
    del name
    return False
