"""Where a request carries its token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

MAX_TOKEN_BYTES: Final = 8 << 10
"""As long as most proxies let a header be; to hash more for everybody who asks would be work for nothing."""

_SCHEME: Final = b"bearer "
_PARAMETER: Final = b"token="


def from_headers(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The token of ``Authorization: Bearer`` (RFC 6750, section 2.1)."""
    value = headers.get(b"authorization")
    if value is None or value[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return value[len(_SCHEME) :].strip() or None


def from_query(target: bytes) -> bytes | None:
    """The token of ``?token=`` (as RFC 6750, section 2.3, under a shorter name); of several the first."""
    for parameter in target.partition(b"?")[2].split(b"&"):
        if parameter.startswith(_PARAMETER):
            return unquote_to_bytes(parameter[len(_PARAMETER) :]) or None
    return None
