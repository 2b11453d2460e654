"""A mirror under all that can happen to it, in any order: at rest all is as at the source, and nothing comes back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.app.mirror.world import run


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each world has a thousand warnings."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(4))
def test_a_world(seed: int) -> None:
    """Each rest is one interleaving of updates, deletes, copies, news, restarts and rules."""
    assert run(seed, 50).interleavings == 51


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_worlds(seed: int) -> None:
    """A hundred thousand interleavings, in a quarter of an hour."""
    assert run(seed, 999).interleavings == 1000
