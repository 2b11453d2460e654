"""MPEG-TS (ISO/IEC 13818-1) across segments: what each muxer starts anew has to go on from segment to segment."""

from __future__ import annotations

from typing import Final

PACKET_BYTES: Final = 188
_SYNC: Final = 0x47
_HAS_PAYLOAD: Final = 0x10


class ContinuityCounters:
    """Numbers the packets of consecutive segments as those of one stream.

    Every packet with a payload counts up its PID's four-bit counter (section 2.4.3.3). A muxer begins at 0, so that
    joined segments would look like lost packets, and demuxers would mark the frames around each cut as corrupt.
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def renumber(self, data: bytes) -> bytes:
        """Number whole packets.

        Args:
            data: a multiple of 188 bytes, as a muxer writes them.
        """
        assert len(data) % PACKET_BYTES == 0, "a muxer writes whole packets"
        packets = bytearray(data)
        for start in range(0, len(packets), PACKET_BYTES):
            assert packets[start] == _SYNC
            flags = packets[start + 3]
            pid = (packets[start + 1] & 0x1F) << 8 | packets[start + 2]
            counter = self._last.get(pid, -1)
            if flags & _HAS_PAYLOAD:
                counter = self._last[pid] = (counter + 1) & 0x0F
            packets[start + 3] = (flags & 0xF0) | (counter & 0x0F)
        return bytes(packets)
