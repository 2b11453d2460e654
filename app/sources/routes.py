"""``GET /api/v1/sources``: how each source of the server stands, wherever in it the source runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field

from tricklecast.app.cluster.asking import ANSWER_S, Answerer, Asker, NoAnswer
from tricklecast.app.control_plane.middleware import Visible
from tricklecast.app.sources.service import Sources
from tricklecast.app.sources.source import State
from tricklecast.app.workers.questions import Questions

QUESTION: Final = "sources"


class SourceModel(BaseModel):
    """One input that the server publishes itself."""

    name: str = Field(description="Of the source, and of its channel.")
    url: str = Field(description="What is pulled; passwords and values of the query are hidden.")
    when: Literal["always", "demand"]
    ladder: str | None = Field(
        description="The sizes in which it is published: the largest one to the channel of its name, each other one to "
        "NAME_SIZE; null if there are not several."
    )
    state: State = Field(
        description="waiting: nobody wants it here; starting: its process has published nothing yet; running; failed: "
        "its process has ended, and is started again after a pause."
    )
    since: datetime = Field(description="When this state was first seen.")
    retry_at: datetime | None = Field(description="failed: when its process is started again; else null.")
    pid: int | None = Field(description="Its process; null without one.")
    restarts: int = Field(description="How often its process was started again, since it was configured as it is.")
    error: str = Field(description="The last line of the last process that has failed; empty if none has.")


class SourcesModel(BaseModel):
    """The sources of this server; in a cluster, of this node."""

    sources: list[SourceModel]
    unreachable: list[str] = Field(default=[], description="Workers that did not answer: their sources are missing.")


def sources_router(sources: Sources, questions: Questions | None) -> APIRouter:
    """The route.

    Args:
        sources: of this process. questions: to all workers, if there are several.
    """
    router = APIRouter(tags=["sources"])

    @router.get("/api/v1/sources", summary="List the sources")
    async def list_sources(visible: Visible) -> SourcesModel:
        """Inputs of the configuration, each with its state. A caller sees those of channels that it may manage."""
        unreachable: list[str] = []
        if questions is None:
            rows = sources.described()
        else:
            rows = []
            for worker, answer in enumerate(await questions.ask_all(QUESTION, ANSWER_S)):
                if isinstance(answer, NoAnswer):
                    unreachable.append(f"worker_{worker}")
                else:
                    rows += orjson.loads(answer)
        rows = sorted((row for row in rows if visible(row["name"])), key=lambda row: str(row["name"]))
        return SourcesModel(
            sources=[
                SourceModel(**{**row, "since": _time(row["since"]), "retry_at": _time(row["retry_at"])}) for row in rows
            ],
            unreachable=unreachable,
        )

    return router


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def sources_answers(sources: Sources) -> dict[str, Answerer]:
    """A worker's answer to the front's question."""

    async def listed(asker: Asker) -> None:
        await asker.send(orjson.dumps(sources.described()))

    return {QUESTION: listed}
