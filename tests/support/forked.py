"""``python -m tricklecast`` as a fork of a process that has imported it already.

To import the server takes a second of processor time, a fork takes a hundredth, and the tests start some two hundred
processes. What a test starts is still a process with its own arguments, environment, standard streams, signals and exit
code. There are three::

    test --Popen--> relay (a small program) --Unix socket--> nursery --fork--> the command

The relay (`tests/support/relay.py`) hands its standard streams over, passes SIGINT, SIGTERM and SIGHUP on, and ends as
the command ends. If the relay is killed, the nursery kills the command soon after; a test that kills the command, or
that looks at its process, asks for its id (:func:`command_of`).
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from io import FileIO, TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.relay import send

ROOT = Path(__file__).parents[2]
MAIN = ROOT / "tricklecast" / "__main__.py"
RELAY = Path(__file__).with_name("relay.py")
PYTHON = sys.executable  # a test may put the stand-in in its place
HEADER = struct.Struct("I")
CODE = struct.Struct("i")


def forked(
    *arguments: object, module: str = "tests.support.forked", preload: str = "", script: Path | None = None
) -> list[str]:
    """What to start instead of ``[sys.executable, "-m", "tricklecast", *arguments]``.

    Args:
        arguments: of the command.
        script: a program in Python to run instead of ``tricklecast``.
        module: of the nursery; another one may change the program before it is forked, and calls :func:`serve_forks`.
        preload: a library that the nursery, and so each command, loads first.
    """
    program = str(script or MAIN)
    return [PYTHON, "-I", "-S", str(RELAY), _nursery(module, preload), program, *map(str, arguments)]


@cache
def python() -> str:
    """A stand-in for :data:`sys.executable`: runs ``-m MODULE``, ``-c PROGRAM`` and programs in files as forks.

    For what starts processes of its own, and for programs that import the server. What it starts is the relay, as with
    :func:`forked`: not for a test that stops the process (SIGSTOP).
    """
    return _stand_in(_nursery("tests.support.forked", ""))


def _stand_in(nursery: str) -> str:
    path = Path(nursery).with_name("python")
    path.write_text(
        f"#!{PYTHON} -IS\n"
        "import sys\n"
        f"sys.path.append({str(RELAY.parent)!r})\n"
        "from relay import relay\n"
        f"relay({nursery!r}, *sys.argv[1:])\n"
    )
    path.chmod(0o700)
    return str(path)


def forked_deep(*arguments: str) -> list[str]:
    """As :func:`forked`, for a command that starts processes itself: they are forks, too."""
    return [python(), "-c", _DEEP, python(), *arguments]


_DEEP = """
import sys
sys.executable = sys.argv.pop(1)
from tricklecast.__main__ import main
main()
"""


@cache
def _nursery(module: str, preload: str) -> str:
    """The socket of a nursery of this test run, which ends with the test run; forks of this process have it, too."""
    folder = tempfile.mkdtemp(prefix="tricklecast-forks-")
    path = os.path.join(folder, "socket")
    process = subprocess.Popen(
        [PYTHON, "-m", module, "nursery", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **({"LD_PRELOAD": preload} if preload else {})},
    )
    started_by = os.getpid()

    def end() -> None:
        if os.getpid() == started_by:  # not a fork of it
            process.communicate()
            shutil.rmtree(folder)

    atexit.register(end)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return path


def start_nursery() -> None:
    """Start the usual nursery now; otherwise the first command does."""
    _nursery("tests.support.forked", "")


def command_of(relay: int, module: str = "tests.support.forked") -> int:
    """The id of the process that a relay has started; ``module`` as for :func:`forked`."""
    with socket.socket(socket.AF_UNIX) as nursery:
        nursery.connect(_nursery(module, ""))
        send(nursery, relay, [])
        pid: int = CODE.unpack(nursery.recv(CODE.size))[0]
    assert pid, "it runs"
    return pid


@dataclass(frozen=True)
class Order:
    """What a relay has sent; without arguments, it is a question for the process that it has started."""

    relay: int
    folder: str
    arguments: list[str]
    environment: dict[bytes, bytes]

    @classmethod
    def parse(cls, data: bytes) -> Order:
        """See :func:`tests.support.relay.send`."""
        relay, size, *texts = data.split(b"\0")
        folder, *arguments = [os.fsdecode(text) for text in texts[: int(size)]] or [""]
        pairs = (text.partition(b"=") for text in texts[int(size) :])
        return cls(int(relay), folder, arguments, {name: value for name, _, value in pairs})


def nursery(path: str) -> None:
    """Forks for each order; returns in the child."""
    awake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    relays: dict[socket.socket, int] = {}
    commands: dict[int, int] = {}  # by the relay's process
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            waited_for: list[Any] = [0, awake, listener, *relays]
            ready = select.select(waited_for, [], [])[0]
            if 0 in ready:
                for pid in relays.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            for connection in [one for one in ready if one in relays]:
                passed_on = connection.recv(1)
                os.kill(relays[connection], passed_on[0] if passed_on else signal.SIGKILL)
                if not passed_on:
                    del relays[connection]
                    connection.close()
            if awake in ready:
                os.read(awake, 4096)
                _reap(relays)
            if listener in ready:
                connection, _ = listener.accept()
                header, streams, _, _ = socket.recv_fds(connection, HEADER.size, 3)
                if not header:  # it was killed before it could say what it wants
                    connection.close()
                    continue
                (size,) = HEADER.unpack(header)
                order = Order.parse(connection.recv(size, socket.MSG_WAITALL))
                if not order.arguments:
                    with connection:
                        connection.sendall(CODE.pack(commands.get(order.relay, 0)))
                    continue
                if pid := os.fork():
                    relays[connection] = commands[order.relay] = pid
                    for descriptor in streams:
                        os.close(descriptor)
                    continue
                for one in [*relays, connection]:
                    one.close()
                break
    os.close(awake)
    os.close(waker)
    _become(order, streams)


def _reap(relays: dict[socket.socket, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        for connection in [one for one, child in relays.items() if child == pid]:
            del relays[connection]
            with suppress(OSError):  # the relay may have been killed at the same moment
                connection.sendall(CODE.pack(os.waitstatus_to_exitcode(status)))
            connection.close()


def _become(order: Order, streams: list[int]) -> None:
    """Makes this process what was ordered."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    os.environ.clear()
    os.environb.update(order.environment)
    os.chdir(order.folder)
    sys.argv = order.arguments
    if sys.argv[0] == "-P":  # nothing is looked for beside a program
        del sys.argv[0]
    if sys.argv[:2] == ["-m", "tricklecast"]:
        sys.argv[:2] = [str(MAIN)]
    if sys.argv[0] == str(MAIN):
        globals()["__package__"] = "tricklecast"
    if "PYTHONUNBUFFERED" in os.environ:  # as Python does: no buffer, be it of text or of bytes
        sys.stdout = TextIOWrapper(FileIO(1, "w", closefd=False), sys.stdout.encoding, write_through=True)


