"""Addresses in the access log: whole, as a network, or as a hash that nobody can undo."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.logs import logged
from tests.support.server import serve
from tricklecast.app.data_plane.client_address import client_key
from tricklecast.app.masking import LogIps, mask_for


def masked(kind: LogIps, key: bytes = b"key", **fields: Any) -> dict[str, Any]:
    """The fields of a record as they are written."""
    mask = mask_for(kind, key)
    assert mask is not None
    mask(fields)
    return fields


def test_full_addresses_are_not_touched() -> None:
    """The default costs nothing."""
    assert mask_for(LogIps.FULL) is None


@pytest.mark.parametrize(
    ("ip", "prefix"),
    [
        ("192.0.2.77", "192.0.2.0"),
        ("2001:db8:1:2:3::9", "2001:db8:1::"),
        ("fe80::1%eth0", "fe80::"),
        ("unix", "unix"),
        ("not an address", "not an address"),
    ],
)
def test_a_prefix_is_the_network(ip: str, prefix: str) -> None:
    """/24 of IPv4, /48 of IPv6."""
    assert masked(LogIps.PREFIX, ip=ip) == {"ip": prefix}


def test_a_hash_is_the_same_for_the_same_address_and_key() -> None:
    """So clients can be told apart within one run of a server, and not over two."""
    one, again, other = (masked(LogIps.HASH, ip=ip)["ip"] for ip in ("192.0.2.1", "192.0.2.1", "192.0.2.2"))
    assert one == again != other
    assert re.fullmatch(r"[0-9a-f]{16}", one)
    assert masked(LogIps.HASH, b"another key", ip="192.0.2.1")["ip"] != one
    drawn = [mask_for(LogIps.HASH) for _ in range(2)]
    found = []
    for mask in drawn:
        assert mask is not None
        fields = {"ip": "192.0.2.1"}
        mask(fields)
        found.append(fields["ip"])
    assert found[0] != found[1]


@pytest.mark.parametrize("kind", [LogIps.PREFIX, LogIps.HASH])
def test_the_key_of_a_client_without_a_name_is_masked_too(kind: LogIps) -> None:
    """Anybody could compute it for all addresses; a name that the client gave itself stays."""
    key = client_key("192.0.2.1", "player/1")
    assert masked(kind, client=key)["client"] != key
    assert masked(kind, client="player-7f3a") == {"client": "player-7f3a"}


def test_the_address_of_another_publisher_is_masked() -> None:
    """It stands in the detail of a 409; a name there stays."""
    fields = masked(LogIps.PREFIX, reason="occupied", detail="192.0.2.77 encoder/1 (linux)")
    assert fields["detail"] == "192.0.2.0 encoder/1 (linux)"
    assert masked(LogIps.PREFIX, reason="occupied", detail="encoder-7")["detail"] == "encoder-7"
    assert masked(LogIps.PREFIX, reason="evicted", detail="192.0.2.77")["detail"] == "192.0.2.77"


def test_a_server_writes_no_address(tmp_path: Any) -> None:
    """With `--log-ips hash`, no line of the access log has an address."""
    log = tmp_path / "access.jsonl"
    with serve("--log-ips", "hash", access_log=log) as server, server.client() as target:
        assert target.ask("GET", "/api/v1/channels").status == 200
        target.channel("c").publish(0, b"x")
        target.channel("c").read(0).response()
        logged(log, op="read")
        assert server.stop() == 0
    text = log.read_text()
    assert "127.0.0.1" not in text
    assert len(set(re.findall(r'"ip":"([0-9a-f]{16})"', text))) == 1
