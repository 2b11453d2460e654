"""A request body that is written while it is being sent."""

from __future__ import annotations

import anyio
import httpx


class Body(httpx.AsyncByteStream):
    """One chunk at a time from a writer to a transport.

    A chunk stays here until a transport takes it, so that a request which fails before its first chunk was taken can
    be made again with the same body. :meth:`put` returns when the transport asks for more, which it does once the
    chunk has been written to the connection.

    Attributes:
        sent: bytes that a transport has taken so far.
        ended: a transport has seen the end of the body.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.ended = False
        self._chunk: bytes | None = None
        self._over = False
        self._stopped = False
        self._filled = anyio.Event()
        self._drained = anyio.Event()

    async def put(self, chunk: bytes) -> bool:
        """Hand one chunk over and wait until it was written; ``False`` if the body was stopped instead.

        Not to be called again before it has returned, nor after :meth:`end`. Cancelled, it takes the chunk back
        unless a transport has it already.
        """
        if self._stopped:
            return False
        self._drained = anyio.Event()
        self._chunk = chunk
        self._filled.set()
        try:
            await self._drained.wait()
        except BaseException:
            self._withdraw()
            raise
        return not self._stopped

    def end(self) -> None:
        """No chunk follows."""
        self._over = True
        self._filled.set()

    def stop(self) -> None:
        """Nobody takes chunks any more; wakes the writer."""
        self._stopped = True
        self._chunk = None
        self._drained.set()

    def _withdraw(self) -> None:
        if self._chunk is not None:
            self._chunk = None
            self._filled = anyio.Event()

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        if self._chunk is None:
            self._drained.set()
        await self._filled.wait()
        if self._chunk is None:
            self.ended = True
            raise StopAsyncIteration
        chunk, self._chunk = self._chunk, None
        if not self._over:
            self._filled = anyio.Event()
        self.sent += len(chunk)
        return chunk
