"""The floor: a bare loop of non-blocking sends, with nothing around it that a real server would need.

``--mode stream``: what arrives from a publisher is sent, as it arrived, to the socket of each reader. The publisher's
HTTP chunks thus are the readers' HTTP chunks; nothing is parsed, kept, limited or timed, and a segment never ends.
``--mode exchange``: each message from a publisher is answered, and its last bytes are sent to the one reader of that
channel; a reader's message is read and forgotten. Two receives and two sends per segment are the least there can be.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
from collections import defaultdict, deque
from itertools import islice

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
STORED = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
RECEIVE = 256 << 10
GATHER = 64
"""Frames that a reader which was behind is sent in one call."""


class Channel:
    """The readers of one channel: those that take data, and those that are behind, with what they miss."""

    def __init__(self) -> None:
        self.ready: dict[int, socket.socket] = {}
        self.behind: dict[int, deque[memoryview]] = {}


class Floor:
    """The loop.

    Args:
        listener: accepts readers and publishers. body_size: of a segment in exchange mode; 0 for stream mode.
    """

    def __init__(self, listener: socket.socket, body_size: int) -> None:
        self.listener = listener
        self.body_size = body_size
        self.epoll = select.epoll()
        self.channels: defaultdict[bytes, Channel] = defaultdict(Channel)
        self.sockets: dict[int, socket.socket] = {}
        self.published_to: dict[int, Channel] = {}
        self.read_from: dict[int, Channel] = {}
        self.buffer = bytearray(RECEIVE)
        self.head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % body_size
        self.epoll.register(listener, select.EPOLLIN)

    def run(self) -> None:
        """Serve until killed."""
        while True:
            for fd, events in self.epoll.poll():
                if fd == self.listener.fileno():
                    self.accept()
                elif events & select.EPOLLOUT:
                    self.flush(fd)
                else:
                    self.receive(fd)

    def accept(self) -> None:
        """Take a connection; its first request tells its part."""
        sock, _ = self.listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sockets[sock.fileno()] = sock
        self.epoll.register(sock, select.EPOLLIN)

    def receive(self, fd: int) -> None:
        """Something arrived."""
        try:
            size = self.sockets[fd].recv_into(self.buffer)
        except ConnectionError:
            size = 0
        if not size:
            self.forget(fd)
        elif (channel := self.published_to.get(fd)) is not None:
            if self.body_size:
                self.exchange(fd, channel, size)
            else:
                self.fan_out(channel, bytes(memoryview(self.buffer)[:size]))
        elif fd not in self.read_from:
            self.introduce(fd, size)

    def introduce(self, fd: int, size: int) -> None:
        """The first request of a connection: ``POST`` or ``GET``, and which channel."""
        head, _, rest = bytes(self.buffer[:size]).partition(b"\r\n\r\n")
        channel = self.channels[head.split(b"/")[2]]
        if head.startswith(b"POST"):
            self.published_to[fd] = channel
            if self.body_size:
                self.exchange(fd, channel, size)
            elif rest:
                self.fan_out(channel, rest)
            return
        self.read_from[fd] = channel
        channel.ready[fd] = self.sockets[fd]
        if not self.body_size:
            self.sockets[fd].send(STREAM_HEAD)

    def fan_out(self, channel: Channel, frame: bytes) -> None:
        """The loop that this file is about."""
        size = len(frame)
        view = memoryview(frame)
        for unsent in channel.behind.values():
            unsent.append(view)
        late: list[tuple[int, memoryview]] = []
        for fd, sock in channel.ready.items():
            try:
                sent = sock.send(frame)
            except BlockingIOError:
                sent = 0
            except ConnectionError:
                continue
            if sent != size:
                late.append((fd, view[sent:]))
        for fd, rest in late:
            del channel.ready[fd]
            channel.behind[fd] = deque([rest])
            self.epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)

    def exchange(self, fd: int, channel: Channel, size: int) -> None:
        """A whole segment arrived in one message: answer it, and pass its body on."""
        response = self.head + self.buffer[size - self.body_size : size]
        for sock in channel.ready.values():
            sock.send(response)
        self.sockets[fd].send(STORED)

    def flush(self, fd: int) -> None:
        """A reader that was behind takes data again."""
        channel = self.read_from[fd]
        unsent = channel.behind[fd]
        try:
            sent = self.sockets[fd].sendmsg(islice(unsent, GATHER))
        except BlockingIOError:
            return
        except ConnectionError:
            unsent.clear()
            sent = 0
        while unsent and sent >= len(unsent[0]):
            sent -= len(unsent.popleft())
        if unsent:
            unsent[0] = unsent[0][sent:]
        else:
            del channel.behind[fd]
            channel.ready[fd] = self.sockets[fd]
            self.epoll.modify(fd, select.EPOLLIN)

    def forget(self, fd: int) -> None:
        """A connection ended."""
        self.epoll.unregister(fd)
        self.sockets.pop(fd).close()
        self.published_to.pop(fd, None)
        if (channel := self.read_from.pop(fd, None)) is not None:
            channel.ready.pop(fd, None)
            channel.behind.pop(fd, None)


def main() -> None:
    """Listen on a free port, say which, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("stream", "exchange"), default="stream")
    parser.add_argument("--body-size", type=int, default=200, help="bytes of a segment in exchange mode")
    arguments = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        sys.stdout.write(f"floor is listening on http://127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        Floor(listener, arguments.body_size if arguments.mode == "exchange" else 0).run()


if __name__ == "__main__":
    main()
