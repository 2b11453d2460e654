"""Which kind of source answers at a URL, and what is said if none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.access.signing import SECRET, token
from tests.app.mirror.test_trickle_source import HERE, Liar, answer, in_loop
from tests.interop.reference import reference_server
from tests.support.local import local_server
from tricklecast.app.mirror.opening import open_source
from tricklecast.app.mirror.plain_source import PlainSource
from tricklecast.app.mirror.sides import SourceError
from tricklecast.app.mirror.trickle_source import TrickleSource
from tricklecast.trickle.errors import InvalidInput


@in_loop
async def test_each_kind_is_found_out() -> None:
    """One of our own by its API; all others by the way in which they know no channel."""
    with local_server() as server, reference_server() as reference, local_server(control_port=0) as elsewhere:
        ours = f"http://127.0.0.1:{server.port}/trickle"
        for url, kind in (
            (ours, TrickleSource),
            (f"{ours}/?x=y", TrickleSource),
            (reference.base, PlainSource),
            (f"http://127.0.0.1:{elsewhere.port}/trickle", PlainSource),
        ):
            source = await open_source(url)
            assert type(source) is kind
            await source.close()


@in_loop
async def test_what_no_source_is(tmp_path: Path) -> None:
    """The error says what was answered, and what to do."""
    (tmp_path / "secret").write_bytes(SECRET)
    with (
        local_server() as server,
        local_server(jwt_secret_file=tmp_path / "secret") as closed,
    ):
        root, wants = f"http://127.0.0.1:{server.port}", f"http://127.0.0.1:{closed.port}/trickle"
        reads = token(trickle={"subscribe": ["*"]})
        for url, text, problem in (
            (root, None, rf"answers 404: Not found: a channel is at /trickle/CHANNEL.*such as {root}/trickle\?"),
            (f"{root}/other", None, "URL of its base path"),
            (wants, None, "wants another token .* the right manage, and the right subscribe"),
            (wants, reads, "lacks the right manage"),
            ("http://127.0.0.1:1/trickle", None, HERE),
        ):
            with pytest.raises(SourceError, match=problem):
                await open_source(url, text)
        source = await open_source(wants, token(trickle={"subscribe": ["cam-*"], "manage": ["cam-*"]}))
        assert isinstance(source, TrickleSource)
        await source.close()
    for url in ("ftp://x/trickle", "trickle", ""):
        with pytest.raises(InvalidInput):
            await open_source(url)


@in_loop
async def test_servers_of_another_kind() -> None:
    """One that answers everything with a page, with something like JSON, or is stopping."""
    for says, problem in (
        (answer(200, b"<html>"), None),
        (answer(200, b"[]"), None),
        (answer(200, b"7"), None),
        (answer(503, b"Server is shutting down"), "answers 503"),
        (answer(500, b"oh"), "answers 500: oh: is that the URL"),
    ):
        async with Liar(says) as liar:
            if problem is None:
                source = await open_source(liar.requests.url)
                assert isinstance(source, PlainSource)
                await source.close()
            else:
                with pytest.raises(SourceError, match=problem):
                    await open_source(liar.requests.url)
