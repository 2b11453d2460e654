"""Our own clients at a server that wants tokens: they send them, and take a refusal for final."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.access.signing import SECRET, token
from tests.support.forked import forked
from tests.support.local import LocalServer, local_server

TIMEOUT_S = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    file = tmp_path_factory.mktemp("secret") / "secret"
    file.write_bytes(SECRET)
    with local_server(jwt_secret_file=file, channel_drain_s=60) as running:
        yield running


def run(*arguments: str, variable: str | None = None, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A command of ours, with a token in its environment or without."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    if variable is not None:
        environment["TRICKLECAST_TOKEN"] = variable
    return subprocess.run(
        forked(*arguments),
        input=given, capture_output=True, timeout=TIMEOUT_S, check=False, env=environment,
    )  # fmt: skip


def test_publish_subscribe_and_list_with_a_token(server: LocalServer, tmp_path: Path) -> None:
    """By argument, by file and by the environment."""
    url = f"http://127.0.0.1:{server.port}/trickle/cam-1"
    publisher = token(trickle={"publish": ["cam-*"]}, sub="publisher")
    published = run("publish", url, "-", "--raw", "--token", publisher, given=b"content")
    assert published.returncode == 0, published.stderr
    file = tmp_path / "token"
    file.write_text(token(trickle={"subscribe": ["cam-1"]}, sub="subscriber") + "\n")
    read = run("subscribe", url, "--start", "0", "-o", "-", "--token-file", str(file))
    assert (read.returncode, read.stdout) == (0, b"content"), read.stderr
    listed = run("channels", url, variable=token(trickle={"manage": ["cam-*"]}))
    assert b"cam-1" in listed.stdout, listed.stderr
    assert {"publisher", "subscriber"} <= {record.client for record in server.records}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["publish", "URL", "-", "--raw"], b"content"),
        (["subscribe", "URL", "-o", "-", "--reconnect-for", "forever", "--wait", "30s"], b""),
        (["channels", "URL"], b""),
        (["check", "URL", "--wait", "30s"], b""),
    ],
    ids=["publish", "subscribe", "channels", "check"],
)
def test_a_refusal_is_final(server: LocalServer, arguments: list[str], given: bytes) -> None:
    """One clear line, exit code 1, and no second try."""
    url = f"http://127.0.0.1:{server.port}/trickle/other"
    before = len(server.records)
    command = [url if argument == "URL" else argument for argument in arguments]
    refused = run(*command, given=given)
    assert refused.returncode == 1
    assert b"the server wants a valid token" in refused.stderr
    assert b"Token required (HTTP 401)" in refused.stderr
    not_allowed = run(*command, variable=token(trickle={"publish": ["x"]}), given=given)
    assert b"the server does not allow this" in not_allowed.stderr
    assert len(server.records) - before <= 4


def test_a_token_that_is_none() -> None:
    """It is said without being repeated, before anything is sent."""
    for command in (["publish", "http://127.0.0.1:1/trickle/c", "-", "--raw"], ["channels", "http://127.0.0.1:1"]):
        done = run(*command, "--token", "not a token")
        assert done.returncode == 2
        said = (
            b"Error: Invalid value for --token: the token is empty, or contains a character that is not visible ASCII"
        )
        assert done.stderr.splitlines()[-1] == said
