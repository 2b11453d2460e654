"""Ctrl-C and SIGTERM are exit codes, after all clean-up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType

import pytest
import typer

from tricklecast.analytics.cli.interrupts import interruptible
from tricklecast.analytics.signals import deferred, for_us_alone


def exit_code_of_sigterm(on_ctrl_c: Callable[[int, FrameType | None], object] | signal.Handlers) -> int:
    """What a SIGTERM comes to in a process that has this handler of Ctrl-C."""

    def work() -> None:
        with interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 5)

    before = signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        with pytest.raises(typer.Exit) as stopped:
            work()
    finally:
        signal.signal(signal.SIGINT, before)
    return stopped.value.exit_code


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


def test_sigterm_is_no_other_than_ctrl_c() -> None:
    """Spark has a handler for Ctrl-C, without which a call to Java cannot be broken off: SIGTERM goes through it."""
    asked: list[int] = []

    def of_spark(number: int, frame: object) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    assert exit_code_of_sigterm(of_spark) == 143
    assert asked == [signal.SIGINT]


def test_sigterm_where_ctrl_c_is_ignored() -> None:
    """As in the background of a shell's script: SIGTERM ends it all the same."""

    assert exit_code_of_sigterm(signal.SIG_IGN) == 143


def test_what_must_not_be_interrupted_ends_first() -> None:
    """Both signals wait for it, and take effect afterwards; the old handlers are back."""
    done: list[str] = []

    def start() -> None:
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("started")
        done.append("never")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_is_obeyed_at_once() -> None:
    """Whoever insists is not kept waiting."""
    done: list[str] = []

    def start() -> None:
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("started")
            os.kill(os.getpid(), signal.SIGINT)
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["started"]


def test_other_threads_have_no_signals() -> None:
    """There nothing is changed."""
    done: list[str] = []

    def start() -> None:
        with deferred():
            done.append("started")

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(timeout=120)
    assert done == ["started"]


def test_a_group_of_processes_is_ended_by_us() -> None:
    """What is started ignores a SIGTERM that goes to all of the group; what is started later does not."""
    asking = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGTERM).name)"]

    def disposition() -> str:
        # As pyspark starts Java.
        return subprocess.run(asking, capture_output=True, text=True, check=True, preexec_fn=os.getpid).stdout.strip()

    with for_us_alone():
        assert disposition() == "SIG_IGN"
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
    assert disposition() == "SIG_DFL"
