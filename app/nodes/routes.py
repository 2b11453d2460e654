"""The routes about the nodes of a cluster: list them, drain one, move a channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Protocol

from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import BaseModel, Field

from tricklecast.app.control_plane.api import ChannelName, checked
from tricklecast.app.control_plane.middleware import Visible
from tricklecast.app.control_plane.models import ProblemModel

_STATUS: Final = {"no_node": 404, "busy": 409, "refused": 409, "undecided": 503}
"""The status of a move that was not made, by its outcome."""

RETRY_S: Final = 1
"""``Retry-After`` where NATS has not answered."""


class NodeModel(BaseModel):
    """A node of the cluster."""

    name: str
    url: str = Field(description="Where other nodes and clients reach it.")
    state: str = Field(
        description="`serving`; `draining`: it gives its channels away; `restoring`: it puts back what the directory "
        "has lost; `left`: it was stopped in order; `deposed`: another node has ended its term, since it was silent."
    )
    reachable: bool = Field(description="Whether it has renewed its lease, as far as the node knows that answers.")
    this: bool = Field(description="Whether it is the node that answers.")
    load: float = Field(description="How much it has to do, as it says.")
    version: str
    channels: int = Field(description="How many live channels it owns.")
    term: int = Field(description="Grows with each start of the node: milliseconds since 1970, as a rule.")


class NodesModel(BaseModel):
    """All nodes of the cluster, by name."""

    nodes: list[NodeModel]
    degraded: str = Field(
        description="Why the node that answers can decide nothing now, for example since NATS is out of reach; empty "
        "if it can."
    )


class MovedModel(BaseModel):
    """A channel that has another owner now."""

    channel: str
    node: str = Field(description="The node that has it.")


class DrainedModel(BaseModel):
    """The result of a drain."""

    node: str
    moved: int = Field(description="Channels that other nodes have now.")
    left: dict[str, str] = Field(description="Channels that have stayed, and why.")


class Moves(Protocol):
    """Gives channels of this node to others (:class:`app.cluster.moving.Moving`)."""

    async def move(self, channel: str, to: str) -> tuple[str, str]:
        """Give one channel away; how that has ended, and why."""

    async def drain(self) -> tuple[int, Mapping[str, tuple[str, str]]]:
        """Give all channels away; how many have moved, and how each of the others has ended."""


def nodes_router(listed: Callable[[], NodesModel], moving: Moves, me: str) -> APIRouter:
    """The routes about nodes, and the move of a channel. A request that is not for this node does not come here.

    Args:
        listed: all nodes. moving: moves channels of this node. me: its name.
    """
    router = APIRouter(prefix="/api/v1", tags=["cluster"])

    @router.get("/nodes", summary="List the nodes of the cluster")
    async def nodes() -> NodesModel:
        """In a cluster only."""
        return listed()

    @router.post("/nodes/{node}/drain", summary="Drain a node", responses={404: {"model": ProblemModel}})
    async def drain(node: Annotated[str, Path(description="The node's name.")]) -> DrainedModel:
        """The node gives all of its channels to other nodes, and takes no new ones from now on. Then it can be stopped.

        Its publishers and readers go on at the other nodes. The answer comes when all have moved, 20 s at most.
        """
        if node != me:
            raise HTTPException(404, f"no such node: {node}")
        moved, left = await moving.drain()
        return DrainedModel(node=node, moved=moved, left={name: why(*outcome) for name, outcome in left.items()})

    @router.post(
        "/channels/{name}/move",
        summary="Move a channel to another node",
        responses={status: {"model": ProblemModel} for status in (400, 404, 409, 503)},
    )
    async def move(
        name: ChannelName, visible: Visible, to: Annotated[str, Query(description="The name of the other node.")]
    ) -> MovedModel:
        """The channel goes on there in the same epoch, as soon as the segment ends that is being written.

        Its publishers and readers lose nothing. The answer comes when it has moved, 10 s at most: 409 if the segment
        was still written then, or the other node did not take the channel.
        """
        channel = checked(name, visible)
        if to == me:
            return MovedModel(channel=channel, node=me)
        outcome, detail = await moving.move(channel, to)
        if outcome == "moved":
            return MovedModel(channel=channel, node=to)
        if outcome == "not_owner":  # a channel that another node has is moved by that node
            raise HTTPException(404, "no such channel")
        headers = {"Retry-After": str(RETRY_S)} if outcome == "undecided" else None
        raise HTTPException(_STATUS[outcome], why(outcome, detail), headers)

    return router


def why(outcome: str, detail: str) -> str:
    """Why a channel has not moved, for people."""
    return detail or outcome.replace("_", " ")
