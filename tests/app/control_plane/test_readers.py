"""Who reads a channel: each client once, those that lag first, masked as the access log; and the end of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.app.access.signing import SECRET, token
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.control_plane import readers
from tricklecast.app.masking import LogIps
from tricklecast.trickle.records import Reason

NAMED = {"Trickle-Client": "player-1", "User-Agent": "player/1.0 (test)"}


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """A server that writes records."""
    with local_server() as running:
        yield running


def listed(server: LocalServer, name: str = "cam", **options: Any) -> dict[str, Any]:
    answer = httpx.get(f"http://127.0.0.1:{server.port}/api/v1/channels/{name}/readers", **options)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def test_a_client_that_reads_and_waits_is_one_reader(server: LocalServer) -> None:
    """With its name, its program and its two connections; two clients of one name are two."""
    with server.client() as client:
        channel = client.channel("cam")
        upload = channel.upload(0, b"x" * 3000)
        client.settle()
        for _ in range(2):
            for seq in (0, 1):
                channel.read(seq, NAMED)
        channel.read(0, {"User-Agent": "other/2"})
        eventually(lambda: len(listed(server)["readers"]) == 3, what="three readers")
        found = listed(server)
        assert sorted(len(row["connections"]) for row in found["readers"]) == [1, 2, 2]
        assert found["others"] == 0
        named = [row for row in found["readers"] if row["client"] == "player-1"]
        assert {(row["program"], row["address"], row["seq"], row["waits"]) for row in named} == {
            ("player/1.0 (test)", "127.0.0.1", 0, False)
        }
        upload.end()


def test_those_that_lag_come_first(server: LocalServer) -> None:
    """Whatever the order in which they came."""
    with server.client() as client:
        channel = client.channel("cam")
        upload = channel.upload(0, b"x")
        client.settle()
        channel.read(0, {"Trickle-Client": "in-time"})
        slow = channel.read(0, {"Trickle-Client": "slow"})
        eventually(lambda: len(listed(server)["readers"]) == 2, what="two readers")

        def write() -> bool:
            upload.chunk(b"x" * 200_000)
            return any(row["lag"] for row in listed(server)["readers"])

        eventually(write, what="one of them lags: nobody reads its answer")
        rows = listed(server)["readers"]
        assert rows == sorted(rows, key=lambda row: -row["lag"])
        eventually(lambda: listed(server)["readers"][0]["late_s"] > 0.3, what="the time for which it has lacked a byte")
        assert listed(server)["readers"][-1]["late_s"] >= 0.0
        slow.close()


def test_one_of_them_is_ended(server: LocalServer) -> None:
    """Its connection breaks, its record says why, and the others read on."""
    url = f"http://127.0.0.1:{server.port}/api/v1/channels/cam/readers"
    with server.client() as client:
        channel = client.channel("cam")
        upload = channel.upload(0, b"x" * 3000)
        client.settle()
        channel.read(0, NAMED)
        channel.read(0, {"Trickle-Client": "stays"})
        eventually(lambda: len(listed(server)["readers"]) == 2, what="two readers")
        [number] = next(row["connections"] for row in listed(server)["readers"] if row["client"] == "player-1")
        assert httpx.delete(f"{url}/{number}").json() == {"channel": "cam", "connection": number}
        assert [row["client"] for row in listed(server)["readers"]] == ["stays"]
        assert server.record(client="player-1").reason == Reason.EVICTED
        assert server.record(client="player-1").detail == "deleted"
        again = httpx.delete(f"{url}/{number}")
        assert (again.status_code, "no such reader" in again.text) == (404, True)
        upload.end()


def test_the_list_is_bounded(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond the limit are counted."""
    monkeypatch.setattr(readers, "MAX_READERS", 2)
    with server.client() as client:
        channel = client.channel("cam")
        upload = channel.upload(0, b"x" * 3000)
        client.settle()
        for number in range(5):
            channel.read(0, {"Trickle-Client": f"player-{number}"})
        eventually(lambda: listed(server)["others"] == 3, what="three more")
        assert len(listed(server)["readers"]) == 2
        upload.end()


def test_addresses_are_masked_as_in_the_access_log() -> None:
    """Here by the network alone."""
    with local_server(log_ips=LogIps.PREFIX) as server, server.client() as client:
        channel = client.channel("cam")
        upload = channel.upload(0, b"x" * 3000)
        client.settle()
        channel.read(0, NAMED)
        eventually(lambda: listed(server)["readers"], what="a reader")
        assert [row["address"] for row in listed(server)["readers"]] == ["127.0.0.0"]
        upload.end()


def test_it_needs_the_right_to_manage_the_channel(tmp_path: Any) -> None:
    """Without it nobody learns whether the channel is there; one that is missing is."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    with local_server(jwt_secret_file=secret) as server:
        url = f"http://127.0.0.1:{server.port}/api/v1/channels"
        rights = {"Authorization": f"Bearer {token(trickle={'manage': ['mine']})}"}
        for path, method, status in (
            ("cam/readers", "GET", 403), ("cam/readers/1", "DELETE", 403),
            ("mine/readers", "GET", 404), ("mine/readers/1", "DELETE", 404),
        ):  # fmt: skip
            assert httpx.request(method, f"{url}/{path}", headers=rights).status_code == status
            assert httpx.request(method, f"{url}/{path}").status_code == 401
