"""The nodes of a cluster: where a client stands, and how a request goes from one to the next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import pytest

from tricklecast.trickle import wire
from tricklecast.trickle.client.arguments import channel_urls
from tricklecast.trickle.client.bridge import HttpxBody
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, Lost
from tricklecast.trickle.client.nodes import CONNECT_S, PAUSE_S, Nodes, ask
from tricklecast.trickle.client.retry import MIN_DELAY_S
from tricklecast.trickle.errors import ConnectionLost, Refused, RemoteProtocolError, TrickleError
from tricklecast.trickle.paths import ChannelURL

A, B, C = channel_urls([f"http://{name}:2939/trickle/cam" for name in "abc"])


class InOrder(Random):
    """Dice that leave the order of nodes as it is."""

    def sample(self, population: Any, k: int, *, counts: Any = None) -> Any:
        return list(population)[:k]


def nodes(*urls: ChannelURL, follows: bool = False) -> Nodes:
    return Nodes(urls or (A, B, C), InOrder(1), follows=follows)


REFUSED = Lost(ConnectionLost(seq=7, detail="Connection refused", server="http://a:2939"), connected=False)
BROKEN = Lost(ConnectionLost(seq=7, detail="reset"))
SILENT = Lost(ConnectionLost(seq=7, detail="no answer"), waited_s=5.0)


def answer(status: int = 200, detail: str = "", **headers: str) -> Answer:
    """A whole response."""
    named = {wire.RETRY_AFTER if name == "after" else wire.NODE: value for name, value in headers.items()}
    return Answer(status, named, detail=detail, body=HttpxBody(httpx.Response(200)))


OK = answer()


@dataclass
class Asked:
    """A request that comes to these ends, one after the other.

    Attributes:
        at: the nodes where it was made. pauses: how long it waited. moves: what was told of them.
    """

    nodes: Nodes
    ends: list[ExchangeOutcome]
    at: list[ChannelURL] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    moves: list[tuple[TrickleError, float]] = field(default_factory=list)

    def ask(self, **options: Any) -> ExchangeOutcome:
        """Make it."""

        async def request(url: ChannelURL) -> ExchangeOutcome:
            self.at.append(url)
            return self.ends.pop(0)

        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)

        async def main() -> ExchangeOutcome:
            on_move = lambda error, pause_s: self.moves.append((error, pause_s))  # noqa: E731
            return await ask(self.nodes, request, seq=7, on_move=on_move, sleep=sleep, **options)

        return asyncio.run(main())


# Where a client stands.


def test_the_first_url_is_the_first_node_and_each_client_draws_the_order_of_the_others() -> None:
    """So the clients of a node that is lost spread over the rest; a node that fails is asked again after all others."""
    others = {name: channel_urls([f"http://{name}{number}:1/c" for number in range(8)]) for name in "x"}["x"]
    orders = set()
    for seed in range(5):
        found = Nodes(others, Random(seed))
        order = [found.current]
        while found.failed(found.current):
            order.append(found.current)
        assert order[0] == others[0]
        assert set(order) == set(others)
        assert found.current == order[0]
        orders.add(tuple(order))
    assert len(orders) > 1


def test_a_client_stays_where_it_was_answered() -> None:
    """It does not go back to the first node, and what failed before counts no more."""
    found = nodes()
    assert found.failed(A)
    assert found.current == B
    found.worked()
    assert found.current == B
    assert found.failed(B)
    assert found.current == C
    assert found.failed(C)
    assert found.current == A


def test_requests_that_fail_together_move_the_client_once() -> None:
    """Two at the first node: it stands at the second one then."""
    found = nodes()
    assert found.failed(A)
    assert found.failed(A)
    assert found.current == B


def test_a_round_is_over_when_all_have_failed() -> None:
    """Then all may be asked again, beginning with the next one."""
    found = nodes()
    assert [found.failed(A), found.failed(B), found.failed(C)] == [True, True, False]
    assert found.current == A
    assert found.failed(A)


def test_one_node_is_asked_as_before() -> None:
    """Its failures are as they come, and connecting may take its usual time."""
    alone = nodes(A)
    assert (alone.alone, alone.connect_s(9.0), nodes().connect_s(9.0), nodes().connect_s(1.0)) == (
        *(True, 9.0),
        *(CONNECT_S, 1.0),
    )
    asked = Asked(alone, [REFUSED])
    assert asked.ask() is REFUSED
    assert not alone.failed(A)
    assert alone.current == A


# The owner.


@pytest.mark.parametrize("owner", ["http://c:2939/trickle", "http://C:2939/trickle/"])
def test_a_publisher_goes_to_the_owner(owner: str) -> None:
    """As another node names it."""
    found = nodes(follows=True)
    Asked(found, [answer(node=owner)]).ask()
    assert found.current == C


@pytest.mark.parametrize(
    "owner",
    [
        *("http://evil:2939/trickle", "https://c:2939/trickle", "http://c:2940/trickle", "http://c:2939/other"),
        *("http://c:2939@evil/trickle", "http://c", "", "nonsense", "http://c:99999/trickle", "//c:2939/trickle"),
    ],
)
def test_no_answer_leads_a_client_to_a_node_that_it_was_not_given(owner: str) -> None:
    """Else a server could have its token sent anywhere."""
    found = nodes(follows=True)
    found.worked(owner)
    assert found.current == A


def test_the_default_port_need_not_be_named() -> None:
    """In the URL that was given, or in the one that is told."""
    urls = channel_urls(["http://a/cam", "https://b:443/cam", "http://c:80/cam"])
    found = Nodes(urls, InOrder(1), follows=True)
    found.worked("https://b")
    assert found.current == urls[1]
    found.worked("http://c/")
    assert found.current == urls[2]


def test_a_subscriber_stays_where_it_is() -> None:
    """Its node holds the channel for all readers that it has."""
    found = nodes()
    found.worked("http://c:2939/trickle")
    assert found.current == A


def test_a_publisher_does_not_run_back_to_an_owner_that_it_cannot_reach() -> None:
    """It goes there when the owner's name is news: another one, or the same after one that named none."""
    found = nodes(follows=True)
    found.worked("http://c:2939/trickle")
    found.failed(C)
    assert found.current == A
    found.worked("http://c:2939/trickle")
    assert found.current == A
    found.worked("http://b:2939/trickle")
    assert found.current == B
    found.worked()
    found.failed(B)
    found.worked("http://b:2939/trickle")
    assert found.current == B


