"""The relay of `tests/support/forked.py`: ``python -I -S relay.py SOCKET PROGRAM ARGUMENT ...``.

It starts for each command, and so imports nothing but parts of the interpreter: `signal`, `socket` and `json` take
longer to load than it takes to do all of this.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys

PASSED_ON = _signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP


def relay(path: str, *arguments: str) -> None:
    """Has a command run, and ends as it ends."""
    nursery = _socket.socket(_socket.AF_UNIX)
    nursery.connect(path)
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, PASSED_ON)  # until the order is out
    for number in PASSED_ON:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda number, _: nursery.send(bytes([number])))
    send(nursery, os.getpid(), [0, 1, 2], os.getcwd(), *arguments)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    code = int.from_bytes(nursery.recv(4), sys.byteorder, signed=True)
    if code < 0:
        if -code != _signal.SIGKILL:  # which nobody handles
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def send(nursery: _socket.socket, relay: int, streams: list[int], *what: str) -> None:
    """Send an order, or a question.

    Args:
        nursery: where to. relay: the process that orders, or of which the question is. streams: the command's own.
        what: the folder and arguments of the command; without any, it is a question.
    """
    environment = [name + b"=" + value for name, value in os.environb.items()]
    data = b"\0".join([str(relay).encode(), str(len(what)).encode(), *map(os.fsencode, what), *environment])
    rights = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in streams)
    header = len(data).to_bytes(4, sys.byteorder)
    nursery.sendmsg([header], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else [])
    nursery.sendall(data)


if __name__ == "__main__":
    relay(*sys.argv[1:])
