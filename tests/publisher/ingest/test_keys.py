"""Which channel a stream key stands for, and who may use it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tricklecast.publisher.ingest import keys
from tricklecast.publisher.ingest.keys import Channels, parse_stream_id
from tricklecast.publisher.ingest.sessions import SourceRefused
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.paths import ChannelURL

BASE = "http://127.0.0.1:2939/trickle/"


@pytest.fixture(autouse=True)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the answer to a wrong key."""
    monkeypatch.setattr(keys, "WRONG_KEY_S", 0.0)


def find(channels: Channels, key: str, token: str = "") -> tuple[ChannelURL, ...]:
    """The URLs of a stream's channel."""
    return anyio.run(channels.find, key, token)


@pytest.mark.parametrize(
    ("to", "key", "url"),
    [
        (BASE, "cam", f"{BASE}cam"),
        (f"{BASE}{{key}}", "cam", f"{BASE}cam"),
        (f"{BASE}studio-{{key}}?a=b", "1", f"{BASE}studio-1?a=b"),
        (f"{BASE}?a=b", "a b{key}", f"{BASE}a%20b%7Bkey%7D?a=b"),
    ],
)
def test_a_stream_key_names_the_channel(to: str, key: str, url: str) -> None:
    """It stands behind the URL, or where ``{key}`` is."""
    assert str(find(Channels(to), key)[0]) == url


def test_a_stream_has_a_url_at_each_node_of_a_cluster() -> None:
    """The key goes into each of them."""
    found = find(Channels(f"{BASE},https://b/{{key}}?a=b"), "cam")
    assert [str(url) for url in found] == [f"{BASE}cam", "https://b/cam?a=b"]


@pytest.mark.parametrize("to", [f"{BASE}cam", f"{BASE},{BASE}cam", "nonsense/", "ftp://host/trickle/"])
def test_a_url_for_all_streams_is_needed(to: str) -> None:
    """One channel is not enough for any number of streams."""
    with pytest.raises(InvalidInput):
        Channels(to)


@pytest.mark.parametrize(("key", "why"), [("", "no stream key"), ("a/b", "contains a slash"), ("..", "contains '..'")])
def test_a_key_that_names_no_channel_is_refused(key: str, why: str) -> None:
    """The encoder's user is told why."""
    with pytest.raises(SourceRefused, match=why):
        find(Channels(BASE), key)


def test_secrets_stand_for_channels(tmp_path: Path) -> None:
    """The stream key is the secret, or the channel with the secret as its token; nothing else is taken."""
    file = tmp_path / "keys"
    file.write_text("# people\ncam first-secret\n\ndoor second-secret\ncam third-secret\n")
    channels = Channels(BASE, file)
    for key, token, channel in [
        ("first-secret", "", "cam"),
        ("third-secret", "", "cam"),
        ("door", "second-secret", "door"),
    ]:
        assert find(channels, key, token)[0].channel == channel
    for key, token in [("cam", ""), ("cam", "second-secret"), ("door", "wrong"), ("first-secret", "wrong")]:
        with pytest.raises(SourceRefused, match="wrong stream key"):
            find(channels, key, token)


def test_the_file_may_change(tmp_path: Path) -> None:
    """It is read for each stream. While it cannot be used, what it said before counts."""
    file = tmp_path / "keys"
    file.write_text("cam first-secret\n")
    channels = Channels(BASE, file)
    file.write_text("cam other-secret\n")
    assert find(channels, "other-secret")[0].channel == "cam"
    file.write_text("")
    assert find(channels, "other-secret")[0].channel == "cam"
    with pytest.raises(SourceRefused, match="wrong stream key"):
        find(channels, "first-secret")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"cam\n", "line 1: use CHANNEL SECRET"),
        (b"\ncam short\n", "line 2: the secret has fewer"),
        (b"a same-secret\nb same-secret\n", "line 2: the secret is another channel's"),
        (b"# nothing\n", "no lines"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * ((1 << 20) + 1), "more than 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    """The message has the line's number, and no secret."""
    file = tmp_path / "keys"
    file.write_bytes(data)
    with pytest.raises(InvalidInput, match=message) as caught:
        Channels(BASE, file)
    assert "secret\\n" not in str(caught.value)
    with pytest.raises(InvalidInput, match="cannot read"):
        Channels(BASE, tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "key", "token"),
    [
        ("cam", "cam", ""),
        ("/cam", "cam", ""),
        ("cam?token=secret", "cam", "secret"),
        ("#!::r=cam", "cam", ""),
        ("#!::m=publish,r=cam,u=me,s=secret", "cam", "secret"),
    ],
)
def test_a_stream_id_names_a_channel(text: str, key: str, token: str) -> None:
    """Plain, or as a list of keys and values."""
    assert parse_stream_id(text) == (key, token)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no channel in the stream id"),
        ("#!::m=publish", "no channel in the stream id"),
        ("#!::r=cam,m=request", "only encoders connect here"),
        ("#!:{r=cam}", "begins with #!::"),
    ],
)
def test_stream_ids_that_are_refused(text: str, why: str) -> None:
    """It is said why."""
    with pytest.raises(SourceRefused, match=why):
        parse_stream_id(text)
