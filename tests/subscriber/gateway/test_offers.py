"""Offers that strangers send."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.subscriber.gateway.watching import offer_of

aiortc = pytest.importorskip("aiortc", reason="the extra webrtc is not installed")
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """aiortc runs on asyncio."""
    return "asyncio"


def damaged(offer: str, dice: Random) -> str:
    """An offer with lines that are missing, cut off, doubled or full of other characters."""
    lines = offer.split("\r\n")
    for _ in range(dice.choice([1, 1, 2, 4])):
        at = dice.randrange(len(lines))
        match dice.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines[at] = lines[at][: dice.randrange(len(lines[at]) + 1)]
            case 2:
                lines.insert(at, dice.choice(lines))
            case 3:
                lines[at] = "".join(dice.choice("0123 :/=az-é") if dice.random() < 0.15 else one for one in lines[at])
            case _:
                lines[at] = lines[at].replace("recvonly", "sendonly").replace("0", "99999999999")
    return "\r\n".join(lines)


async def test_any_offer_is_answered_or_refused() -> None:
    """With one of two errors, and nothing of the connection is left behind."""
    from tricklecast.subscriber.gateway.viewer import BadOffer, NothingInCommon, Viewer

    peer, dice, came = aiortc.RTCPeerConnection(aiortc.RTCConfiguration([])), Random(5), Counter[str]()
    offer = await offer_of(peer)
    for _ in range(60):
        viewer = Viewer("key", "viewer", lambda *_: None)
        try:
            await viewer.answer(damaged(offer, dice), frozenset({"video", "audio"}))
            came["answered"] += 1
        except (BadOffer, NothingInCommon) as error:
            came[type(error).__name__] += 1
        finally:
            await viewer.close()
    await peer.close()
    assert came["answered"]
    assert came["BadOffer"]
