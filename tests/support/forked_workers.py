"""``python -m tests.support.forked_workers -n 7 ...``: pytest, whose processes are forks of one that has all tests.

pytest-xdist starts a Python for each process, and each imports all tests and what they test: five seconds of processor
time. Here one process finds the tests, which compiles and imports them, and forks those that run them::

    this process --fork, before it starts a thread--> -n processes, which wait
         |                                                 ^
         +-- pytest, and pytest-xdist --pipes, as to a Python of its own

A process that takes the place of one that has crashed is a Python of its own again, and so is each process on macOS,
whose frameworks forbid a fork. The further arguments are pytest's.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import IO, Any, Final

import pytest
from execnet import gateway_base, gateway_io

from tests.support.forked import start_nursery

NUMBER: Final = "-n"


class Fork:
    """A process that waits for its work; for execnet what :class:`subprocess.Popen` is."""

    def __init__(self, others: list[Fork]) -> None:
        work, stdin = os.pipe()
        stdout, answers = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            for other in others:
                other.stdin.close()
                other.stdout.close()
            os.close(stdin)
            os.close(stdout)
            _work(work, answers)
        os.close(work)
        os.close(answers)
        self.stdin: IO[bytes] = open(stdin, "wb")  # noqa: SIM115 - as long as the process
        self.stdout: IO[bytes] = open(stdout, "rb")  # noqa: SIM115

    def wait(self) -> int:
        """Wait for its end."""
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def kill(self) -> None:
        """End it at once."""
        os.kill(self._pid, signal.SIGKILL)


def _work(work: int, answers: int) -> None:
    """Does what execnet says, and ends without taking all modules apart."""
    os.dup2(work, 0)
    os.dup2(answers, 1)
    os.close(work)
    os.close(answers)
    sys.stdin, sys.stdout, sys.argv = open(0, closefd=False), open(1, "w", closefd=False), ["-c"]  # noqa: SIM115
    code = 1
    try:
        exec(gateway_io.popen_bootstrapline, {"__name__": "__main__"})
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)


def _find(arguments: list[str]) -> None:
    """Import the tests. What is wrong with them is said when they run."""
    kept = [os.dup(1), os.dup(2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    try:
        pytest.main(["--collect-only", "-qq", *arguments])
    finally:
        for descriptor, before in enumerate(kept, 1):
            os.dup2(before, descriptor)
            os.close(before)
        os.close(nothing)


def main(arguments: list[str]) -> int:
    """Run pytest; returns its exit code."""
    if sys.platform != "linux":
        return int(pytest.main(arguments))
    at = arguments.index(NUMBER)
    _find(arguments[:at] + arguments[at + 2 :])
    start_nursery()
    forks: list[Fork] = []
    for _ in range(int(arguments[at + 1])):
        forks.append(Fork(forks))
    start = gateway_io.Popen2IOMaster.__init__

    def take(self: Any, command: list[str], execmodel: Any) -> None:
        if not forks:
            start(self, command, execmodel)
            return
        self.popen = forks.pop(0)
        gateway_base.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel)

    gateway_io.Popen2IOMaster.__init__ = take  # type: ignore[assignment, method-assign]
    return int(pytest.main(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
