"""One source: a process that publishes it, started when it is wanted, and started again when it has ended.

**States.** A source *waits* while it is not wanted: on demand nobody reads, or another node of the cluster has its
channel. Its process *starts* until the first byte is published, and then *runs*. When the
process ends although it is wanted, the source has *failed*, until the next process starts.

The pause before that is drawn at random up to a ceiling, which doubles with each failure in a row, so that the sources
of a server whose network was away do not come back at once. A process that has run for :data:`GOOD_S` was no failure.

**The lines of its process** go to the server's log with the source's name. Passwords of the source's URL and values of
its options are hidden in them. At most :data:`LINES` of a period are logged: libraries may complain about each picture.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from random import Random
from typing import Final

from tricklecast.app.encoding import encode
from tricklecast.app.source_settings import SourceSettings
from tricklecast.trickle.backoff import Backoff
from tricklecast.trickle.bearer import TOKEN_VARIABLE
from tricklecast.trickle.wire import printable

_LOGGER = logging.getLogger("tricklecast.sources")

BACKOFF: Final = Backoff(base_s=1.0, cap_s=30.0)
LEAST_S: Final = 1.0
"""Each pause is at least this long: to start a process takes half a second of a core."""

GOOD_S: Final = 60.0
"""A process that has run so long does not count as a failure."""

STOP_S: Final = 6.0
"""A process that was told to stop is killed after this time. To end a channel may take it 5 s."""

LINES: Final = 20
LINES_S: Final = 10.0
"""In this period, in seconds, the server logs at most :data:`LINES` lines of a process."""

LINE_BYTES: Final = 2000
"""A line is cut behind this many bytes."""

COMMAND: Final = (sys.executable, "-m", "tricklecast.app.sources.child")


class State(StrEnum):
    """The states of a source; see the head of this module."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"


