"""What becomes of a report that there is no room for."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from tests.analytics.support.sample_report import sample_report
from tricklecast.analytics.command.run import _print
from tricklecast.analytics.errors import CannotWrite


class Full(io.StringIO):
    """A file on a disk that is full."""

    def write(self, text: str) -> int:
        """There is no room."""
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_terminal_that_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output on a disk that is full is an exit code of its own: 1 would mean that there are storms."""
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(CannotWrite, match="cannot write the report: No space left on device") as failed:
        _print(sample_report())
    assert failed.value.exit_code == 2
    assert sys.stdout is None
