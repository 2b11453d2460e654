"""The front's answers for all workers: a server of several processes looks like one.

The front asks every worker the same question, and makes one answer of theirs. It has checked what the client may see;
the others answer everything. A list without the channels of a worker that is being started would be taken for the
whole, so it is refused for that moment; metrics and health checks name the worker instead.
"""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import orjson
from fastapi import HTTPException

from tricklecast.app.control_plane.api import Channels, Created, Listed, Troubles, rest_s
from tricklecast.app.control_plane.middleware import MayManage, everything
from tricklecast.app.workers.placement import Placement
from tricklecast.app.workers.questions import SOON_S, Answer, NoAnswer, Questions, Stream

UP: Final = b"tricklecast_worker_up"

RETRY_S: Final = 1
"""``Retry-After`` while a worker is being started, which takes less than a second without a data directory."""

_SAMPLE: Final = re.compile(rb"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?")
"""The beginning of a sample in Prometheus' text format: its name, and whether labels follow."""

_DESCRIPTION: Final = re.compile(rb"# (HELP|TYPE) (\S+)")
"""The beginning of a line about a metric; other comments are left out."""


@dataclass(frozen=True)
class Overview:
    """What the control plane says of a server, or a worker of itself.

    Attributes:
        channels: all of them. metrics: the text of its page. troubles: what does not work at present.
    """

    channels: Channels
    metrics: Callable[[], Awaitable[bytes]]
    troubles: Callable[[], Awaitable[Troubles]]

    def answers(self) -> dict[str, Answer]:
        """By the names of the questions that :class:`Face` asks."""

        async def channels(to: Stream) -> None:
            found = await self.channels.listed(everything)
            await to.send(b"%f\n%b" % (found.age_s, found.text))

        async def metrics(to: Stream) -> None:
            await to.send(await self.metrics())

        async def troubles(to: Stream) -> None:
            await to.send(orjson.dumps(await self.troubles()))

        async def create(to: Stream, name: str, content_type: str) -> None:
            made = await self.channels.create(name, content_type)
            await to.send(orjson.dumps([made.status, made.headers, b64encode(made.text).decode(), made.reason]))

        return {"channels": channels, "metrics": metrics, "troubles": troubles, "create": create}


class Face:
    """Answers for all workers: their channels, and an :class:`Overview`.

    Args:
        questions: to them. placement: knows the owner of a channel.
    """

    def __init__(self, questions: Questions, placement: Placement) -> None:
        self._questions, self._placement = questions, placement
        # The list of all channels that was made last, the time at which its oldest part was, and until when it is sent.
        self._list, self._made_at, self._until = b"", 0.0, 0.0
        # Questions for lists: the one whose answers come, and the one that follows it.
        self._asking: asyncio.Task[list[bytes | NoAnswer]] | None = None
        self._next: asyncio.Task[list[bytes | NoAnswer]] | None = None

    def overview(self) -> Overview:
        """Of the server."""
        return Overview(self, self.metrics, self.troubles)

    async def listed(self, visible: MayManage) -> Listed:
        """The channels of all workers that a caller may see; all of them, where there are hundreds, may be old."""
        if visible is everything and time.monotonic() < self._until:
            return Listed(self._list, time.monotonic() - self._made_at)
        answers = [_whole(answer).split(b"\n", 1) for answer in await self._lists()]
        if visible is everything and time.monotonic() < self._until:
            return Listed(self._list, time.monotonic() - self._made_at)
        begun = time.thread_time()
        parts = [orjson.loads(text) for _, text in answers]
        every = [one for part in parts for one in part["channels"]]
        found = sorted((one for one in every if visible(one["name"])), key=itemgetter("created_at"))
        # A total over all channels would tell the caller about channels that it may not see.
        is_all = len(found) == len(every)
        text = orjson.dumps(
            {
                "channels": found,
                "readers": sum(one["readers"] for one in found),
                "bytes_held": sum(part["bytes_held"] for part in parts)
                if is_all
                else sum(one["window"]["bytes"] for one in found),
            }
        )
        age_s = max(float(age) for age, _ in answers)
        if visible is everything:
            now, cost = time.monotonic(), time.thread_time() - begun
            self._list, self._made_at, self._until = text, now - age_s, now + rest_s(cost)
        return Listed(text, age_s)

    async def _lists(self) -> list[bytes | NoAnswer]:
        """The lists of all workers. All callers that come while they are on their way share the next ones.

        So a hundred requests have two lists of 40 MB in memory, and not a hundred; and each list is newer than what its
        client has done before.
        """

        async def ask(before: asyncio.Task[list[bytes | NoAnswer]] | None) -> list[bytes | NoAnswer]:
            if before is not None and not before.done():
                await asyncio.wait([before])
            self._asking, self._next = self._next, None
            return await self._questions.ask_all("channels")

        if self._next is None:
            self._next = asyncio.create_task(ask(self._asking))
        return await asyncio.shield(self._next)

    async def create(self, name: str, content_type: str) -> Created:
        """Let the owner of a channel make it."""
        owner = self._placement.owner_of(name)
        try:
            answer = await self._questions.ask(owner, "create", name=name, content_type=content_type)
        except NoAnswer as error:
            raise _later(error) from error
        status, headers, text, reason = orjson.loads(answer)
        return Created(status, headers, b64decode(text), reason)

    async def metrics(self) -> bytes:
        """The figures of all workers, each with a label ``worker``, and which workers answer."""
        return labelled(await self._questions.ask_all("metrics", within_s=SOON_S))

    async def troubles(self) -> Troubles:
        """What does not work at present in any worker, and whether the server is shutting down."""
        found: list[str] = []
        draining = False
        for worker, answer in enumerate(await self._questions.ask_all("troubles", within_s=SOON_S)):
            if isinstance(answer, NoAnswer):
                found.append(f"worker_{worker}")
            else:
                names, leaving = orjson.loads(answer)
                found += [name for name in names if name not in found]
                draining = draining or leaving
        return found, draining


def _whole(answer: bytes | NoAnswer) -> bytes:
    if isinstance(answer, NoAnswer):
        raise _later(answer)
    return answer


def _later(error: NoAnswer) -> HTTPException:
    return HTTPException(503, str(error), {"Retry-After": str(RETRY_S)})


def labelled(texts: Sequence[bytes | NoAnswer]) -> bytes:
    """One text in Prometheus' format of those of all workers: each sample gets the label ``worker``.

    All samples of a metric stand together, below its one description, as the format wants it.
    """
    families: dict[bytes, tuple[dict[bytes, bytes], list[bytes]]] = {}  # by name: description, samples
    for worker, text in enumerate(texts):
        samples: list[bytes] = []
        for line in [] if isinstance(text, NoAnswer) else text.split(b"\n"):
            if (described := _DESCRIPTION.match(line)) is not None:
                about, samples = families.setdefault(described[2], ({}, []))
                about.setdefault(described[1], line)
            elif (found := _SAMPLE.match(line)) is not None:
                name, labels = found.groups()
                rest = line[found.end() :]
                end = b"}" if labels is None else b"" if rest.startswith(b"}") else b","
                samples.append(b'%b{worker="%d"%b%b' % (name, worker, end, rest))
    lines = [line for about, samples in families.values() for line in (*about.values(), *samples)]
    lines += [b"# HELP %b Whether this worker answers." % UP, b"# TYPE %b gauge" % UP]
    lines += [b'%b{worker="%d"} %d' % (UP, at, not isinstance(text, NoAnswer)) for at, text in enumerate(texts)]
    return b"\n".join(lines) + b"\n"
