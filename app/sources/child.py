"""The process that publishes one source: ``tricklecast publish``, with its arguments from standard input.

Command lines are visible to every user of a machine, and the URL of a camera has its password. So the server writes the
arguments to the process's standard input, as one line of JSON.

The server keeps that pipe open as long as it lives. When the pipe ends without a word, the server was killed: the
process then stops as after SIGTERM, and removes what that server can no longer remove, the folder of its socket.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson

STDIN: Final = 0
"""The descriptor of standard input."""

END_S: Final = 8.0
"""The process ends at the latest so long after its server: to end a channel takes up to 5 s."""


def main() -> None:
    """Run the command."""
    arguments, socket = orjson.loads(_line())
    threading.Thread(target=_end_with_server, args=(Path(socket),), name="end with server", daemon=True).start()
    from tricklecast.app.cli import main as run

    sys.argv = ["tricklecast", *arguments]
    run()


def _line() -> bytes:
    """The first line of standard input. (Python's own reader would be locked by the thread below at the end.)"""
    line = b""
    while not line.endswith(b"\n"):
        if not (data := os.read(STDIN, 65536)):
            break
        line += data
    return line


def _end_with_server(socket: Path) -> None:
    while os.read(STDIN, 65536):
        pass  # nothing comes
    with suppress(OSError):
        socket.unlink()
        socket.parent.rmdir()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_S)
    os._exit(1)


if __name__ == "__main__":
    main()