def _run() -> None:
    """Runs the program, and ends as Python does, but without taking all modules apart."""
    from tricklecast.__main__ import main

    code: object = 1
    try:
        if sys.argv[0] == str(MAIN):
            main()
        elif sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif sys.argv[0] == "-c":
            main_module = sys.modules["__main__"] = ModuleType("__main__")
            exec(sys.argv.pop(1), main_module.__dict__)
        else:
            sys.path.insert(0, os.path.dirname(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    try:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


COMMANDS = "serve", "publish", "ingest", "subscribe", "clip", "relay", "channels", "check", "conformance", "stress"

LATE = (
    "anyio._backends._asyncio",
    "encodings.ascii",
    "encodings.idna",
    "nats.js",
    "pydantic.v1",
    "typer._adapters",
    "typer._click.decorators",
    "uvicorn.lifespan.off",
)
"""What libraries import when they are first used, and so each fork otherwise: a third of what a command takes."""

LATE_OF_COMMANDS = (
    "duckdb",
    "pyarrow",
    "pytest",  # for programs that call functions of test modules
    "tricklecast.analytics.cli.watch",
    "tricklecast.analytics.watch.run",
    "tricklecast.app.cluster.member",
    "tricklecast.app.tools.stress.runner",
    "tricklecast.publisher.ingest.sessions",
    "tricklecast.publisher.media.source",
    "tricklecast.publisher.media.testsrc",
    "tricklecast.publisher.raw",
    "tricklecast.publisher.run",
    "tricklecast.subscriber.check.probe",
    "tricklecast.subscriber.command.clip",
    "tricklecast.subscriber.command.run",
    "tricklecast.subscriber.relay.run",
)
"""What commands import when they need it."""


def import_all(*commands: str) -> None:
    """Imports what commands would, and makes what they would; ``commands``: only these."""
    import tricklecast.app.server  # noqa: F401
    from tests.support.later import make_control_planes_later
    from tricklecast.app import cli

    make_control_planes_later()
    cli.load = cache(cli.load)
    for name in commands or COMMANDS:
        for parameter in cli.load(name).params:
            parameter.get_runtime_param()
    for late in LATE if commands else (*LATE, *LATE_OF_COMMANDS):
        import_module(late)


def serve_forks(path: str, *commands: str) -> None:
    """Is the nursery, and in the end a command; ``commands``: it will be one of these, else any one.

    The sources of a server are forks, too.
    """
    import_all(*commands)
    from tricklecast.app.sources import source

    source.COMMAND = _stand_in(path), *source.COMMAND[1:]  # type: ignore[misc]
    gc.freeze()
    nursery(path)
    _run()


if __name__ == "__main__":
    serve_forks(sys.argv[2])
