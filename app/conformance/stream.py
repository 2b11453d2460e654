"""Lines and counted bytes out of a stream, and the two ways in which a stream can disappoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tricklecast.app.conformance.verdicts import Failure, shorten

MAX_LINE_BYTES: Final = 16_384


class Malformed(Failure):
    """The bytes are no HTTP/1.1 response."""

    def __init__(self, why: str, data: bytes = b"") -> None:
        super().__init__("a well-formed HTTP/1.1 response", f"{why}{f': {shorten(data)}' if data else ''}")


class Cut(Failure):
    """The connection ended in the middle of a response, or before one."""

    def __init__(self, where: str) -> None:
        super().__init__("a whole response", f"the end of the connection {where}")


class ByteReader:
    """Takes lines and counted bytes out of a stream.

    Args:
        receive: gives the next bytes, at least one; ``b""`` at the end of the stream.
    """

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self._receive = receive
        self._buffer = bytearray()

    def line(self, where: str) -> bytes:
        """One line without its CRLF.

        Raises:
            Malformed: it ends in a bare LF, or is too long.
            Cut: the stream ended before the line did.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise Malformed("an endless line", bytes(self._buffer))
            self._fill(where)
        line = self._take(end + 1)
        if not line.endswith(b"\r\n"):
            raise Malformed("a line that ends without CR", line)
        return line[:-2]

    def exactly(self, count: int, where: str) -> bytes:
        """So many bytes.

        Raises:
            Cut: the stream ended before.
        """
        while len(self._buffer) < count:
            self._fill(where)
        return self._take(count)

    def at_most(self, count: int) -> bytes:
        """What there is, up to so many bytes; waits for at least one; ``b""`` at the end of the stream."""
        if not self._buffer:
            self._buffer += self._receive()
        return self._take(min(count, len(self._buffer)))

    def _fill(self, where: str) -> None:
        data = self._receive()
        if not data:
            raise Cut(f"{where}, after {shorten(bytes(self._buffer))}" if self._buffer else where)
        self._buffer += data

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    @property
    def buffered(self) -> bytes:
        """What was received and not yet taken."""
        return bytes(self._buffer)
