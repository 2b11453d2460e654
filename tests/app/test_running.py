"""Commands that are coroutines: results, signals, and signatures."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal

import anyio
import pytest
import typer

from tricklecast.app.running import run, runnable


def test_the_result_comes_through() -> None:
    """What the coroutine returns is returned."""

    async def main() -> int:
        await anyio.lowlevel.checkpoint()
        return 7

    assert run(main()) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_in_order(number: signal.Signals) -> None:
    """The coroutine may clean up, waiting included; the exit code is the shells'."""
    cleaned: list[str] = []

    async def main() -> None:
        os.kill(os.getpid(), number)
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                cleaned.append("up")

    with pytest.raises(typer.Exit) as left:
        run(main())
    assert left.value.exit_code == 128 + number
    assert cleaned == ["up"]


def test_what_was_started_to_outlive_the_terminal_does() -> None:
    """Where SIGHUP is ignored, as under `nohup`, it stays so."""

    async def main() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        await anyio.lowlevel.checkpoint()
        return 7

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(main()) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_cancellation_of_its_own_is_an_error() -> None:
    """Without a signal, a cancellation that comes out is a fault, and is not hidden behind an exit code."""

    async def main() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(main())


def test_the_signature_stays() -> None:
    """Options are read off the wrapped function; one that is no coroutine is left as it is."""

    async def command(count: int = 3) -> int:
        await anyio.lowlevel.checkpoint()
        return count

    def plain() -> None: ...

    assert inspect.signature(runnable(command)) == inspect.signature(command)
    assert runnable(command)(count=5) == 5
    assert runnable(plain) is plain
