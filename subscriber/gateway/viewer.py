"""A viewer: one WebRTC connection, to which packets of a channel are sent as they are.

aiortc pulls: its sender asks a track for the next packet. Each track has a short queue. A packet that finds it full
means that this process cannot send as fast as the channel comes, and it lets the viewer go: late pictures help nobody,
and without one of them those behind it are broken.

WebRTC over UDP pushes nothing back. The viewer itself reports the share that arrives (RTCP), and
:meth:`Viewer.quality` tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiortc import RTCConfiguration, RTCIceServer, RTCPeerConnection, RTCRtpSender, RTCSessionDescription
from aiortc.exceptions import OperationError
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack

from tricklecast.subscriber.events import LOGGER
from tricklecast.trickle.errors import TrickleError

if TYPE_CHECKING:
    from av import Packet

QUEUED: Final = 256
"""Packets that may wait for a viewer's sender: several seconds."""

ANSWER_S: Final = 10.0
"""The gateway answers an offer within this time, in seconds."""

CLOSE_S: Final = 1.0
"""A connection has this long to say good-bye, in seconds."""

_OPUS: Final = "audio/opus"
_H264: Final = "video/h264"


class BadOffer(TrickleError):
    """The offer cannot be read."""


class NothingInCommon(TrickleError):
    """The viewer takes none of the channel's codecs."""


@dataclass(frozen=True, slots=True)
class Quality:
    """The media that a viewer has got.

    Attributes:
        packets: RTP packets that were sent.
        octets: bytes of media in them.
        lost: the share of the packets that was lost on the way, in the last seconds.
        round_trip_s: how long a packet and its answer take, in seconds; ``None`` if that is not known yet.
    """

    packets: int = 0
    octets: int = 0
    lost: float = 0.0
    round_trip_s: float | None = None

    def __str__(self) -> str:
        trip = "" if self.round_trip_s is None else f", round trip {self.round_trip_s * 1000:.0f} ms"
        return f"{self.packets} packets, {self.octets / 1e6:.1f} MB, {self.lost:.0%} lost{trip}"


class _Track(MediaStreamTrack):  # type: ignore[misc]
    """A track that a sender of aiortc pulls packets from."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.is_asked = False  # the connection is there
        self._waiting: asyncio.Queue[Packet[Any]] = asyncio.Queue(QUEUED)

    async def recv(self) -> Packet[Any]:
        self.is_asked = True
        if self.readyState != "live":
            raise MediaStreamError
        return await self._waiting.get()

    def put(self, packet: Packet[Any]) -> bool:
        """Queue a packet; returns whether there was room."""
        try:
            self._waiting.put_nowait(packet)
        except asyncio.QueueFull:
            return False
        return True


class Viewer:
    """One viewer of a channel.

    Args:
        key: names it in URLs; nobody else knows it.
        name: names it in the log.
        gone: called once when the viewer has left, with the reason.
    """

    def __init__(self, key: str, name: str, gone: Callable[[Viewer, str], None], stun: str | None = None) -> None:
        self.key: Final = key
        self.name: Final = name
        self.since: Final = asyncio.get_running_loop().time()
        self.losing: int = 0  # times in a row that it lost too much
        self._gone = gone
        self._is_over = False
        self._tracks: dict[str, _Track] = {}
        self._has_begun = False
        # Without a list aiortc asks a public STUN server.
        self._peer = RTCPeerConnection(RTCConfiguration([RTCIceServer(stun)] if stun else []))
        self._peer.on("connectionstatechange", self._changed)

    @property
    def is_connected(self) -> bool:
        """Whether media can be sent."""
        return bool(self._peer.connectionState == "connected")

    async def answer(self, offer: str, kinds: frozenset[str]) -> str:
        """Answer an offer.

        Args:
            offer: SDP.
            kinds: the channel's media: ``"video"``, ``"audio"``, or both.

        Raises:
            BadOffer: it is no SDP that can be used.
            NothingInCommon: the viewer takes neither.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                for kind, codec in (("video", _H264), ("audio", _OPUS)):
                    if kind in kinds and f"m={kind} " in offer:
                        self._add(kind, codec)
                await self._peer.setRemoteDescription(RTCSessionDescription(offer, "offer"))
                if not self._tracks:
                    wanted = " and ".join(sorted(kinds))
                    raise NothingInCommon(f"the channel has {wanted}, which the offer does not want")
                await self._peer.setLocalDescription(await self._peer.createAnswer())
        except TrickleError:
            raise
        except OperationError as error:  # no codec in common
            raise NothingInCommon("the offer has no H.264 (packetization-mode=1), or no Opus") from error
        except Exception as error:  # aiortc raises errors of many kinds for damaged SDP
            raise BadOffer(f"the offer is no SDP that can be used: {str(error) or type(error).__name__}") from error
        return str(self._peer.localDescription.sdp)

    def _add(self, kind: str, codec: str) -> None:
        track = self._tracks[kind] = _Track(kind)
        transceiver = self._peer.addTransceiver(track, "sendonly")
        usual = RTCRtpSender.getCapabilities(kind).codecs
        transceiver.setCodecPreferences([one for one in usual if one.mimeType.lower() in (codec, "video/rtx")])

    def send(self, kind: str, packet: Packet[Any], *, begins: bool) -> None:
        """Send a packet, if the viewer is there, and has begun or begins with it.

        Args:
            begins: a viewer can begin here.
        """
        track = self._tracks.get(kind)
        if self._is_over or track is None or not track.is_asked:
            return
        self._has_begun |= begins or "video" not in self._tracks
        if self._has_begun and not track.put(packet):
            self.leave("it lags: this process cannot send as fast as the channel comes")

    def leave(self, reason: str) -> None:
        """The viewer is to go."""
        if not self._is_over:
            self._is_over = True
            self._gone(self, reason)

    async def quality(self) -> Quality:
        """The media that it has got so far."""
        packets, octets, lost, trip = 0, 0, 0.0, None
        for sender in self._peer.getSenders():
            for one in (await sender.getStats()).values():
                if one.type == "outbound-rtp":
                    packets, octets = packets + one.packetsSent, octets + one.bytesSent
                elif one.type == "remote-inbound-rtp":
                    lost, trip = max(lost, one.fractionLost / 256), one.roundTripTime
        return Quality(packets, octets, lost, trip)

    async def close(self) -> None:
        """End the connection."""
        self._is_over = True
        for track in self._tracks.values():
            track.stop()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._peer.close()
        except (TimeoutError, ConnectionError):
            pass  # it is of a peer that is gone
        except AttributeError:  # aiortc's, of a connection whose offer was damaged: nothing of it is open
            LOGGER.debug("%s was not closed", self.name, exc_info=True)

    def _changed(self) -> None:
        if self._peer.connectionState == "failed":
            self.leave("its connection has failed")
        elif self._peer.connectionState == "closed":
            self.leave("it has gone")