# A round.


def test_a_node_that_cannot_be_reached_costs_nothing() -> None:
    """The next one is asked at once."""
    asked = Asked(nodes(), [REFUSED, REFUSED, OK])
    assert asked.ask() is OK
    assert (asked.at, asked.pauses) == ([A, B, C], [0.0, 0.0])
    assert [str(error) for error, _ in asked.moves] == [str(REFUSED.error)] * 2
    assert asked.nodes.current == C


@pytest.mark.parametrize("status", [421, 500, 502, 503, 504, 508])
def test_a_node_that_refuses_is_left_after_a_random_pause(status: int) -> None:
    """All of its clients may be refused at the same time."""
    asked = Asked(nodes(), [answer(status, "Limit reached: readers", after="9"), OK])
    assert asked.ask() is OK
    assert asked.at == [A, B]
    ((error, pause_s),) = asked.moves
    assert isinstance(error, Refused)
    assert str(error) == (f"refused by the server: http://a:2939: Limit reached: readers (HTTP {status}, segment 7)")
    assert asked.pauses == [pause_s]
    assert MIN_DELAY_S <= pause_s <= PAUSE_S


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 409, 413, 429, 470])
def test_any_other_answer_is_the_clusters(status: int) -> None:
    """Another node would say the same; a limit of clients must not be multiplied by the number of nodes."""
    said = answer(status, after="9")
    asked = Asked(nodes(), [said])
    assert asked.ask() is said
    assert asked.at == [A]


@pytest.mark.parametrize("lost", [BROKEN, SILENT, Lost(RemoteProtocolError(detail="SSH-2.0"))])
def test_a_connection_that_broke_is_for_the_core_to_judge(lost: Lost) -> None:
    """The server may have something of the request. The next attempt goes to another node."""
    asked = Asked(nodes(), [lost])
    assert asked.ask() is lost
    assert asked.nodes.current == B


