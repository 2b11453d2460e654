"""One face: at each node of a cluster the control plane shows, and changes, all of the cluster.

**The problem.** A client of the API comes to any node. A list needs the channels of all nodes; a request about one
channel, or one node, has to be answered by that node.

**The idea.** Each node answers for itself whatever other nodes ask (:class:`~tricklecast.app.cluster.asking.Asking`),
and the node to which the client has come joins the answers. A request about one channel is passed on as a whole: that
node answers it by an application of its own, which has the routes without the access control, since the first node has
authorized the client. The directory is at every node, so a list of nodes asks nobody.

**A node that does not answer** delays nothing for longer than its deadline, and is named: in the field ``unreachable``
of a list, and in ``Lp-Trickle-Degraded``. What is about that node alone gets 503.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

import orjson
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tricklecast.app.changes import Changes
from tricklecast.app.clock import to_us
from tricklecast.app.cluster.asking import ANSWER_S, SOON_S, Asker, NoAnswer
from tricklecast.app.cluster.peers import ChannelPlace, NodePlace, Peers
from tricklecast.app.cluster.questions import NodeQuestions
from tricklecast.app.cluster.replicas import Cluster
from tricklecast.app.control_plane.api import (
    Created,
    Overview,
    Page,
    RateLimitedPage,
    Troubles,
    channels_router,
    invalid_input,
    method_not_allowed,
    out_of_memory,
)
from tricklecast.app.control_plane.middleware import (
    MAY_MANAGE,
    PASSED,
    RECORD,
    MayManage,
    Passed,
    RecordRequests,
    everything,
    refuse,
)
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.responses import Reply
from tricklecast.app.encoding import encode
from tricklecast.app.nodes.changes import ClusterChanges
from tricklecast.app.nodes.routes import Moves, NodeModel, NodesModel, nodes_router
from tricklecast.app.workers.facts import answer_facts
from tricklecast.app.workers.overview import RETRY_S, decoded, only, overview_answers
from tricklecast.trickle.errors import InvalidChannelName, TrickleError
from tricklecast.trickle.paths import is_reserved, parse_channel
from tricklecast.trickle.records import AccessRecord, Reason

CHANGE_S: Final = 45.0
"""The same for a move or a drain: both wait for replicas, and for the ends of segments."""

RECORDING_S: Final = 2.0
"""A node that has not said by then whether it has a recording has none."""

LEFT: Final = "left"
"""The state of a node that was stopped in order: nobody asks it."""

_OF_CHANNEL: Final = re.compile(r"/api/v1/channels/([^/]+)(?:/.*)?")
_OF_NODE: Final = re.compile(r"/api/v1/nodes/([^/]+)/.*")
_SLOW: Final = re.compile(r"/api/v1/(channels/[^/]+/move|nodes/[^/]+/drain)")


class NodeView(Protocol):
    """A node in the directory (:class:`app.cluster.directory.Node`)."""

    name: str
    term: int
    url: str
    load: float
    state: str
    version: str


class Owner(Protocol):
    """A term of a node."""

    @property
    def node(self) -> str:
        """Its name."""


class Entry(Protocol):
    """A channel in the directory."""

    @property
    def owner(self) -> Owner:
        """The node that has it."""

    ended: bool


class Directory(Protocol):
    """The directory, as the control plane reads it (:class:`app.cluster.directory.Directory`)."""

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """All nodes by name, this one included."""

    @property
    def channels(self) -> Mapping[str, Entry]:
        """All entries by name, those of ended channels included."""

    @property
    def degraded(self) -> str:
        """Why decisions cannot be made at present; empty if they can."""

    def place(self, channel: str) -> ChannelPlace | None:
        """Where a channel is; ``None`` if nobody has it."""

    def former(self, channel: str) -> ChannelPlace | None:
        """Where a channel was that has ended, as long as the directory remembers it."""

    def reachable(self, name: str) -> bool:
        """Whether a node has renewed its lease, as far as this node knows."""


class Peer(NamedTuple):
    """Another node, to be asked."""

    node: str
    url: str


class Face:
    """The control plane of a cluster, at one node.

    Args:
        plane, own, changes: of this node. peers: its name. directory: knows the nodes. cluster: claims channels.
        moving: moves channels of this node. readers: the routes about readers.

    Attributes:
        overview, changes: of the cluster. nodes: the routes about nodes.
        questions: to other nodes.
    """

    def __init__(
        self,
        plane: DataPlane,
        own: Overview,
        changes: Changes,
        peers: Peers,
        directory: Directory,
        cluster: Cluster,
        moving: Moves,
        readers: APIRouter,
    ) -> None:
        self._readers = readers
        self._plane, self._own, self._peers, self._directory, self._cluster = plane, own, peers, directory, cluster
        self.questions: NodeQuestions = cluster.feeds.questions
        self.overview = NodesOverview(self, own, cluster)
        self.nodes = nodes_router(self._listed, moving, peers.me)
        self._for_nodes = self._application()
        facts = answer_facts(changes)
        self.changes = ClusterChanges(peers.me, self.questions, self.others, facts)
        cluster.recorded.find = self._find_recording
        answers = {"facts": facts, "create": self._create, "api": self._answer, "recording": self._recording}
        self.questions.start({**overview_answers(own), **answers})

    # Where things are.

    def elsewhere(self, channel: str) -> ChannelPlace | None:
        """The other node that answers for a channel; ``None``: this one."""
        if is_reserved(channel):
            return None
        place = self._directory.place(channel)
        if place is None and self._plane.registry.live(channel) is None:
            former = self._directory.former(channel)
            place = former if former is not None and former.reachable else None
        return None if place is None or place.node == self._peers.me else place

    def is_new(self, channel: str) -> bool:
        """Whether nobody has a channel, or its owner is out of reach."""
        place = self._directory.place(channel)
        return self._plane.registry.live(channel) is None and (place is None or not place.reachable)

    def reachable(self, place: NodePlace) -> bool:
        """Whether a node has renewed its lease, as far as this one knows."""
        return self._directory.reachable(place.node)

    def others(self) -> dict[str, Peer]:
        """The other nodes by name, those included that others take for dead: clients may reach them all the same."""
        nodes = (one for one in self._directory.nodes.values() if one.name != self._peers.me)
        return {one.name: Peer(one.name, one.url) for one in nodes if one.url and one.state != LEFT}

    async def ask_others(self, question: str, within_s: float, **about: Any) -> dict[str, bytes | NoAnswer]:
        """The answers of all other nodes, by name. Those whose lease has ended get :data:`SOON_S`."""
        groups: tuple[list[Peer], list[Peer]] = [], []
        for peer in self.others().values():
            groups[self._directory.reachable(peer.node)].append(peer)
        gone, there = groups
        found = await asyncio.gather(
            self.questions.ask_each(gone, question, min(within_s, SOON_S), **about),
            self.questions.ask_each(there, question, within_s, **about),
        )
        return {peer.node: answer for peer, answer in zip(gone + there, found[0] + found[1], strict=True)}

    # Recordings.

    async def _find_recording(self, channel: str) -> NodePlace | None:
        """The other node that has the newest recording of a channel; ``None``: there is none, or it is here.

        A channel that has moved left what it had before at each node: the one with most segments counts.
        """
        answers = await self.ask_others("recording", RECORDING_S, channel=channel)
        found = {node: orjson.loads(answer) for node, answer in answers.items() if isinstance(answer, bytes)}
        newest = max(found, key=lambda node: found[node], default=None)
        if newest is None or found[newest] <= self._recorded(channel):
            return None
        return self.others().get(newest)

    async def _recording(self, asker: Asker, channel: str) -> None:
        await asker.send(encode(self._recorded(channel)))

    def _recorded(self, channel: str) -> list[int]:
        """When the channel began whose recording is here, microseconds since 1970, and how many segments it has."""
        recordings = self._plane.recordings
        past = None if recordings is None else recordings.channel_of(channel)
        if past is None:
            return [0, 0]
        return [to_us(past.created_at), sum(1 for _ in past.listed(0, 0, to_us))]

    def _listed(self) -> NodesModel:
        directory = self._directory
        counts = Counter(entry.owner.node for entry in directory.channels.values() if not entry.ended)
        nodes = [
            NodeModel(
                name=one.name,
                url=one.url,
                state=one.state,
                reachable=directory.reachable(one.name),
                this=one.name == self._peers.me,
                load=one.load,
                version=one.version,
                channels=counts[one.name],
                term=one.term,
            )
            for one in sorted(directory.nodes.values(), key=lambda one: one.name)
        ]
        return NodesModel(nodes=nodes, degraded=directory.degraded)

    # Requests that another node answers.

    def place_of(self, scope: Scope) -> NodePlace | None:
        """The other node that answers a request, if the client may ask it."""
        path = scope["path"]
        if (found := _OF_NODE.fullmatch(path)) is not None:
            node = self._directory.nodes.get(found[1])
            return None if node is None or node.name == self._peers.me else Peer(node.name, node.url)
        if (found := _OF_CHANNEL.fullmatch(path)) is None:
            return None
        try:
            channel = parse_channel(found[1].replace("%", "%25"))
        except InvalidChannelName:
            return None
        visible: MayManage = scope.get(MAY_MANAGE, everything)
        return self.elsewhere(channel) if visible(channel) else None

    async def pass_on(self, scope: Scope, place: NodePlace) -> Response | Reply:
        """Let another node answer a request."""
        record: AccessRecord = scope[RECORD]
        passed: Passed | None = scope.get(PASSED)
        hops = (*(() if passed is None else passed.hops), self._peers.me)
        if (loop := self._peers.looped(hops)) is not None:
            return loop
        record.answered_by = place.node
        try:
            answer = await self.questions.ask(
                place,
                "api",
                within_s=CHANGE_S if _SLOW.fullmatch(scope["path"]) else ANSWER_S,
                method=scope["method"],
                path=scope["path"],
                query=scope["query_string"].decode("latin-1"),
                hops=hops,
                ip=record.ip,
                client=record.client,
            )
        except NoAnswer as error:
            record.answered_by, record.reason, record.retry_after_ms = None, Reason.UNREACHABLE, RETRY_S * 1000
            return Response(
                encode({"detail": str(error)}), 503, {"Retry-After": str(RETRY_S)}, media_type="application/json"
            )
        head, _, body = answer.partition(b"\n")
        status, headers = orjson.loads(head)
        if (wait_s := headers.get("retry-after")) is not None:
            record.retry_after_ms = int(wait_s) * 1000
        return Response(body, status, headers)

    async def _create(self, asker: Asker, name: str, content_type: str) -> None:
        try:
            made = await self.overview.make(name, content_type)
        except TrickleError as error:
            made = Created(503, {"Retry-After": str(RETRY_S)}, encode({"detail": str(error)}).decode())
        await asker.send(encode(tuple(made)))

    async def _answer(
        self, asker: Asker, method: str, path: str, query: str, hops: list[str], ip: str | None, client: str | None
    ) -> None:
        """Answer a request that another node has passed on."""
        head: Message = {}
        body = bytearray()

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
            else:
                body.extend(message.get("body", b""))

        scope: Scope = {
            **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""},
            **{"method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode("latin-1")},
            **{"headers": [], "client": None if ip is None else (ip, 0), "server": None},
            PASSED: Passed(tuple(hops), client),
        }
        await self._for_nodes(scope, receive, send)
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in head["headers"]}
        await asker.send(encode([head["status"], fields]) + b"\n" + body)

    def _application(self) -> ASGIApp:
        """The application for requests that another node passes on: channels and nodes, as this node alone has them."""
        api = FastAPI(openapi_url=None)
        routers = [channels_router(self._plane, self._own), self._readers, self.nodes]
        for router in routers:
            api.include_router(router)
        api.add_exception_handler(405, method_not_allowed(routers))
        api.add_exception_handler(RequestValidationError, invalid_input)
        api.add_exception_handler(MemoryError, out_of_memory(self._plane))
        api.add_middleware(PassOn, face=self)
        api.add_middleware(RecordRequests, plane=self._plane)
        return api


class PassOn:
    """ASGI middleware: the innermost one, so that the client is authorized."""

    def __init__(self, app: ASGIApp, face: Face) -> None:
        self._app, self._face = app, face

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = self._face.place_of(scope) if scope["type"] == "http" else None
        if place is None:
            await self._app(scope, receive, send)
            return
        answer = await self._face.pass_on(scope, place)
        if isinstance(answer, Reply):
            await refuse(answer, scope, receive, send)
        else:
            await answer(scope, receive, send)


class NodesOverview:
    """The :class:`Overview` of the cluster; metrics are those of this node, since each node is scraped.

    Args:
        face: knows the other nodes. own: of this node. cluster: claims channels.
    """

    def __init__(self, face: Face, own: Overview, cluster: Cluster) -> None:
        self._face, self._own, self._cluster = face, own, cluster
        self._channels = RateLimitedPage(self._joined)

    async def _joined(self) -> Page:
        own, answers = await asyncio.gather(self._own.channels(everything), self._face.ask_others("channels", ANSWER_S))
        begun = time.thread_time()
        pages = [own, *(decoded(answer) for answer in answers.values() if not isinstance(answer, NoAnswer))]
        missing = sorted(name for name, answer in answers.items() if isinstance(answer, NoAnswer))
        text = joined_lists([page.text for page in pages], missing)
        cost_s = time.thread_time() - begun + sum(page.cost_s for page in pages)
        return Page(text, cost_s, max(page.age_s for page in pages), missing=tuple(missing))

    async def channels(self, visible: MayManage) -> Page:
        """The channels of all nodes that a caller may see, in the order of their creation."""
        page = await self._channels.get()
        return page if visible is everything else page._replace(text=only(visible, page.text))

    async def create(self, name: str, content_type: str) -> Created:
        """Have a channel made by its owner, or by the node at which a new one is to begin."""
        place: NodePlace | None = self._face.elsewhere(name)
        if place is None and not is_reserved(name) and self._face.is_new(name):
            place = self._cluster.elsewhere()
        try:
            if place is None or not self._face.reachable(place):
                return await self.make(name, content_type)
            answer = await self._face.questions.ask(place, "create", name=name, content_type=content_type)
        except TrickleError as error:
            text = encode({"detail": str(error)}).decode()
            return Created(503, {"Retry-After": str(RETRY_S)}, text, Reason.UNREACHABLE)
        return Created(*orjson.loads(answer))

    async def make(self, name: str, content_type: str) -> Created:
        """Make a channel here, unless the cluster decides that another node has it: then the client is to ask again.

        Raises:
            TrickleError: it cannot be taken over now.
        """
        if not is_reserved(name) and self._face.is_new(name):
            await self._cluster.claim(name)
        return await self._own.create(name, content_type)

    async def metrics(self) -> Page:
        """In Prometheus' text format."""
        return await self._own.metrics()

    async def troubles(self) -> Troubles:
        """The parts of this node that do not work at present."""
        return await self._own.troubles()


def joined_lists(texts: Iterable[bytes], missing: list[str]) -> bytes:
    """Join the lists of channels (:class:`ChannelsModel`) of nodes, in the order of the channels' creation.

    While a channel goes from one node to another, both may have it: the one with the higher epoch counts, or else the
    one that lives.
    """
    lists = [orjson.loads(text) for text in texts]
    newest: dict[str, dict[str, Any]] = {}
    own: list[dict[str, Any]] = []  # each node has channels whose names begin with _ of its own
    for channel in (channel for part in lists for channel in part["channels"]):
        if is_reserved(channel["name"]):
            own.append(channel)
        elif (known := newest.get(channel["name"])) is None or _age(known) < _age(channel):
            newest[channel["name"]] = channel
    sums = {name: sum(part[name] for part in lists) for name in ("readers", "bytes_held")}
    channels = sorted([*own, *newest.values()], key=itemgetter("created_at"))
    return orjson.dumps({"channels": channels, **sums, "unreachable": missing})


def _age(channel: dict[str, Any]) -> tuple[int, bool]:
    return channel["epoch"], channel["state"] == "live"
