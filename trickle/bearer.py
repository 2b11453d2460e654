"""A token on every request of a client: from the command line, a file, or the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from tricklecast.trickle.errors import InvalidInput

VARIABLE: Final = "TRICKLECAST_TOKEN"
"""The environment variable that holds a token: unlike an argument, it is not shown to everybody on the machine."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+", re.ASCII)


class HasHeaders(Protocol):
    """A request of httpx, as far as it matters here."""

    @property
    def headers(self) -> MutableMapping[str, Any]:
        """Its headers."""


R = TypeVar("R", bound=HasHeaders)


class Bearer:
    """Adds ``Authorization: Bearer``; what httpx calls ``auth``.

    Args:
        read: gives the token; asked for each request, so that it can be renewed meanwhile.
    """

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def __call__(self, request: R) -> R:
        request.headers["Authorization"] = f"Bearer {self._read()}"
        return request


def bearer_for(token: str | None, file: Path | None, environment: Mapping[str, str]) -> Bearer | None:
    """Who says which token: an argument before a file, and that before the environment; ``None`` if nobody does.

    Args:
        token: itself. file: that holds it; it is read for each request. environment: of the process.

    Raises:
        InvalidInput: it is no token, or two were given.
    """
    if token is not None and file is not None:
        raise InvalidInput("a token, or a file that holds one, not both")
    if file is not None:
        source = _File(file)
        source()
        return Bearer(source)
    text = environment.get(VARIABLE) or None if token is None else token
    if text is None:
        return None
    checked = _checked(text, "the token")
    return Bearer(lambda: checked)


class _File:
    """A token in a file that is replaced now and then. While it cannot be read the last one counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token: str | None = None

    def __call__(self) -> str:
        try:
            self._token = _checked(self._path.read_text(encoding="ascii", errors="replace"), f"{self._path}")
        except OSError as error:
            if self._token is None:
                raise InvalidInput(f"cannot read {self._path}: {error.strerror or error}") from None
        except InvalidInput:
            if self._token is None:
                raise
        return self._token


def _checked(text: str, name: str) -> str:
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        raise InvalidInput(f"{name} is empty, or holds what is part of no token")
    return token
