"""Questions of one node of a cluster to another: ``GET {base}/_cluster/ask/QUESTION?ARGUMENTS``.

The request is signed, arguments included, and has ``Upgrade: trickle-feed``, as that for a feed
(:mod:`~tricklecast.app.cluster.feeds`). After 101 the answer comes (:mod:`~tricklecast.app.cluster.asking`). So nodes
need no other way to each other than the one for media, wherever the control plane listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote, unquote_to_bytes

import orjson

from tricklecast.app.cluster.asking import Asking, NoAnswer
from tricklecast.app.cluster.peers import NodePlace
from tricklecast.app.data_plane.context import Serve
from tricklecast.trickle.errors import TrickleError


class Open(Protocol):
    """Makes a switched connection to a node."""

    def __call__(
        self, place: NodePlace, /, *, name: str, query: str
    ) -> Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """For a question of this name, and its arguments."""


class NodeQuestions(Asking[NodePlace]):
    """A node's questions to others, and its answers to theirs.

    Args:
        connect: makes a switched connection to a node (:meth:`app.cluster.feeds.Feeds.ask`).
    """

    def __init__(self, connect: Open) -> None:
        super().__init__()
        self._connect = connect

    def named(self, whom: NodePlace) -> str:
        """How an error names a node."""
        return f"node {whom.node} ({whom.url})"

    async def connect(
        self, whom: NodePlace, question: str, /, **about: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask a node, and return the connection on which its answer comes; the caller aborts it.

        Raises:
            NoAnswer: the node cannot be reached, or does not know the question.
        """
        try:
            return await self._connect(whom, name=question, query=quote(orjson.dumps(about), safe=""))
        except TimeoutError as error:
            raise NoAnswer(self.named(whom), "it cannot be reached, or stands still") from error
        except OSError as error:
            raise NoAnswer(self.named(whom), error.strerror or str(error)) from error
        except TrickleError as error:
            raise NoAnswer(self.named(whom), str(error)) from error

    def switch(self, question: str, query: bytes, asker: str) -> Serve | None:
        """Answer another node on the connection that it has switched; ``None``: there is no such question.

        Args:
            query: the arguments. asker: the name of that node.
        """
        try:
            about = orjson.loads(unquote_to_bytes(query))
        except ValueError:
            about = None
        if question not in self._answers or not isinstance(about, dict):
            return None
        return partial(self.answer, f"node {asker}", question, about)