class Source:
    """A source, from the reload that brings it to the one that changes or removes it.

    Args:
        name: of the source, and of its channel; of a ladder, the one of the largest pictures. settings: its own.
        to: URL of that channel. socket: over which that is reached.
        token: for its process, which shows it to the server.
        is_published: whether its channel has got a byte since this time of :func:`time.monotonic`.
        ended: called when its process has ended, before the next one starts.
        rng: for the pauses.
        before: a source of this name that has to stop first.

    Attributes:
        channels: to which it publishes.
        restarts: how often its process was started again. pid: of its process, if it has one.
        stops: its process was told to end, or is about to be: so its channel will end. What somebody wants from now on
            comes from the next process.
        error: the last line of the last process that has failed; empty if none has.
        since: when its state began, seconds since 1970.
        retry_at: when its process is started again, after it has failed; ``None``: it has not.
    """

    def __init__(
        self,
        name: str,
        settings: SourceSettings,
        *,
        to: str,
        socket: str,
        token: str,
        is_published: Callable[[float], bool],
        ended: Callable[[], None],
        rng: Random,
        before: Source | None = None,
    ) -> None:
        self.name, self.settings = name, settings
        self.channels = settings.channels(name)
        self.restarts = 0
        self.error = ""
        self.since = time.time()
        self.retry_at: float | None = None
        self.wanted = asyncio.Event()
        self.stops = False
        self._unwanted = asyncio.Event()
        self._unwanted.set()
        self._input = encode([settings.arguments(to), socket]) + b"\n"
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("TRICKLECAST_")}
        self._environment[TOKEN_VARIABLE] = token
        self._is_published, self._ended = is_published, ended
        self._rng = rng
        self._before = before
        self._process: Process | None = None
        self._started_at = 0.0
        self._failed = False  # the last process has ended although it was wanted
        self._shown = State.WAITING  # the state at the last look
        self._over = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return None if self._process is None else self._process.pid

    def state(self) -> State:
        """Return its state now."""
        if self._process is not None:
            state = State.RUNNING if self._is_published(self._started_at) else State.STARTING
        else:
            state = State.FAILED if self._failed else State.WAITING
        if state is not self._shown:
            self._shown, self.since = state, time.time()
        return state

    def want(self, wanted: bool) -> None:
        """Have it published from now on, or not any more."""
        if wanted and not self._over:
            self._unwanted.clear()
            self.wanted.set()
        else:
            self.wanted.clear()
            self._unwanted.set()
            self.stops = self._process is not None

    def leave(self) -> None:
        """Tell its process to stop; :meth:`stop` waits for that."""
        self._over = True
        self._unwanted.set()
        self.wanted.set()  # wakes it

    def kill(self) -> None:
        """End its process, if it has one, at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """Return when its process has ended: within :data:`STOP_S`, and a moment more."""
        self.leave()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        if self._before is not None:
            await self._before.stop()
            self._before = None
        failures = 0
        while not self._over:
            await self.wanted.wait()
            if self._over:
                return
            begun = time.monotonic()
            try:
                ended = await self._publish()
            except OSError as error:
                ended = f"its process cannot be started: {error.strerror or error}"
            except Exception as error:
                _LOGGER.error("fault of the server in source %s", self.name, exc_info=error)
                ended = f"a fault of the server: {error!r}"
            self._process, self.stops = None, False
            self._ended()
            if not ended or self._unwanted.is_set():
                self._failed, failures = False, 0
                continue  # at once, if somebody has come while it stopped
            failures = 1 if time.monotonic() - begun >= GOOD_S else failures + 1
            self._failed, self.error = True, ended
            pause_s = BACKOFF.delay(failures, self._rng, floor_s=LEAST_S)
            _LOGGER.warning("source %s has ended, and is started again in %.0f s: %s", self.name, pause_s, ended)
            self.retry_at = time.time() + pause_s
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._unwanted.wait()
            self.retry_at = None
            if self._unwanted.is_set():
                self._failed, failures = False, 0
            else:
                self.restarts += 1

    async def _publish(self) -> str:
        """Run a process until it ends, or is wanted no more.

        Returns:
            How it has ended; empty if it was told to.
        """
        self._started_at = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=PIPE, stdout=DEVNULL, stderr=PIPE, env=self._environment, start_new_session=True
        )
        self._process = process
        lines = _Lines(self.name, self.settings.secrets)
        assert process.stdin is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        reading = asyncio.ensure_future(lines.read(process.stderr))
        ending = asyncio.ensure_future(process.wait())
        unwanted = asyncio.ensure_future(self._unwanted.wait())
        try:
            with suppress(RuntimeError):  # it has ended already
                process.stdin.write(self._input)  # it stays open: its end would tell that the server has ended
            await asyncio.wait({ending, unwanted}, return_when=asyncio.FIRST_COMPLETED)
            if is_told := not ending.done():
                process.terminate()
                await asyncio.wait({ending}, timeout=STOP_S)
            if not ending.done():
                _LOGGER.error("source %s: its process does not end, and is killed", self.name)
                process.kill()
            code = await ending
            await asyncio.wait({reading}, timeout=1.0)  # what it has written at its end
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            for task in (reading, ending, unwanted):
                task.cancel()
        if is_told:
            return ""
        if code < 0:
            killer = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
            return f"its process was ended by {killer}"
        return lines.last or f"its process has ended with exit code {code}"


class _Lines:
    """The lines of a process, on their way to the log.

    Args:
        source: its name. secrets: texts that are hidden, and what stands for each.
    """

    def __init__(self, source: str, secrets: list[tuple[str, str]]) -> None:
        self.last = ""
        self._source, self._secrets = source, secrets
        self._until = 0.0  # the end of the present period
        self._logged = self._left_out = 0  # lines of this period

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Log each line until the stream ends."""
        rest = b""
        while data := await stream.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._log(line)
            rest = rest[:LINE_BYTES]
        self._log(rest)
        self._tell_left_out()

    def _log(self, line: bytes) -> None:
        text = printable(line[:LINE_BYTES].decode(errors="replace").strip())
        for secret, shown in self._secrets:
            text = text.replace(secret, shown)
        if not text:
            return
        self.last = text
        if (now := time.monotonic()) >= self._until:
            self._tell_left_out()
            self._until, self._logged = now + LINES_S, 0
        if self._logged >= LINES:
            self._left_out += 1
            return
        self._logged += 1
        is_wrong = text.startswith(("warning:", "tricklecast:"))
        _LOGGER.log(logging.WARNING if is_wrong else logging.INFO, "source %s: %s", self._source, text)

    def _tell_left_out(self) -> None:
        if self._left_out:
            _LOGGER.warning("source %s: %d more lines were left out", self._source, self._left_out)
            self._left_out = 0
