"""PyAV: its absence, its errors, and what outlives a container."""

from __future__ import annotations

import os
import sys

import av
import pytest

from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.pyav import copied, need_pyav, new_decoder, reason


def test_without_pyav_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line."""
    need_pyav()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InvalidInput, match=r'pip install "tricklecast\[media\]"'):
        need_pyav()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file"), "No such file"),
        (ValueError("one\ntwo"), "one"),
        (ValueError(), "ValueError"),
        (OSError(1, "Immediate exit requested"), "nothing came in time"),
    ],
)
def test_the_reason_is_one_line(error: Exception, text: str) -> None:
    """The system's words, or clearer ones."""
    assert reason(error) == text


def test_copies_and_decoders_outlive_the_container() -> None:
    """They keep codec, parameters and language."""
    with av.open(os.devnull, "w", format="null") as container:
        stream = container.add_stream("aac", rate=48_000)
        stream.codec_context.open()
        assert copied(stream).metadata == {}
        stream.metadata["language"] = "deu"
        copies = [copied(stream), copied(stream, container, is_opaque=True)]
        decoder, parameters = new_decoder(stream), stream.codec_context.extradata
    assert parameters
    assert (decoder.name, decoder.is_decoder, decoder.extradata) == ("aac", True, parameters)
    assert copies[0].metadata == copies[1].metadata == {"language": "deu"}
