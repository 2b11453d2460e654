"""Names of channels and nodes as tokens of NATS subjects.

A key of a NATS bucket consists of tokens with points between them, and a name of a channel may hold points, spaces, or
letters of any language. So ``-``, ``_`` and ASCII letters and digits stand for themselves, and every other byte of the
name is ``=`` and two hexadecimal digits: ``café.1`` is ``caf=C3=A9=2E1``. A person who looks with ``nats kv`` can read
it, two names never have one token, and a token has one name.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_OTHER = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPE = re.compile(rb"=([0-9A-F]{2})")


def to_token(name: str) -> str:
    """The token of a name that is not empty."""
    if _PLAIN.fullmatch(name):
        return name
    return _OTHER.sub(lambda byte: b"=%02X" % byte[0][0], name.encode()).decode()


def to_name(token: str) -> str:
    """The name of a token.

    Raises:
        ValueError: no name has this token.
    """
    if _PLAIN.fullmatch(token):
        return token
    name = _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()), token.encode()).decode()
    if not name or to_token(name) != token:
        raise ValueError(f"{token!r} is the token of no name")
    return name
