"""How a mirror stands, for people and programs: what its status, its metrics and its alerts say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tricklecast.app.mirror.registry import ChannelRow, RowState, SegmentRow


class Trouble(NamedTuple):
    """Something that went wrong. at: seconds since 1970. channel: ``""`` for the source or the registry."""

    at: float
    channel: str
    text: str


@dataclass(frozen=True, slots=True)
class Status:
    """How the mirror stands.

    Attributes:
        source: its address. state: ``looking``, ``following``, ``unreachable`` or ``stopped``.
        unreachable_since, last_contact: seconds since 1970; ``None`` if it is reached, and if it never was.
        channels, segments: rows by state; without any the mirror is complete. verified: segments that were read again.
        stores: whether history is copied; otherwise the copies have the windows of their channels only.
        live: channels at their live edge.
        segments_behind, bytes_behind: closed segments of the source that are not here, as far as is known.
        seconds_behind: for how long something that concerns live channels has not been here; ``None``: nobody knows.
        oldest_dirty: a channel of which something is not here, and since when (seconds since 1970).
        rate: bytes per second that came of late. seconds_left: until all is here at this rate; ``None``: nobody knows.
        received: bytes in all. mismatches: checksums that were wrong. failures: what has gone wrong; errors: the last.
    """

    source: str
    state: str
    unreachable_since: float | None
    last_contact: float | None
    channels: Mapping[str, int]
    segments: Mapping[str, int]
    verified: int
    stores: bool
    live: int
    segments_behind: int
    bytes_behind: int
    seconds_behind: float | None
    oldest_dirty: tuple[str, float] | None
    rate: float
    seconds_left: float | None
    received: int
    mismatches: int
    failures: int
    errors: tuple[Trouble, ...]

    @property
    def complete(self) -> bool:
        """Whether all that is known of the source is here, but for what this server would not keep."""
        rows = (*self.channels.items(), *self.segments.items())
        following = self.state == "following" and self.live == self.channels.get(RowState.SYNCED, 0)
        done = RowState.SYNCED, RowState.BEYOND, RowState.DELETED
        return following and not any(n for state, n in rows if state not in done)


@dataclass(frozen=True, slots=True)
class Loss:
    """What a promotion would lose, exactly, as far as is known.

    Attributes:
        channels: those that may differ from the source. arriving: those whose window has not come wholly.
        segments: those that the source has, or had, and that are not here.
        contact_age: seconds since the source was last heard: what it has got since then nobody knows.
    """

    channels: Sequence[ChannelRow]
    arriving: Sequence[str]
    segments: Sequence[SegmentRow]
    contact_age: float | None

    def __bool__(self) -> bool:
        return bool(self.channels or self.arriving or self.segments) or self.contact_age is None
