"""The public keys behind a URL, which change now and then."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import httpx

from tricklecast.app.access.keys import InvalidKeys, Key, parse_key_set
from tricklecast.app.access.outside import outside_client, problem_of
from tricklecast.app.access.secrets import MAX_BYTES

TIMEOUT_S: Final = 5.0
"""For one fetch: requests with a token of an unknown key wait for it."""

MAX_WAITING: Final = 1024
"""Requests that wait for a fetch; more are refused at once. Each holds a connection."""

logger = logging.getLogger("tricklecast.jwks")


class KeyServer:
    """Fetches keys at the start, when they are old, and, not too often, when a token names one that is not known.

    Keys that were fetched stay good until a fetch succeeds: an outage of the key server locks nobody out.

    Args:
        url: of the JSON Web Key Set.
        refetch_s: least time between two fetches that somebody asks for, and until a failed one is tried again.
        max_age_s: after which they are fetched in any case.
        changed: called when the keys are other ones than before.
        clock: seconds, monotonic.
        transport: for tests.

    Attributes:
        keys: those that are known.
        fetches, failures: so far.
    """

    def __init__(
        self,
        url: str,
        *,
        refetch_s: float,
        max_age_s: float,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        self._refetch_s = refetch_s
        self._max_age_s = max_age_s
        self._changed = changed
        self._clock = clock
        self._transport = transport
        self._wanted = asyncio.Event()
        self._next_at = -1.0
        self._fetching = False
        self._waiting: list[Callable[[], None]] = []
        self._seen: bytes | None = None
        self.keys: tuple[Key, ...] = ()
        self.fetches = 0
        self.failures = 0

    @property
    def loaded(self) -> bool:
        """Whether there are keys: before that, nothing can be said about any token."""
        return self._seen is not None

    def ask(self, then: Callable[[], None]) -> bool:
        """Fetch again for a key that is not known; ``then`` is called when that is done, whatever came of it.

        ``False``: it was done a short time ago, or too many wait already.
        """
        may_fetch = self._fetching or self._clock() >= self._next_at
        if not may_fetch or len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(then)
        self._wanted.set()
        return True

    async def run(self) -> None:
        """Keep the keys up to date, until cancelled."""
        headers = {"Accept": "application/json"}
        async with outside_client(self._url, headers, self._transport, timeout_s=TIMEOUT_S) as client:
            while True:
                self._fetching = True
                worked = await self._fetch(client)
                self._fetching = False
                self._next_at = self._clock() + self._refetch_s
                self._wanted.clear()
                waiting, self._waiting = self._waiting, []
                # Not from here: a fault in what follows must not end this task.
                for then in waiting:
                    asyncio.get_running_loop().call_soon(then)
                await self._pause(self._max_age_s if worked else self._refetch_s)

    async def _pause(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _fetch(self, client: httpx.AsyncClient) -> bool:
        self.fetches += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                data = await self._get(client)
            if data != self._seen:
                self.keys = parse_key_set(data, self._url)
                self._seen = data
                self._changed()
            return True
        except TimeoutError:
            self._failed(f"no answer within {TIMEOUT_S:g} s")
        except InvalidKeys as error:
            self._failed(str(error))
        except Exception as error:
            self._failed(problem_of(error))
        return False

    async def _get(self, client: httpx.AsyncClient) -> bytes:
        async with client.stream("GET", self._url) as response:
            if response.status_code != 200:
                raise InvalidKeys(f"status {response.status_code}")
            data = b""
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise InvalidKeys(f"more than {MAX_BYTES >> 10} KiB")
            return data

    def _failed(self, problem: str) -> None:
        self.failures += 1
        logger.warning("no keys from %s: %s", self._url, problem)
