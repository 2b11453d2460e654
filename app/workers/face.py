"""The front's answers for all workers: a server of several processes looks like one.

The front asks every worker the same question, and makes one answer of theirs. It has checked what the client may see;
the others answer everything. A list without the channels of a worker that is being started would be taken for the
whole, so it is refused for that moment; metrics and health checks name the worker instead.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import orjson
from fastapi import HTTPException

from tricklecast.app.control_plane.api import Channels, Created, Listed, Troubles
from tricklecast.app.control_plane.middleware import MayManage, everything
from tricklecast.app.workers.placement import Placement
from tricklecast.app.workers.questions import Answer, NoAnswer, Questions, Stream

UP: Final = b"tricklecast_worker_up"

RETRY_S: Final = 1
"""``Retry-After`` while a worker is being started, which takes less than a second without a data directory."""

_SAMPLE: Final = re.compile(rb"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?")
"""The beginning of a sample in Prometheus' text format: its name, and whether labels follow."""


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
            await to.send((await self.channels.listed(everything)).text)

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

    def overview(self) -> Overview:
        """Of the server."""
        return Overview(self, self.metrics, self.troubles)

    async def listed(self, visible: MayManage) -> Listed:
        """The channels of all workers that a caller may see."""
        parts = [orjson.loads(_whole(part)) for part in await self._questions.ask_all("channels")]
        found = [one for part in parts for one in part["channels"] if visible(one["name"])]
        of_all = visible is everything
        model = {
            "channels": found,
            "readers": sum(one["readers"] for one in found),
            "bytes_held": sum(part["bytes_held"] for part in parts)
            if of_all
            else sum(one["window"]["bytes"] for one in found),
        }
        return Listed(orjson.dumps(model), 0.0)

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
        return labelled(await self._questions.ask_all("metrics"))

    async def troubles(self) -> Troubles:
        """What does not work at present in any worker, and whether the server is shutting down."""
        found: list[str] = []
        draining = False
        for worker, answer in enumerate(await self._questions.ask_all("troubles")):
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


def labelled(texts: Iterable[bytes | NoAnswer]) -> bytes:
    """One text in Prometheus' format of those of all workers: each sample gets the label ``worker``.

    All samples of a metric stand together, below its one description, as the format wants it.
    """
    families: dict[bytes, tuple[dict[bytes, bytes], list[bytes]]] = {}  # by name: description, samples
    ups = []
    for worker, text in enumerate(texts):
        ups.append(b'%b{worker="%d"} %d' % (UP, worker, not isinstance(text, NoAnswer)))
        samples: list[bytes] = []
        for line in [] if isinstance(text, NoAnswer) else text.split(b"\n"):
            if line.startswith(b"# "):
                _, kind, name, _ = line.split(b" ", 3)
                about, samples = families.setdefault(name, ({}, []))
                about.setdefault(kind, line)
            elif (found := _SAMPLE.match(line)) is not None:
                samples.append(
                    b'%b{worker="%d"%b%b' % (found[1], worker, b"," if found[2] else b"}", line[found.end() :])
                )
    lines = [line for about, samples in families.values() for line in (*about.values(), *samples)]
    lines += [b"# HELP %b Whether this worker answers." % UP, b"# TYPE %b gauge" % UP, *ups]
    return b"\n".join(lines) + b"\n"
