"""Names as tokens of NATS subjects."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.cluster.names import to_name, to_token

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(NAMES)
def test_a_token_has_its_name(name: str) -> None:
    """Every name comes back from its token, which NATS takes as one token of a key."""
    token = to_token(name)
    assert to_name(token) == name
    assert re.fullmatch(r"[-_=a-zA-Z0-9]+", token)


@given(st.text(st.sampled_from("a=-.0AFf9"), max_size=8))
def test_a_name_has_one_token(token: str) -> None:
    """What is not the token of a name is refused, so two keys never stand for one channel."""
    try:
        name = to_name(token)
    except ValueError:
        return
    assert to_token(name) == token


def test_plain_names_stay_as_they_are() -> None:
    """A person who looks with `nats kv` can read the names."""
    assert to_token("cam-1_hd") == "cam-1_hd"
    assert to_token("café.1") == "caf=C3=A9=2E1"


@pytest.mark.parametrize("token", ["", "=41", "=4", "a.b", "=e9", "=FF", "a b"])
def test_wrong_tokens_are_refused(token: str) -> None:
    """Escapes of plain characters, small letters, bytes that are no text, and characters that NATS gives a meaning."""
    with pytest.raises(ValueError, match=r"token|decode"):
        to_name(token)
