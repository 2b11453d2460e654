"""Names of the server: which values of Host it takes, and that a page of another name gets nothing."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.server import serve
from tests.support.waiting import WITHIN_S
from tricklecast.app.data_plane.hosts import MAX_KNOWN, Hosts
from tricklecast.app.settings import InvalidSettings, load

ADDRESSES = [b"127.0.0.1:2939", b"127.0.0.1", b"10.1.2.3", b"[::1]:2939", b"[fe80::1%eth0]", b"127.1", b"2130706433"]
LOCAL = [b"localhost", b"localhost:2939", b"LOCALHOST.", b"a.localhost:80", b"mine.test:7", b"nas:80", b"x"]
FOREIGN = [b"evil.example", b"evil.example:2939", b"127.0.0.1.evil.example", b"localhost.evil.example", b"x.xlocalhost"]


@pytest.mark.parametrize("host", [*ADDRESSES, *LOCAL, None, b""])
def test_a_local_server_answers_by_local_names(host: bytes | None) -> None:
    """By every address, too: a browser that calls an address has resolved no name. The second time as the first."""
    hosts = Hosts((), ("Mine.test",), is_local=True)
    assert hosts.allow(host)
    assert hosts.allow(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_a_local_server_answers_by_no_other_name(host: bytes) -> None:
    """A page may let any name point to this machine."""
    hosts = Hosts((), ("127.0.0.1",), is_local=True)
    assert not hosts.allow(host)
    assert not hosts.allow(host)


def test_a_server_that_others_reach_answers_by_every_name() -> None:
    """It cannot know its names, unless they are listed."""
    assert all(Hosts((), (), is_local=False).allow(host) for host in FOREIGN)
    assert all(Hosts(("*",), (), is_local=True).allow(host) for host in FOREIGN)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    ("host", "allowed"),
    [(b"live.example:443", True), (b"LIVE.example", True), (b"a.b.example.org", True), (b"example.org", False),
     (b"evil.example", False), (b"localhost", True), (b"192.0.2.1", True), (b"xexample.org", False), (b"nas", False)],
)  # fmt: skip
def test_listed_names(host: bytes, allowed: bool, is_local: bool) -> None:
    """They count wherever the server listens; an address and localhost always do."""
    assert Hosts(("live.example", "*.example.org"), (), is_local=is_local).allow(host) is allowed


def test_few_values_are_remembered() -> None:
    """However many values of Host come, and however long they are."""
    hosts = Hosts((), (), is_local=True)
    for number in range(MAX_KNOWN + 10):
        assert hosts.allow(b"localhost:%d" % number)
    assert len(hosts._known) == MAX_KNOWN
    hosts = Hosts((), (), is_local=True)
    assert hosts.allow(b"x" * 300 + b".localhost")
    assert not hosts._known


@pytest.mark.parametrize(
    ("given", "names"),
    [("Live.example., *.example.org", ("live.example", "*.example.org")), ("*", ("*",)), ("", ()), ("::1", ("::1",))],
)
def test_the_setting(given: str, names: tuple[str, ...]) -> None:
    """Names with commas between them, without a dot at the end."""
    assert load({"allowed_hosts": given}).settings.allowed_hosts == names


@pytest.mark.parametrize("given", ["https://live.example", "live.example:443", "a b", "*.", "a/b", "*x"])
def test_what_is_no_name(given: str) -> None:
    """The message says how to write it."""
    with pytest.raises(InvalidSettings, match=r"--allowed-hosts: .* is not the name of a host; write it without"):
        load({"allowed_hosts": given})


def test_a_proxy_passes_on_the_names_that_its_clients_use() -> None:
    """With trusted proxies and no list, every name counts; a list goes first."""
    assert load({"trusted_proxies": "127.0.0.1"}).settings.options().allowed_hosts == ("*",)
    both = {"trusted_proxies": "127.0.0.1", "allowed_hosts": "live.example"}
    assert load(both).settings.options().allowed_hosts == ("live.example",)


# Over sockets.


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server(allowed_hosts="live.example", storm_guard="off") as running:
        yield running


def ask(port: int, method: str, path: str, host: str) -> tuple[int, bytes]:
    """Status and body of an answer to a request that calls the server by this name."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    try:
        connection.request(method, path, headers={"Host": host})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/trickle/c"), ("GET", "/trickle/c/0"), ("DELETE", "/trickle/c"), ("OPTIONS", "/trickle/c/0"),
     ("GET", "/api/v1/channels"), ("GET", "/metrics"), ("GET", "/")],
)  # fmt: skip
def test_a_request_for_another_host_is_refused(server: LocalServer, method: str, path: str) -> None:
    """421 on both planes, and nothing happens; the line says what to do. Other names and addresses are served."""
    status, body = ask(server.port, method, path, "evil.example")
    assert (status, b"--allowed-hosts" in body) == (421, True)
    assert "c" not in server.plane.registry.channels
    server.record(method=method, path=path, status=421, reason="forbidden")
    assert ask(server.port, "OPTIONS" if method == "POST" else method, path, "live.example")[0] != 421


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_checks_call_by_any_name(server: LocalServer, path: str) -> None:
    """A load balancer calls the server as it likes."""
    assert ask(server.port, "GET", path, "evil.example")[0] == 200


def test_the_names_after_a_reload(server: LocalServer) -> None:
    """They are a setting that may change; whether only this machine reaches the server may not."""
    server.next_settings = server.settings.model_copy(update={"allowed_hosts": ("*.example",)})
    server.inside(server.reload)
    assert ask(server.port, "GET", "/trickle/c/0", "evil.example")[0] == 404
    server.next_settings = server.settings
    server.inside(server.reload)
    assert ask(server.port, "GET", "/trickle/c/0", "evil.example")[0] == 421


def test_the_command_defends_a_server_on_this_machine() -> None:
    """By default; a server that listens on all addresses is called by names that it cannot know."""
    for host, status in (("localhost", 421), ("0.0.0.0", 404)):
        with serve("--host", host) as running:
            assert ask(running.port, "GET", "/trickle/c/next", "evil.example")[0] == status
            assert ask(running.port, "GET", "/api/v1/channels", "localhost:1")[0] == 200
