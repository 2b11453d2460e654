"""The overview of a server of several workers: its list of channels, its metrics, its health.

The front (worker 0) answers these requests. It asks each worker the same question, itself included, and joins the
answers. The front checks what the client may see; the workers answer everything.

A worker that is being started answers nothing. A client would take a list without that worker's channels for the whole
list, so it gets 503 for that moment. Metrics and health checks are answered, and say that the worker is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

import orjson
from fastapi import HTTPException

from tricklecast.app.cluster.asking import ANSWER_S, SOON_S, Answerer, Asker, NoAnswer
from tricklecast.app.control_plane.api import Created, Overview, Page, RateLimitedPage, Troubles
from tricklecast.app.control_plane.middleware import MayManage, everything
from tricklecast.app.workers.placement import Placement
from tricklecast.app.workers.questions import Questions

UP: Final = b"tricklecast_worker_up"
"""The front adds this metric to those of the workers."""

RETRY_S: Final = 1
"""``Retry-After`` while a worker is being started, which takes less than a second without a data directory."""


def overview_answers(own: Overview) -> dict[str, Answerer]:
    """A worker's answers to the front's questions, by the names of the questions.

    Args:
        own: the overview of this worker.
    """

    async def channels(asker: Asker) -> None:
        await asker.send(_encoded(await own.channels(everything)))

    async def metrics(asker: Asker) -> None:
        await asker.send(_encoded(await own.metrics()))

    async def troubles(asker: Asker) -> None:
        await asker.send(orjson.dumps(await own.troubles()))

    async def create(asker: Asker, name: str, content_type: str) -> None:
        await asker.send(orjson.dumps(tuple(await own.create(name, content_type))))

    return {"channels": channels, "metrics": metrics, "troubles": troubles, "create": create}


def _encoded(page: Page) -> bytes:
    return b"%f %f\n%b" % (page.cost_s, page.age_s, page.text)


def decoded(answer: bytes | NoAnswer) -> Page:
    """The page of an answer; if there is none, the page has its problem."""
    if isinstance(answer, NoAnswer):
        return Page(b"", problem=str(answer))
    figures, _, text = answer.partition(b"\n")
    cost_s, age_s = map(float, figures.split())
    return Page(text, cost_s, age_s)


class JoinedOverview:
    """The :class:`Overview` of all workers.

    Args:
        questions: the front's. placement: knows the owner of a channel.
    """

    def __init__(self, questions: Questions, placement: Placement) -> None:
        self._questions, self._placement = questions, placement
        self._channels = RateLimitedPage(lambda: self._joined("channels", joined_lists, ANSWER_S))
        self._metrics = RateLimitedPage(lambda: self._joined("metrics", joined_metrics, SOON_S))

    async def _joined(self, question: str, join: Callable[[Sequence[Page]], bytes], within_s: float) -> Page:
        """Ask all workers for a page, and join them. The cost is that of all pages, and of joining them."""
        pages = [decoded(answer) for answer in await self._questions.ask_all(question, within_s)]
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
        return page if visible is everything else page._replace(text=only(visible, page.text))

    async def create(self, name: str, content_type: str) -> Created:
        """Have a channel made by its owner."""
        owner = self._placement.owner_of(name)
        try:
            answer = await self._questions.ask(owner, "create", name=name, content_type=content_type)
        except NoAnswer as error:
            raise _later(str(error)) from error
        return Created(*orjson.loads(answer))

    async def metrics(self) -> Page:
        """The metrics of all workers, and which workers answer."""
        return await self._metrics.get()

    async def troubles(self) -> Troubles:
        """The parts that do not work in one worker at least, and whether a worker is shutting down."""
        found: list[str] = []
        draining = False
        for worker, answer in enumerate(await self._questions.ask_all("troubles", SOON_S)):
            if isinstance(answer, NoAnswer):
                found.append(f"worker_{worker}")
            else:
                names, drains = orjson.loads(answer)
                found += [name for name in names if name not in found]
                draining = draining or drains
        return found, draining


def _later(problem: str) -> HTTPException:
    return HTTPException(503, problem, {"Retry-After": str(RETRY_S)})


def joined_lists(pages: Sequence[Page]) -> bytes:
    """Join the lists of channels (:class:`ChannelsModel`) of all workers, in the order of the channels' creation."""
    lists = [orjson.loads(page.text) for page in pages if not page.problem]
    channels = sorted((channel for part in lists for channel in part["channels"]), key=itemgetter("created_at"))
    sums = {name: sum(part[name] for part in lists) for name in ("readers", "bytes_held")}
    return orjson.dumps({"channels": channels, **sums, "unreachable": []})


def only(visible: MayManage, text: bytes) -> bytes:
    """Leave out channels that a caller may not see, also from the sums, which would tell of them."""
    whole = orjson.loads(text)
    channels = whole["channels"]
    shown = [channel for channel in channels if visible(channel["name"])]
    if len(shown) == len(channels):
        return text
    readers = sum(channel["readers"] for channel in shown)
    size = sum(channel["window"]["bytes"] for channel in shown)
    return orjson.dumps(whole | {"channels": shown, "readers": readers, "bytes_held": size})


def joined_metrics(pages: Sequence[Page]) -> bytes:
    """Join the workers' metrics: in Prometheus' format all samples of a metric follow its one description.

    The texts are those of :func:`prometheus_client.generate_latest`: for each metric its help, its type, its samples.
    """
    families: dict[bytes, list[bytes]] = {}  # samples by description
    for page in pages:
        for family in page.text.removesuffix(b"\n").split(b"\n# HELP ") if page.text else ():
            about, kind, *samples = family.removeprefix(b"# HELP ").split(b"\n", 2)
            families.setdefault(b"# HELP %b\n%b" % (about, kind), []).extend(samples)
    up = [b'%b{worker="%d"} %d' % (UP, worker, not page.problem) for worker, page in enumerate(pages)]
    families[b"# HELP %b Whether this worker answers.\n# TYPE %b gauge" % (UP, UP)] = up
    return b"\n".join(line for description, samples in families.items() for line in (description, *samples)) + b"\n"
