"""How many connections fit into the process's limit of descriptors."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from tricklecast.app.descriptors import SPARE, attainable_limits, open_to
from tricklecast.app.settings import Settings

INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "fit", "raised"),
    [
        (1024, 4096, 100, 100, None),
        (1024, 4096, 1024 - SPARE, 1024 - SPARE, None),
        (1024, 4096, 1025 - SPARE, 1025 - SPARE, 1025),
        (1024, 4096, 80_000, 4096 - SPARE, 4096),
        (1024, 4096, None, 4096 - SPARE, 4096),
        (1024, INFINITY, 80_000, 80_000, 80_000 + SPARE),
        (1024, INFINITY, None, None, INFINITY),
        (INFINITY, INFINITY, 80_000, 80_000, None),
        (INFINITY, INFINITY, None, None, None),
        (64, 64, 80_000, 1, None),
    ],
)
def test_the_limit_is_raised_as_far_as_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int | None, fit: int | None, raised: int | None
) -> None:
    """Never lowered, never beyond the hard one; what does not fit is known before anybody connects."""
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: set_to.append(limits))
    assert open_to(wanted) == fit
    assert set_to == ([] if raised is None else [(raised, hard)])


def test_a_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may refuse what the hard limit allows."""

    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert open_to(None) == 1024 - SPARE


@pytest.mark.parametrize(
    ("given", "connections", "said"),
    [({}, 744, False), ({"max_connections": 744}, 744, False), ({"max_connections": 745}, 744, True)],
)
def test_who_asks_for_more_than_there_can_be_is_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, Any],
    connections: int,
    said: bool,
) -> None:
    """The default is only as much as fits; a number that was given and does not fit is worth a line."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1000, 1000))
    assert attainable_limits(Settings(**given)).connections == connections
    wanted = ["max_connections is 744 instead of 745: the process may not open more files"] if said else []
    assert caplog.messages == wanted
