"""Which worker a request belongs to, from the first bytes of its head."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.data_plane.routing import Router
from tricklecast.app.workers.placement import FRONT, LOOK_BYTES, MAX_KNOWN, Placement, owner_of

WORKERS = 5
HERE = 3
AT = Placement(WORKERS, HERE, Router("/trickle"))
ROOT = Placement(WORKERS, HERE, Router(""))


def channel_of(worker: int) -> str:
    """The name of a channel that this worker owns."""
    return next(name for name in map("c{}".format, range(1000)) if owner_of(name, WORKERS) == worker)


ODD = "caf\u00e9"
ODD_BYTES = "caf\udce9"  # a name that is not UTF-8


@pytest.mark.parametrize(
    ("head", "channel"),
    [
        (b"GET /trickle/%b/0 HTTP/1.1\r\n", None),
        (b"POST /trickle/%b/-1 HTTP/1.1\r\n", None),
        (b"DELETE /trickle/%b HTTP/1.1\r\n", None),
        (b"GET /trickle/%b/stream?token=x", None),
        (b"GET //trickle///%b//0 HTTP/1.1\r\n", None),
        (b"GET http://host:1/trickle/%b/0 HTTP/1.1\r\n", None),
        (b"\r\n\r\n\rGET   /trickle/%b/next HTTP/1.1\r\n", None),
        (b"OPTIONS /trickle/%b/0 HTTP/1.1\r\n", None),
        (b"BREW /trickle/%b/0 HTTP/1.1\r\n", None),
        (b"M-SEARCH /trickle/%b/0 HTTP/1.1\r\n", None),
        (b"GET /api/v1/channels/%b HTTP/1.1\r\n", None),
        (b"DELETE /api/v1/channels/%b?force=1 HTTP/1.1\r\n", None),
        (b"GET http://host/api/v1/channels/%b/segments HTTP/1.1\r\n", None),
        (b"GET /api/v1/%%63hannels/%b HTTP/1.1\r\n", None),
        (b"GET /trickle/%b/media.m3u8?_HLS_msn=1 HTTP/1.1\r\n", None),
        (b"GET /trickle/caf%%c3%%a9/0 HTTP/1.1\r\n", ODD),
        (b"GET /trickle/caf\xc3\xa9/0 HTTP/1.1\r\n", ODD),
        (b"GET /api/v1/channels/caf%%C3%%A9 HTTP/1.1\r\n", ODD),
    ],
)
@pytest.mark.parametrize("worker", range(WORKERS))
def test_a_request_about_a_channel_belongs_to_its_owner(head: bytes, channel: str | None, worker: int) -> None:
    """In every form of its target that the server takes, whatever the method."""
    name = channel or channel_of(worker)
    given = head % (name.encode() if channel is None else ())
    assert AT.worker_for(given, 0) == owner_of(name, WORKERS)


def test_channels_of_a_ladder_have_one_owner() -> None:
    """And ladders are spread over all workers, as channels are."""
    owners = [
        [owner_of(name + rung, WORKERS) for rung in ("", "_720p", "_360p")] for name in map("cam{}".format, range(100))
    ]
    assert all(len(set(one)) == 1 for one in owners)
    assert {one[0] for one in owners} == set(range(WORKERS))


@pytest.mark.parametrize(
    ("head", "worker"),
    [
        (b"GET / HTTP/1.1\r\n", FRONT),
        (b"GET /metrics HTTP/1.1\r\n", FRONT),
        (b"GET /api/v1/channels HTTP/1.1\r\n", FRONT),
        (b"GET /api/v1/channels/ HTTP/1.1\r\n", FRONT),
        (b"OPTIONS * HTTP/1.1\r\n", FRONT),
        (b"CONNECT host:443 HTTP/1.1\r\n", FRONT),
        (b"GET /trickle/_changes/0 HTTP/1.1\r\n", FRONT),
        (b"GET \r\n", FRONT),
        (b"GET /nowhere/0 HTTP/1.1\r\n", HERE),
        (b"\x16\x03\x01\x02\x00\x01", HERE),
        (b"G@T / HTTP/1.1\r\n", HERE),
        (b"A" * 33, HERE),
        (b"GET /" + b"x" * LOOK_BYTES, FRONT),
        (b"\r\n", HERE),
    ],
)
def test_a_request_about_no_channel(head: bytes, worker: int) -> None:
    """The front answers for all; what is no request, or has no such URL, is refused where it came."""
    if head.startswith(b"GET /x"):
        worker = HERE  # below no base path
    assert AT.worker_for(head, 0) == worker


def test_the_root_as_base_path() -> None:
    """Every name that the control plane does not have is a channel's."""
    name = channel_of(4)
    assert ROOT.worker_for(b"GET /%b/0 HTTP/1.1\r\n" % name.encode(), 0) == 4
    assert ROOT.worker_for(b"GET /metrics HTTP/1.1\r\n", 0) == FRONT
    assert ROOT.worker_for(b"GET /api/v1/channels/%b HTTP/1.1\r\n" % name.encode(), 0) == 4


