"""The server's own log: warnings and errors on standard error, with time and level, as text or as JSON lines.

A write to standard error blocks when it is a pipe whose reader has stopped, or a terminal that its user has stopped
(Ctrl-S). Python's handlers write in the thread that logs: one full pipe would stop the event loop, and with it all
channels. So a thread of its own writes the lines. At most :data:`LINES` wait; further ones are counted, and the next
line that can be written says how many are missing. A process does not wait for the thread longer than :data:`END_S`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from tricklecast.app.daemon_thread import DaemonThread
from tricklecast.app.encoding import encode

LINES: Final = 1000
"""Lines that may wait to be written: more than a server logs in a minute, unless it is under attack."""

END_S: Final = 1.0
"""The end of a process waits this long for lines that are not written yet."""

FRONT_TELLS: Final = ("tricklecast.secrets", "tricklecast.certificate")
"""Loggers whose warnings are the same in all workers of a server, since all read the same files: one tells them."""

STDERR_DESCRIPTOR: Final = 2


class LogFormat(StrEnum):
    """The form of a line of the server's log."""

    TEXT = "text"
    JSON = "json"


class TextLines(logging.Formatter):
    """``2026-11-27T09:30:00.123Z WARNING tricklecast.storage: the text``; a stack trace follows in lines of its own.

    Args:
        worker: which one of several workers writes, if there are several: ``tricklecast.storage (worker 1): the text``.
    """

    def __init__(self, worker: int | None = None) -> None:
        writer = "" if worker is None else f" (worker {worker})"
        super().__init__(f"%(asctime)s %(levelname)s %(name)s{writer}: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _time(record)


class JsonLines(logging.Formatter):
    """One object a line: ``time``, ``level``, ``logger``, ``message``, and ``exception`` with a stack trace.

    Args:
        worker: which one of several workers writes, if there are several; a field of its own.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        writer = {} if self._worker is None else {"worker": self._worker}
        return encode({name: _text(value) for name, value in fields.items()} | writer).decode()


class ServerLog(logging.Handler):
    """Writes log records to a descriptor, and never blocks the thread that logs.

    Args:
        format: of a line.
        descriptor: an open file.
        worker: which one of several workers this process is.
    """

    def __init__(
        self,
        format: LogFormat = LogFormat.TEXT,
        descriptor: int = STDERR_DESCRIPTOR,
        worker: int | None = None,
    ) -> None:
        super().__init__()
        self.setFormatter(JsonLines(worker) if format is LogFormat.JSON else TextLines(worker))
        self._descriptor = descriptor
        self._thread = DaemonThread("server log")
        self._thread.start()
        self.dropped = 0  # lines that could not be written, since the start
        self._unreported = 0  # dropped lines that no line in the log has counted yet

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's line, or count it as dropped; never blocks."""
        if self._thread.pending >= LINES:
            self._drop()
            return
        try:
            if self._unreported:
                lost, self._unreported = self._unreported, 0
                text = f"{lost} lines of this log were dropped, since nobody read it"
                self._queue(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))
            self._queue(record)
        except MemoryError:
            self._drop()
        except Exception:  # as in each of Python's handlers: a wrong logging call must not end the program
            self.handleError(record)

    def close(self) -> None:
        """Wait up to :data:`END_S` for the lines that are not written yet."""
        self._thread.wait(END_S)
        self._thread.abandon()
        super().close()

    def _queue(self, record: logging.LogRecord) -> None:
        self._thread.submit(self._write, f"{self.format(record)}\n".encode(errors="backslashreplace"))

    def _drop(self) -> None:
        self.dropped += 1
        self._unreported += 1

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:  # standard error is closed
            self.dropped += 1


class UnthreadedLog(logging.Handler):
    """Writes log records to a descriptor without a thread, as a process needs it that forks.

    A line is lost if the descriptor does not take it at once, and cut where it could block. Such a process logs very
    little.

    Args:
        format: of a line.
        descriptor: an open file.
    """

    def __init__(self, format: LogFormat = LogFormat.TEXT, descriptor: int = STDERR_DESCRIPTOR) -> None:
        super().__init__()
        self.setFormatter(JsonLines() if format is LogFormat.JSON else TextLines())
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's line; never blocks."""
        line = self.format(record).encode(errors="backslashreplace")[: select.PIPE_BUF - 1] + b"\n"
        with contextlib.suppress(OSError):  # standard error is closed
            if select.select([], [self._descriptor], [], 0)[1]:
                os.write(self._descriptor, line)  # a pipe that has any room has it for PIPE_BUF bytes


def configure(format: LogFormat, *, threaded: bool = True, worker: int | None = None) -> None:
    """Let all loggers of this process write their warnings and errors to standard error.

    Args:
        format: of a line. threaded: whether a thread writes; not in a process that forks.
        worker: which one of several workers this process is; its lines say so.

    With JSON, a logger also writes warnings and uncaught exceptions, which Python would print there: each line can be
    parsed.
    """
    logging.basicConfig(
        level=logging.WARNING,
        handlers=[ServerLog(format, worker=worker) if threaded else UnthreadedLog(format)],
        force=True,
    )
    for name in ("tricklecast.app.reload", "tricklecast.app.serve_cli", "tricklecast.sources"):
        logging.getLogger(name).setLevel(logging.INFO)  # an operator waits for the answer
    for name in FRONT_TELLS if worker else ():
        logging.getLogger(name).setLevel(logging.ERROR)
    if format is LogFormat.JSON:
        logging.captureWarnings(True)
        sys.unraisablehook = lambda found: _caught(found.exc_value, "in %r", found.object)
        threading.excepthook = lambda found: _caught(found.exc_value, "in thread %r", found.thread)


def writes_json() -> bool:
    """Whether the configured log has a JSON object in each line."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def _caught(error: BaseException | None, where: str, found: object) -> None:
    logging.getLogger(__name__).error(f"an exception that nobody caught {where}", found, exc_info=error)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"


def _text(value: str) -> str:
    return value.encode(errors="backslashreplace").decode()
