"""How a mirror is seen from outside: metrics and readiness, while it copies, without its source, and afterwards."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.app.mirror.pair import durable
from tests.app.mirror.test_service import asked, base, copied, publish
from tests.support.local import LocalServer
from tests.support.metrics import Samples, labelled, samples, scrape
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.metrics import mirror_metrics
from tricklecast.app.mirror.routes import LagModel, MirrorModel

PREFIX = "tricklecast_mirror_"


def scraped(server: LocalServer) -> Samples:
    """The metrics of its mirror."""
    text = httpx.get(f"http://127.0.0.1:{server.port}/metrics", timeout=WITHIN_S).text
    return {key: value for key, value in samples(text).items() if key[0].startswith(PREFIX)}


def state(server: LocalServer) -> list[str]:
    """The state that is 1."""
    return [name for name, value in labelled(scraped(server), f"{PREFIX}state", "state").items() if value]


def health(server: LocalServer) -> tuple[object, object]:
    """Whether it is ready, and whether it is alive."""
    ready, alive = (httpx.get(f"http://127.0.0.1:{server.port}/{way}").json() for way in ("readyz", "healthz"))
    return ready, alive["status"]


def test_metrics_and_readiness_follow_the_mirror(tmp_path: Path) -> None:
    """Figures while it copies; degraded, and alive, without its source; the state alone when it was promoted."""
    with durable(tmp_path / "target") as target:
        assert scraped(target) == {}
        with durable(tmp_path / "source") as source:
            publish(source, *range(5))
            setting = {"source": base(source)}
            asked(target, "PUT", body=setting)
            copied(target, 5)
            eventually(lambda: labelled(scraped(target), f"{PREFIX}segments", "state").get("synced") == 5)
            found = scraped(target)
            assert state(target) == ["following"]
            rows = {"pending": 0, "started": 0, "synced": 5, "failed": 0, "beyond": 0}
            assert labelled(found, f"{PREFIX}segments", "state") == rows
            assert labelled(found, f"{PREFIX}channels", "state")["synced"] == 1
            figures = {name.removeprefix(PREFIX): value for (name, labels), value in found.items() if not labels}
            expected = {"live_channels": 1, "lag_segments": 0, "lag_bytes": 0, "lag_seconds": 0, "mismatches_total": 0}
            assert {name: figures[name] for name in expected} == expected
            assert figures["copied_bytes_total"] >= 5 * len("film 0")
            assert 0 <= figures["contact_age_seconds"] < WITHIN_S
            assert health(target) == ({"status": "ready"}, "ok")
            asked(target, "DELETE")
            eventually(lambda: state(target) == ["stopped"], what="its state")
            names = {name.removeprefix(PREFIX) for name, _ in scraped(target)}
            assert names == {"state", "contact_age_seconds"}, "how far it is behind nobody knows"
            assert health(target) == ({"status": "ready"}, "ok")
            asked(target, "PUT", body=setting)
            copied(target, 5)
        eventually(lambda: state(target) == ["unreachable"], what="the source is missed")
        assert health(target) == ({"status": "degraded", "reasons": ["mirror"]}, "ok")
        assert scraped(target)[f"{PREFIX}failures_total", ()] >= 1
        assert asked(target)["failures"] >= 1
        asked(target, "POST", "/promote")
        eventually(lambda: state(target) == ["promoted"], what="its state")  # a page that took long is shown again
        assert {name for name, _ in scraped(target)} == {f"{PREFIX}state"}
        assert health(target) == ({"status": "ready"}, "ok")


def test_what_nobody_knows_is_not_told() -> None:
    """Before the source has answered there is no lag, and then none in seconds if nobody can tell."""
    never = scrape(mirror_metrics(MirrorModel(state="unreachable", segments={"pending": 2}), 9.0))
    assert labelled(never, f"{PREFIX}segments", "state")["pending"] == 2
    names = {name.removeprefix(PREFIX) for name, _ in never}
    assert not {name for name in names if name.startswith(("lag_", "contact_"))}
    lag = LagModel(segments=2, bytes=7, seconds=None)
    some = scrape(mirror_metrics(MirrorModel(state="following", last_contact=10.0, lag=lag), 9.0))
    assert (some[f"{PREFIX}lag_segments", ()], some[f"{PREFIX}lag_bytes", ()]) == (2, 7)
    assert some[f"{PREFIX}contact_age_seconds", ()] == 0, "a clock that was set back"
    assert (f"{PREFIX}lag_seconds", ()) not in some


def test_a_mirror_ails_while_it_copies_and_something_is_missing() -> None:
    """One that was stopped or promoted does not, nor does a server that mirrors nothing."""
    ailing = [
        MirrorModel(state="unreachable"),
        MirrorModel(state="looking", problem="the registry cannot be read"),
        MirrorModel(state="following", segments={"failed": 1}),
        MirrorModel(state="following", channels={"failed": 1}),
        MirrorModel(state="stopped", last_contact=1.0, problem="a fault of the mirror has ended it"),
    ]
    well = [
        MirrorModel(state="none"),
        MirrorModel(state="following", segments={"pending": 9}),
        MirrorModel(state="stopped", segments={"failed": 1}),
        MirrorModel(state="promoted", problem="the former source does not answer"),
    ]
    assert [one.ailing for one in (*ailing, *well)] == [True] * len(ailing) + [False] * len(well)
