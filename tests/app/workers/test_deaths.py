"""A worker of a server of two processes dies: clients of the other one notice nothing, and a successor answers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.app.workers.test_limits import names, processes
from tests.support.ports import free_port
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.tools.conformance.target import Target

FRONT, OTHER = names(0), names(1)


def kill(server: RunningServer, worker: int) -> None:
    """Kill a worker, and wait until it has a successor."""
    before = processes(server)
    os.kill(before[worker], signal.SIGKILL)
    eventually(lambda: len(set(processes(server)) - set(before)) == 1 and len(processes(server)) == 2)


def answers(client: Target, path: str, *, status: int) -> None:
    """Ask until this is the answer. A connection that the dead one had, also one that it has just accepted, is gone."""

    def found() -> bool:
        try:
            return client.ask("GET", path).status == status
        except Exception:
            return False

    eventually(found, what=f"{path} is answered {status}")


def test_clients_of_the_other_worker_miss_nothing(tmp_path: Path) -> None:
    """Neither a publisher in the middle of a segment, nor its reader, nor a connection that has not spoken yet,
    whichever dies. Channels of the dead one are gone; those that ask for them are answered by its successor."""
    with serve("--workers", "2") as server, server.client() as client:
        for dies, lives in ((1, 0), (0, 1)):
            gone, stays = client.channel(names(dies)[dies]).publish(0, b"gone"), client.channel(names(lives)[dies])
            upload, reader = stays.started(0, b"before")
            waiting = client.open()  # keeps its connection from now on
            waiting.request("GET", stays.at("next"))
            waiting.expect(200)
            silent = [client.open() for _ in range(8)]  # the kernel brings them all to one worker once in 128 times
            kill(server, dies)
            upload.chunk(b" after").end().stored(seq=0)
            reader.ends(b" after")
            for connection in silent:
                connection.request("GET", stays.at("next"))
                connection.expect(200)
            waiting.request("GET", gone.at("next"))  # moves to the successor
            waiting.expect(404)
            answers(client, stays.at("next"), status=200)
            answers(client, "/healthz", status=200)
        assert server.stop() == 0


def test_three_deaths_within_a_minute_end_the_server(tmp_path: Path) -> None:
    """In order, with exit code 1 and the reason; no process is left."""
    told = tmp_path / "stderr"
    with told.open("w") as stderr, serve("--workers", "2", stderr=stderr) as server:
        kill(server, 0)
        kill(server, 1)
        left = processes(server)
        os.kill(left[0], signal.SIGKILL)
        assert server.process.wait(WITHIN_S) == 1
        assert not any(Path(f"/proc/{pid}").exists() for pid in left)
    *_, last = told.read_text().splitlines()
    assert last.startswith("tricklecast: 3 workers have died within a minute; the last one: worker ")
    assert last.endswith("was ended by SIGKILL")


def test_workers_end_with_their_supervisor() -> None:
    """Whose death nothing else would tell them: another server can have the address at once."""
    # Not one that the system may give to somebody else meanwhile.
    port = str(free_port())
    with serve("--workers", "2", "--port", port) as server, server.client() as client:
        client.channel(FRONT[0]).publish(0)
        client.channel(OTHER[0]).publish(0)
        pids = processes(server)
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: not any(is_alive(pid) for pid in pids), what="both end")
    with serve("--port", port):
        pass


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent to hear of its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
