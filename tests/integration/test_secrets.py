"""Secrets and tokens are in nothing that a server writes: its output, its log, its metrics, its answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import jwt

from tests.app.access.service import service
from tests.app.access.signing import SECRET, bearer, token
from tests.support.forked import forked
from tests.support.server import serve
from tricklecast.app.tools.conformance.target import Target

CONTROL = "control-plane-secret-0123456789"
HOOK = "hook-secret-0123456789-0123456789-0123456789"


def arguments(folder: Path, hook: str) -> list[str]:
    (folder / "jwt").write_bytes(SECRET)
    (folder / "control").write_text(CONTROL)
    (folder / "hook").write_text(HOOK)
    return [
        "--jwt-secret-file", str(folder / "jwt"), "--control-token-file", str(folder / "control"),
        "--webhook-url", hook, "--webhook-secret-file", str(folder / "hook"), "--token-in-query",
        "--shutdown-drain-s", "0.1", "--storm-guard", "off",
    ]  # fmt: skip


def test_nothing_that_is_written_holds_a_secret(tmp_path: Path) -> None:
    """Whatever goes wrong, with the token in whatever place."""
    good, forged, expired = token(), token(b"forged" * 8), token(exp=1)
    odd = jwt.encode({"exp": 9e99, "trickle": 7, "sub": ["x"]}, SECRET, "HS256")
    said: list[bytes] = []
    log, output = tmp_path / "access.jsonl", tmp_path / "stderr"
    with service() as hook, output.open("w") as stderr:
        hook.says(500)
        given = arguments(tmp_path, hook.url)
        shown = subprocess.run(
            forked("serve", "--show-config", *given), capture_output=True, check=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")},
        )  # fmt: skip
        with serve("--port", "0", *given, access_log=log, stderr=stderr) as server, server.client() as target:
            _everything(target, [good, forged, expired, odd], said)
            metrics = target.ask("GET", "/metrics", bearer(CONTROL))
            assert metrics.status == 200
            said.append(metrics.body)
            assert server.stop() == 0
    written = {
        "show-config": shown.stdout + shown.stderr,
        "log": log.read_bytes(),
        "stderr": output.read_bytes(),
        "answers": b"".join(said),
    }
    assert b"no decision from" in written["stderr"]
    assert b'"token:signature"' in written["log"]
    secrets = [SECRET.decode(), CONTROL, HOOK]
    for text in (good, forged, expired, odd):
        secrets += [text, *text.split(".")[1:]]
    found = [(where, secret) for where, data in written.items() for secret in secrets if secret.encode() in data]
    assert found == []


def _everything(target: Target, tokens: list[str], said: list[bytes]) -> None:
    for text in [*tokens, CONTROL, HOOK, SECRET.decode()]:
        for place in ("header", "query", "both"):
            query = f"?token={text.replace(' ', '%20')}" if place != "header" else ""
            headers = bearer(text) if place != "query" else {}
            requests = [
                ("GET", f"{target.base}/c/next"),
                ("POST", f"{target.base}/c/0"),
                ("PUT", f"{target.base}/c/0"),
                ("GET", f"{target.base}/c/x"),
                ("GET", "/api/v1/channels"),
                ("POST", "/api/v1/channels"),
                ("GET", "/api/v1/channels/c"),
                ("GET", f"/missing/{'x' * 20}"),
                ("GET", "/metrics"),
            ]
            for method, path in requests:
                body = b'{"name": 7}' if method == "POST" else None
                response = target.ask(method, path + query, headers, body)
                said += [response.body, *(value for _, value in response.head.headers)]
    long = f"{target.base}/c/next?token={tokens[0]}{'x' * 9000}"
    said.append(target.ask("GET", long).body)
    connection = target.open()
    connection.send(b"GET /trickle/c/next?token=%b HTTP/1.1\r\nAuthorization: Bearer %b\x00\r\n\r\n" % (
        tokens[0].encode(), tokens[0].encode()
    ))  # fmt: skip
    said.append(connection.response().body)


def test_other_users_read_no_file_of_a_server(tmp_path: Path) -> None:
    """Data directory, access log and health file name channels that may need tokens."""
    before = os.umask(0o022)
    try:
        folder = tmp_path / "made"
        options = ("--data-dir", str(folder / "data"), "--health-file", str(tmp_path / "health"))
        with serve(*options, access_log=folder / "log" / "access.jsonl", fork=False) as server:
            with server.client() as target:
                target.channel("c").publish(0, b"body")
            modes = {path.name: path.stat().st_mode for path in [tmp_path / "health", folder, *folder.rglob("*")]}
            assert server.stop() == 0
    finally:
        os.umask(before)
    assert len(modes) > 8
    assert [name for name, mode in modes.items() if mode & 0o027] == []
