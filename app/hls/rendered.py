"""Playlists and files of renditions: the server makes each for the first client that asks, and keeps it."""

from __future__ import annotations

import gzip
from collections import OrderedDict
from functools import cached_property
from hashlib import blake2b
from typing import Final

QUERY: Final = "\0"
"""In place of the query that each URL of a playlist ends with."""

MORE: Final = "\1"
"""In place of the same, in a URL that has a query already."""

KEPT_FILES: Final = 32
KEPT_BYTES: Final = 8 << 20
"""The newest files of a channel's renditions are kept: this number, and bytes, at most; the newest one in any case."""

_TAG_BYTES: Final = 12
_LEVEL: Final = 6


class Rendered:
    """A playlist as it is in one state.

    Args:
        version: of the packager, which counts the states. text: with :data:`QUERY` at the end of each URL.
    """

    def __init__(self, version: int, text: str) -> None:
        self.version = version
        self.raw = text

    @cached_property
    def digest(self) -> str:
        """The text of the entity tags: the same at every server that has this state, and after a restart."""
        return blake2b(self.raw.encode(), digest_size=_TAG_BYTES).hexdigest()

    def digest_of(self, query: str) -> str:
        """The text of the entity tag if the URLs end with this query, which makes the playlist name other files."""
        return f"{self.digest}-{blake2b(query.encode(), digest_size=_TAG_BYTES).hexdigest()}" if query else self.digest

    def text(self, query: str) -> bytes:
        """The playlist.

        Args:
            query: what each URL in it ends with: ``?token=...``, or nothing.
        """
        return self.raw.replace(QUERY, query).replace(MORE, query.replace("?", "&", 1)).encode()

    @cached_property
    def compressed(self) -> bytes:
        """The playlist without a query, compressed by gzip. Only the first one who asks pays for it."""
        return gzip.compress(self.text(""), _LEVEL, mtime=0)


NOTHING: Final = Rendered(-1, "")
"""Until somebody has asked."""


class Kept:
    """The newest files of a channel's renditions, by name."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def get(self, name: str) -> bytes | None:
        """The file, if it is kept."""
        return self._files.get(name)

    def add(self, name: str, data: bytes) -> None:
        """Keep a file, and let go of the oldest ones."""
        self._files[name] = data
        self._size += len(data)
        while len(self._files) > KEPT_FILES or (self._size > KEPT_BYTES and len(self._files) > 1):
            self._size -= len(self._files.popitem(last=False)[1])
