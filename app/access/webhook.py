"""The webhook: the server asks a service of the operator whether a client may create, publish, read or delete.

Each request may need a question, and a storm of requests must neither flood the service nor fill the server's memory:

- A question is a JSON text. Requests with the same text share one question, and its answer is used again for a while
  (``Cache-Control: max-age``, at most an hour). A question has no field that a service does not need to decide, since
  each further field would make more questions.
- At most :data:`MAX_WAITING` questions wait, and ``concurrency`` of them are sent at a time. ``webhook_fail_open``
  decides a request beyond that at once, as it does after a failure of the service.
- The deadline of a question includes its wait in the queue, so a slow service delays no request for longer.

A permission stays until the exchange ends: the server does not ask again while a segment is sent.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple

import httpx
from cachetools import TLRUCache
from pydantic import SecretBytes

from tricklecast.app.access.service_client import problem_of, service_client
from tricklecast.trickle import wire
from tricklecast.trickle.wire import Status

FAILED: Final = int(Status.UNAVAILABLE)
"""The decision if the service sends no answer, or a status without a meaning."""

MAX_WAITING: Final = 1024
"""Questions without an answer; the server asks no further ones. Each holds a connection and a JSON text."""

MAX_BODY_BYTES: Final = 4 << 10
"""The server reads an answer's body up to this size to keep the connection open. It closes one with a longer body."""

MAX_CACHED: Final = 10_000
"""Decisions that are remembered."""

MAX_CACHE_S: Final = 3600.0
"""A decision is used for an hour at most, even with a larger ``max-age``: a withdrawn right must end some time."""

_DECISIONS: Final = dict.fromkeys(range(200, 300), 200) | {status: status for status in (401, 403, 404)}
"""The decision for each status of the service. With any other status the service has failed."""

_MAX_AGE = re.compile(r'(?:^|[\s,])max-age="?(\d{1,9})"?(?:$|[\s,])', re.ASCII | re.IGNORECASE)
_UNCACHED = re.compile(r"(?:^|[\s,])no-(?:store|cache)(?:$|[\s,=])", re.ASCII | re.IGNORECASE)

logger = logging.getLogger("tricklecast.webhook")

OnDecision = Callable[[int], None]
"""Called with the decision: 200, one of the refusals, or :data:`FAILED`."""


class TimedDecision(NamedTuple):
    """A decision, and the time for which it is used, seconds."""

    status: int
    max_age_s: float


@dataclass(slots=True)
class _Question:
    """A question without an answer yet.

    Attributes:
        body: the JSON text. deadline: the time at which the server gives up. waiting: called with the decision.
    """

    body: bytes = field(repr=False)
    deadline: float
    waiting: list[OnDecision]


