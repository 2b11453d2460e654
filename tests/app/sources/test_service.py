"""Sources of a running server: processes that really publish, end, are killed, and wait for readers."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.access.signing import SECRET, token
from tests.app.sources.conftest import COMMAND
from tests.publisher.media.clips import make_clip
from tests.publisher.media.test_inputs import UdpCamera
from tests.support.certificates import make_certificate
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.settings import Settings
from tricklecast.app.sources import service, source
from tricklecast.trickle.backoff import Backoff

TEST = {"url": "testsrc:size=160x120,rate=10"}
DEMAND = {**TEST, "when": "demand", "stop_after_s": 1}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has ended is started again at once."""
    monkeypatch.setattr(source, "BACKOFF", Backoff(base_s=0.01, cap_s=0.02))
    monkeypatch.setattr(source, "LEAST_S", 0.01)
    monkeypatch.setattr(service, "LOOK_S", 0.05)


@contextmanager
def client_of(server: LocalServer) -> Iterator[httpx.Client]:
    """A client of its channels and its API."""
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=WITHIN_S) as client:
        yield client


def state(client: httpx.Client, name: str = "cam", **headers: str) -> dict[str, Any]:
    """How a source stands; empty if it is not there."""
    rows = client.get("/api/v1/sources", headers=headers).json()["sources"]
    return next((row for row in rows if row["name"] == name), {})


def runs(client: httpx.Client, name: str = "cam") -> dict[str, Any]:
    """Wait until a source is published; how it stands then."""
    found: list[dict[str, Any]] = []

    def running() -> bool:
        found[:] = [state(client, name)]
        return found[0].get("state") == "running"

    eventually(running)
    return found[0]


def pid_of(client: httpx.Client, name: str) -> int | None:
    """The process of a source."""
    found: int | None = state(client, name).get("pid")
    return found


def is_gone(pid: int | None) -> bool:
    """Whether a process has ended."""
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def first_bytes(client: httpx.Client, path: str, **headers: str) -> tuple[int, bytes]:
    """The status of a response that goes on, and its first bytes."""
    with client.stream("GET", path, headers=headers) as response:
        return response.status_code, next(response.iter_bytes(), b"")


def test_a_source_is_published_and_outlives_its_process(tmp_path: Path) -> None:
    """A file that is played for ever. Its process is killed: another one goes on, in the same epoch."""
    clip = make_clip(tmp_path / "clip.mp4")
    with local_server(source={"cam": {"url": str(clip), "loop": "forever"}}) as server, client_of(server) as client:
        running = runs(client)
        assert (running["url"], running["when"], running["restarts"]) == (str(clip), "always", 0)
        assert first_bytes(client, "/trickle/cam/-2")[1][:1] == b"G"  # MPEG-TS
        before = client.get("/api/v1/channels/cam").json()
        os.kill(running["pid"], signal.SIGKILL)
        eventually(lambda: state(client)["restarts"])
        again = runs(client)
        assert again["error"] == "its process was ended by SIGKILL"
        assert again["pid"] != running["pid"]
        after = client.get("/api/v1/channels/cam").json()
        assert after["epoch"] == before["epoch"]
        assert after["next_seq"] >= before["next_seq"]
        scraped = client.get("/metrics").text
        assert 'tricklecast_source_state{source="cam",state="running"} 1.0' in scraped
        assert 'tricklecast_source_restarts_total{source="cam"} 1.0' in scraped
    assert is_gone(again["pid"])


def test_a_file_that_is_over_is_played_again(tmp_path: Path) -> None:
    """The channel stays, and its numbers go on."""
    clip = make_clip(tmp_path / "clip.mp4")
    with local_server(source={"cam": {"url": str(clip), "realtime": False}}) as server, client_of(server) as client:
        eventually(lambda: state(client)["restarts"] >= 2)
        channel = client.get("/api/v1/channels/cam").json()
        assert channel["epoch"] == 1
        assert channel["next_seq"] >= 6


