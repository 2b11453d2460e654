"""The bounded table and the ordered one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.access.expiry import STALE, Expiries
from tricklecast.app.access.lru import Lru


def test_the_table_forgets_what_was_not_asked_for_longest() -> None:
    """At its size it is full; one more costs the oldest."""
    table: Lru[int] = Lru(2)
    table.put(b"a", 1)
    table.put(b"b", 2)
    assert (table.get(b"a"), len(table)) == (1, 2)
    table.put(b"c", 3)
    assert (table.get(b"a"), table.get(b"b"), table.get(b"c")) == (1, None, 3)
    table.put(b"a", 4)
    table.put(b"d", 5)
    assert (table.get(b"a"), table.get(b"c"), len(table)) == (4, None, 2)
    table.drop(b"a")
    table.drop(b"a")
    assert len(table) == 1
    table.clear()
    assert len(table) == 0


@given(st.lists(st.tuples(st.sampled_from(["set", "remove", "due"]), st.integers(0, 5), st.integers(0, 20))))
def test_times_in_their_order(steps: list[tuple[str, int, int]]) -> None:
    """Like a dict of times that is searched, whatever is set, set again and removed."""
    expiries: Expiries[int] = Expiries()
    model: dict[int, int] = {}
    for what, key, when in steps:
        match what:
            case "set":
                expiries.set(key, when)
                model[key] = when
            case "remove":
                expiries.remove(key)
                model.pop(key, None)
            case _:
                due = expiries.due(when)
                assert sorted(due) == sorted(key for key, at in model.items() if at <= when)
                assert [model[key] for key in due] == sorted(model[key] for key in due)
                model = {key: at for key, at in model.items() if at > when}
        assert len(expiries) == len(model)


def test_what_is_set_and_removed_for_ever_takes_no_room() -> None:
    """Connections come and go for as long as their tokens live."""
    expiries: Expiries[int] = Expiries()
    expiries.set(-1, 5e9)
    for key in range(10_000):
        expiries.set(key, 1e9 + key)
        expiries.remove(key)
    assert len(expiries) == 1
    assert len(expiries._heap) <= STALE + 2
    assert expiries.due(4e9) == []
    assert expiries.due(5e9) == [-1]
