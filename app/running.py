"""Runs a command that is a coroutine: Ctrl-C, SIGTERM and SIGHUP end it in order, and are its exit code."""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import typer

T = TypeVar("T")


def runnable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same command with the same parameters, as a plain function; one that is plain already is left as it is."""
    if not inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        return run(function(*args, **kwargs))

    return command


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end. The first SIGINT, SIGTERM or SIGHUP cancels it, a second one breaks its clean-up off.

    SIGHUP comes when the terminal closes; a command that was started to outlive it (``nohup``) does.

    The signal is taken by the event loop: the way of ``asyncio.run`` cancels between any two bytecodes, and can meet
    a future in the middle of a change.

    Raises:
        typer.Exit: it was interrupted; the code is 128 + the signal's number, as shells have it.
    """
    caught: list[int] = []

    async def interruptible() -> T:
        task = asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            caught.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        if not caught:
            raise
        raise typer.Exit(128 + caught[0]) from None