def test_on_demand_the_first_reader_waits_and_the_last_one_ends_it() -> None:
    """No reader gets 404, not even while the channel that has ended drains."""
    with local_server(source={"cam": {**DEMAND, "stop_after_s": 5}}) as server, client_of(server) as client:
        assert state(client)["state"] == "waiting"
        assert client.get("/trickle/cam/next").status_code == 404  # a publisher asks for this
        status, body = first_bytes(client, "/trickle/cam/-1")
        assert (status, body[:1]) == (200, b"G")
        running = state(client)
        assert running["state"] == "running"
        eventually(lambda: state(client)["state"] == "waiting")
        assert is_gone(running["pid"])
        assert client.get("/api/v1/channels/cam").json()["state"] == "draining"
        assert client.get("/trickle/cam/index.m3u8").status_code == 200
        assert client.get("/api/v1/channels/cam").json()["epoch"] == 2
        with client.stream("GET", "/trickle/cam/stream") as response:
            stream = response.iter_bytes()
            assert next(stream)
            eventually(lambda: state(client)["state"] == "running")
    assert server.problems == []


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Let the process of each source publish nothing; the test does. Told to stop, it ends when this file is there."""
    program, gate = folder / "stand_in.py", folder / "gate"
    program.write_text(
        "import pathlib, signal, sys, time\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\nsignal.sigwait([signal.SIGTERM])\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
    )
    monkeypatch.setattr(source, "COMMAND", (source.COMMAND[0], str(program)))
    monkeypatch.setattr(source, "STOP_S", WITHIN_S)  # it ends when the test says so, and is not killed before
    return gate


@contextmanager
def asking(client: httpx.Client, path: str) -> Iterator[list[httpx.Response]]:
    """A request in a thread of its own; its answer is in the list when the block is over."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(client.get(path)))
    thread.start()
    yield answers
    thread.join(WITHIN_S)


