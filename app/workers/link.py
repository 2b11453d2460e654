"""A worker's link with the others: all ways from one to another, in one place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson

from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.http1.connection import Connection
from tricklecast.app.listener import Listener
from tricklecast.app.workers.busy import Busy
from tricklecast.app.workers.handover import HandOver
from tricklecast.app.workers.mesh import Kind, Mesh, Message
from tricklecast.app.workers.placement import Placement
from tricklecast.app.workers.questions import Answer, Questions
from tricklecast.app.workers.shared import Figure
from tricklecast.app.workers.supervisor import Worker

_LOGGER = logging.getLogger(__name__)

STILL_S: Final = 1.0
"""A worker whose event loop has not turned for so long, or that is being started, accepts nothing: the others do."""


class Link:
    """A worker's place among the others, and its ways to them.

    Args:
        worker: this one. plane: its data plane.
        share: takes its part of the memory and the limits of all.

    Attributes:
        worker: this one.
        placement: knows the owner of a channel.
        handover: moves connections. questions: asks, and answers.
        busy: shares channels that have many readers.
    """

    def __init__(self, worker: Worker, plane: DataPlane, share: Callable[[], None]) -> None:
        self.worker = worker
        self._mesh = Mesh(worker.mesh, worker.number)
        self.placement = Placement(worker.count, worker.number, plane.router)
        self.handover = HandOver(self._mesh, self.placement)
        self.questions = Questions(self._mesh)
        self.busy = Busy(plane, self.placement, self._mesh, self.questions)
        self._share, self._clock = share, plane.clock
        self._accept_for: Callable[[int], Listener] | None = None
        self._others: dict[int, Listener] = {}  # of workers for which this one accepts

    def start(
        self,
        makers: Sequence[Callable[[], Connection]],
        answers: Mapping[str, Answer],
        accept_for: Callable[[int], Listener] | None,
    ) -> None:
        """The server listens: take connections, and answer questions, from now on.

        Args:
            makers: make a connection, one for each address at which the server listens.
            answers: by the name of the question.
            accept_for: listens in place of another worker; ``None``: all workers accept from one socket.
        """
        self._accept_for = accept_for
        self.handover.start(makers)
        self.questions.start({**answers, "feed": self.busy.feed})
        self._mesh.start(self._receive)

    def _receive(self, message: Message) -> None:
        try:
            match message.kind:
                case Kind.CONNECTION:
                    self.handover.take(message)
                case Kind.QUESTION:
                    self.questions.receive(message)
                case Kind.NEWS:
                    self.busy.hear(message.sender, orjson.loads(message.payload))
        except Exception:
            _LOGGER.exception("a message of worker %d could not be used", message.sender)

    def tick(self) -> None:
        """Tell the others how this worker is, and take its share of what all share; four times a second."""
        now = self._clock()
        self.worker.shared.column(Figure.BEAT_MS)[self.worker.number] = int(now * 1000)
        self._share()
        self.busy.look(now)
        if self._accept_for is not None:
            self._stand_in((now - STILL_S) * 1000, self._accept_for)

    def _stand_in(self, since_ms: float, accept_for: Callable[[int], Listener]) -> None:
        """Accept the connections of workers that have not beaten since then: the kernel goes on to give them theirs."""
        for worker, beat_ms in enumerate(self.worker.shared.column(Figure.BEAT_MS)):
            stands_still = beat_ms < since_ms and worker != self.worker.number
            if stands_still and worker not in self._others:
                self._others[worker] = accept_for(worker)
            elif not stands_still and worker in self._others:
                self._others.pop(worker).close()

    def close(self) -> None:
        """Accept nothing more in place of others."""
        self._accept_for = None
        while self._others:
            self._others.popitem()[1].close()

    def drains(self, *, now: bool) -> None:
        """Tell the others whether this worker drains: none ends before all have drained."""
        self.worker.shared.column(Figure.DRAINS)[self.worker.number] = now

    @property
    def some_drain(self) -> bool:
        """Whether a worker drains."""
        return any(self.worker.shared.column(Figure.DRAINS))

    def end(self) -> None:
        """Take nothing more, and break what is left."""
        self.busy.end()
        self._mesh.stop()
        self.questions.end()
        self.handover.end()
