"""MPEG-TS (ISO/IEC 13818-1), as far as a check needs it: packets, program tables, and the heads of PES packets.

It takes any bytes: what makes no sense is counted, and never an error. It keeps a fixed number of bytes per PID.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tricklecast.subscriber.check.elementary import CLOCK_HZ, Elementary
from tricklecast.subscriber.check.media import MAX_TRACKS, Container, Fault, Kind, Media, TrackNotes
from tricklecast.subscriber.check.psi import Sections, is_intact, programs, streams

PACKET_BYTES: Final = 188
WRAP: Final = 1 << 33
"""Times have 33 bits, so they begin again after 26.5 hours."""

SYNC: Final = 0x47
_PAT: Final = 0
_NULL: Final = 0x1FFF
_RESYNC_PACKETS: Final = 3
"""How many sync bytes in a row show where packets begin."""

_RESYNC_BYTES: Final = (_RESYNC_PACKETS - 1) * PACKET_BYTES + 1


def looks_like_mpegts(data: bytes) -> bool:
    """Whether packets begin somewhere in the first of them."""
    return _find_sync(data, 0) < PACKET_BYTES and len(data) >= PACKET_BYTES


def _find_sync(data: bytes, at: int) -> int:
    """Where the next packet begins, as far as there are bytes to tell; else the end."""
    while (at := data.find(SYNC, at)) >= 0:
        if all(data[i] == SYNC for i in range(at, min(len(data), at + _RESYNC_BYTES), PACKET_BYTES)):
            return at
        at += 1
    return len(data)


class Multiplex:
    """What goes on from segment to segment: counters, and which PIDs carry what."""

    def __init__(self) -> None:
        self.counters: dict[int, int] = {}
        self.tables: dict[int, dict[int, tuple[Kind, str]]] = {}
        self.streams: dict[int, tuple[Kind, str]] = {}

    def associate(self, tables: list[int]) -> None:
        """These PIDs carry program tables, and no others do."""
        self.tables = {pid: self.tables.get(pid, {}) for pid in tables}

    def map(self, table: int, streams: dict[int, tuple[Kind, str]]) -> None:
        """A program's streams."""
        self.tables[table] = streams
        merged = {pid: what for program in self.tables.values() for pid, what in program.items()}
        self.streams = dict(list(merged.items())[:MAX_TRACKS])

    def interrupt(self) -> None:
        """Something is missing between this segment and the next: counters need not go on."""
        self.counters.clear()


class MpegtsReader:
    """Reads one segment.

    Args:
        multiplex: of the channel.
    """

    def __init__(self, multiplex: Multiplex) -> None:
        self._multiplex = multiplex
        self._rest = b""
        self._in_sync = True
        self._faults: Counter[Fault] = Counter()
        self._met: set[int] = set()
        self._repeated: set[int] = set()
        self._payloads: dict[int, bytes] = {}
        self._sections: dict[int, Sections] = {}
        self._tracks: dict[int, Elementary] = {}
        self._has_pat = self._has_tables = False
        self._early: set[int] = set()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the segment."""
        self._rest = self._packets(self._rest + data, _RESYNC_BYTES)

    def finish(self) -> Media:
        """What the segment holds."""
        self._rest = self._packets(self._rest, PACKET_BYTES)
        if self._rest and self._in_sync:
            if self._rest[0] == SYNC:
                self._faults[Fault.PARTIAL_PACKET] += 1
            else:
                self._lose_sync()
        tracks = tuple(track.finish() for _, track in sorted(self._tracks.items()))
        return Media(Container.MPEGTS, tracks, self._has_tables and not self._begins_early(), dict(self._faults))

    def _begins_early(self) -> bool:
        """Whether the video, or the sound where there is none, begins before the tables; a bit of sound may."""
        kinds = {pid: kind for pid, (kind, _) in self._multiplex.streams.items()}
        lead = Kind.VIDEO if Kind.VIDEO in kinds.values() else Kind.AUDIO
        return any(kinds.get(pid) is lead for pid in self._early)

    def _packets(self, data: bytes, needed: int) -> bytes:
        """Read packets; the bytes that are left.

        Args:
            data: what was left before, and what came since.
            needed: how many bytes have to be there to tell where packets begin again.
        """
        at = 0
        while len(data) - at >= PACKET_BYTES:
            if not self._in_sync:
                at = _find_sync(data, at)
                if len(data) - at < needed:
                    break
                self._in_sync = True
            elif data[at] != SYNC:
                self._lose_sync()
            else:
                self._packet(data[at : at + PACKET_BYTES])
                at += PACKET_BYTES
        return data[at:]

    def _lose_sync(self) -> None:
        self._faults[Fault.SYNC_LOST] += 1
        self._in_sync = False

    def _packet(self, packet: bytes) -> None:
        pid = (packet[1] & 0x1F) << 8 | packet[2]
        if pid == _NULL:
            return
        if packet[1] & 0x80:
            self._faults[Fault.TRANSPORT_ERROR] += 1
            return
        start, discontinuity = 4, False
        if packet[3] & 0x20:
            start += 1 + packet[4]
            discontinuity = packet[4] > 0 and bool(packet[5] & 0x80)
        if start > PACKET_BYTES:
            self._faults[Fault.BAD_PACKET] += 1
            return
        if discontinuity:
            # A counter may jump where its packet says so (2.4.3.5).
            self._multiplex.counters.pop(pid, None)
        payload = packet[start:]
        if packet[3] & 0x10 and self._counts_up(pid, packet[3] & 0x0F, payload):
            if packet[3] & 0xC0:
                self._faults[Fault.SCRAMBLED] += 1
            else:
                self._payload(pid, payload, bool(packet[1] & 0x40))

    def _counts_up(self, pid: int, counter: int, payload: bytes) -> bool:
        """Whether the packet is a new one; a packet may be sent twice (2.4.3.3), with the same payload."""
        before = self._payloads.get(pid)
        self._payloads[pid] = payload
        last = self._multiplex.counters.get(pid)
        self._multiplex.counters[pid] = counter
        is_first = pid not in self._met
        self._met.add(pid)
        if last is None or counter == (last + 1) & 0x0F:
            self._repeated.discard(pid)
            return True
        if counter == last and payload == before and pid not in self._repeated:
            self._repeated.add(pid)
            return False
        self._faults[Fault.LOST_AT_SEAM if is_first else Fault.LOST_INSIDE] += 1
        return True

    def _payload(self, pid: int, payload: bytes, starts: bool) -> None:
        if pid == _PAT or pid in self._multiplex.tables:
            self._table(pid, payload, starts)
            return
        if not self._has_tables:
            self._early.add(pid)
        if pid in self._multiplex.streams:
            self._track(pid).feed(payload, starts)

    def _table(self, pid: int, payload: bytes, starts: bool) -> None:
        for section in self._sections.setdefault(pid, Sections()).feed(payload, starts):
            if not is_intact(section):
                self._faults[Fault.BAD_TABLE] += 1
            elif pid == _PAT:
                self._has_pat = True
                self._multiplex.associate([table for table in programs(section) if table != _PAT])
            elif found := streams(section):
                self._has_tables = self._has_pat
                self._multiplex.map(pid, found)

    def _track(self, pid: int) -> Elementary:
        track = self._tracks.get(pid)
        if track is None:
            kind, codec = self._multiplex.streams[pid]
            notes = TrackNotes(f"{kind} {pid:#x}", kind, codec, CLOCK_HZ, WRAP)
            track = self._tracks[pid] = Elementary(notes, codec)
        return track