targets = st.one_of(
    st.from_regex(rb"/{1,2}(trickle/{1,2})?[a-z_%0-9\xe9]{0,6}(/[a-z0-9-]{0,6})?(\?[a-z=]{0,5})?", fullmatch=True),
    st.from_regex(rb"(http://h)?/api/v1/channels/[a-z%]{0,4}(/x)?", fullmatch=True),
    st.binary(max_size=20).filter(lambda text: not set(text) & set(b" \r\n")),
)


@given(st.sampled_from([b"GET", b"POST", b"M-SEARCH"]), targets, st.integers(1, 2), st.data())
def test_half_a_head_tells_the_same_as_the_whole(
    method: bytes, target: bytes, spaces: int, data: st.DataObject
) -> None:
    """However a request is cut, its beginning says nothing yet, or what all of it says."""
    head = method + b" " * spaces + target + b" HTTP/1.1\r\nHost: h\r\n\r\n"
    whole = AT.worker_for(head, 0)
    assert whole == AT.worker_for_target(method, target, 0)
    assert AT.worker_for(head[: data.draw(st.integers(1, len(head)))], 0) in (None, whole)


def test_owners_are_spread_evenly() -> None:
    """No worker has much more than its share of names that look alike; reserved names belong to the front."""
    for workers in (2, 3, 8, 64):
        counts = [0] * workers
        for number in range(10_000):
            counts[owner_of(f"camera-{number}", workers)] += 1
        assert min(counts) > 0.7 * 10_000 / workers
    assert owner_of("_anything", 8) == FRONT


@pytest.mark.parametrize(
    ("line", "is_kept"),
    [
        (b"GET /trickle/%b/7 HTTP/1.1\r\n", True),
        (b"GET /trickle/%b/stream HTTP/1.1\r\n", True),
        (b"GET /trickle/%b?x/7 HTTP/1.1\r\n", False),
        (b"GET /trickle//%b/7 HTTP/1.1\r\n", False),
        (b"\r\nGET /trickle/%b/7 HTTP/1.1\r\n", False),
        (b"GET http://host/trickle/%b/7 HTTP/1.1\r\n", False),
        (b"DELETE /trickle/%b HTTP/1.1\r\n", False),
        (b"GET /api/v1/channels/%b HTTP/1.1\r\n", False),
        (b"GET /trickle/%b", False),
    ],
)
def test_the_beginning_that_says_enough(line: bytes, is_kept: bool) -> None:
    """Every request that begins so is for one channel of this worker; a channel that becomes busy has none."""
    name = next(name for name in (f"c{number}" for number in range(99)) if owner_of(name, 4) == 1)
    placement = Placement(4, 1, Router("/trickle"))
    head = memoryview(b"xyz" + line % name.encode())
    assert not placement.is_ours(head, 3)
    placement.worker_for(head[3:], 0)
    assert placement.is_ours(head, 3) == is_kept
    assert placement.is_ours(b"GET /trickle/%b/media.m3u8?x HTTP" % name.encode(), 0) == is_kept
    placement.set_choice(name, lambda route, number: 1)
    assert placement.worker_for(head[3:], 0) in (1, None)
    assert not placement.is_ours(head, 3)


@given(st.sampled_from([b"GET", b"POST", b"M-SEARCH"]), targets, targets, st.sampled_from([AT, ROOT]))
def test_a_known_beginning_says_what_the_whole_head_says(
    method: bytes, before: bytes, target: bytes, placement: Placement
) -> None:
    """Whatever has been asked before."""
    placement.worker_for(method + b" " + before + b" HTTP/1.1\r\n", 0)
    head = method + b" " + target + b" HTTP/1.1\r\n"
    if placement.is_ours(head, 0):
        assert placement.worker_for_target(method, target, 0) == HERE


def test_few_beginnings_are_kept() -> None:
    """Clients that ask for ever other names fill no memory."""
    placement = Placement(1, 0, Router("/trickle"))
    for number in range(2 * MAX_KNOWN + 10):
        placement.worker_for(b"GET /trickle/c%d/7 HTTP/1.1\r\n" % number, 0)
    assert len(placement._owners) == 10
