"""What is kept in the corpus, and a little more, does no harm; the long form is `scripts/fuzz`."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.app.hostile.support import exchange, statuses, watched
from tests.fuzz.functions import TARGETS
from tests.fuzz.own import CORPUS, corpus, inputs
from tests.support.forked import python

ROOT = Path(__file__).parents[2]
INPUTS = 2000
MAX_FILE_BYTES = 8192


@pytest.mark.parametrize("name", TARGETS)
def test_functions_take_anything(name: str) -> None:
    """Each of them gives a value or its own error for what the corpus holds, and for that damaged."""
    make = inputs(random.Random(name), corpus(name))
    for data in [*corpus(name), *(make() for _ in range(INPUTS))]:
        try:
            TARGETS[name](data)
        except Exception as error:
            pytest.fail(f"{name}({data!r}): {error!r}")


def test_the_server_takes_anything() -> None:
    """What once did harm to it does so no more."""
    with watched() as attacked:
        for path in sorted((CORPUS / "server").iterdir()):
            answers = exchange(attacked.server, path.read_bytes())
            assert not {status for status in statuses(answers) if status == 500}, path.name
            attacked.check()


def test_the_corpus_is_small() -> None:
    """Every file of it belongs to a target, and is short."""
    for path in CORPUS.rglob("*"):
        if path.is_file():
            assert path.parent.name in {"server", *TARGETS}
            assert path.stat().st_size <= MAX_FILE_BYTES


def test_the_long_form_runs_and_names_its_seed() -> None:
    """A round that has no time left says what it would have done."""
    command = [python(), "-m", "tests.fuzz", "route", "--seed", "7", "--minutes", "0.0001"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert "route: seed 7" in done.stdout
    assert "nothing found" in done.stdout
