"""Each exchange ends with one line: the fields of the schema, for every operation and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Serve
from tests.support.logs import Record, matching, read_log
from tests.support.waiting import eventually
from tricklecast.app.tools.conformance.target import Target
from tricklecast.trickle.records import FIELD_NAMES, Op

CLIENT = {
    "Trickle-Client": "tester",
    "Trickle-Attempt": "2",
    "User-Agent": "probe/1.0 (test)",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}


def exchanges(target: Target) -> None:
    """One exchange of every kind; the path says which."""
    ask = target.ask
    channel = target.channel("c")
    ask("POST", "/trickle/c", {"Expect-Content": "video/mp2t"}, b"")
    ask("POST", "/trickle/c/0", CLIENT, b"body")
    ask("GET", "/trickle/c/-2?token=secret", CLIENT)
    ask("POST", "/trickle/c/-1", body=b"")
    ask("GET", "/trickle/c/1")
    ask("GET", "/trickle/c/next")
    ask("HEAD", "/trickle/c/0")
    ask("GET", "/trickle/c/9")
    ask("POST", "/trickle/c/9", body=b"x")
    ask("POST", "/trickle/c/0", body=b"x")
    ask("GET", "/trickle/missing/0")
    ask("POST", "/trickle/_mine/0", body=b"x")
    ask("PUT", "/trickle/c/0")
    ask("GET", "/trickle/c/x")
    ask("GET", "/trickle/_changes/0")
    ask("GET", "/healthz?secret")
    ask("DELETE", "/trickle/c/77")
    first, reader = channel.started(2, b"ab")
    second = channel.upload(2, b"cd")
    assert reader.body(2) == b"cd"
    assert first.answer().status == 409
    assert channel.close(2).status == 200
    assert second.answer().status == 200
    assert reader.rest() == b""
    gone = channel.waiting(3)
    gone.abort()
    eventually(lambda: b'"readers":0,' in ask("GET", "/api/v1/channels/c").body)
    waiting = channel.waiting(3)
    ask("DELETE", "/trickle/c")
    assert waiting.response().get("Lp-Trickle-Closed") == "terminated"
    ask("GET", "/trickle/c/stream?start=0")
    ask("GET", "/trickle/c/media.m3u8")
    ask("GET", "/trickle/c/hls/1-0.ts")
    ask("GET", "/trickle/c/clip.ts?since=10s")
    ask("GET", "/trickle/missing", {"Connection": "upgrade", "Upgrade": "trickle-feed"})
    late = ask("POST", "/trickle/c/4", body=b"x")
    assert late.get("Lp-Trickle-Closed") == "terminated"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """The log of a server that has served one exchange of every kind."""
    from tests.support.server import serve

    path: Path = tmp_path_factory.mktemp("log") / "access.jsonl"
    with serve("--node", "n1", access_log=path) as server, server.client() as target:
        exchanges(target)
        assert server.stop() == 0
    return read_log(path)


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ({"op": "create"}, {"status": 200, "reason": "complete", "method": "POST", "epoch": 1, "next_seq": 0}),
        (
            {"op": "publish", "client": "tester"},
            {"status": 200, "reason": "complete", "seq": 0, "rseq": 0, "next_seq": 1, "bytes_in": 4, "bytes_out": 0,
             "attempt": 2, "ua": "probe/1.0 (test)", "release": "probe/1.0", "epoch": 1,
             "trace": "4bf92f3577b34da6a3ce929d0e0e4736"},
        ),
        (
            {"op": "read", "client": "tester"},
            {"status": 200, "reason": "complete", "path": "/trickle/c/-2", "seq": -2, "rseq": 0, "next_seq": 1,
             "bytes_out": 4, "bytes_in": None, "eos": None},
        ),
        ({"op": "publish", "seq": -1}, {"status": 200, "reason": "empty", "rseq": 1, "next_seq": 2, "bytes_in": 0}),
        ({"op": "read", "seq": 1}, {"status": 200, "reason": "empty", "rseq": 1, "bytes_out": 0, "eos": None}),
        ({"op": "next", "channel": "c"}, {"status": 200, "reason": "complete", "bytes_out": 1, "next_seq": 2}),
        ({"op": "read", "method": "HEAD"}, {"status": 200, "reason": "complete", "bytes_out": 0, "rseq": 0}),
        ({"op": "read", "seq": 9}, {"status": 470, "reason": "ahead", "rseq": None, "next_seq": 2, "epoch": 1}),
        ({"op": "publish", "seq": 9}, {"status": 470, "reason": "ahead", "rseq": None, "next_seq": 2}),
        ({"op": "publish", "reason": "conflict"}, {"status": 409, "seq": 0, "next_seq": 2}),
        ({"op": "read", "channel": "missing"}, {"status": 404, "reason": "not_found", "epoch": None}),
        ({"op": "publish", "channel": "_mine"}, {"status": 403, "reason": "forbidden"}),
        ({"method": "PUT"}, {"status": 405, "reason": "bad_request", "op": None}),
        ({"path": "/trickle/c/x"}, {"status": 400, "reason": "bad_request", "op": "read", "seq": None}),
        ({"op": "changes"}, {"status": 200, "reason": "complete", "channel": "_changes", "rseq": 0}),
        ({"op": "api", "path": "/healthz"}, {"status": 200, "reason": "complete", "bytes_out": 15}),
        ({"op": "close_segment", "seq": 77}, {"status": 400, "reason": "not_found"}),
        ({"op": "close_segment", "seq": 2}, {"status": 200, "reason": "complete", "next_seq": 3}),
        ({"op": "publish", "status": 409, "reason": "superseded"}, {"rseq": 2, "bytes_in": 2}),
        ({"op": "publish", "reason": "truncated"}, {"status": 200, "rseq": 2, "bytes_in": 2}),
        ({"op": "read", "seq": 2}, {"status": 200, "reason": "complete", "bytes_out": 4}),
        ({"op": "read", "reason": "client_gone"}, {"status": None, "rseq": 3, "bytes_out": 0, "wait_us": None}),
        ({"op": "read", "reason": "terminated"}, {"status": 200, "rseq": 3, "eos": True, "bytes_out": 0}),
        ({"op": "delete"}, {"status": 200, "reason": "complete", "channel": "c"}),
        (
            {"op": "stream"},
            {"status": 200, "reason": "terminated", "bytes_out": 8, "seq": 0,
             "detail": "2 whole segments, 0 left out, 0 cut short"},
        ),
        ({"op": "playlist"}, {"status": 415, "reason": "bad_request"}),
        ({"op": "hls"}, {"status": 415, "reason": "bad_request"}),
        ({"op": "clip"}, {"status": 415, "reason": "bad_request"}),
        ({"op": "feed"}, {"status": 404, "reason": "not_found", "channel": "missing"}),
        ({"op": "publish", "seq": 4}, {"status": 404, "reason": "not_found", "eos": True}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if "op" in value or "method" in value else "",
)  # fmt: skip
def test_the_line_of_each_exchange(records: list[Record], what: dict[str, Any], fields: dict[str, Any]) -> None:
    """Operation, reason, seqs, bytes: as the schema says."""
    found = matching(records, **what)
    assert len(found) == 1, found
    assert {name: found[0].get(name) for name in fields} == fields


def test_every_line_follows_the_schema(records: list[Record]) -> None:
    """Known fields only, in the order of the schema, with version, time, node and kind."""
    for record in records:
        names = list(record)
        assert names == sorted(names, key=FIELD_NAMES.index)
        assert (record["v"], record["node"]) == (1, "n1")
        assert record["kind"] in ("exchange", "event")


def test_every_exchange_says_who_and_how_long(records: list[Record]) -> None:
    """Address, duration and reason are in every line; the time to the first byte is not longer than the whole."""
    for record in matching(records, kind="exchange"):
        assert record["ip"] == "127.0.0.1"
        assert record["dur_us"] >= record.get("wait_us", 0) >= 0
        assert record["reason"]
        if record.get("op") != "api":
            assert record["conn"] >= 1
            assert record["client"]


def test_no_query_reaches_the_log(records: list[Record]) -> None:
    """Access tokens stand in queries: they are not written down."""
    assert not [record for record in records if "secret" in str(record)]


def test_every_operation_occurs(records: list[Record]) -> None:
    """The list above leaves none out."""
    assert {record.get("op") for record in matching(records, kind="exchange")} == {*map(str, Op), None}


def test_retry_after_is_noted(records: list[Record]) -> None:
    """What the client was told to wait is in the line."""
    (record,) = matching(records, op="read", reason="ahead")
    assert record["retry_after_ms"] in (1000, 2000)


def test_the_events_of_a_life(records: list[Record]) -> None:
    """Start, configuration, channels, stop: what storms are joined to."""
    events = [record["event"] for record in matching(records, kind="event") if record.get("channel") != "_changes"]
    assert events[:3] == ["server_start", "config", "server_ready"]
    assert events[-2:] == ["drain", "server_stop"]
    (created,) = matching(records, event="channel_create", channel="c")
    (ended,) = matching(records, event="channel_end", channel="c")
    assert (created["epoch"], ended["epoch"], ended["next_seq"], ended["detail"]) == (1, 1, 3, "deleted")
    assert matching(records, event="server_start")[0]["release"].startswith("tricklecast/")


def test_rotation_while_serving_loses_nothing(quiet_serve: Serve, tmp_path: Path) -> None:
    """The lines of all files together are all exchanges, once each."""
    with quiet_serve("--access-log-max-bytes", "2kB") as server, server.client() as target:
        connection = target.open()
        for seq in range(200):
            connection.request("POST", f"/trickle/c/{seq}", body=b"x")
            assert connection.response().status == 200
        assert server.stop() == 0
    lines = [line for path in tmp_path.glob("access*.jsonl") for line in read_log(path)]
    assert sorted(record["rseq"] for record in matching(lines, op="publish")) == list(range(200))
    assert len(list(tmp_path.glob("access-*.jsonl"))) >= 1
