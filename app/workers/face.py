"""The front's answers for all workers: a server of several processes looks like one.

The front asks every worker the same question, and makes one answer of theirs. It has checked what the client may see;
the others answer everything. A list without the channels of a worker that is being started would be taken for the
whole, so it is refused for that moment; metrics and health checks name the worker instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

import orjson
from fastapi import HTTPException

from tricklecast.app.control_plane.api import Created, Overview, Page, RateLimitedPage, Troubles
from tricklecast.app.control_plane.middleware import MayManage, everything
from tricklecast.app.workers.placement import Placement
from tricklecast.app.workers.questions import ANSWER_S, SOON_S, Answer, NoAnswer, Questions, Stream

UP: Final = b"tricklecast_worker_up"
"""The metric that the front adds to those of the workers."""

RETRY_S: Final = 1
"""``Retry-After`` while a worker is being started, which takes less than a second without a data directory."""


def overview_answers(own: Overview) -> dict[str, Answer]:
    """A worker's answers to the front's questions, by their names.

    Args:
        own: tells of this worker.
    """

    async def channels(to: Stream) -> None:
        await to.send(_sent(await own.channels(everything)))

    async def metrics(to: Stream) -> None:
        await to.send(_sent(await own.metrics()))

    async def troubles(to: Stream) -> None:
        await to.send(orjson.dumps(await own.troubles()))

    async def create(to: Stream, name: str, content_type: str) -> None:
        await to.send(orjson.dumps(tuple(await own.create(name, content_type))))

    return {"channels": channels, "metrics": metrics, "troubles": troubles, "create": create}


def _sent(page: Page) -> bytes:
    """A page as an answer."""
    return b"%f %f\n%b" % (page.cost_s, page.age_s, page.text)


def _received(answer: bytes | NoAnswer) -> Page:
    """The page of an answer."""
    if isinstance(answer, NoAnswer):
        return Page(b"", problem=str(answer))
    figures, _, text = answer.partition(b"\n")
    cost_s, age_s = map(float, figures.split())
    return Page(text, cost_s, age_s)


class Face:
    """The :class:`Overview` of a server of several workers.

    Args:
        questions: to them. placement: knows the owner of a channel.
    """

    def __init__(self, questions: Questions, placement: Placement) -> None:
        self._questions, self._placement = questions, placement
        self._channels = RateLimitedPage(lambda: self._joined("channels", joined_lists, ANSWER_S))
        self._metrics = RateLimitedPage(lambda: self._joined("metrics", joined_metrics, SOON_S))

    async def _joined(self, question: str, join: Callable[[Sequence[Page]], bytes], within_s: float) -> Page:
        """One page of those of all workers. Its cost is that of theirs, and of joining them."""
        pages = [_received(answer) for answer in await self._questions.ask_all(question, within_s)]
        begun = time.thread_time()
        text = join(pages)
        cost_s = time.thread_time() - begun + sum(page.cost_s for page in pages)
        problem = next((page.problem for page in pages if page.problem), "")
        return Page(text, cost_s, max(page.age_s for page in pages), problem)

    async def channels(self, visible: MayManage) -> Page:
        """The channels of all workers that a caller may see, in the order of their creation."""
        page = await self._channels.get()
        if page.problem:
            raise _later(page.problem)
        return page if visible is everything else page._replace(text=_visible(page.text, visible))

    async def create(self, name: str, content_type: str) -> Created:
        """Let the owner of a channel make it."""
        owner = self._placement.owner_of(name)
        try:
            answer = await self._questions.ask(owner, "create", name=name, content_type=content_type)
        except NoAnswer as error:
            raise _later(str(error)) from error
        return Created(*orjson.loads(answer))

    async def metrics(self) -> Page:
        """The figures of all workers, and which workers answer."""
        return await self._metrics.get()

    async def troubles(self) -> Troubles:
        """The parts that do not work at present in any worker, and whether the server is shutting down."""
        found: list[str] = []
        draining = False
        for worker, answer in enumerate(await self._questions.ask_all("troubles", SOON_S)):
            if isinstance(answer, NoAnswer):
                found.append(f"worker_{worker}")
            else:
                names, leaving = orjson.loads(answer)
                found += [name for name in names if name not in found]
                draining = draining or leaving
        return found, draining


def _later(problem: str) -> HTTPException:
    return HTTPException(503, problem, {"Retry-After": str(RETRY_S)})


def joined_lists(pages: Sequence[Page]) -> bytes:
    """One list of channels (:class:`ChannelsModel`) of those of all workers, in the order of their creation."""
    lists = [orjson.loads(page.text) for page in pages if not page.problem]
    channels = sorted((one for each in lists for one in each["channels"]), key=itemgetter("created_at"))
    sums = {name: sum(each[name] for each in lists) for name in ("readers", "bytes_held")}
    return orjson.dumps({"channels": channels, **sums})


def _visible(text: bytes, visible: MayManage) -> bytes:
    """The part of a list that a caller may see. Sums over all would tell it about channels that it may not see."""
    whole = orjson.loads(text)
    shown = [one for one in whole["channels"] if visible(one["name"])]
    if len(shown) == len(whole["channels"]):
        return text
    readers, size = sum(one["readers"] for one in shown), sum(one["window"]["bytes"] for one in shown)
    return orjson.dumps({"channels": shown, "readers": readers, "bytes_held": size})


def joined_metrics(pages: Sequence[Page]) -> bytes:
    """One text in Prometheus' format of those of all workers: the samples of a metric stand below its one description.

    Each text is that of :func:`prometheus_client.generate_latest`: for each metric its help, its type, its samples.
    """
    families: dict[bytes, list[bytes]] = {}  # samples by description
    for page in pages:
        for family in page.text.removesuffix(b"\n").split(b"\n# HELP ") if page.text else ():
            about, kind, *samples = family.removeprefix(b"# HELP ").split(b"\n", 2)
            families.setdefault(b"# HELP %b\n%b" % (about, kind), []).extend(samples)
    up = [b'%b{worker="%d"} %d' % (UP, worker, not page.problem) for worker, page in enumerate(pages)]
    families[b"# HELP %b Whether this worker answers.\n# TYPE %b gauge" % (UP, UP)] = up
    return b"\n".join(line for description, samples in families.items() for line in (description, *samples)) + b"\n"
