"""What a mirror asks its source for, as the storm report sees it: no fault makes a retry storm of it."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from tests.app.mirror.pair import durable
from tests.app.mirror.test_service import asked, base, publish, stack
from tests.support.local import LocalServer
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tricklecast.app.cli import cli
from tricklecast.trickle import wire
from tricklecast.trickle.records import AccessRecord

__all__ = ["stack"]

NAMES = ("cam", "film")


def storms(log: Path, records: list[AccessRecord]) -> list[tuple[str, set[str]]]:
    """The incidents of a log: the class, and the clients."""
    log.write_text("".join(f"{json.dumps(one.as_dict())}\n" for one in sorted(records, key=lambda one: one.ts_us)))
    command = ["storms", str(log), "-q", "--json-file", "-", "--fail-on", "never"]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    return [(one["storm"], set(one["clients"])) for one in json.loads(done.stdout)["incidents"]]


def is_live(server: LocalServer) -> bool:
    """Whether it follows all channels."""
    return bool(asked(server)["live"] == len(NAMES))


def refused(server: LocalServer, times: int) -> None:
    """A client that asks for a feed fifty times a second: for less than two seconds it could be a crowd."""
    headers = {"Connection": "Upgrade", "Upgrade": wire.FEED_PROTOCOL, "Trickle-Client": "naive"}
    with httpx.Client(headers=headers) as client:
        for _ in range(times):
            assert client.get(f"{base(server)}/cam").status_code == 503
            time.sleep(0.02)


def test_no_fault_makes_a_storm_of_a_mirror(stack: ExitStack, tmp_path: Path) -> None:
    """Feeds that are refused, a source that restarts, goes and comes, channels that end, a destination that is begun
    anew. A client that hardly pauses is found in the same log.
    """
    records: list[AccessRecord] = []
    port = free_port()
    known: dict[str, Any] = {"port": port, "storm_guard": "off", "channel_drain_s": 1}

    def feeds(source: LocalServer) -> int:
        return sum(one.op == "feed" for one in list(source.records))

    target = stack.enter_context(durable(None))
    with durable(tmp_path / "source", **known, max_readers=1) as source:
        for name in NAMES:
            publish(source, *range(6), name=name)
        viewer = source.target()
        viewer.channel(NAMES[0]).read(6)
        eventually(lambda: source.plane.registry.readers == 1, what="the only reader")
        asked(target, "PUT", body={"source": base(source)})
        eventually(lambda: feeds(source) >= 6, what="both feeds are refused some times")
        refused(source, 130)
        viewer.close()
    records += source.records
    eventually(lambda: asked(target)["state"] == "unreachable", what="the source is missed")
    with durable(tmp_path / "source", **known) as source:
        for life in range(5):
            for name in NAMES:
                publish(source, 6 if not life else 0, name=name)
            eventually(lambda: is_live(target), what=f"life {life}")
            for name in NAMES:
                httpx.delete(f"{base(source)}/{name}")
        for name in NAMES:
            publish(source, 0, name=name)
        for _ in range(6):
            with durable(None) as other:
                asked(other, "PUT", body={"source": base(source)})
                eventually(partial(is_live, other), what="a destination that is begun anew")
    records += source.records
    assert sum(one.client == "mirror" for one in records) > 30
    assert storms(tmp_path / "log.jsonl", records) == [("overload_client", {"naive"})]
