"""How long a server may be away is one option, of one name and meaning, of each command that reads or publishes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tricklecast.app.cli import runnable
from tricklecast.publisher import cli as publish
from tricklecast.publisher.ingest import cli as ingest
from tricklecast.subscriber.check import cli as check
from tricklecast.subscriber.command import cli as subscribe
from tricklecast.subscriber.gateway import cli as gateway
from tricklecast.subscriber.relay import cli as relay
from tricklecast.trickle.errors import TrickleError

URL = "http://127.0.0.1:1/trickle/"
FILE = str(Path(__file__))

COMMANDS = [
    pytest.param(publish.publish, [f"{URL}cam", FILE, "--raw"], ["publisher.run.Publisher"], id="publish"),
    pytest.param(
        ingest.ingest, ["rtmp://127.0.0.1:0", "--to", URL], ["publisher.ingest.sessions.SessionOptions"], id="ingest"
    ),
    pytest.param(
        subscribe.subscribe, [f"{URL}cam", "-o", os.devnull], ["subscriber.command.run.Subscriber"], id="subscribe"
    ),
    pytest.param(
        relay.relay,
        [f"{URL}cam", "rtmp://h/app/key"],
        ["subscriber.relay.run.Retries", "subscriber.relay.run.Subscriber"],
        id="relay",
    ),
    pytest.param(check.check, [f"{URL}cam"], ["subscriber.check.probe.Subscriber"], id="check"),
    pytest.param(gateway.webrtc, [URL, "--listen", "127.0.0.1:0"], ["subscriber.gateway.whep.Gateway"], id="gateway"),
]


def result(command: Callable[..., Any], arguments: list[str]) -> Any:
    """What a user gets who types that."""
    app = typer.Typer()
    app.command()(runnable(command))
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(("given", "seconds"), [([], 60.0), (["2min"], 120.0), (["forever"], None), (["0"], 0.0)])
@pytest.mark.parametrize(("command", "arguments", "clients"), COMMANDS)
def test_each_client_of_a_command_is_told(
    command: Callable[..., Any],
    arguments: list[str],
    clients: list[str],
    given: list[str],
    seconds: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also both of a relay."""
    seen: list[float | None] = []

    def client(*_: Any, **options: Any) -> None:
        seen.append(options["outage_s"] if "outage_s" in options else options["reconnect_s"])
        if len(seen) == len(clients):
            raise TrickleError("enough")

    for name in clients:
        monkeypatch.setattr(f"tricklecast.{name}", client)
    done = result(command, [*arguments, *(["--reconnect-for", *given] if given else [])])
    assert str(done.exception) == "enough"
    assert seen == [seconds] * len(clients)


@pytest.mark.parametrize(("command", "arguments", "clients"), COMMANDS)
def test_what_is_no_time_is_wrong_usage(command: Callable[..., Any], arguments: list[str], clients: list[str]) -> None:
    """Before anything is opened."""
    done = result(command, [*arguments, "--reconnect-for", "ever"])
    assert (done.exit_code, "not a duration" in done.stderr) == (2, True)
