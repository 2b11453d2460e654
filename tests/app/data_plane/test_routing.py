"""Which requests belong to the data plane, and what they ask for."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tricklecast.app.data_plane.routing import CONTROL_PLANE, Route, Router, parse_route
from tricklecast.trickle.paths import normalize_base_path
from tricklecast.trickle.records import Op

CHANNEL_ONLY = "Method not allowed: this URL names a channel; its segments are at CHANNEL/SEQ"
NO_CHANNEL = "Method not allowed: this URL has no channel; a segment is at CHANNEL/SEQ, the head at CHANNEL/next"
SEGMENT_ALLOW = "GET, HEAD, POST, DELETE, OPTIONS"


@pytest.mark.parametrize(
    ("base", "target", "parts"),
    [
        ("/trickle", b"/trickle/c", (b"c",)),
        ("/trickle", b"/trickle/c/0", (b"c", b"0")),
        ("/trickle", b"//trickle//c///0/", (b"c", b"0")),
        ("/trickle", b"/trickle/c/", (b"c", b"")),
        ("", b"/c//?q", (b"c", b"")),
        ("/trickle", b"/trickle/c/0?token=/x/y", (b"c", b"0")),
        ("/trickle", b"/trickle/c/0/1/2", (b"c", b"0", b"1", b"2")),
        ("/trickle", b"http://host:1/trickle/c/0?q", (b"c", b"0")),
        ("/trickle", b"/trickle/api", (b"api",)),
        ("/a/b", b"/a/b/c", (b"c",)),
        ("", b"/c/0", (b"c", b"0")),
        ("", b"//c/0", (b"c", b"0")),
        ("", b"/apis", (b"apis",)),
        ("/trickle", b"/trickle", None),
        ("/trickle", b"/trickle/", None),
        ("/trickle", b"/trickles/c", None),
        ("/trickle", b"/x/trickle/c", None),
        ("/trickle", b"/api/v1/channels", None),
        ("/trickle", b"*", None),
        ("/trickle", b"", None),
        ("/trickle", b"trickle", None),
        ("/trickle", b"http://trickle", None),
        ("/a/b", b"/a/c/b", None),
        ("", b"/", None),
        ("", b"", None),
        ("", b"/api/v1/channels", None),
        ("", b"/metrics", None),
    ],
)
def test_a_target_is_matched_below_the_base_path(base: str, target: bytes, parts: tuple[bytes, ...] | None) -> None:
    """Runs of slashes count as one, the query is ignored, and everything else is the control plane's."""
    assert Router(base).match(target) == parts


@pytest.mark.parametrize("first", sorted(CONTROL_PLANE))
def test_the_control_plane_wins_at_the_root(first: str) -> None:
    """With base path `/` the control plane's first segments are none of ours; below another base path they are."""
    target = f"/{first}/0".encode()
    assert Router("").match(target) is None
    assert Router("/trickle").match(b"/trickle" + target) == (first.encode(), b"0")


BASES = st.sampled_from(["", "/trickle", "/a/b"])


@given(BASES, st.binary(max_size=40))
def test_any_bytes_can_be_matched(base: str, target: bytes) -> None:
    """The router never raises, and what it matches lies below the base path."""
    router = Router(base)
    for path in (target, b"/" + target, base.encode() + b"/" + target):
        parts = router.match(path)
        if parts is not None:
            assert parts[0]
            assert all(part for part in parts) or (len(parts) == 2 and path.partition(b"?")[0].endswith(b"/"))
            assert not [part for part in parts if b"/" in part or b"?" in part]
            assert base.encode().strip(b"/") in path.partition(b"?")[0].replace(b"//", b"/")


@given(BASES, st.lists(st.binary(min_size=1, max_size=8).filter(lambda part: not set(part) & set(b"/?")), max_size=4))
def test_no_match_outside_the_base_path(base: str, parts: list[bytes]) -> None:
    """A path is ours exactly if its segments begin with those of the base path and go on."""
    below = tuple(parts)
    depth = tuple(part.encode() for part in base.split("/") if part)
    ours = below[: len(depth)] == depth and len(below) > len(depth)
    if not base:
        ours = ours and below[0].decode("latin-1") not in CONTROL_PLANE
    expected = below[len(depth) :] if ours else None
    assert Router(normalize_base_path(base)).match(b"/" + b"/".join(parts)) == expected