def test_a_node_that_lets_a_reader_wait_has_not_failed() -> None:
    """The segment has not begun; but a connection that breaks meanwhile is lost."""
    asked = Asked(nodes(), [SILENT, BROKEN])
    assert asked.ask(may_wait=True) is SILENT
    assert asked.nodes.current == A
    assert asked.ask(may_wait=True) is BROKEN
    assert asked.nodes.current == B


def test_if_no_node_can_be_reached_the_error_names_all() -> None:
    """A reason that several have stands there once."""
    slow = Lost(ConnectionLost(seq=7, detail="b did not answer in time", server="http://b:2939"), connected=False)
    lost = Asked(nodes(), [REFUSED, slow, REFUSED]).ask()
    assert isinstance(lost, Lost)
    assert not lost.connected
    assert str(lost.error) == (
        "cannot connect to http://a:2939, http://b:2939, http://c:2939: "
        "Connection refused; b did not answer in time (segment 7)"
    )


def test_secrets_are_not_told() -> None:
    """Neither the user of a URL nor its query."""
    urls = channel_urls("http://me:secret@a/cam?token=abc,http://me:secret@b/cam")
    told = str(Asked(nodes(*urls), [answer(503), answer(503)]).ask())
    assert "secret" not in told
    assert "abc" not in told


def test_if_all_refuse_the_one_that_may_be_asked_first_counts() -> None:
    """The error says what each has said; a node that names no time comes last."""
    asked = Asked(nodes(), [answer(502, "Bad Gateway"), answer(503, "Draining", after="3"), REFUSED])
    found = asked.ask()
    assert isinstance(found, Answer)
    assert (found.status, found.retry_after_s) == (503, 3.0)
    assert found.detail == (
        "http://a:2939: HTTP 502 Bad Gateway; http://b:2939: HTTP 503 Draining; http://c:2939: Connection refused"
    )
    found = Asked(nodes(), [answer(503, after="3"), answer(503, after="1"), answer(503, after="2")]).ask()
    assert isinstance(found, Answer)
    assert found.retry_after_s == 1.0


def test_a_mirror_among_several_nodes_is_waited_for() -> None:
    """It says that another server takes publishers; that may be one of them, or it is promoted soon."""
    alone, several = answer(503), answer(503)
    for one in (alone, several):
        one.headers = {**one.headers, wire.ELSEWHERE: "1"}
    found = Asked(nodes(A), [alone]).ask(), Asked(nodes(A, B), [several, REFUSED]).ask()
    errors = [one.error(None) for one in found if isinstance(one, Answer)]
    assert [isinstance(one, Refused) and one.elsewhere for one in errors] == [True, False]


def test_a_body_that_was_begun_does_not_go_to_another_node_by_itself() -> None:
    """Its publisher sends it again, at another node, for which the refusal's Retry-After does not count."""
    asked = Asked(nodes(A, B), [answer(503, "Draining", after="300"), answer(502), answer(503, after="9")])
    found = asked.ask(is_untouched=lambda: False)
    assert isinstance(found, Answer)
    assert (found.retry_after_s, found.detail) == (0.0, "Draining")
    found = asked.ask(is_untouched=lambda: False)
    assert isinstance(found, Answer)
    assert (found.status, found.retry_after_s) == (502, None)
    assert asked.at == [A, B]
    asked.ask(is_untouched=lambda: False)
    assert asked.at == [A, B, A]


def test_no_node_is_asked_twice_in_a_round() -> None:
    """Also if another request has begun a new round meanwhile."""
    found = nodes(A, B)
    asked = Asked(found, [REFUSED])

    async def main() -> ExchangeOutcome:
        async def request(url: ChannelURL) -> ExchangeOutcome:
            asked.at.append(url)
            if url == A:
                found.failed(A)
                found.failed(B)  # another request was here, and has failed, too
            return REFUSED

        return await ask(found, request)

    lost = asyncio.run(main())
    assert isinstance(lost, Lost)
    assert len(asked.at) <= 2
