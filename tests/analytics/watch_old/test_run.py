"""One run of the command, with a stream that is made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # it ships no types

from tests.analytics.watch_old.requests import request
from tricklecast.analytics.errors import SparkFailed
from tricklecast.analytics.watch_old import run as module


class GoneQuery:
    """A stream whose Java has been killed."""

    @property
    def isActive(self) -> bool:
        """Nobody answers."""
        raise Py4JNetworkError("Answer from Java side is empty")

    def stop(self) -> None:
        """Nobody is there to be stopped."""
        raise ConnectionRefusedError(111, "Connection refused")


def test_java_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with one line and the exit code of Spark, neither with a stack trace nor as if there had been a storm."""

    @contextmanager
    def session(*args: object, **options: object) -> Iterator[object]:
        yield object()

    monkeypatch.setattr(module, "spark_session", session)
    monkeypatch.setattr(module, "only_spark", lambda *given: nullcontext())
    monkeypatch.setattr(module, "start_query", lambda *given: GoneQuery())
    with pytest.raises(SparkFailed, match="Java process has ended") as failed:
        module.run(request(tmp_path, tmp_path / "state"))
    assert failed.value.exit_code == 4
