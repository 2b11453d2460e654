"""Questions to an HTTP service of the operator's: may this client do that?"""

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
from typing import Final

import httpx

from tricklecast.app.access.lru import Lru
from tricklecast.app.access.outside import outside_client, problem_of
from tricklecast.app.access.secrets import Secret
from tricklecast.trickle import wire
from tricklecast.trickle.wire import Status

FAILED: Final = int(Status.UNAVAILABLE)
"""No answer, or none that could be understood."""

MAX_WAITING: Final = 1024
"""Questions that wait for their turn; more are failures at once. Each holds a connection and a JSON object."""

MAX_BODY_BYTES: Final = 4 << 10
"""Of an answer that is read; a longer one costs its connection."""

MAX_CACHED: Final = 10_000
MAX_CACHE_S: Final = 3600.0
"""An answer holds no longer than that, whatever it says: rights that are taken away must end some time."""

_REFUSALS: Final = frozenset({401, 403, 404})
_MAX_AGE = re.compile(r'(?:^|[\s,])max-age="?(\d{1,9})"?(?:$|[\s,])', re.ASCII | re.IGNORECASE)
_UNCACHED = re.compile(r"(?:^|[\s,])no-(?:store|cache)(?:$|[\s,=])", re.ASCII | re.IGNORECASE)

logger = logging.getLogger("tricklecast.webhook")

Then = Callable[[int], None]
"""Told the decision: 200, one of the refusals, or :data:`FAILED`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was answered, and until when it holds on the clock of the webhook."""

    status: int
    until: float


@dataclass(slots=True)
class _Question:
    """One that is not answered yet.

    Attributes:
        body: as it is sent. deadline: when it is given up. waiting: who wants to know.
    """

    body: bytes = field(repr=False)
    deadline: float
    waiting: list[Then]


class Webhook:
    """Asks, a few questions at a time, and remembers the answers for a while.

    A question is its JSON text: the same text is asked once, however many wait for the answer.

    Args:
        url: where. secret: what questions are signed with, if with anything.
        timeout_s: how long an answer may take, with the time that the question waits for its turn.
        concurrency: how many are asked at a time.
        cache_s: how long an answer holds that does not say.
        clock: seconds, monotonic. wall: seconds since the epoch.
        transport: for tests.

    Attributes:
        outcomes: answers so far by decision. asked: questions sent. waiting: those that are not answered.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: Secret | None,
        timeout_s: float,
        concurrency: int,
        cache_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        self._secret = secret
        self._timeout_s = timeout_s
        self._concurrency = concurrency
        self._cache_s = cache_s
        self._clock = clock
        self._wall = wall
        self._transport = transport
        self._cache: Lru[Decision] = Lru(MAX_CACHED)
        self._questions: dict[bytes, _Question] = {}
        self._turns: asyncio.Queue[bytes] = asyncio.Queue()
        self._complained = False
        self.outcomes: Counter[int] = Counter()

    @property
    def waiting(self) -> int:
        """Questions that are not answered yet."""
        return len(self._questions)

    def known(self, body: bytes) -> int | None:
        """The decision, if it was made a short time ago."""
        key = sha256(body).digest()
        decision = self._cache.get(key)
        if decision is None:
            return None
        if decision.until > self._clock():
            return decision.status
        self._cache.drop(key)
        return None

    def ask(self, body: bytes, then: Then) -> bool:
        """Put a question; ``then`` is called with the decision, never from here. ``False``: too many are waiting."""
        key = sha256(body).digest()
        question = self._questions.get(key)
        if question is not None:
            question.waiting.append(then)
            return True
        if len(self._questions) >= MAX_WAITING:
            return False
        self._questions[key] = _Question(body, self._clock() + self._timeout_s, [then])
        self._turns.put_nowait(key)
        return True

    async def run(self) -> None:
        """Ask, until cancelled."""
        headers = {"Content-Type": "application/json"}
        client = outside_client(
            self._url, headers, self._transport, timeout_s=self._timeout_s, connections=self._concurrency
        )
        async with client, asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work(client))

    async def _work(self, client: httpx.AsyncClient) -> None:
        while True:
            key = await self._turns.get()
            question = self._questions[key]
            decision = await self._decide(client, question)
            del self._questions[key]
            if decision.until > self._clock():
                self._cache.put(key, decision)
            self.outcomes[decision.status] += 1
            # Not from here: a fault in what follows must not end this task.
            for then in question.waiting:
                asyncio.get_running_loop().call_soon(then, decision.status)

    async def _decide(self, client: httpx.AsyncClient, question: _Question) -> Decision:
        left_s = question.deadline - self._clock()
        status, cache_control, problem = FAILED, "", f"no answer within {self._timeout_s:g} s"
        try:
            if left_s <= 0:
                raise TimeoutError  # those before it took too long
            async with asyncio.timeout(left_s):
                headers = self._signature(question.body)
                async with client.stream("POST", self._url, content=question.body, headers=headers) as response:
                    status, problem = _decision(response.status_code), f"status {response.status_code}"
                    cache_control = ",".join(response.headers.get_list("Cache-Control"))
                    await _pass_over(response)
        except TimeoutError:
            pass
        except httpx.HTTPError as error:
            problem = problem_of(error)
        except Exception as error:
            status, problem = FAILED, problem_of(error)
        if status == FAILED:
            self._complain(problem)
            return Decision(FAILED, 0.0)
        self._complained = False
        return Decision(status, self._clock() + max_age_s(cache_control, self._cache_s))

    def _signature(self, body: bytes) -> dict[str, str]:
        if self._secret is None:
            return {}
        return {wire.SIGNATURE: sign(self._secret, int(self._wall()), body)}

    def _complain(self, problem: str) -> None:
        """Once, until it works again: the access log has every single case."""
        if not self._complained:
            self._complained = True
            logger.warning("%s does not decide: %s", self._url, problem)


async def _pass_over(response: httpx.Response) -> None:
    """The body decides nothing. A short one is read, so that the connection can be used again."""
    size = 0
    if response.is_stream_consumed:
        return  # a transport that had all of it
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            return


def sign(secret: Secret, at: int, body: bytes) -> str:
    """The value of the header ``Trickle-Signature``.

    Args:
        secret: shared with the service. at: seconds since the epoch, so that a question cannot be played back later.
        body: of the request.
    """
    mac = hmac.new(secret.reveal(), b"%d." % at + body, sha256)
    return f"t={at},v1={mac.hexdigest()}"


def max_age_s(cache_control: str, usual_s: float) -> float:
    """How long an answer holds, in seconds.

    Args:
        cache_control: the header, ``""`` if there is none.
        usual_s: if it does not say.
    """
    if _UNCACHED.search(cache_control):
        return 0.0
    found = _MAX_AGE.search(cache_control)
    return min(float(found[1]), MAX_CACHE_S) if found else usual_s


def _decision(status: int) -> int:
    if 200 <= status < 300:
        return 200
    return status if status in _REFUSALS else FAILED
