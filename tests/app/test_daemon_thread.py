"""A thread for blocking calls: in order, never waited for by the process, and given up on demand."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tests.support.waiting import WITHIN_S
from tricklecast.app.daemon_thread import Abandoned, DaemonThread


def test_calls_run_in_order_in_one_thread() -> None:
    """Each call begins when the one before it has returned, and its result or exception reaches its caller."""
    thread, ran = DaemonThread("test"), []

    def call(number: int) -> int:
        ran.append((number, threading.get_ident()))
        return number

    futures = [thread.submit(call, number) for number in range(100)]
    assert [future.result(WITHIN_S) for future in futures] == list(range(100))
    assert [number for number, _ in ran] == list(range(100))
    assert len({ident for _, ident in ran}) == 1
    with pytest.raises(ZeroDivisionError):
        thread.submit(lambda: 1 / 0).result(WITHIN_S)
    assert thread.wait(WITHIN_S)
    assert thread.pending == 0


def test_calls_that_do_not_return_are_given_up() -> None:
    """After `abandon` the running call, the waiting ones and later ones fail at once; what returns late is ignored."""
    thread, blocked, release = DaemonThread("test"), threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        release.wait(WITHIN_S)

    running, waiting = thread.submit(block), thread.submit(int)
    assert blocked.wait(WITHIN_S)
    assert not thread.wait(0)
    assert thread.pending == 2
    thread.abandon()
    for future in (running, waiting, thread.submit(int)):
        with pytest.raises(Abandoned):
            future.result(0)
    release.set()
    assert thread.wait(WITHIN_S)


def test_a_process_ends_though_a_call_has_not_returned() -> None:
    """Python does not wait for the thread at its exit."""
    program = (
        "import threading; from tricklecast.app.daemon_thread import DaemonThread\n"
        "begun = threading.Event()\n"
        "DaemonThread('test').submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "begun.wait(); print('ended')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WITHIN_S, check=True)
    assert done.stdout == "ended\n"
