"""An access token in a request: which texts a header can carry, and the class that adds it to each request."""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from typing import Any, Final, Protocol, TypeVar

from tricklecast.trickle.errors import InvalidInput

TOKEN_VARIABLE: Final = "TRICKLECAST_TOKEN"
"""An environment variable with the access token. Other users of the machine can read an argument, but not this."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+", re.ASCII)


class HasHeaders(Protocol):
    """A request of httpx, which this module does not import."""

    @property
    def headers(self) -> MutableMapping[str, Any]:
        """The headers of the request."""


R = TypeVar("R", bound=HasHeaders)


class Bearer:
    """Adds ``Authorization: Bearer`` to each request: pass it to httpx as ``auth``.

    Args:
        read: returns the token. It is called for each request, so a token can be renewed while a command runs.
    """

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def __call__(self, request: R) -> R:
        request.headers["Authorization"] = f"Bearer {self.token}"
        return request

    @property
    def token(self) -> str:
        """The token as it is now."""
        return self._read()


def check_token(token: str, name: str) -> None:
    """Check that a header can carry a token.

    Args:
        name: stands in the message instead of the token, which is a secret.

    Raises:
        InvalidInput: a header cannot carry it.
    """
    if token[:7].lower() == "bearer ":
        raise InvalidInput(f"{name} begins with the word Bearer; leave it out, since the client adds it")
    if _TOKEN.fullmatch(token.strip()) and token != token.strip():
        raise InvalidInput(f"{name} begins or ends with a blank or the end of a line: strip the text of a file")
    if not _TOKEN.fullmatch(token):
        raise InvalidInput(f"{name} is empty, or contains a character that is not visible ASCII")
