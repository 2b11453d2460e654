"""``python -m tests.support.forked_workers -n 7 ...``: pytest, whose processes are forks of one that has all tests.

pytest-xdist starts a Python for each process, and each imports all tests and what they test, and makes tests of all
parameters: thirteen seconds of processor time. Here one process finds the tests, and forks those that run them::

    pytest, when it has found all tests --fork, before it starts a thread--> -n processes, which wait
         | ends                                                                   ^
         v                                                                        |
    pytest, with pytest-xdist ---------------- pipes, as to a Python of its own --+

A fork is still in the first run of pytest, and runs the tests in it that pytest-xdist names (:meth:`Finds.run`). A
process that takes the place of one that has crashed is a Python of its own again. So is each process on macOS, whose
frameworks forbid a fork, and if a file cannot be imported: they say what is wrong. The further arguments are pytest's.
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
finds: Finds


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


class Finds:
    """A plugin for the run of pytest that finds the tests; instead of running them it forks processes that will.

    Attributes:
        forks: the processes.
    """

    def __init__(self, number: int) -> None:
        self.forks: list[Fork] = []
        self._number = number
        self._reports: list[pytest.CollectReport] = []
        self._session: Any = None

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Say nothing: the run with pytest-xdist does."""
        config.pluginmanager.unregister(name="terminalreporter")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what was not found, such as the tests of a file that skips them all."""
        if not report.passed:
            self._reports.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork, if all files could be imported."""
        if not session.testsfailed:
            self._session = session
            start_nursery()
            # What tests print goes to a file, and each fork needs one of its own.
            _plugin(session, "capturemanager").stop_global_capturing()
            for _ in range(self._number):
                self.forks.append(Fork(self.forks))
        return True

    def run(self, channel: Any) -> None:
        """In a fork: does what the module ``xdist.remote`` does in a Python of its own, but for finding the tests."""
        from xdist import remote  # type: ignore[import-untyped]  # no types; and pytest has to see the import of it

        session, config = self._session, self._session.config
        given, _, options, _ = channel.receive()
        os.environ["PYTEST_XDIST_TESTRUNUID"] = given["testrunuid"]
        os.environ["PYTEST_XDIST_WORKER"] = given["workerid"]
        os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(given["workercount"])
        remote.setup_config(config, options.get("basetemp"))
        config.workerinput, config.workeroutput = given, {}
        _plugin(session, "tmpdir").pytest_configure(config)  # in the folder of this process
        _plugin(session, "capturemanager").start_global_capturing()
        _plugin(session, "capturemanager").suspend_global_capture()
        config.pluginmanager.unregister(self)
        remote.interactor = remote.WorkerInteractor(config, channel)
        remote.interactor.pytest_sessionstart(session)
        remote.interactor.pytest_collection()
        for report in self._reports:
            remote.interactor.pytest_collectreport(report)
        remote.interactor.pytest_collection_finish(session)
        code = pytest.ExitCode.OK
        try:
            config.hook.pytest_runtestloop(session=session)
            if session.testsfailed:
                code = pytest.ExitCode.TESTS_FAILED
        except BaseException:
            code = pytest.ExitCode.INTERNAL_ERROR
            config.notify_exception(pytest.ExceptionInfo.from_current(), config.option)
        config.hook.pytest_sessionfinish(session=session, exitstatus=code)
        config._ensure_unconfigure()


def _plugin(session: pytest.Session, name: str) -> Any:
    return session.config.pluginmanager.getplugin(name)


class Hands:
    """A plugin for the run with pytest-xdist: hands it the forks, as long as there are some."""

    def __init__(self, forks: list[Fork]) -> None:
        self._forks, self._left = forks, len(forks)
        start = gateway_io.Popen2IOMaster.__init__

        def take(io: Any, command: list[str], execmodel: Any) -> None:
            if not forks:
                start(io, command, execmodel)
                return
            io.popen = forks.pop(0)
            gateway_base.Popen2IO.__init__(io, io.popen.stdin, io.popen.stdout, execmodel)

        gateway_io.Popen2IOMaster.__init__ = take  # type: ignore[assignment, method-assign]

    def pytest_xdist_getremotemodule(self) -> str | None:
        """What the next process runs: the forks come first."""
        self._left -= 1
        return "import __main__\n__main__.finds.run(channel)" if self._left >= 0 else None


def main(arguments: list[str]) -> int:
    """Run pytest; returns its exit code."""
    if sys.platform != "linux":
        return int(pytest.main(arguments))
    global finds
    at = arguments.index(NUMBER)
    finds = Finds(int(arguments[at + 1]))
    pytest.main(arguments[:at] + arguments[at + 2 :], plugins=[finds])
    return int(pytest.main(arguments, plugins=[Hands(finds.forks)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
