"""Servers in processes of their own, which must not complain about anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support.server import RunningServer, serve

Serve = Callable[..., AbstractContextManager[RunningServer]]


@pytest.fixture
def quiet_serve(tmp_path: Path) -> Serve:
    """Like `serve`, with an access log, and an error if the server writes to standard error what is not expected."""

    @contextmanager
    def run(*arguments: str, scheme: str = "http", complaint: str = "") -> Iterator[RunningServer]:
        errors = tmp_path / "stderr.txt"
        with errors.open("w+", encoding="utf-8") as stderr:
            with serve(*arguments, access_log=tmp_path / "access.jsonl", scheme=scheme, stderr=stderr) as server:
                yield server
            said = errors.read_text(encoding="utf-8")
            assert complaint in said if complaint else not said

    return run
