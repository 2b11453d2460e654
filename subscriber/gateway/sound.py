"""Sound for WebRTC, which is Opus: passed on as it is, or encoded once for all viewers of a channel."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.subscriber.gateway.pictures import CannotPass
from tricklecast.trickle.pyav import codec_name, new_decoder

if TYPE_CHECKING:
    from av import CodecContext, Packet
    from av.audio.resampler import AudioResampler

RATE: Final = 48_000
"""Hz, always: RTP counts Opus so."""

STEP: Final = 960
"""Samples of a packet that is encoded here: 20 ms, the length that WebRTC itself uses."""

BIT_RATE: Final = 128_000

MAX_APART: Final = RATE // 10
"""If the times of the source are further from the samples counted, something was lost, and encoding begins anew."""


class Sound:
    """Brings the sound of one stream into Opus packets."""

    def __init__(self) -> None:
        self._decoder: CodecContext | None = None
        self._codec = ""
        self._resampler: AudioResampler | None = None
        self._encoder: Any = None
        self._next = 0  # the time of the next packet that is encoded here, in samples
        self._fed = 0  # the time behind the last frame that was fed, in samples

    def convert(self, packet: Packet[Any], time_s: float) -> list[tuple[int, bytes]]:
        """Convert a packet.

        Args:
            packet: with its stream.
            time_s: its time, in seconds.

        Returns:
            Opus packets with their times, in samples.

        Raises:
            CannotPass: there is no decoder for it.
        """
        from av.error import FFmpegError

        codec, at = codec_name(packet.stream), round(time_s * RATE)
        if codec == "opus" and cast(Any, packet.stream.codec_context).channels <= 2:
            return [(at, bytes(packet))]
        if self._decoder is None or codec != self._codec:
            try:
                self._decoder, self._codec, self._encoder = new_decoder(packet.stream), codec, None
            except ValueError as error:
                raise CannotPass(f"there is no decoder for its sound ({codec})") from error
        try:
            frames = cast(Any, self._decoder).decode(packet)
        except FFmpegError:  # this packet is damaged
            return []
        packets: list[tuple[int, bytes]] = []
        for frame in frames:
            packets += self._encoded(frame, at)
            at += frame.samples * RATE // frame.sample_rate
        return packets

    def _encoded(self, frame: Any, at: int) -> list[tuple[int, bytes]]:
        if self._encoder is None or abs(at - self._fed) > MAX_APART:
            self._begin(at)
        assert self._resampler is not None
        self._fed += frame.samples * RATE // frame.sample_rate
        frame.pts = None  # times are counted in samples, since the source's may have small steps
        packets = []
        for resampled in self._resampler.resample(frame):
            resampled.pts = self._next
            for packet in self._encoder.encode(resampled):
                packets.append((self._next, bytes(packet)))
                self._next += STEP
        return packets

    def _begin(self, at: int) -> None:
        from av import CodecContext
        from av.audio.resampler import AudioResampler

        self._resampler = AudioResampler(format="s16", layout="stereo", rate=RATE, frame_size=STEP)
        encoder: Any = CodecContext.create("libopus", "w")
        encoder.bit_rate, encoder.format, encoder.layout, encoder.sample_rate = BIT_RATE, "s16", "stereo", RATE
        encoder.time_base = Fraction(1, RATE)
        self._encoder, self._next, self._fed = encoder, at, at
