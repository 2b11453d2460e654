"""The server's own log: whole lines with time and level, and never a reason to wait."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
from collections.abc import Iterator

import pytest

from tests.support.waiting import WITHIN_S
from tricklecast.app import server_log
from tricklecast.app.server_log import LINES, LogFormat, ServerLog, UnthreadedLog


@contextlib.contextmanager
def pipe(format: LogFormat = LogFormat.TEXT) -> Iterator[tuple[int, logging.Logger, ServerLog]]:
    """The reading end of a pipe, a logger that writes to it, and its handler."""
    reading, writing = os.pipe()
    handler = ServerLog(format, writing)
    logger = logging.Logger("tricklecast.test")
    logger.addHandler(handler)
    try:
        yield reading, logger, handler
    finally:
        handler.close()
        with contextlib.suppress(OSError):
            os.close(writing)
        os.close(reading)


def lines(reading: int, handler: ServerLog) -> list[str]:
    """The lines that were written to the pipe."""
    assert handler._thread.wait(WITHIN_S)
    return os.read(reading, 1 << 20).decode().splitlines()


def test_a_line_has_time_level_and_source() -> None:
    """Time is UTC with milliseconds, so that lines of several servers can be put in order."""
    with pipe() as (reading, logger, handler):
        logger.warning("%d of %s", 3, "ü\udcff")
        (line,) = lines(reading, handler)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING tricklecast\.test: 3 of ü\\udcff", line)


@pytest.mark.parametrize("format", LogFormat)
def test_a_line_says_which_worker_wrote_it(format: LogFormat) -> None:
    """With several workers each line does; with one no line does."""
    said = {}
    for worker in (None, 1):
        formatter = ServerLog(format, worker=worker).formatter
        assert formatter is not None
        said[worker] = formatter.format(logging.LogRecord("tricklecast.test", logging.ERROR, "", 0, "so", None, None))
    if format is LogFormat.JSON:
        assert ["worker" in json.loads(line) for line in said.values()] == [False, True]
        assert json.loads(said[1])["worker"] == 1
    else:
        assert [line.partition(" ERROR ")[2] for line in said.values()] == [
            "tricklecast.test: so",
            "tricklecast.test (worker 1): so",
        ]


def test_a_process_without_threads_never_waits_for_its_log() -> None:
    """A line is cut where a pipe may have no room for more of it, and lost where there is none."""
    reading, writing = os.pipe()
    handler = UnthreadedLog(descriptor=writing)
    for text in ("x" * 1_000_000, *["y"] * 1000):
        handler.handle(logging.LogRecord("tricklecast.test", logging.ERROR, "", 0, text, None, None))
    long, short = os.read(reading, 1 << 20).splitlines()[:2]
    assert (len(long), long[-1:], short[-1:]) == (select.PIPE_BUF - 1, b"x", b"y")
    with contextlib.suppress(BlockingIOError):
        os.set_blocking(writing, False)
        while os.write(writing, bytes(select.PIPE_BUF)):
            pass
    os.set_blocking(writing, True)
    handler.handle(logging.LogRecord("tricklecast.test", logging.ERROR, "", 0, "z", None, None))
    os.close(reading)
    handler.handle(logging.LogRecord("tricklecast.test", logging.ERROR, "", 0, "z", None, None))
    os.close(writing)


def test_json_lines_hold_a_stack_trace_in_one_line() -> None:
    """A collector of logs gets one object a record."""
    with pipe(LogFormat.JSON) as (reading, logger, handler):
        try:
            raise ValueError("two\nlines \udcff")
        except ValueError:
            logger.exception("it failed")
        (line,) = lines(reading, handler)
    record = json.loads(line)
    assert record.keys() == {"time", "level", "logger", "message", "exception"}
    assert (record["level"], record["message"]) == ("ERROR", "it failed")
    assert record["exception"].endswith("ValueError: two\nlines \\udcff")


def fill(handler: ServerLog) -> int:
    """Fill a handler's pipe; returns how many bytes it holds."""
    os.set_blocking(handler._descriptor, False)
    size = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            size += os.write(handler._descriptor, bytes(4096))
    os.set_blocking(handler._descriptor, True)
    return size


def test_a_pipe_that_nobody_reads_holds_up_nobody() -> None:
    """At most so many lines wait; the others are counted, and the first line after them says how many there were."""
    with pipe() as (reading, logger, handler):
        rest = fill(handler)
        for number in range(LINES + 300):
            logger.warning("line %d", number)
        assert (handler._thread.pending, handler.dropped) == (LINES, 300)
        while rest:
            rest -= len(os.read(reading, rest))
        written = lines(reading, handler)
        assert [line.rpartition(" ")[2] for line in written] == [str(number) for number in range(LINES)]
        logger.warning("there is room again")
        notice, last = lines(reading, handler)
    assert "300 lines of this log were dropped" in notice
    assert last.endswith("there is room again")


def test_the_end_of_a_process_waits_for_the_lines_no_longer_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that has stopped for good does not keep the process."""
    monkeypatch.setattr(server_log, "END_S", 0.01)
    with pipe() as (_, logger, handler):
        fill(handler)
        logger.warning("lost")
        handler.close()
        assert handler._thread.pending == 0


def test_a_closed_descriptor_is_no_error_of_the_program() -> None:
    """There is nobody to tell: the line is counted."""
    with pipe() as (_, logger, handler):
        os.close(handler._descriptor)
        logger.warning("lost")
        assert handler._thread.wait(WITHIN_S)
        assert handler.dropped == 1


def test_a_wrong_logging_call_does_not_end_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    """As with Python's own handlers, it is told on standard error."""
    with pipe() as (reading, logger, handler):
        logger.warning("%d", "no number")
        logger.warning("next")
        (line,) = lines(reading, handler)
    assert line.endswith("next")
    assert "Logging error" in capsys.readouterr().err
