"""The files that the pages load: our own (``static/``) and the vendored packages (``vendor/``).

Their URLs begin with a digest of all of them (``/static/3f9a1c2b/style.css``), so a browser may keep them for ever: a
new release has other URLs. Modules import each other by relative paths, so they stay below the same digest.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent
ROOTS: Final = (FOLDER / "static", FOLDER / "vendor")

MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    "": "text/plain; charset=utf-8",
}
"""By the file's ending; a licence has none. Files with other endings are not served."""

DIGEST_LENGTH: Final = 12


class Asset(NamedTuple):
    """A file: its media type, its bytes, and the same bytes compressed by gzip."""

    media_type: str
    content: bytes
    compressed: bytes


class Assets:
    """All files, read when they are first asked for. There are a few dozen, 2.5 MB together."""

    def __init__(self) -> None:
        self._paths = {
            path.relative_to(root).as_posix(): path
            for root in ROOTS
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.suffix in MEDIA_TYPES and path.name != "VERSION"
        }
        self._read: dict[str, Asset] = {}

    @cached_property
    def digest(self) -> str:
        """A digest of all files: another release has another one."""
        digest = hashlib.sha256()
        for name, path in self._paths.items():
            digest.update(name.encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()[:DIGEST_LENGTH]

    def find(self, name: str) -> Asset | None:
        """The file of this path below the digest; ``None`` if there is none."""
        asset = self._read.get(name)
        if asset is None and (path := self._paths.get(name)) is not None:
            content = path.read_bytes()
            asset = self._read[name] = Asset(MEDIA_TYPES[path.suffix], content, gzip.compress(content, 6))
        return asset
