"""The processes of a demonstration, each with a log file of its own."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Coroutine
from pathlib import Path
from signal import Signals
from typing import Any, Final, Self, TypeVar

from tricklecast.app.tools.demo.stage import DemoFailed

T = TypeVar("T")

STEP_S: Final = 60.0
"""Limit of a step, far above what any step takes."""

LOOK_S: Final = 0.02
"""How often it is looked whether something has happened."""


class Processes:
    """The processes that run for a demonstration. When its block is left, none of them runs any more.

    Args:
        folder: for their logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: dict[str, Process] = {}
        self._ending: set[str] = set()  # those that are to end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in self._started:
            self.kill(name)
        await asyncio.gather(*(process.wait() for process in self._started.values()))

    async def start(self, name: str, *command: str | Path) -> Process:
        """Start a program, without settings of ours in its environment. Ctrl-C reaches the demonstration alone."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TRICKLECAST_")}
        with self.log(name).open("wb") as log:
            process = self._started[name] = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=log, stderr=log, env=environment, process_group=0
            )
        return process

    def log(self, name: str) -> Path:
        """The file with all that a process has said."""
        return self.folder / f"{name}.log"

    def kill(self, name: str) -> None:
        """End a process at once (SIGKILL)."""
        self._ending.add(name)
        if self._started[name].returncode is None:
            self._started[name].kill()

    async def stop(self, name: str) -> int:
        """Tell a process to end (SIGTERM), and return its exit code."""
        self._ending.add(name)
        self._started[name].terminate()
        return await within(self._started[name].wait(), f"{name} ends")

    async def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something while all processes run that are to run.

        Raises:
            DemoFailed: one of them has ended by itself.
        """
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(self._death())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in reversed(tasks):  # why a process has ended says more than what could not be done without it
                if task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _death(self) -> None:
        while True:
            for name, process in self._started.items():
                if (code := process.returncode) is not None and name not in self._ending:
                    said = self.log(name).read_text(errors="replace").split("\n")
                    last = next((line for line in reversed(said) if line.strip()), "it said nothing")
                    how = f"ended with exit code {code}" if code >= 0 else f"was killed by {Signals(-code).name}"
                    raise DemoFailed(f"{name} {how}: {last.strip()}")
            await asyncio.sleep(LOOK_S)


async def within(awaited: Coroutine[Any, Any, T], what: str) -> T:
    """Wait for something, at most for :data:`STEP_S`.

    Raises:
        DemoFailed: it takes longer.
    """
    try:
        return await asyncio.wait_for(awaited, STEP_S)
    except TimeoutError:
        raise DemoFailed(f"not within {STEP_S:.0f} s: {what}") from None


async def eventually(fact: Callable[[], T], what: str) -> T:
    """Ask until the answer is true, and return that answer.

    Raises:
        DemoFailed: it takes longer than :data:`STEP_S`.
    """

    async def ask() -> T:
        while not (answer := fact()):  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(LOOK_S)
        return answer

    return await within(ask(), what)
