"""Revoked tokens and clients, in a file of the operator: a line for each, and comments.

::

    # 2026-11-27: the laptop that was stolen
    sub camera-7
    jti 7c9e6679f42d4a1b

``jti`` names one token, ``sub`` a client with all its tokens. The server reads the file at its start and at SIGHUP. A
line about a token that has expired can be removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tricklecast.app.access.rights import MAX_SUBJECT, Claims
from tricklecast.app.access.secrets import InvalidKey, read_file

MAX_BYTES: Final = 4 << 20
"""The longest file: some 100,000 lines."""


class Revocations(NamedTuple):
    """The tokens and clients that are revoked.

    Attributes:
        token_ids: ``jti`` of tokens. subjects: ``sub`` of clients.
    """

    token_ids: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset()

    def cover(self, claims: Claims) -> bool:
        return claims.token_id in self.token_ids or claims.subject in self.subjects


NOTHING_REVOKED: Final = Revocations()


def read_revocations(path: Path) -> Revocations:
    """Read a file of revoked tokens and clients.

    Raises:
        InvalidKey: the file cannot be read, is too large, or has any other line: a typing error must not leave a token
            valid.
    """
    found: dict[str, set[str]] = {"jti": set(), "sub": set()}
    try:
        text = read_file(path, most=MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise InvalidKey(f"{path} is not UTF-8") from None
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split(None, 1)
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 2 or words[0] not in found:
            raise InvalidKey(f"{path}, line {number}: write 'jti ID' or 'sub NAME', or begin the line with #")
        found[words[0]].add(words[1].rstrip()[:MAX_SUBJECT])
    return Revocations(frozenset(found["jti"]), frozenset(found["sub"]))
