"""A scene: some minutes of a channel or a server in which a storm, or its look-alike, happens. Times are in seconds.

A scene knows neither when nor on which server it will be shown. Its own time begins at 0, its servers are numbers in
the place of names, and :mod:`analytics.simulate.plan` moves it to its place in the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.channels import LiveChannel
from tricklecast.analytics.simulate.entries import Entry, entry_of
from tricklecast.analytics.simulate.people import Client, make_client
from tricklecast.analytics.simulate.tally import Tally
from tricklecast.trickle.records import AccessRecord, Event, Kind, Op, Reason

QUIET_S: Final = 150.0
"""So long before a storm without a trigger nothing happens that could be taken for one. Seconds."""

_WORDS: Final = ("cam", "studio", "gate", "film", "match", "stage", "relay", "lobby", "kitchen", "news", "match")

Answer = Callable[[float, Client, int], AccessRecord]
"""Makes the line of one request: when (seconds of the scene), whose, which of its requests (from 0)."""


@dataclass(slots=True)
class Scene:
    """What a script writes into.

    Attributes:
        name: the script's name with its number: no two scenes of a log have the same.
        rng: the only source of chance.
        entries: its lines. tallies: its storms and traps.
        company: readers that every host of the scene gets besides its own.
        outages: servers that are away, with from when to when in seconds.
    """

    name: str
    rng: random.Random
    entries: list[Entry] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)
    company: list[Client] = field(default_factory=list)
    outages: list[tuple[str, float, float]] = field(default_factory=list)

    # --- who and where ------------------------------------------------------------------------------------------------

    def channel(self) -> str:
        """A name for a channel."""
        return f"{self.rng.choice(_WORDS)}-{self.rng.getrandbits(36):09x}"

    def client(self, **known: Any) -> Client:
        """A client; see :func:`~analytics.simulate.people.make_client`."""
        return make_client(self.rng, **known)

    def clients(self, count: int, **known: Any) -> list[Client]:
        """So many clients, mostly of one release."""
        if "ua" not in known and self.rng.random() < 0.7:
            known["ua"] = self.client().ua
        return [self.client(**known) for _ in range(count)]

    def host(self, *, at: float = 0.0, cadence: float | None = None, readers: int | None = None) -> LiveChannel:
        """A channel with a publisher and some readers, created at a moment of the scene."""
        rng = self.rng
        every = micros(cadence or rng.choice((2.0, 4.0, 4.0, 6.0)))
        publisher = self.client(named=rng.random() < 0.7)
        live = LiveChannel(rng, "0", self.channel(), publisher, every, micros(at) + every, mishaps=0.0)
        for _ in range(rng.randrange(1, 4) if readers is None else readers):
            live.join(self.client())
        for client in self.company:
            live.join(client)
        live.create(self.entries)
        return live

    # --- what happens -------------------------------------------------------------------------------------------------

    def storm(self, storm: str, trigger: str | None = None, *, also: tuple[str, ...] = ()) -> Tally:
        """A storm begins to be counted."""
        tally = Tally(self.name, storm, trigger, also=also)
        self.tallies.append(tally)
        return tally

    def trap(self) -> Tally:
        """A look-alike begins to be counted."""
        tally = Tally(self.name)
        self.tallies.append(tally)
        return tally

    def event(self, at: float, event: Event, channel: str | None = None, *, node: str = "0", **more: Any) -> None:
        """Something happens to a channel or a server."""
        record = AccessRecord(micros(at), node=node, kind=Kind.EVENT, event=event, channel=channel, **more)
        self.entries.append(entry_of(record))

    def exchange(self, at: float, client: Client, channel: str | None, **fields: Any) -> AccessRecord:
        """One request with its answer; a GET that is answered at once unless the fields say otherwise.

        The line is made here: changing the record that is returned changes nothing.
        """
        wait = int(self.rng.lognormvariate(6.0, 0.7))
        seq = fields.get("seq", 0)
        known: dict[str, Any] = {
            "node": "0",
            "op": Op.READ,
            "method": "GET",
            "path": f"/trickle/{channel}/{seq}",
            "epoch": 1,
            "bytes_out": 0,
            "wait_us": wait,
            "dur_us": wait + 15,
            "attempt": 1,
        }
        who = {"client": client.key, "ip": client.ip, "conn": client.conn(), "ua": client.ua, "release": client.release}
        record = AccessRecord(micros(at), channel=channel, **known | who | fields)
        self.entries.append(entry_of(record))
        return record

    def not_found(self, at: float, client: Client, channel: str, seq: int = -1, /, **fields: Any) -> AccessRecord:
        """404."""
        usual: dict[str, Any] = {"status": 404, "seq": seq, "reason": Reason.NOT_FOUND, "bytes_out": 16, "epoch": None}
        return self.exchange(at, client, channel, **usual | fields)

    def missing(self, at: float, client: Client, channel: str, seq: int, head: int, /, **fields: Any) -> AccessRecord:
        """470."""
        usual: dict[str, Any] = {"status": 470, "seq": seq, "next_seq": head, "bytes_out": 15}
        usual |= {"reason": Reason.AHEAD if seq >= head else Reason.GONE, "retry_after_ms": 1000}
        return self.exchange(at, client, channel, **usual | fields)

    def refused(self, at: float, client: Client, channel: str, status: int = 503, /, **fields: Any) -> AccessRecord:
        """429 or 503."""
        told = 1000 + self.rng.randrange(1000)
        usual: dict[str, Any] = {"status": status, "seq": -1, "bytes_out": 21, "retry_after_ms": told}
        usual |= {"reason": Reason.limit("per_ip" if status == 429 else "readers")}
        return self.exchange(at, client, channel, **usual | fields)

    def failed(self, at: float, client: Client, channel: str, status: int = 500, /, **fields: Any) -> AccessRecord:
        """5xx."""
        usual: dict[str, Any] = {"status": status, "seq": 3, "reason": Reason.ERROR, "bytes_out": 22}
        return self.exchange(at, client, channel, **usual | fields)

    def rejected(self, at: float, client: Client, channel: str, status: int = 401, /, **fields: Any) -> AccessRecord:
        """401 or 403."""
        usual: dict[str, Any] = {"status": status, "seq": -1, "bytes_out": 14, "epoch": None}
        usual |= {"reason": Reason.EXPIRED if status == 401 else Reason.FORBIDDEN}
        return self.exchange(at, client, channel, **usual | fields)

    def abandoned(self, at: float, client: Client, channel: str, seq: int, wait_s: float, /, **f: Any) -> AccessRecord:
        """A GET at the head that its client gave up after so many seconds."""
        usual: dict[str, Any] = {"seq": seq, "rseq": seq, "next_seq": seq, "reason": Reason.CLIENT_GONE}
        return self.exchange(at, client, channel, **usual | {"wait_us": None, "dur_us": micros(wait_s)} | f)

    def served(self, at: float, client: Client, channel: str, seq: int, /, **fields: Any) -> AccessRecord:
        """A segment with bytes, there already."""
        usual: dict[str, Any] = {"status": 200, "seq": seq, "rseq": seq, "next_seq": seq + 1, "bytes_out": 120_000}
        usual |= {"reason": Reason.COMPLETE, "dur_us": 1500 + self.rng.randrange(4000)}
        return self.exchange(at, client, channel, **usual | fields)

    def empty(self, at: float, client: Client, channel: str, seq: int, /, **fields: Any) -> AccessRecord:
        """A segment that was closed without a byte."""
        usual: dict[str, Any] = {"status": 200, "seq": seq, "rseq": seq, "next_seq": seq + 1, "reason": Reason.EMPTY}
        return self.exchange(at, client, channel, **usual | fields)

    def ended(self, at: float, client: Client, channel: str, seq: int, /, **fields: Any) -> AccessRecord:
        """200 without bytes, with ``Lp-Trickle-Closed``."""
        usual: dict[str, Any] = {"eos": True, "next_seq": seq, "reason": Reason.TERMINATED}
        return self.empty(at, client, channel, seq, **usual | fields)

    def posted(
        self, at: float, client: Client, channel: str, seq: int, status: int = 200, /, **fields: Any
    ) -> AccessRecord:
        """A segment published."""
        usual: dict[str, Any] = {"op": Op.PUBLISH, "method": "POST", "status": status, "seq": seq, "next_seq": seq + 1}
        if status == 200:
            usual |= {"rseq": seq, "bytes_in": 80_000, "reason": Reason.COMPLETE}
        else:
            usual |= {"reason": Reason.CONFLICT, "bytes_out": 17}
        return self.exchange(at, client, channel, **usual | fields)

    def restart(self, at: float, *, away: float, node: str = "0", release: str | None = None) -> float:
        """A server is drained, stopped, and started again.

        Returns:
            when it is ready, seconds.
        """
        up = at + away
        self.event(at, Event.DRAIN, node=node)
        self.event(at + min(2.0, away / 2), Event.SERVER_STOP, node=node)
        self.event(up - 0.05, Event.SERVER_START, node=node, release=release or "tricklecast/0.1.0")
        self.event(up - 0.04, Event.CONFIG, node=node, detail="{}")
        self.event(up, Event.SERVER_READY, node=node)
        self.outages.append((node, at, up))
        return up