def test_a_feed_is_at_the_url_of_a_channel() -> None:
    """A GET of it; a name that is none has an error, and other paths and methods have no feed."""
    router = Router("/trickle")
    asked = router.feed(b"GET", b"/trickle/a%20b?token=x")
    assert asked is not None
    assert (asked.op, asked.channel, asked.error) == (Op.FEED, "a b", "")
    wrong = router.feed(b"GET", b"/trickle/..")
    assert wrong is not None
    assert (wrong.op, wrong.channel, wrong.error[:20]) == (None, "", "Invalid channel name")
    for method, target in ((b"POST", b"/trickle/c"), (b"GET", b"/trickle/c/0"), (b"GET", b"/trickle"), (b"GET", b"/c")):
        assert router.feed(method, target) is None


FIELDS = ("op", "channel", "seq", "allow", "error", "not_found", "media", "blocking")


def fields(route: Route | None) -> list[object]:
    """The fields of a route, which is compared by these."""
    return [getattr(route, name, None) for name in FIELDS]


@given(
    st.sampled_from([b"GET", b"HEAD", b"POST", b"DELETE", b"PUT", b"OPTIONS"]),
    st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=4).map(tuple),
)
def test_any_path_segments_can_be_parsed(method: bytes, parts: tuple[bytes, ...]) -> None:
    """With any path segments, the route is usable or has an error."""
    route = parse_route(method, parts)
    assert route.error or route.channel
    if route.op in (Op.READ, Op.CHANGES, Op.PUBLISH, Op.CLOSE_SEGMENT) and not route.error:
        assert route.seq is not None
    if route.seq is not None:
        assert not route.error


@pytest.mark.parametrize(
    ("method", "parts", "route"),
    [
        (b"POST", (b"c",), Route(Op.CREATE, "c", allow="POST, DELETE, OPTIONS")),
        (b"DELETE", (b"c",), Route(Op.DELETE, "c", allow="POST, DELETE, OPTIONS")),
        (b"GET", (b"c",), Route(None, "c", allow="POST, DELETE, OPTIONS", error=CHANNEL_ONLY)),
        (b"GET", (b"c", b"next"), Route(Op.NEXT, "c", allow="GET, HEAD, OPTIONS")),
        (b"GET", (b"next",), Route(None, "next", allow="POST, DELETE, OPTIONS", error=NO_CHANNEL)),
        (b"GET", (b"-2",), Route(None, "-2", allow="POST, DELETE, OPTIONS", error=NO_CHANNEL)),
        (b"HEAD", (b"c", b"next"), Route(Op.NEXT, "c", allow="GET, HEAD, OPTIONS")),
        (b"POST", (b"c", b"next"), Route(None, "c", allow="GET, HEAD, OPTIONS")),
        (b"GET", (b"c", b"0"), Route(Op.READ, "c", 0, SEGMENT_ALLOW)),
        (b"HEAD", (b"c", b"-2"), Route(Op.READ, "c", -2, SEGMENT_ALLOW)),
        (b"GET", (b"c", b"-99"), Route(Op.READ, "c", -99, SEGMENT_ALLOW)),
        (b"POST", (b"c", b"-1"), Route(Op.PUBLISH, "c", -1, SEGMENT_ALLOW)),
        (b"POST", (b"c", b"007"), Route(Op.PUBLISH, "c", 7, SEGMENT_ALLOW)),
        (b"DELETE", (b"c", b"3"), Route(Op.CLOSE_SEGMENT, "c", 3, SEGMENT_ALLOW)),
        (b"PUT", (b"c", b"3"), Route(None, "c", 3, SEGMENT_ALLOW)),
        (b"GET", (b"_changes", b"-1"), Route(Op.CHANGES, "_changes", -1, SEGMENT_ALLOW)),
        (b"POST", (b"_changes", b"-1"), Route(Op.PUBLISH, "_changes", -1, SEGMENT_ALLOW)),
        (b"GET", (b"_other", b"-1"), Route(Op.READ, "_other", -1, SEGMENT_ALLOW)),
        (b"GET", (b"a%20b%c3%a9", b"1"), Route(Op.READ, "a bé", 1, SEGMENT_ALLOW)),
        (b"GET", ("é".encode(), b"1"), Route(Op.READ, "é", 1, SEGMENT_ALLOW)),
        (b"POST", (b"c", b"-2"), Route(Op.PUBLISH, "c", error="Invalid idx", allow=SEGMENT_ALLOW)),
        (b"DELETE", (b"c", b"-1"), Route(Op.CLOSE_SEGMENT, "c", error="Invalid idx", allow=SEGMENT_ALLOW)),
        (b"POST", (b"c", b""), Route(Op.PUBLISH, "c", error="Invalid idx", allow=SEGMENT_ALLOW)),
        (b"GET", (b"c", b"x"), Route(Op.READ, "c", error="Invalid idx", allow=SEGMENT_ALLOW)),
        (b"GET", (b"c", b"+1"), Route(Op.READ, "c", error="Invalid idx", allow=SEGMENT_ALLOW)),
        (b"GET", (b"c", b"%31"), Route(Op.READ, "c", error="Invalid idx", allow=SEGMENT_ALLOW)),
        (b"GET", (b"c", b"1" * 16), Route(Op.READ, "c", error="Invalid idx", allow=SEGMENT_ALLOW)),
        (b"GET", (b"c", "\u0661".encode()), Route(Op.READ, "c", error="Invalid idx", allow=SEGMENT_ALLOW)),
        (b"PUT", (b"c", b"x"), Route(None, "c", allow=SEGMENT_ALLOW)),
        (b"GET", (b"c", b"0", b"1"), Route(None, "c", error="Not found", not_found=True)),
    ],
)
def test_what_a_request_asks_for(method: bytes, parts: tuple[bytes, ...], route: Route) -> None:
    """Method and path make the operation; a wrong seq or method is said, not guessed at."""
    assert fields(parse_route(method, parts)) == fields(route)


