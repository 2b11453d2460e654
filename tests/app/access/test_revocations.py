"""Revoked tokens and clients: what a file says, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tricklecast.app.access.revocations import MAX_BYTES, NOTHING_REVOKED, Revocations, read_revocations
from tricklecast.app.access.rights import MAX_SUBJECT, Claims, Rights
from tricklecast.app.access.secrets import InvalidKey


def claims(subject: str | None, token_id: str | None) -> Claims:
    return Claims(subject, Rights(), 0.0, token_id)


def test_a_file(tmp_path: Path) -> None:
    """Each line revokes a token or a client; comments do not count, a name may have spaces, and a long one is cut."""
    file = tmp_path / "revoked"
    file.write_text(f"# jti 0\n\njti 7\r\n  sub\tthe camera \nsub {'x' * 300}\n#\n")
    found = read_revocations(file)
    assert found == Revocations(frozenset({"7"}), frozenset({"the camera", "x" * MAX_SUBJECT}))
    assert found.cover(claims(None, "7"))
    assert found.cover(claims("the camera", None))
    assert not found.cover(claims("7", "the camera"))
    assert not found.cover(claims(None, None))
    assert not NOTHING_REVOKED.cover(claims(None, None))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"jti 7\njti\n", "line 2: write 'jti ID' or 'sub NAME', or begin the line with #"),
        (b"token 7", "line 1: write"),
        (b"JTI 7", "line 1: write"),
        (b"sub \xff", "is not UTF-8"),
        (b"#" * (MAX_BYTES + 1), "is larger than 4096 KiB"),
    ],
)
def test_a_file_that_is_none(content: bytes, why: str, tmp_path: Path) -> None:
    """The server refuses a file with a typing error, which would leave a token valid."""
    file = tmp_path / "revoked"
    file.write_bytes(content)
    with pytest.raises(InvalidKey, match=why):
        read_revocations(file)


def test_the_largest_file(tmp_path: Path) -> None:
    """The server reads a file of exactly the limit."""
    file = tmp_path / "revoked"
    file.write_bytes(b"jti 7\n" + b"#" * (MAX_BYTES - 6))
    assert read_revocations(file).token_ids == {"7"}