class Webhook:
    """Asks a service a limited number of questions at a time, and remembers its answers for a while.

    A question is its JSON text. The server sends the same text once, however many requests wait for the answer.

    Args:
        url: of the service. secret: signs the questions; ``None``: they are not signed.
        timeout_s: the deadline of a question, the wait in the queue included.
        concurrency: the number of questions that are sent at a time.
        cache_s: the time for which an answer without ``Cache-Control`` is used.
        clock: seconds, monotonic. wall: seconds since 1970.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: SecretBytes | None,
        timeout_s: float,
        concurrency: int,
        cache_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._secret = secret
        self._timeout_s = timeout_s
        self._concurrency = concurrency
        self._cache_s = cache_s
        self._clock = clock
        self._wall = wall
        self._decisions: TLRUCache[bytes, TimedDecision, float] = TLRUCache(
            MAX_CACHED, lambda _, answer, now: now + answer.max_age_s, clock
        )
        self._questions: dict[bytes, _Question] = {}  # those without an answer, by the hash of their text
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()  # hashes of the questions that are not sent yet
        self._warned = False  # the log has told of the present series of failures
        self.outcomes: Counter[int] = Counter()  # questions by decision, since the start

    def use(self, secret: SecretBytes | None) -> None:
        """Sign questions with this secret from now on, and forget the decisions that are remembered."""
        self._secret = secret
        self._decisions.clear()

    @property
    def waiting(self) -> int:
        return len(self._questions)

    def remembered(self, body: bytes) -> int | None:
        """The decision about a question, if it may still be used."""
        answer = self._decisions.get(sha256(body).digest())
        return None if answer is None else answer.status

    def ask(self, body: bytes, then: OnDecision) -> bool:
        """Ask a question.

        Args:
            body: its JSON text.
            then: called from the event loop, with the decision.

        Returns:
            ``False`` if too many questions wait already; ``then`` is not called.
        """
        key = sha256(body).digest()
        question = self._questions.get(key)
        if question is not None:
            question.waiting.append(then)
            return True
        if len(self._questions) >= MAX_WAITING:
            return False
        self._questions[key] = _Question(body, self._clock() + self._timeout_s, [then])
        self._queue.put_nowait(key)
        return True

    async def run(self) -> None:
        """Send the questions, until cancelled."""
        headers = {"Content-Type": "application/json"}
        client = service_client(self._url, headers, timeout_s=self._timeout_s, connections=self._concurrency)
        async with client, asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work(client))

    async def _work(self, client: httpx.AsyncClient) -> None:
        while True:
            key = await self._queue.get()
            question = self._questions[key]
            answer = await self._send(client, question)
            del self._questions[key]
            self._decisions[key] = answer  # the cache drops an answer that may not be used again
            self.outcomes[answer.status] += 1
            # call_soon: an exception in a callback must not end this task.
            for then in question.waiting:
                asyncio.get_running_loop().call_soon(then, answer.status)

    async def _send(self, client: httpx.AsyncClient, question: _Question) -> TimedDecision:
        left_s = question.deadline - self._clock()
        status, cache_control, problem = FAILED, "", f"no answer within {self._timeout_s:g} s"
        headers = {}
        if self._secret is not None:
            headers[wire.SIGNATURE] = sign(self._secret, int(self._wall()), question.body)
        try:
            if left_s <= 0:
                raise TimeoutError  # the questions before it took too long
            async with asyncio.timeout(left_s):
                async with client.stream("POST", self._url, content=question.body, headers=headers) as response:
                    status, problem = _DECISIONS.get(response.status_code, FAILED), f"status {response.status_code}"
                    cache_control = ",".join(response.headers.get_list("Cache-Control"))
                    await _skip_body(response)
        except TimeoutError:
            pass
        except httpx.HTTPError as error:
            problem = problem_of(error)
        except Exception as error:
            status, problem = FAILED, problem_of(error)
        if status == FAILED:
            self._warn(problem)
            return TimedDecision(FAILED, 0.0)
        self._warned = False
        return TimedDecision(status, max_age_s(cache_control, self._cache_s))

    def _warn(self, problem: str) -> None:
        """Log the first failure of a series; the access log has all of them."""
        if not self._warned:
            self._warned = True
            logger.warning("no decision from %s: %s", self._url, problem)


async def _skip_body(response: httpx.Response) -> None:
    """Read a short body, so that the connection can be used again. The body decides nothing."""
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            return


def sign(secret: SecretBytes, at: int, body: bytes) -> str:
    """Make the value of the header ``Trickle-Signature``.

    Args:
        secret: shared with the service. at: seconds since the epoch; a service rejects a question that is replayed
            later.
        body: of the request.
    """
    mac = hmac.new(secret.get_secret_value(), b"%d." % at + body, sha256)
    return f"t={at},v1={mac.hexdigest()}"


def max_age_s(cache_control: str, default_s: float) -> float:
    """The time for which an answer may be used, seconds.

    Args:
        cache_control: the header; ``""`` without one.
        default_s: the time if the header gives none.
    """
    if _UNCACHED.search(cache_control):
        return 0.0
    found = _MAX_AGE.search(cache_control)
    return min(float(found[1]), MAX_CACHE_S) if found else default_s
