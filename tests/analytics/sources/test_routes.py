"""Paths mean what they mean to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tricklecast.analytics.sources.routes import CONTROL_PLANE, with_route
from tricklecast.app.data_plane import routing as server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATHS = [
    "/trickle/film/12",
    "/trickle/film/-1",
    "/trickle/film/012",
    "/trickle/film/next",
    "/trickle/film/next/",
    "/trickle/film",
    "/trickle/a%20b/3",
    "/trickle/a+b/3",
    "/trickle/%C3%A4/3",
    "/trickle/film/3?token=a/b",
    "//trickle//film///3",
    "http://example.com/trickle/film/3",
    "http://example.com//trickle/film/3?x=http://y",
    "/trickle/film/1234567890123456",
    "/trickle/film/abc",
    "/trickle/film/3/4",
    "/trickle/_changes/7",
    "/trickle",
    "/trickle/",
    "/tricklefilm/3",
    "/other/film/3",
    "/",
]


@pytest.mark.parametrize("prefix", ["/trickle", ""])
def test_the_same_as_the_server_makes_of_them(spark: SparkSession, prefix: str) -> None:
    """Op, channel and seq are those of the server's own router, for every method."""
    router = server.Router(prefix)
    asked = [(method, path) for method in ("GET", "HEAD", "POST", "DELETE") for path in PATHS]
    rows = with_route(spark.createDataFrame(asked, "method string, path string"), prefix)
    found = [(row["op"], row["channel"], row["seq"]) for row in rows.collect()]
    for (method, path), (op, channel, seq) in zip(asked, found, strict=True):
        parts = router.match(path.encode())
        if parts is None:
            assert (op, channel, seq) == ("api", None, None), path
            continue
        route = server.parse_route(method.encode(), parts)
        if route.op is not None and not route.error:
            assert (op, channel, seq) == (route.op, route.channel, route.seq), (method, path)
        else:  # the server refuses it
            assert op in (None, "api", route.op), (method, path)


def test_put_publishes_as_well(spark: SparkSession) -> None:
    """A proxy may have been asked with PUT; the server would not know it, the log does."""
    rows = with_route(spark.createDataFrame([("PUT", "/live/film/3")], "method string, path string"), "/live/")
    assert [row["op"] for row in rows.collect()] == ["publish"]


def test_the_control_plane_is_the_servers() -> None:
    """Where channels have no prefix, the same first words name none."""
    assert set(CONTROL_PLANE) == server.CONTROL_PLANE


def test_a_name_that_is_no_text_stands_as_it_is(spark: SparkSession) -> None:
    """A name with broken percent signs is shown as it came."""
    rows = with_route(spark.createDataFrame([("GET", "/trickle/a%zz%/3")], "method string, path string"), "/trickle")
    assert [row["channel"] for row in rows.collect()] == ["a%zz%"]
