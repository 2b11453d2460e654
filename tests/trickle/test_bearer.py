"""Where a client's token comes from, and that it is on every request."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tricklecast.trickle.bearer import VARIABLE, Bearer, bearer_for
from tricklecast.trickle.errors import InvalidInput


def sent(bearer: Bearer | None) -> str:
    """The header of a request."""
    assert bearer is not None
    request: Any = SimpleNamespace(headers={})
    assert bearer(request) is request
    value: str = request.headers["Authorization"]
    return value


def test_nobody_says_one() -> None:
    """Then requests are left as they are; an empty variable is none."""
    assert bearer_for(None, None, {}) is None
    assert bearer_for(None, None, {VARIABLE: ""}) is None


def test_the_order(tmp_path: Path) -> None:
    """Argument, file, environment."""
    file = tmp_path / "token"
    file.write_text("of-the-file\n")
    environment = {VARIABLE: "of-the-environment"}
    assert sent(bearer_for("given", None, environment)) == "Bearer given"
    assert sent(bearer_for(None, file, environment)) == "Bearer of-the-file"
    assert sent(bearer_for(None, None, environment)) == "Bearer of-the-environment"
    with pytest.raises(InvalidInput, match=r"not both"):
        bearer_for("given", file, {})


def test_a_file_that_is_replaced(tmp_path: Path) -> None:
    """The new token counts from the next request on; while there is none, the last one does."""
    file = tmp_path / "token"
    file.write_text("old")
    bearer = bearer_for(None, file, {})
    file.write_text(" new ")
    assert sent(bearer) == "Bearer new"
    file.write_text("")
    assert sent(bearer) == "Bearer new"
    file.unlink()
    assert sent(bearer) == "Bearer new"
    file.write_text("newest")
    assert sent(bearer) == "Bearer newest"


@pytest.mark.parametrize("text", ["", " ", "a b", "a\nb", "a\x00", "é", "\x7f"])
def test_what_is_no_token(tmp_path: Path, text: str) -> None:
    """It would break the header; the message does not repeat it."""
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"^the token is empty, or holds what is part of no token$"):
        bearer_for(text, None, {})
    with pytest.raises(InvalidInput, match=r"token is empty, or holds what is part of no token$"):
        bearer_for(None, file, {})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """It is said before anything is sent."""
    with pytest.raises(InvalidInput, match=r"^cannot read .*missing: No such file or directory$"):
        bearer_for(None, tmp_path / "missing", {})
