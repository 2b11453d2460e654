"""A server without an access log notes less of an exchange, and answers and counts the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from tests.app.access.signing import SECRET, bearer, token
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.data_plane.request import Tally
from tricklecast.app.tools.conformance.target import Target
from tricklecast.trickle.records import AccessRecord


@contextmanager
def unlogged(**settings: Any) -> Iterator[tuple[LocalServer, Target]]:
    """A server without an access log, and a client."""
    with local_server(**settings) as server, server.client() as target:
        server.plane.sink = None
        yield server, target


def test_what_is_noted_is_part_of_a_record() -> None:
    """Nothing is noted for the metrics that a line of the log would not say."""
    assert set(Tally.__slots__) < {field.name for field in fields(AccessRecord)}


def counted(server: LocalServer, **expected: int) -> None:
    """Wait until so many exchanges are counted, by operation, status and reason."""

    def found() -> dict[str, int]:
        counts = {f"{op}_{status}_{reason}": n for (op, status, reason), n in list(server.plane.exchanges.items())}
        return {name: counts.get(name, 0) for name in expected}

    eventually(lambda: found() == expected, what=f"{expected} are counted")


def test_a_segment_is_counted() -> None:
    """What was published and read is counted with its bytes and its waiting."""
    with unlogged() as (server, target):
        channel = target.channel()
        channel.create()
        waiting = channel.waiting(0)
        before = server.inside(lambda: (server.plane.bytes_in, server.plane.bytes_out))
        channel.publish(0, b"first")
        assert waiting.response().body == b"first"
        assert channel.get(0).body == b"first"
        counted(server, create_200_complete=1, publish_200_complete=1, read_200_complete=2)
        after = server.inside(lambda: (server.plane.bytes_in, server.plane.bytes_out))
        assert (after[0] - before[0], after[1] - before[1]) == (5, 10)
        assert sum(server.plane.latencies.waits["read"].counts) == 2


def test_other_answers_are_counted() -> None:
    """So are refusals, ends and what is no request."""
    with unlogged() as (server, target):
        channel = target.channel()
        assert channel.get(0).status == 404
        channel.publish(0, b"x")
        assert channel.get(99).status == 470
        assert channel.post(99).status == 470
        assert target.ask("GET", f"{target.base}/a/b/c").status == 404
        channel.waiting(1).close()
        counted(
            server,
            read_404_not_found=1, publish_200_complete=1, read_470_ahead=1, publish_470_ahead=1, none_404_not_found=1,
            read_0_client_gone=1,
        )  # fmt: skip


def test_an_answer_that_was_held_back_is_counted_once() -> None:
    """A client in a loop is answered later, and each answer counts."""
    with unlogged() as (server, target):
        path, connection = target.channel().at(0), target.open()
        for _ in range(12):
            connection.request("GET", path, {"Trickle-Client": "one"})
            assert connection.response().status == 404
        counted(server, read_404_not_found=12)
        assert server.plane.holds


def test_a_token_that_names_nobody(tmp_path: Path) -> None:
    """Where access is controlled, who a client is finds its place, or stays open."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    with unlogged(jwt_secret_file=secret) as (_, target):
        named, nameless = (bearer(token(trickle={"subscribe": ["*"]}, sub=sub)) for sub in ("me", None))
        path = f"{target.base}/missing/0"
        assert [target.ask("GET", path, headers).status for headers in (named, nameless, {})] == [404, 404, 401]