@pytest.mark.parametrize("path", ["-1", "-2", "0"])
def test_who_waits_for_a_source_gets_its_first_segment(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also with -1, the next one: none had begun when the reader came."""
    stand_in(monkeypatch, tmp_path).touch()
    with local_server(source={"cam": DEMAND}) as server, client_of(server) as client:
        with asking(client, f"/trickle/cam/{path}") as answers:
            eventually(lambda: server.node.sources._waiting.get("cam"))
            client.post("/trickle/cam/0", content=b"first")
            client.post("/trickle/cam/1", content=b"second")
        assert [answer.content for answer in answers] == [b"first"]
    assert server.problems == []


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "left open"])
def test_who_comes_while_a_source_stops_waits_for_it_to_begin_again(
    ends: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And does not hear that the channel ends, though it is still there. One who follows it does."""
    gate = stand_in(monkeypatch, tmp_path)
    with local_server(source={"cam": DEMAND}) as server, client_of(server) as client:
        sources = server.node.sources
        with asking(client, "/trickle/cam/-1"):
            eventually(lambda: sources._waiting.get("cam"))
            client.post("/trickle/cam/0", content=b"old")
        eventually(lambda: sources._sources["cam"].stops)
        with asking(client, "/trickle/cam/1") as follower, asking(client, "/trickle/cam/-1") as newcomer:
            eventually(lambda: sources._waiting["cam"] and server.plane.registry.channels["cam"].readers)
            if ends:
                client.delete("/trickle/cam")

            def look_once_more() -> float:
                monkeypatch.setattr(service, "LOOK_S", 3600)
                return sources._asked_at["cam"]

            # The new process may publish before the next look at the sources.
            at = server.inside(look_once_more)
            eventually(lambda: sources._asked_at["cam"] > at, what="the last look")
            gate.touch()
            eventually(lambda: not sources._sources["cam"].stops)
            client.post(f"/trickle/cam/{0 if ends else 1}", content=b"new")
        assert [(one.status_code, one.content) for one in newcomer] == [(200, b"new")]
        assert [one.content for one in follower] == [b"" if ends else b"new"]
    assert server.problems == []


def test_a_player_of_hls_that_polls_keeps_a_source_going(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Though each of its requests is over at once, and no look at the sources sees one."""
    stand_in(monkeypatch, tmp_path).touch()
    monkeypatch.setattr(service, "LOOK_S", 3600)
    clip = make_clip(tmp_path / "clip.ts").read_bytes()
    with local_server(source={"cam": DEMAND}) as server, client_of(server) as client:
        sources = server.node.sources
        with asking(client, "/trickle/cam/media.m3u8") as answers:
            eventually(lambda: sources._waiting.get("cam"))
            client.post("/trickle/cam/0", content=clip, headers={"Content-Type": "video/mp2t"})
        assert answers[0].status_code == 200
        asked_at = sources._asked_at["cam"]
        assert client.get("/trickle/cam/media.m3u8").status_code == 200
        assert sources._asked_at["cam"] > asked_at


def test_a_reader_of_a_source_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a while, and is told when to come back. The process is stopped when nobody wants it any more."""
    monkeypatch.setattr(service, "WAIT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {**DEMAND, "url": f"tcp://127.0.0.1:{silent.getsockname()[1]}"}
        with local_server(source={"cam": settings}) as server, client_of(server) as client:
            for path in ("-1", "0", "stream", "index.m3u8"):
                answer = client.get(f"/trickle/cam/{path}")
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
                assert answer.text == "The source of this channel has not begun yet"
            monkeypatch.setattr(service, "WAIT_S", WITHIN_S)
            with server.client() as target:
                reader = target.channel("cam").read(0)
                starting = eventually(lambda: found if (found := state(client))["state"] == "starting" else {})
                reader.abort()
            eventually(lambda: state(client)["state"] == "waiting")
            assert is_gone(starting["pid"])
            assert client.head("/trickle/cam/0").status_code == 404


def test_a_reader_that_leaves_waits_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it stays behind."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {**DEMAND, "url": f"tcp://127.0.0.1:{silent.getsockname()[1]}"}
        with local_server(source={"cam": settings}) as server, client_of(server) as client:
            waiting = server.node.sources._waiting
            with server.client() as target:
                reader = target.channel("cam").read(0)
                eventually(lambda: waiting.get("cam"), what="it waits")
                reader.abort()
                eventually(lambda: not waiting["cam"], what="it waits no more")
            monkeypatch.setattr(service, "WAIT_S", 0.0)
            assert client.get("/trickle/cam/0").status_code == 503


def test_a_camera_by_rtsp_with_a_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pictures are published; neither the process's command line nor the log has the password."""
    monkeypatch.setattr(source, "COMMAND", COMMAND)
    with UdpCamera(make_clip(tmp_path / "clip.ts", audio=None)) as camera:
        url = camera.url.replace("rtsp://", "rtsp://me:secret@") + "?key=abcdef"
        options = {"url": url, "when": "demand", "input_options": {"rtsp_transport": "udp"}}
        caplog.set_level(logging.INFO, "tricklecast.sources")
        with local_server(source={"cam": options}) as server, client_of(server) as client:
            assert first_bytes(client, "/trickle/cam/-1")[0] == 200
            shown = state(client)
            assert shown["url"] == camera.url.replace("rtsp://", "rtsp://***@") + "?key=***"
            if os.path.isdir("/proc/self"):
                assert b"secret" not in Path(f"/proc/{shown['pid']}/cmdline").read_bytes()
    assert "source cam: " in caplog.text
    assert not [secret for secret in ("secret", "abcdef") if secret in caplog.text]


def test_an_input_that_cannot_be_read_has_failed(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """The last line says why; it is tried again, and the server's log has it all."""
    url = f"{tmp_path}/none.mp4"
    with local_server(source={"cam": {"url": url}}) as server, client_of(server) as client:
        eventually(lambda: state(client)["restarts"] >= 2)
        assert state(client)["error"] == f"tricklecast: cannot read {url}: No such file or directory"
        assert client.get("/trickle/cam/0").status_code == 404
    assert f"source cam: tricklecast: cannot read {url}: No such file or directory" in caplog.text
    assert "source cam has ended, and is started again in 0 s" in caplog.text


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The source has failed and tells when it is tried again, and the server goes on."""
    monkeypatch.setattr(source, "COMMAND", (str(tmp_path / "none"),))
    with local_server(source={"cam": TEST}) as server, client_of(server) as client:
        eventually(lambda: state(client)["restarts"])
        failed = eventually(lambda: found if (found := state(client))["retry_at"] else {})
        assert (failed["state"], failed["error"]) == (
            "failed",
            "its process cannot be started: No such file or directory",
        )
        assert datetime.fromisoformat(failed["retry_at"]) >= datetime.fromisoformat(failed["since"])


def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When its source is configured no more, and when the server ends."""
    file = tmp_path / "stubborn.py"
    text = "import signal, sys\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
    file.write_text(text + "for n in range(50): print(f'line {n}', file=sys.stderr, flush=True)\nsignal.pause()\n")
    monkeypatch.setattr(source, "COMMAND", (source.COMMAND[0], str(file)))
    monkeypatch.setattr(source, "STOP_S", 0.3)
    monkeypatch.setattr(service, "END_S", 0.3)
    with local_server(source={"cam": TEST, "door": TEST}) as server, client_of(server) as client:
        pids = [eventually(partial(pid_of, client, name)) for name in ("cam", "door")]
        eventually(lambda: server.node.sources._sources["cam"].state() == "starting")
        server.next_settings = server.settings.model_copy(update={"source": {"door": server.settings.source["door"]}})
        server.inside(server.reload)
        eventually(lambda: is_gone(pids[0]))
        assert not is_gone(pids[1])
    assert is_gone(pids[1])


def test_the_lines_of_a_process_are_bounded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A library that complains about each picture does not fill the log; a long line is cut."""
    file = tmp_path / "talkative.py"
    file.write_text("import sys\nsys.stderr.write('x' * 100_000 + '\\n' + 'warning: y\\n\\n' * 50 + 'the last one')\n")
    monkeypatch.setattr(source, "COMMAND", (source.COMMAND[0], str(file)))
    caplog.set_level(logging.INFO, "tricklecast.sources")
    with local_server(source={"cam": TEST}) as server, client_of(server) as client:
        eventually(lambda: state(client)["restarts"])
        assert state(client)["error"] == "the last one"
    lines = [record.message for record in caplog.records if record.name == "tricklecast.sources"]
    first = lines[: lines.index("source cam: 32 more lines were left out") + 1]
    assert first[0] == "source cam: " + "x" * source.LINE_BYTES
    assert len(first) == source.LINES + 1


def reload(server: LocalServer, **sources: dict[str, Any]) -> None:
    """Send the server what it gets at SIGHUP, after its sources have changed."""
    server.next_settings = Settings(**{**server.settings.model_dump(), "source": sources})
    server.inside(server.reload)


def test_a_reload_starts_and_stops_the_difference() -> None:
    """A source that has not changed goes on; the channel of one that is removed ends; a changed one is another one."""
    with local_server() as server, client_of(server) as client:
        assert client.get("/api/v1/sources").json() == {"sources": [], "unreachable": []}
        assert "tricklecast_source" not in client.get("/metrics").text
        reload(server, cam=TEST, door=TEST)
        running = [runs(client, name) for name in ("cam", "door")]
        reload(server, cam=TEST, yard=TEST)
        eventually(lambda: state(client, "yard").get("state") == "running")
        eventually(lambda: is_gone(running[1]["pid"]))
        eventually(lambda: client.get("/api/v1/channels/door").json()["state"] == "draining")
        assert state(client) == running[0]
        reload(server, cam={**TEST, "container": "fmp4"}, door=TEST)
        eventually(lambda: state(client, "door").get("state") == "running")
        changed = runs(client)
        assert changed["pid"] != running[0]["pid"]
        assert is_gone(running[0]["pid"])
        assert server.reload.counts.failed == 0
        reload(server, cam={**TEST, "container": "fmp4"})
        reload(server, cam={**TEST, "container": "fmp4"}, door=TEST)  # while the former one stops
        eventually(lambda: state(client, "door").get("state") == "running")


def test_a_ladder_that_is_taken_away_again(tmp_path: Path) -> None:
    """All its sizes are published with the token of the source, and begin anew together when its process dies. A size
    that no source has any more ends; the others go on."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    bearer = {"Authorization": f"Bearer {token(trickle={'subscribe': ['*'], 'manage': ['*']})}"}
    plain = {"url": "testsrc:size=426x240,rate=10"}
    with (
        local_server(jwt_secret_file=secret, source={"cam": {**plain, "ladder": "240p,144p"}}) as server,
        client_of(server) as client,
    ):
        client.headers.update(bearer)

        def channels() -> dict[str, Any]:
            rows = client.get("/api/v1/channels").json()["channels"]
            return {row["name"]: (row["state"], row["epoch"]) for row in rows if row["name"] != "_changes"}

        def head(name: str) -> int:
            return int(client.get(f"/trickle/{name}/next").text)

        pid = runs(client)["pid"]
        eventually(lambda: channels() == {"cam": ("live", 1), "cam_144p": ("live", 1)})
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: state(client)["restarts"] == 1)
        runs(client)
        before = head("cam")
        eventually(lambda: min(head("cam"), head("cam_144p")) > before)
        assert abs(head("cam") - head("cam_144p")) <= 1
        reload(server, cam=plain, cam_144p={**plain, "when": "demand"})
        eventually(lambda: state(client, "cam_144p").get("state") == "waiting")
        reload(server, cam=plain)
        eventually(lambda: channels() == {"cam": ("live", 1), "cam_144p": ("draining", 1)})
        assert state(client)["ladder"] is None
    assert server.problems == []


def test_where_clients_need_a_token_a_source_has_its_own(tmp_path: Path) -> None:
    """It publishes to its channel, and to no other; readers need a token as ever, also to start a source."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    bearer = {"Authorization": f"Bearer {token(trickle={'subscribe': ['*'], 'manage': ['door']})}"}
    certificate, key = make_certificate(tmp_path)
    with local_server(
        jwt_secret_file=secret, source={"cam": DEMAND, "door": DEMAND}, tls_cert=certificate, tls_key=key
    ) as server:
        assert server.tls is not None
        trusted = httpx.Client(base_url=f"https://127.0.0.1:{server.port}", verify=server.tls, timeout=WITHIN_S)
        with trusted as client:
            assert client.get("/trickle/door/0").status_code == 401
            assert state(client, "door", **bearer)["state"] == "waiting"
            assert state(client, "cam", **bearer) == {}  # it may not manage this one
            assert first_bytes(client, "/trickle/door/-1", **bearer)[0] == 200
            own = server.inside(lambda: {names[0]: text for text, names in server.access.authorizer.own.items()})  # type: ignore[union-attr]
            assert set(own) == {"cam", "door"}
            stolen = {"Authorization": f"Bearer {own['cam'].decode()}"}
            assert client.post("/trickle/door/0", headers=stolen, content=b"x").status_code == 403
            assert client.get("/trickle/cam/0", headers=stolen).status_code == 403
            reload(server, door=DEMAND)
            eventually(lambda: client.post("/trickle/cam/0", headers=stolen, content=b"x").status_code == 401)
        assert server.record(channel="door", seq=0, op="publish").client == "source"


def test_without_a_place_for_its_socket_no_source_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The log says so, and the server goes on."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with local_server(source={"cam": TEST}) as server, client_of(server) as client:
        assert client.get("/api/v1/sources").json()["sources"] == []
    assert "no source can be published: there is no place for a socket" in caplog.text


def test_the_end_of_the_server_waits_for_no_reader(tmp_path: Path) -> None:
    """One that waits for a source is sent away in the drain."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {**DEMAND, "url": f"tcp://127.0.0.1:{silent.getsockname()[1]}"}
        with local_server(source={"cam": settings}) as server, client_of(server) as client:
            answers: list[int] = []
            thread = threading.Thread(target=lambda: answers.append(client.get("/trickle/cam/0").status_code))
            thread.start()
            eventually(lambda: server.node.sources._waiting.get("cam"))
            server.stop()
            thread.join(WITHIN_S)
            assert answers == [503]
