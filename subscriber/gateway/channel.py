"""A channel of the gateway: one reader for all of its viewers.

Pictures and sound come as packets while their segment arrives, are converted once, and go to each viewer. The reader
begins in the middle of the newest segment, whose first part comes at once: such a burst is no live stream. So viewers
begin at a key picture behind it. The burst itself shows the channel's codecs, and whether browsers can show them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.subscriber.events import LOGGER
from tricklecast.subscriber.gateway.pictures import LOOKED_AT, CannotPass, Pictures
from tricklecast.subscriber.gateway.sound import RATE, Sound
from tricklecast.subscriber.gateway.viewer import Viewer
from tricklecast.subscriber.media.frame import Frame
from tricklecast.subscriber.media.frames import FrameReader, frames
from tricklecast.subscriber.media.opening import h264_units
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.pyav import codec_name
from tricklecast.trickle.terminal import Credentials

if TYPE_CHECKING:
    from av import Packet

CLOCK_HZ: Final = 90_000
"""The clock of RTP for pictures."""

BURST_S: Final = 1.0
"""After this time, in seconds, the burst of the first segment is over, however long the segment goes on."""

WAIT_S: Final = 10.0
"""The longest time, in seconds, that the first viewer waits for media."""


class NoMedia(TrickleError):
    """Nothing came in time."""


class Channel:
    """Reads a channel for its viewers, until it ends or :meth:`close` is called.

    Args:
        url: the channel's, at each node.
        reconnect_s: how long a server that was there may be away; ``None``: for ever.
        over: called when it has ended by itself, with the reason.
        say: gets lines, for people, about media that viewers do not get.

    Attributes:
        viewers: those that watch now.
    """

    def __init__(
        self,
        url: list[str],
        credentials: Credentials,
        reconnect_s: float | None,
        over: Callable[[Channel, str], None],
        say: Callable[[str], None],
    ) -> None:
        self.viewers: set[Viewer] = set()
        self._reader: FrameReader[Frame] = frames(
            url, video="packets", audio="packets", reconnect_s=reconnect_s, **credentials.arguments
        )
        self._name = url[0].partition("?")[0]
        self._over = over
        self._say = say
        self._pictures, self._sound = Pictures(), Sound()
        self._is_silent = False  # its sound cannot be decoded
        self._known = asyncio.Event()
        self._error: TrickleError | None = None
        self._first: int | None = None  # the first segment
        self._began_at = 0.0
        self._looked_at = 0  # pictures
        self._task = asyncio.create_task(self._run())

    async def kinds(self) -> frozenset[str]:
        """Wait until the channel's media is known; returns ``"video"``, ``"audio"``, or both.

        Raises:
            TrickleError: the channel cannot be read.
            CannotPass: browsers cannot show it.
            NoMedia: nothing came in time.
        """
        try:
            async with asyncio.timeout(WAIT_S):
                await self._known.wait()
        except TimeoutError:
            raise NoMedia(f"the channel had no picture and no sound for {WAIT_S:.0f} s") from None
        if self._error is not None:
            raise self._error
        return self._reader.kinds - ({"audio"} if self._is_silent else set())

    async def close(self) -> None:
        """End the subscription."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        reason = "the channel has ended"
        try:
            async with self._reader:
                while (frame := await self._reader.next()) is not None:
                    self._take(frame)
            if not self._known.is_set():
                self._error = NoMedia(reason)
        except TrickleError as error:
            self._error, reason = error, str(error)
        except Exception as error:
            LOGGER.exception("%s cannot be passed on", self._name)
            self._error = NoMedia(f"an error of the gateway: {type(error).__name__}")
            reason = str(self._error)
        self._known.set()
        self._over(self, reason)

    def _take(self, frame: Frame) -> None:
        packet = cast("Packet[Any]", frame.data)
        if self._first is None:
            self._first, self._began_at = frame.seq, frame.came_at
        is_live = frame.seq != self._first or frame.came_at - self._began_at > BURST_S
        if frame.kind == "video":
            self._show(packet, frame.time, is_live=is_live)
        elif not self._is_silent:
            self._play(packet, frame.time)
        if is_live or self._looked_at >= LOOKED_AT or (frame.kind == "audio" and "video" not in self._reader.kinds):
            self._known.set()

    def _show(self, packet: Packet[Any], time_s: float, *, is_live: bool) -> None:
        from av.error import FFmpegError

        codec = codec_name(packet.stream)
        if codec != "h264":
            raise CannotPass(f"its pictures are {codec}, and browsers take H.264: publish with --transcode")
        try:
            picture = self._pictures.convert(h264_units(packet))
        except FFmpegError:  # this packet is damaged
            return
        if picture is None:
            return
        self._looked_at += 1
        self._send("video", picture.data, round(time_s * CLOCK_HZ), CLOCK_HZ, begins=picture.is_key and is_live)

    def _play(self, packet: Packet[Any], time_s: float) -> None:
        try:
            for at, data in self._sound.convert(packet, time_s):
                self._send("audio", data, at, RATE, begins=False)
        except CannotPass as error:
            self._is_silent = True
            self._say(f"{error}: viewers get the pictures alone")

    def _send(self, kind: str, data: bytes, at: int, hz: int, *, begins: bool) -> None:
        from av import Packet

        packet: Packet[Any] = Packet(data)
        packet.pts, packet.time_base = at, Fraction(1, hz)
        for viewer in list(self.viewers):
            viewer.send(kind, packet, begins=begins)
