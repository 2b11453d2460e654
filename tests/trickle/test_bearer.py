"""Access tokens in requests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tricklecast.trickle.bearer import Bearer, check_token
from tricklecast.trickle.errors import InvalidInput


def test_the_token_is_read_for_each_request() -> None:
    """A token can be renewed while a program runs."""
    tokens = iter(["first", "second"])
    bearer = Bearer(lambda: next(tokens))
    sent = [bearer(SimpleNamespace(headers={})).headers for _ in range(2)]
    assert sent == [{"Authorization": "Bearer first"}, {"Authorization": "Bearer second"}]


def test_a_token_that_a_header_can_carry() -> None:
    """Any visible ASCII."""
    check_token("a.b-c_d~!", "the token")


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "\u00e9", "Bearer a"])
def test_a_token_that_no_header_can_carry(token: str) -> None:
    """The message names the token's place and does not repeat it: it is a secret."""
    with pytest.raises(InvalidInput, match=r"^the place ") as error:
        check_token(token, "the place")
    assert not token or token.startswith("Bearer") or token not in str(error.value)


@pytest.mark.parametrize("token", ["a\n", "a\r\n", " a"])
def test_the_text_of_a_file_is_no_token(token: str) -> None:
    """The message says what to do with the end of its line."""
    with pytest.raises(InvalidInput, match=r"^the token begins or ends with a blank .*: strip the text"):
        check_token(token, "the token")
