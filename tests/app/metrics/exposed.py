"""Every metric that a server can expose, whatever it has seen so far."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tricklecast.app.access_log import AccessLog
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.metrics.endpoint import collectors


class Family(NamedTuple):
    """One metric, as its table row has it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def series(self) -> set[str]:
        """The names of its series, which is what queries are made of."""
        if self.kind != "histogram":
            return {self.name}
        return {f"{self.name}_{part}" for part in ("bucket", "sum", "count")}


def families() -> list[Family]:
    """In the order in which they are exposed."""
    plane = DataPlane(Registry(Limits(), autocreate=True), Options())
    log = AccessLog(Path("unused"), node=None, max_bytes=1, max_age_s=1, files=1, queue=1)
    return [
        Family(
            metric.name + ("_total" if metric.type == "counter" else ""),
            metric.type,
            tuple(getattr(metric, "_labelnames", ())),
            metric.documentation,
        )
        for metric in collectors(plane, log).collect()
    ]
