"""A worker's link with the others: all ways from one worker to another, and the signs of life that each gives.

A worker beats four times a second (:meth:`Link.tick`): it writes the time into its word of the shared memory, so each
beat shows that its event loop turns. The kernel does not know that, and goes on to give a worker that hangs, or that is
being started, its share of new connections. So each other worker that sees no beat for :data:`STILL_S` also accepts
from that worker's listening socket, until it beats again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson

from tricklecast.app.cluster.asking import Answerer
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.http1.connection import Connection
from tricklecast.app.listener import Listener
from tricklecast.app.workers.busy import Busy
from tricklecast.app.workers.handover import HandOver
from tricklecast.app.workers.mesh import Kind, Mesh, Message
from tricklecast.app.workers.placement import Placement
from tricklecast.app.workers.questions import Questions
from tricklecast.app.workers.shared import Figure
from tricklecast.app.workers.supervisor import Worker

_LOGGER = logging.getLogger(__name__)

STILL_S: Final = 1.0
"""The others accept the connections of a worker that has not beaten for this time."""


class Link:
    """A worker's link with the others.

    Args:
        worker: this one. plane: its data plane.
        share_limits: reserves this worker's part of the memory and the limits of all; called with each beat.

    Attributes:
        worker: this one.
        placement: knows which worker a request is for.
        handover: moves connections. questions: asks other workers, and answers them.
        busy: shares channels that have many readers.
    """

    def __init__(self, worker: Worker, plane: DataPlane, share_limits: Callable[[], None]) -> None:
        self.worker = worker
        self._mesh = Mesh(worker.mesh, worker.number)
        self.placement = Placement(worker.count, worker.number, plane.router)
        self.handover = HandOver(self._mesh, self.placement)
        self.questions = Questions(self._mesh)
        self.busy = Busy(plane, self.placement, self._mesh, self.questions)
        self._share_limits, self._clock = share_limits, plane.clock
        self._accept_for: Callable[[int], Listener] | None = None  # None: stand in for nobody
        self._stand_ins: dict[int, Listener] = {}  # by the number of the worker for which this one accepts

    def start(
        self,
        makers: Sequence[Callable[[], Connection]],
        answers: Mapping[str, Answerer],
        accept_for: Callable[[int], Listener] | None,
    ) -> None:
        """Take connections and answer questions from now on, since the server listens.

        Args:
            makers: each makes a connection for one address at which the server listens.
            answers: by the name of the question.
            accept_for: accepts from another worker's socket; ``None``: all workers accept from one socket anyway.
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
        """Beat, and do what is done four times a second."""
        now = self._clock()
        self.worker.shared.column(Figure.BEAT_MS)[self.worker.number] = int(now * 1000)
        self._share_limits()
        self.busy.look(now)
        if self._accept_for is not None:
            self._stand_in((now - STILL_S) * 1000, self._accept_for)

    def _stand_in(self, since_ms: float, accept_for: Callable[[int], Listener]) -> None:
        """Accept for workers that have not beaten since then, and no longer for those that have."""
        for worker, beat_ms in enumerate(self.worker.shared.column(Figure.BEAT_MS)):
            is_still = beat_ms < since_ms and worker != self.worker.number
            if is_still and worker not in self._stand_ins:
                self._stand_ins[worker] = accept_for(worker)
            elif not is_still and worker in self._stand_ins:
                self._stand_ins.pop(worker).close()

    def close(self) -> None:
        """Accept nothing more in place of others."""
        self._accept_for = None
        while self._stand_ins:
            self._stand_ins.popitem()[1].close()

    def set_draining(self, draining: bool) -> None:
        """Tell the others whether this worker drains. No worker ends before all have drained."""
        self.worker.shared.column(Figure.DRAINS)[self.worker.number] = draining

    @property
    def any_draining(self) -> bool:
        """Whether this worker or another one drains."""
        return any(self.worker.shared.column(Figure.DRAINS))

    def end(self) -> None:
        """Take no message and answer no question any more, and break connections that other workers need."""
        self.busy.end()
        self._mesh.stop()
        self.questions.end()
        self.handover.end()
