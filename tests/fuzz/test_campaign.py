"""A short campaign in the normal tests; the long form is `scripts/fuzz --campaign 10000`."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import Finding, Session, Wire, batch

SESSIONS = 100


def test_random_sessions_do_no_harm() -> None:
    """The server outlives the sessions, answers or closes whatever they ask, and keeps nothing of them."""
    outcome = batch(seed=6, sessions=SESSIONS)
    assert outcome.findings == Counter()
    assert outcome.sessions == SESSIONS


@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\noops", "500"),
        (b"nonsense\r\n\r\n", "not a status line"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "neither answered nor closed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\noo", "neither answered nor closed"),
    ],
)
def test_wrong_answers_are_findings(answer: bytes, finding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 500, an answer that is not HTTP, and one that does not come to its end are findings."""
    monkeypatch.setattr(campaign, "ANSWER_S", 0.01)

    async def ask() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(answer)
        with pytest.raises(Finding, match=finding):
            await Wire(reader, cast(asyncio.StreamWriter, None)).answer()

    asyncio.run(ask())


def test_a_server_that_ends_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose server is killed says how it ended."""

    async def nothing(session: Session) -> None:
        pass

    run = campaign._Batch.run

    async def run_and_kill(self: campaign._Batch, sessions: int) -> None:
        await run(self, sessions)
        self._server.process.kill()
        self._server.process.wait()

    monkeypatch.setattr(campaign, "KINDS", {nothing: 1})
    monkeypatch.setattr(campaign._Batch, "run", run_and_kill)
    assert list(batch(seed=1, sessions=1).findings) == ["the server ended with -9: "]
