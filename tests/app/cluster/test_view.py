"""What a node concludes from the keys of the bucket, and what it writes; without a bucket."""

from __future__ import annotations

import orjson
import pytest

from tricklecast.app.cluster import view as views
from tricklecast.app.cluster.lease import Lease
from tricklecast.app.cluster.view import FORGET_S, SWEEP_S, Counters, Entry, Owner, Place, View

LEASE_S = 2.0
TOMBSTONE_S = 300.0


class Site:
    """The view of node ``me`` in term 7, a bucket, and all that was told.

    Attributes:
        takes: whether channels that are handed over are taken.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.told: list[tuple[object, ...]] = []
        self.takes = True
        self.claiming: set[str] = set()
        self.revision = 0
        self.lease = Lease(LEASE_S, lambda: self.now)
        self.counters = Counters()
        self.view = View("me", self, self.lease, self.counters, lambda: self.now, TOMBSTONE_S, LEASE_S, self.claiming)
        self.view.term = 7
        self.node("me", 7)
        self.node("other", 3)
        self.lease.renewed(self.now)

    def moved(self, channel: str, place: Place | None) -> None:
        self.told.append(("moved", channel, place and place.node))

    def lost(self, channel: str, epoch: int) -> None:
        self.told.append(("lost", channel, epoch))

    def given(self, channel: str, epoch: int) -> bool:
        return self.takes

    def key(self, key: str, about: dict[str, object] | None) -> None:
        """The bucket has this now, and the watch brings it."""
        self.revision += 1
        self.view.take(key, None if about is None else orjson.dumps(about), self.revision)

    def node(self, name: str, term: int, state: str = "serving") -> None:
        self.key(f"node.{name}", {"url": f"http://{name}", "term": term, "state": state})

    def channel(self, epoch: int, node: str = "other", term: int = 3, **more: object) -> None:
        """The entry of channel ``x``."""
        self.key("channel.x", {"node": node, "term": term, "epoch": epoch, **more})

    def own(self, epoch: int = 1) -> None:
        """This node owns channel ``x``, and the bucket says so."""
        self.view.mine["x"] = epoch
        self.channel(epoch, "me", 7)
        assert self.due() is None
        self.told.clear()

    def due(self) -> tuple[Owner, int, bool] | None:
        """What is to be written now of channel ``x``: owner, epoch, and whether it is a tombstone."""
        wanted = self.view.wanted("x") if "x" in self.view.ready() else None
        return None if wanted is None else (wanted.owner, wanted.epoch, wanted.ended)

    def write(self) -> None:
        """Write what is to be written of channel ``x``."""
        wanted = self.view.wanted("x")
        assert wanted is not None
        self.revision += 1
        self.view.wrote("x", wanted, self.revision)

    def later(self, seconds: float) -> None:
        """Time passes, while this node and the others renew their leases."""
        self.now += seconds
        self.lease.renewed(self.now)
        self.node("me", 7)
        self.view.tick()


ME, OTHER = Owner("me", 7), Owner("other", 3)


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_key_of_an_own_channel_is_put_back_at_once(site: Site) -> None:
    """Its owner is unsure of it until that is done."""
    site.own()
    site.key("channel.x", None)
    assert site.due() == (ME, 1, False)
    assert not site.lease.fresh
    site.write()
    assert site.due() is None
    assert site.lease.fresh


def test_a_key_of_another_node_is_put_back_after_the_time_of_a_lease(site: Site) -> None:
    """So its epoch is not forgotten, if its owner is gone; but the owner comes first."""
    site.channel(5)
    site.key("channel.x", None)
    site.later(LEASE_S - 0.1)
    assert site.due() is None
    site.later(0.1)
    assert site.due() == (OTHER, 5, False)
    site.channel(5)
    assert site.due() is None


@pytest.mark.parametrize(
    "entry",
    [
        {"node": "other", "term": 3, "epoch": 2},
        {"node": "other", "term": 4, "epoch": 1},
        {"node": "me", "term": 8, "epoch": 1},
        {"node": "other", "term": 3, "epoch": 2, "ended": True},
    ],
)
def test_a_higher_epoch_or_another_owner_takes_a_channel_away(site: Site, entry: dict[str, object]) -> None:
    """It ends here."""
    site.own()
    site.key("channel.x", entry)
    assert ("lost", "x", 1) in site.told
    assert not site.view.owns("x")


@pytest.mark.parametrize(
    "entry",
    [
        {"node": "other", "term": 3, "epoch": 1},
        {"node": "me", "term": 6, "epoch": 2},
        {"node": "me", "term": 7, "epoch": 2, "ended": True},
    ],
)
def test_anything_else_is_overwritten(site: Site, entry: dict[str, object]) -> None:
    """A lower epoch, an earlier term of this node, a tombstone that somebody else has made."""
    site.own(2)
    site.key("channel.x", entry)
    assert site.view.owns("x")
    assert site.due() == (ME, 2, False)


def test_a_new_term_claims_its_channels_again(site: Site) -> None:
    """Their entries name the term before."""
    site.own()
    site.view.term = 8
    site.view.review("x")
    assert site.due() == (Owner("me", 8), 1, False)


def test_an_ended_channel_becomes_a_tombstone(site: Site) -> None:
    """At once here; the bucket is told."""
    site.own(4)
    site.view.disown("x")
    site.view.ended("x", ME, 4)
    assert site.view.place("x") is None
    assert site.view.former("x") == Place("me", "http://me", 4, True)
    assert site.told == [("moved", "x", None)]
    assert site.due() == (ME, 4, True)
    site.write()
    assert site.due() is None
    site.later(TOMBSTONE_S)
    assert site.view.former("x") is None


@pytest.mark.parametrize(("epoch", "node", "wins"), [(4, "me", False), (4, "other", True), (5, "other", True)])
def test_a_tombstone_that_is_not_written_yet(site: Site, epoch: int, node: str, wins: bool) -> None:
    """It ends its own epoch only, and not if that was handed over before."""
    site.own(4)
    site.view.disown("x")
    site.view.ended("x", ME, 4)
    site.channel(epoch, node, 7 if node == "me" else 3)
    assert (site.view.place("x") is not None) is wins
    assert site.due() == (None if wins else (ME, 4, True))


def test_a_claim_whose_answer_got_lost_is_ended(site: Site) -> None:
    """The watch brings the entry while the claim waits for its answer: when the claim has failed, nobody owns it."""
    site.claiming.add("x")
    site.channel(1, "me", 7)
    site.later(LEASE_S)
    assert site.due() is None
    site.claiming.remove("x")
    site.view.review("x")
    site.later(LEASE_S)
    assert site.due() == (ME, 1, True)


def test_a_channel_of_a_former_life_is_ended(site: Site) -> None:
    """Nobody owns it: a restart without it in the data directory."""
    site.channel(1, "me", 6)
    site.later(LEASE_S)
    assert site.due() == (Owner("me", 6), 1, True)


@pytest.mark.parametrize(
    ("owner", "takes", "is_taken"), [(ME, True, True), (ME, False, False), (Owner("me", 6), True, False)]
)
def test_a_channel_is_handed_over_to_this_term(site: Site, owner: Owner, takes: bool, is_taken: bool) -> None:
    """If this node takes it; else it is ended later."""
    site.takes = takes
    site.channel(2, owner.node, owner.term, **{"from": "other"})
    assert site.view.owns("x") is is_taken
    site.later(LEASE_S)
    assert site.due() == (None if is_taken else (owner, 2, True))


def test_who_hands_a_channel_over_does_not_lose_it(site: Site) -> None:
    """It has let go of it before."""
    site.own()
    site.view.moving.add("x")
    assert not site.view.owns("x")
    site.channel(1)
    assert site.told == [("moved", "x", "other")]
    assert "x" not in site.view.mine


def test_a_bucket_that_is_read_anew(site: Site) -> None:
    """Entries that it shows are known; what it lacks, or has older, is put back, and others have to wait meanwhile."""
    site.own(4)
    site.key("channel.y", {"node": "other", "term": 3, "epoch": 9})
    site.view.begin()
    assert site.view.place("y") == Place("other", "http://other", 9, True)
    assert site.lease.fresh
    site.revision = 0
    site.node("me", 7)
    site.key("channel.y", {"node": "other", "term": 3, "epoch": 8})
    site.view.end()
    assert site.due() == (ME, 4, False)
    assert site.view.restoring
    assert list(site.view.ready()) == ["x"]
    site.write()
    site.later(LEASE_S)
    assert list(site.view.ready()) == ["y"]
    wanted = site.view.wanted("y")
    assert wanted is not None
    assert (wanted.epoch, wanted.revision) == (9, 2), "it replaces the older one"
    site.view.wrote("y", wanted, 9)
    site.view.tick()
    assert not site.view.restoring


def test_a_revision_that_was_wrong_is_corrected(site: Site) -> None:
    """Whatever was known before: the bucket may have been put back to lower revisions."""
    site.revision = 100
    site.channel(5)
    site.view.correct("x", None, 3)
    wanted = site.view.wanted("x")
    assert wanted is not None
    assert (wanted.epoch, wanted.revision) == (5, 3)
    site.view.correct("y", None, 4)
    assert site.view.wanted("y") is None
    assert site.view.channels["y"].revision == 4


def test_tombstones_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest ones are forgotten."""
    monkeypatch.setattr(views, "MAX_TOMBSTONES", 3)
    for number in range(6):
        site.key(f"channel.c{number}", {"node": "other", "term": 3, "epoch": 1, "ended": True})
    site.view.tick()
    assert list(site.view.channels) == ["c3", "c4", "c5"]


def test_channels_of_a_node_that_is_gone_for_an_hour_have_ended(site: Site) -> None:
    """The first of the nodes that are alive says so."""
    site.channel(5)
    site.later(FORGET_S)
    assert site.due() is None
    site.later(SWEEP_S)
    assert site.due() == (OTHER, 5, True)


def test_an_entry_is_small() -> None:
    """There may be a million of them."""
    assert not hasattr(Entry(ME, 1, 1, False), "__dict__")
