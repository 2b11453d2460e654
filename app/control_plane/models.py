"""Bodies of the control plane's requests and responses: the source of its OpenAPI description."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tricklecast.app.core.segment import State
from tricklecast.app.core.state import ChannelStatistics, SegmentSummary
from tricklecast.app.core.window import Eviction


class WindowModel(BaseModel):
    """Closed segments kept for catching up."""

    segments: int = Field(description="How many.")
    bytes: int = Field(description="Their body bytes.")
    memory: int = Field(description="Bytes of memory for these segments.")
    earliest: int = Field(description="The oldest seq that can be read now.")
    evicted: dict[Eviction, int] = Field(description="Segments that have left the window in this epoch, by reason.")


class PublisherModel(BaseModel):
    """The channel's publishers at this moment."""

    connected: bool = Field(description="Whether a publisher is writing or has preconnected.")
    writing: list[int] = Field(description="Seqs being written by a connected publisher.")
    preconnected: list[int] = Field(description="Seqs whose publisher is connected but has not begun.")
    orphaned: list[int] = Field(description="Open seqs whose publisher has disconnected and may resume.")


class ChannelModel(BaseModel):
    """One channel."""

    name: str
    node: str = Field(description="The name of the server that has the channel: in a cluster, its node.")
    state: Literal["live", "draining"] = Field(
        description="draining: the channel has ended and is still readable for a while."
    )
    epoch: int = Field(description="The epoch of the name.")
    content_type: str
    next_seq: int = Field(description="The head: one past the newest started segment.")
    window: WindowModel
    readers: int = Field(description="Clients that read the channel: subscribers, streams and players of HLS.")
    bytes_in: int = Field(description="Body bytes published in this epoch.")
    bytes_out: int = Field(description="Body bytes delivered by reads that have ended.")
    publisher: PublisherModel
    created_at: datetime
    active_at: datetime = Field(description="When something was last published.")


class ChannelsModel(BaseModel):
    """All channels."""

    channels: list[ChannelModel]
    readers: int
    bytes_held: int = Field(description="Bytes of memory for all segments.")
    unreachable: list[str] = Field(
        default=[], description="Nodes of the cluster that did not answer: their channels are missing."
    )


class SegmentModel(BaseModel):
    """One segment that can be read."""

    seq: int
    state: State
    size: int = Field(description="Body bytes so far.")
    opened_at: datetime = Field(description="When its first byte arrived.")
    closed_at: datetime | None = Field(description="When it closed; null while it is being written.")
    crc32: str | None = Field(
        None, description="CRC-32 of its bytes, 8 hexadecimal digits, if it has closed and that is known."
    )


class SegmentsModel(BaseModel):
    """Segments of a channel, ascending."""

    channel: str
    epoch: int
    next_seq: int = Field(description="The head: one past the newest started segment.")
    segments: list[SegmentModel]
    more: bool = Field(description="Whether there are more segments: ask again with `from` one past the last of these.")


class NewChannelModel(BaseModel):
    """A channel to be created."""

    model_config = ConfigDict(extra="forbid")

    name: str
    content_type: str = Field("", max_length=256, pattern=r"^[\x20-\x7e]*$", examples=["video/mp2t"])


class ProblemModel(BaseModel):
    """Why a request was refused."""

    detail: str


def channel_model(statistics: ChannelStatistics, to_wall: Callable[[float], float], node: str) -> ChannelModel:
    """Describe a channel.

    Args:
        to_wall: turns the registry's clock into seconds since the epoch. node: that has it.
    """
    writing, preconnected = statistics.writing_seqs, statistics.preconnected_seqs
    return ChannelModel(
        name=statistics.name,
        node=node,
        state="draining" if statistics.ended else "live",
        epoch=statistics.epoch,
        content_type=statistics.content_type,
        next_seq=statistics.next_seq,
        window=WindowModel(
            segments=statistics.segments,
            bytes=statistics.bytes,
            memory=statistics.cost,
            earliest=statistics.earliest,
            evicted=dict(statistics.evicted),
        ),
        readers=statistics.readers,
        bytes_in=statistics.bytes_in,
        bytes_out=statistics.bytes_out,
        publisher=PublisherModel(
            connected=bool(writing or preconnected),
            writing=list(writing),
            preconnected=list(preconnected),
            orphaned=[seq for seq in statistics.open_seqs if seq not in writing],
        ),
        created_at=datetime.fromtimestamp(to_wall(statistics.created_at), UTC),
        active_at=datetime.fromtimestamp(to_wall(statistics.active_at), UTC),
    )


def segment_model(segment: SegmentSummary) -> SegmentModel:
    closed_us = segment.closed_us
    return SegmentModel(
        seq=segment.seq,
        state=segment.state,
        size=segment.size,
        opened_at=datetime.fromtimestamp(segment.opened_us / 1e6, UTC),
        closed_at=None if closed_us is None else datetime.fromtimestamp(closed_us / 1e6, UTC),
        crc32=None if segment.crc is None or closed_us is None else f"{segment.crc:08x}",
    )
