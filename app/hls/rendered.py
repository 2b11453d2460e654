"""One state of a playlist, for all who ask: its text, its entity tag, and the text compressed."""

from __future__ import annotations

import gzip
from functools import cached_property
from hashlib import blake2b
from typing import Final

QUERY: Final = "\0"
"""In place of the query that each URL of a playlist ends with."""

_TAG_BYTES: Final = 12
_LEVEL: Final = 6


class Rendered:
    """A playlist as it is in one state.

    Args:
        version: of the packager, which counts the states. text: with :data:`QUERY` at the end of each URL.
    """

    def __init__(self, version: int, text: str) -> None:
        self.version = version
        self._text = text

    @cached_property
    def digest(self) -> str:
        """What the entity tags are made of: the same at every server that has this state, and after a restart."""
        return blake2b(self._text.encode(), digest_size=_TAG_BYTES).hexdigest()

    def text(self, query: str) -> bytes:
        """The playlist.

        Args:
            query: what each URL in it ends with: ``?token=...``, or nothing.
        """
        return self._text.replace(QUERY, query).encode()

    @cached_property
    def compressed(self) -> bytes:
        """The playlist without a query, compressed by gzip. Only the first one who asks pays for it."""
        return gzip.compress(self.text(""), _LEVEL, mtime=0)


NOTHING: Final = Rendered(-1, "")
"""Until somebody has asked."""
