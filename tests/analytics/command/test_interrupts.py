"""Ctrl-C and SIGTERM are exit codes, after all clean-up."""

from __future__ import annotations

import os
import signal

import pytest
import typer

from analytics.command.interrupts import interruptible


def test_ctrl_c() -> None:
    """130, as shells have it."""
    with pytest.raises(typer.Exit) as stopped, interruptible():
        raise KeyboardInterrupt
    assert stopped.value.exit_code == 130


def test_sigterm() -> None:
    """143; clean-up runs, handlers of errors do not take it for one, and the old handler is back."""
    before = signal.getsignal(signal.SIGTERM)
    done: list[str] = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 5)
        except Exception:
            done.append("taken for an error")
        finally:
            done.append("cleaned up")

    with pytest.raises(typer.Exit) as stopped, interruptible():
        work()
    assert stopped.value.exit_code == 143
    assert done == ["cleaned up"]
    assert signal.getsignal(signal.SIGTERM) is before
