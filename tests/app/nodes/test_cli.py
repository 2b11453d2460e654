"""`tricklecast cluster status`, `move` and `drain`, against nodes with a real directory."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
import typer

from tests.app.cluster.test_nodes_on_nats import NatsNode, film, node
from tests.support.local import local_server
from tests.support.nats import NatsServer
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.nodes.cli import drain, move, status, table
from tricklecast.trickle.errors import ConnectionLost, Refused, RemoteProtocolError, TrickleError

NOWHERE = "http://127.0.0.1:1"


def url(one: NatsNode) -> str:
    """Of its control plane."""
    return f"http://127.0.0.1:{one.server.port}"


def test_an_operator_sees_moves_and_drains(nats: NatsServer, capsys: pytest.CaptureFixture[str]) -> None:
    """At any node; of several URLs the first one that can be reached counts."""
    with node("a", nats) as a, node("b", nats) as b:
        film(a).publish(0, b"one")
        eventually(lambda: b.directory.place("film"))
        asyncio.run(status(f"{NOWHERE},{url(b)}"))
        lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        assert lines[0] == ["NODE", "STATE", "CHANNELS", "LOAD", "VERSION", "URL"]
        assert [line[0] for line in lines[1:3]] == ["a", "b*"]
        assert [line[2] for line in lines[1:3]] == ["1", "0"]

        asyncio.run(move("film", "b", url(b)))
        assert capsys.readouterr().out == "film is at b\n"
        assert b.directory.owns("film")
        with pytest.raises(TrickleError, match="there is no other node 'c'"):
            asyncio.run(move("film", "c", url(a)))
        asyncio.run(drain("b", url(a)))
        assert capsys.readouterr().out == "1 channel moved from b\n"
        asyncio.run(move("film", "a", url(a), as_json=True))
        assert json.loads(capsys.readouterr().out) == {"channel": "film", "node": "a"}

        eventually(lambda: a.directory.view.nodes["b"].state == "draining")
        with pytest.raises(TrickleError, match="node 'b' takes no channels: it is draining"):
            asyncio.run(move("film", "b", url(a)))

        # There is no node left that takes channels.
        with pytest.raises(typer.Exit) as left:
            asyncio.run(drain("a", url(b), as_json=True))
        assert left.value.exit_code == 1
        drained = json.loads(capsys.readouterr().out)
        assert (drained["moved"], list(drained["left"])) == (0, ["film"])
        with pytest.raises(typer.Exit):
            asyncio.run(drain("a", url(b)))
        shown = capsys.readouterr()
        assert shown.out == "0 channels moved from a\n"
        assert shown.err.startswith("film has stayed: ")
        asyncio.run(status(url(a), as_json=True))
        assert [one["state"] for one in json.loads(capsys.readouterr().out)["nodes"]] == ["draining", "draining"]


def test_a_refusal_says_what_is_missing(nats: NatsServer, tmp_path: Path) -> None:
    """A token, or the right to do this."""
    file = tmp_path / "token"
    file.write_text("x" * 32)
    file.chmod(0o600)
    with node("a", nats, control_token_file=file) as a:
        with pytest.raises(Refused, match=r"the server wants a valid token: http://.*: Token required"):
            asyncio.run(status(url(a)))
        with pytest.raises(Refused, match=r"the server wants a valid token: http://.*: Token invalid"):
            asyncio.run(drain("a", url(a), token="wrong"))


def test_a_server_that_is_no_node_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, as does one that cannot be reached."""
    with local_server() as server:
        root = f"http://127.0.0.1:{server.port}"
        for asked in (status(root), move("film", "b", root), drain("b", root)):
            with pytest.raises(RemoteProtocolError, match="is no node of a cluster"):
                asyncio.run(asked)
    with pytest.raises(ConnectionLost):
        asyncio.run(status(NOWHERE))
    assert capsys.readouterr().out == ""


def test_watching_goes_on_while_nobody_answers(
    nats: NatsServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change is a line of JSON."""
    monkeypatch.setattr("tricklecast.app.nodes.cli.WATCH_S", 0.01)
    seen: list[str] = []

    async def watch(root: str) -> None:
        async with asyncio.timeout(WITHIN_S):
            watching = asyncio.create_task(status(root, watch=True, as_json=True))
            while len(seen) < 2:
                seen.extend(capsys.readouterr().out.splitlines())
                if seen and not one.server.over():
                    one.server.stop()
                await asyncio.sleep(0.01)
            watching.cancel()

    with node("a", nats) as one:
        asyncio.run(watch(url(one)))
    assert json.loads(seen[0])["nodes"][0]["name"] == "a"
    assert any(line.startswith("tricklecast: ") or "left" in line or "draining" in line for line in seen[1:])


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """With colours, unless they are not wanted; and without control characters."""
    gone = {"name": "b\x1b", "url": "http://b", "state": "serving", "reachable": False, "this": False}
    here = {"name": "a", "url": "http://a", "state": "serving", "reachable": True, "this": True}
    more = {"load": 10.5, "channels": 100, "version": ""}
    answer = {"nodes": [here | more, gone | more], "degraded": "NATS is out of reach"}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert table(answer).splitlines() == [
        "NODE  STATE        CHANNELS  LOAD  VERSION  URL",
        "a*    serving           100  10.5  -        http://a",
        "b?    unreachable       100  10.5  -        http://b",
        "The node that answers can decide nothing now: NATS is out of reach",
    ]
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[32mserving    \x1b[0m" in table(answer)
    assert "\x1b[31munreachable\x1b[0m" in table(answer)
