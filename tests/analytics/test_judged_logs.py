"""Scenes by somebody who knew the record and the classes, but not the code: what it once got wrong."""

from __future__ import annotations

import pytest

from tests.analytics.conftest import Known
from tests.analytics.support.scenes import SCENES, TWO_SERVERS


@pytest.mark.parametrize("name", [*SCENES, TWO_SERVERS])
def test_each_scene_is_told_as_it_was(name: str, known: Known) -> None:
    """What is no storm is silent; a storm is told once, with its class, its requests, its clients and its trigger."""
    node = name if name in SCENES else None
    told = [(str(it.storm), it.n, it.n_clients, it.trigger) for it in known.report.episodes if it.node == node]
    assert told == known.scenes[name]
