"""Cases of which only some run by default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")


def mostly_long(cases: Iterable[T], every: int) -> list[object]:
    """Give parameters of which the first of every few runs by default, and the others with ``-m long``.

    For cases that take the same way: each of them is worth a run before a release, and not with each change.
    """
    return [
        case if number % every == 0 else pytest.param(case, marks=pytest.mark.long) for number, case in enumerate(cases)
    ]
