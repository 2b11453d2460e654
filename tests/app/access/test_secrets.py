"""Secrets: which files hold one, and that nothing shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretBytes

from tricklecast.app.access.secrets import MAX_BYTES, InvalidKey, is_secret, read_file, read_secret


@pytest.mark.parametrize(
    ("given", "same"), [(b"a secret", True), (b"a secreT", False), (b"", False), (b"a secret ", False)]
)
def test_comparison(given: bytes, same: bool) -> None:
    """A text with one other byte, or one byte more, is not the secret."""
    assert is_secret(SecretBytes(b"a secret"), given) is same


def test_a_secret_file(tmp_path: Path) -> None:
    """The server ignores white space around a secret; the message about a short one does not show it."""
    file = tmp_path / "secret"
    file.write_bytes(b"\n x23 \n")
    secret = read_secret(file, least=3)
    assert secret.get_secret_value() == b"x23"
    assert "x23" not in f"{secret} {secret!r}"
    with pytest.raises(InvalidKey, match="has 3 bytes; a secret needs at least 4") as error:
        read_secret(file, least=4)
    assert "x23" not in str(error.value)


def test_a_secret_has_at_least_32_bytes(tmp_path: Path) -> None:
    """The server refuses a secret of 31 bytes, since HS256 needs 32."""
    file = tmp_path / "secret"
    file.write_bytes(b" " + b"x" * 32 + b"\n")
    assert read_secret(file).get_secret_value() == b"x" * 32
    file.write_bytes(b"x" * 31)
    with pytest.raises(InvalidKey, match="has 31 bytes; a secret needs at least 32"):
        read_secret(file)


def test_unusable_files(tmp_path: Path) -> None:
    """A file must be there, be a file, and have at most 64 KiB."""
    with pytest.raises(InvalidKey, match=r"cannot read .*: No such file"):
        read_file(tmp_path / "missing")
    with pytest.raises(InvalidKey, match=r"cannot read .*: Is a directory"):
        read_file(tmp_path)
    file = tmp_path / "large"
    file.write_bytes(b"x" * MAX_BYTES)
    assert len(read_file(file)) == MAX_BYTES
    file.write_bytes(b"x" * (MAX_BYTES + 1))
    with pytest.raises(InvalidKey, match="larger than 64 KiB"):
        read_file(file)


@pytest.mark.parametrize(("mode", "warned"), [(0o604, True), (0o644, True), (0o640, False), (0o600, False)])
def test_a_secret_that_every_user_can_read(
    mode: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the file, and not what is in it."""
    file = tmp_path / "secret"
    file.write_bytes(b"x" * 32)
    file.chmod(mode)
    read_secret(file)
    text = f"every user of this machine can read the secret in {file}; take that right away: chmod o= {file}"
    assert caplog.messages == ([text] if warned else [])