@pytest.mark.parametrize(
    "name", [b"%ff", b"\xff", b"a%2fb", b"a%5cb", b"..", b"%2e%2e", b"a..b", b".", b"a%00b", b"a%0ab", b"x" * 256]
)
def test_a_name_that_cannot_be_one_is_an_error(name: bytes) -> None:
    """Names with slashes, dots, control characters or no UTF-8 are refused with the reason."""
    route = parse_route(b"POST", (name, b"0"))
    assert route.op is None
    assert route.error.startswith("Invalid channel name: ")


def test_the_query_asks_for_nothing() -> None:
    """A target is found by its path: what follows a question mark is somebody else's."""
    router = Router("/trickle")
    assert fields(router.find(b"GET", b"/trickle/c/0?token=/x/y")) == fields(router.find(b"GET", b"/trickle/c/0"))
    assert fields(router.find(b"POST", b"/trickle/c?token=a/5")) == fields(router.find(b"POST", b"/trickle/c"))
    assert router.find(b"GET", b"/metrics?x") is None


@given(st.sampled_from([b"GET", b"HEAD", b"POST", b"DELETE", b"PUT"]), st.binary(max_size=40))
@example(b"GET", b"c/1")
@example(b"POST", b"c/999999999999999")
@example(b"GET", b"c/1000000000000000")
@example(b"GET", b"_changes/0")
@example(b"GET", b"%2f/0")
@example(b"GET", b"/0")
@example(b"PUT", b"c/0")
def test_the_common_form_of_a_path_is_read_as_any_other(method: bytes, target: bytes) -> None:
    """The router reads `/base/channel/digits` by a shorter way, which comes to the same."""
    for base in ("/trickle", "/a/b", ""):
        router = Router(base)
        path = base.encode() + b"/" + target
        parts = router.match(path)
        found = router.find(method, path)
        if parts is None or (route := parse_route(method, parts)).not_found:
            assert found is None or found.not_found
        else:
            assert fields(found) == fields(route)


@pytest.mark.parametrize(
    ("base", "target", "hint"),
    [
        ("/trickle", b"/cam/0", "a segment at /trickle/CHANNEL/SEQ"),
        ("/trickle", b"/trickle", "a channel is at /trickle/CHANNEL"),
        ("/trickle", b"/trickle/cam/3/0", "a segment at /trickle/CHANNEL/SEQ"),
        ("/trickle", b"http://host/cam/0?token=x", "a segment at /trickle/CHANNEL/SEQ"),
        ("", b"/cam/3/0", "a segment at /CHANNEL/SEQ"),
    ],
)
def test_a_path_of_no_route_is_told_the_form_of_a_channels_url(base: str, target: bytes, hint: str) -> None:
    """A client that forgot the base path, or named a segment as its channel, learns what a URL looks like."""
    route = Router(base).find(b"POST", target)
    assert route is not None
    assert route.not_found
    assert hint in route.error


@pytest.mark.parametrize("target", [b"/", b"/?x", b"*", b"", b"/api/v1/nothing", b"/healthz", b"//docs"])
def test_the_control_plane_answers_for_its_own_paths(target: bytes) -> None:
    """The root and the first segments of the control plane are FastAPI's, found or not."""
    assert Router("/trickle").find(b"GET", target) is None
