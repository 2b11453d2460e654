"""Sockets, and how many connections the process can have."""

from __future__ import annotations

import resource
import socket
from typing import Any

import pytest

from tests.support.waiting import WITHIN_S
from tricklecast.app.listener import (
    LEAST_CONNECTIONS,
    SPARE_FILES,
    WORKER_FILES,
    CannotServe,
    attainable_limits,
    listen,
)
from tricklecast.app.settings import Settings
from tricklecast.app.sockets import opened


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("host", "reachable"), [("::", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("0.0.0.0", ["127.0.0.1"])]
)
def test_every_address_is_every_one(host: str, reachable: list[str]) -> None:
    """``::`` takes in who comes over IPv4, too; any other address is what it says."""
    with listen(host, 0)[0] as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            if address in reachable:
                socket.create_connection((address, port), timeout=WITHIN_S).close()
            else:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((address, port), timeout=WITHIN_S)


def test_a_link_local_address_needs_an_interface() -> None:
    """Such an address exists once on every network; the message says how to name one."""
    with pytest.raises(CannotServe, match=r"on fe80::1:0: .*; a link-local address .* \(fe80::1%eth0\); choose"):
        listen("fe80::1", 0)


CONTROL = "the control plane has"
CHANNELS = "there is"


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ({"host": "0.0.0.0"}, [CHANNELS]),
        ({"host": "127.0.0.2"}, []),
        ({"host": "0.0.0.0", "jwt_secret_file": "f"}, []),
        ({"host": "0.0.0.0", "tls_cert": "f", "tls_key": "f", "tls_client_ca": "f"}, []),
        ({"host": "0.0.0.0", "webhook_url": "http://127.0.0.1/", "control_token_file": "f"}, []),
        ({"host": "0.0.0.0", "control_token_file": "f"}, [CHANNELS]),
        ({"control_host": "0.0.0.0", "control_port": 0}, [CONTROL]),
        ({"control_host": "0.0.0.0", "control_port": 0, "control_token_file": "f"}, []),
        ({"host": "0.0.0.0", "control_host": "127.0.0.1", "control_port": 0}, [CHANNELS]),
        ({"host": "0.0.0.0", "control_port": 0}, [CHANNELS, CONTROL]),
    ],
)
def test_an_open_server(values: dict[str, Any], warned: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """A server that other machines reach, and on which everybody may do everything, says so."""
    with opened(Settings.model_validate({"port": 0, **values})):
        pass
    assert [f": {words} no access control" in text for words, text in zip(warned, caplog.messages, strict=True)] == [
        True for _ in warned
    ]


INFINITY = resource.RLIM_INFINITY
LEAST_FILES = LEAST_CONNECTIONS + SPARE_FILES


def limit_files(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[tuple[int, int]]:
    """Pretend that the process has these limits of open files; returns the calls that change them."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: calls.append(limits))
    return calls


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "connections", "raised_to"),
    [
        (1024, 4096, 100, 100, None),
        (1024, 4096, 1024 - SPARE_FILES, 1024 - SPARE_FILES, None),
        (1024, 4096, 1025 - SPARE_FILES, 1025 - SPARE_FILES, 1025),
        (1024, 4096, 80_000, 4096 - SPARE_FILES, 4096),
        (1024, 4096, 0, 4096 - SPARE_FILES, 4096),
        (1024, INFINITY, 80_000, 80_000, 80_000 + SPARE_FILES),
        (1024, INFINITY, 0, None, INFINITY),
        (INFINITY, INFINITY, 80_000, 80_000, None),
        (INFINITY, INFINITY, 0, None, None),
        (LEAST_FILES, LEAST_FILES, 80_000, LEAST_CONNECTIONS, None),
        (SPARE_FILES + 5, SPARE_FILES + 5, 5, 5, None),
    ],
)
def test_the_limit_of_files_is_raised_as_far_as_needed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, connections: int | None, raised_to: int | None
) -> None:
    """The soft limit is never lowered, and never raised above the hard one; connections are limited to what fits."""
    calls = limit_files(monkeypatch, soft, hard)
    assert attainable_limits(Settings.model_validate({"max_connections": wanted})).connections == connections
    assert calls == ([] if raised_to is None else [(raised_to, hard)])


def test_a_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may refuse a limit that the hard limit allows."""

    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    limit_files(monkeypatch, 1024, INFINITY)
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert attainable_limits(Settings.model_validate({"max_connections": 0})).connections == 1024 - SPARE_FILES


@pytest.mark.parametrize(
    ("given", "connections", "warnings"),
    [
        ({}, 744, []),
        ({"max_connections": 744}, 744, []),
        (
            {"max_connections": 745},
            744,
            ["max_connections is lowered from 745 to 744: the process may open only 1000 files (ulimit -n)"],
        ),
    ],
)
def test_a_lowered_number_of_connections_is_logged(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, Any],
    connections: int,
    warnings: list[str],
) -> None:
    """The default is an upper bound; a configured number that does not fit is lowered with a warning."""
    limit_files(monkeypatch, 1000, 1000)
    assert attainable_limits(Settings.model_validate(given)).connections == connections
    assert caplog.messages == warnings


@pytest.mark.parametrize("workers", [2, 16])
def test_workers_need_descriptors_for_each_other(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """All connections may come to one of them; under TLS it has three descriptors for each."""
    spare = SPARE_FILES + WORKER_FILES
    limit_files(monkeypatch, 1000, 4096)
    assert attainable_limits(Settings.model_validate({"max_connections": 100}), workers).connections == 100
    assert attainable_limits(Settings.model_validate({}), workers).connections == 4096 - spare
    secure = Settings.model_validate({"max_connections": 100, "tls_cert": "c", "tls_key": "k"})
    assert attainable_limits(secure, workers).connections == 100
    assert attainable_limits(Settings.model_validate({"tls_cert": "c", "tls_key": "k"}), workers).connections == (
        (4096 - spare) // 3
    )
    limit_files(monkeypatch, spare + 191, spare + 191)
    with pytest.raises(CannotServe, match=rf"at least {spare + 192} \(ulimit -n"):
        attainable_limits(secure.model_copy(update={"max_connections": 0}), workers)


@pytest.mark.parametrize(
    ("files", "given", "least"),
    [
        (LEAST_FILES - 1, {}, LEAST_FILES),
        (257, {"max_connections": 0}, LEAST_FILES),
        (260, {"max_connections": 5}, 261),
    ],
)
def test_a_server_with_too_few_files_does_not_start(
    monkeypatch: pytest.MonkeyPatch, files: int, given: dict[str, Any], least: int
) -> None:
    """Fewer than 64 connections, or than ``max_connections`` if that is less, are an error that says what to change."""
    limit_files(monkeypatch, files, files)
    with pytest.raises(CannotServe, match=rf"may open only {files} files, .* at least {least} \(ulimit -n"):
        attainable_limits(Settings.model_validate(given))
