"""A mirror from the outside: commands and routes, between servers that are stopped, started, promoted and deposed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import typer
from pydantic import ValidationError

from tests.app.mirror.pair import durable, film, settled
from tests.support.forked import forked
from tests.support.local import LocalServer
from tests.support.peers import Peer, fake_server, run
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app import mirror_cli
from tricklecast.app.mirror.registry import MirrorRegistry
from tricklecast.app.mirror.routes import Conflict, NewSettingModel
from tricklecast.app.mirror.service import FILE, MirrorService
from tricklecast.app.mirror_cli import MAX_RATE, back, mirror, promote, resync, reverify, status, stop, summary, table
from tricklecast.trickle.errors import ConnectionLost, TrickleError
from tricklecast.trickle.terminal import NO_CREDENTIALS, Screen


def base(server: LocalServer) -> str:
    """The URL of its channels."""
    return f"http://127.0.0.1:{server.port}/trickle"


def asked(server: LocalServer, method: str = "GET", route: str = "", body: object = None) -> Any:
    """What its API answers."""
    url = f"http://127.0.0.1:{server.port}/api/v1/mirror{route}"
    return httpx.request(method, url, json=body, timeout=WITHIN_S).json()


def copied(server: LocalServer, segments: int) -> None:
    """Wait until so many segments are here, and nothing is missing."""

    def is_there() -> bool:
        answer = asked(server)
        return bool(answer["complete"]) and answer["segments"].get("synced", 0) == segments

    eventually(is_there, what=f"{segments} segments: {asked(server)}")


def publish(server: LocalServer, *seqs: int, name: str = "film") -> None:
    """Publish segments that tell which they are."""
    for seq in seqs:
        answer = httpx.post(f"{base(server)}/{name}/{seq}", content=f"{name} {seq}".encode(), timeout=WITHIN_S)
        assert answer.status_code == 200


def read(server: LocalServer, seq: int, name: str = "film") -> tuple[int, bytes]:
    """Read one."""
    response = httpx.get(f"{base(server)}/{name}/{seq}", timeout=WITHIN_S)
    return response.status_code, response.content


def has(server: LocalServer, seq: int, name: str = "film") -> bool:
    """Whether it can be read."""
    return read(server, seq, name) == (200, f"{name} {seq}".encode())


def takes(server: LocalServer, name: str) -> bool:
    """Whether it takes a segment 1."""
    return httpx.post(f"{base(server)}/{name}/1", content=b"x").status_code == 200


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Servers that end with the test."""
    with ExitStack() as one:
        yield one


def test_all_of_a_source_is_at_the_destination(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Window and history, what is there and what comes; and the commands say so."""
    source = stack.enter_context(durable(tmp_path / "source"))
    target = stack.enter_context(durable(tmp_path / "target"))
    publish(source, *range(8))
    mirror(base(source), base(target), detach=True)
    copied(target, 8)
    publish(source, 8)
    copied(target, 9)
    assert [read(target, seq) for seq in (0, 4, 8)] == [(200, f"film {seq}".encode()) for seq in (0, 4, 8)]
    run(status(base(target), for_promotion=True))
    out = capsys.readouterr().out
    for words in ("copies", "following, complete", "9 of 9", "1 of 1", "would lose nothing"):
        assert words in out, out
    run(status(base(target), as_json=True))
    assert json.loads(capsys.readouterr().out)["setting"]["source"] == base(source)
    run(resync(base(target), failed=True))
    run(reverify(base(target)))
    eventually(lambda: asked(target)["verified"] == 9, what="all are verified")
    assert "1 channel is read again now" in capsys.readouterr().out


def test_a_destination_that_keeps_less_than_its_source(stack: ExitStack, tmp_path: Path) -> None:
    """It says so and is complete and ready; nothing is copied in vain, and with more room the rest comes."""
    source = stack.enter_context(durable(tmp_path / "source"))
    publish(source, *range(10))
    with durable(tmp_path / "target", retain_channel_segments=4) as target:
        mirror(base(source), base(target), detach=True)
        eventually(lambda: asked(target)["complete"], what="all that it keeps")
        publish(source, 10, 11)
        eventually(lambda: read(target, 11)[0] == 200 and asked(target)["segments"].get("synced") == 4, what="the last")
        answer = asked(target)
        assert answer["segments"]["beyond"] in range(3, 7), "some may have come at once, and gone"
        assert answer["segments"].keys() == {"synced", "beyond"}
        assert answer["lag"]["segments"] == 0
        assert asked(target, route="?for_promotion=1")["lost"] == []
        assert httpx.get(f"http://127.0.0.1:{target.port}/readyz").json() == {"status": "ready"}

        def gets() -> int:
            return sum(one.op == "get" for one in list(source.records))

        before = gets()
        for n in range(3):
            asked(target, "POST", "/resync")
            eventually(lambda: asked(target)["segments"] == {"synced": 4, "beyond": 8}, what=f"look {n}")
        assert gets() == before
    target = stack.enter_context(durable(tmp_path / "target", retain_channel_segments=100))
    copied(target, 12)
    assert [read(target, seq) for seq in (0, 11)] == [(200, b"film 0"), (200, b"film 11")]


def test_publishers_are_refused_for_copies_only(stack: ExitStack, tmp_path: Path) -> None:
    """503 says which server is mirrored; a name outside the choice is a channel like any other."""
    source, target = stack.enter_context(durable(None)), stack.enter_context(durable(None))
    publish(source, 0)
    mirror(base(source), base(target), channel=["fi*"], detach=True)
    eventually(lambda: read(target, 0) == (200, b"film 0"), what="the copy")
    for name in ("film", "first"):
        answer = httpx.post(f"{base(target)}/{name}/1", content=b"x")
        assert (answer.status_code, base(source) in answer.text) == (503, True)
        assert answer.headers["Lp-Trickle-Elsewhere"] == "1"
    assert httpx.delete(f"{base(target)}/film").status_code == 503
    assert httpx.post(f"{base(target)}/other/0", content=b"x").status_code == 200
    assert not asked(target)["stores"]
    assert target.record(status=503, channel="first").reason == "mirror"


def test_a_destination_goes_on_after_a_restart(stack: ExitStack, tmp_path: Path) -> None:
    """With its setting and its copies, also while the source is away; readers are served meanwhile."""
    folders = tmp_path / "source", tmp_path / "target"
    with durable(folders[0]) as source:
        publish(source, *range(5))
        with durable(folders[1]) as target:
            mirror(base(source), base(target), detach=True)
            copied(target, 5)
    assert (folders[1] / FILE).stat().st_mode & 0o777 == 0o600
    target = stack.enter_context(durable(folders[1]))
    eventually(lambda: asked(target)["problem"], what="the source is away")
    answer = asked(target)
    assert (answer["state"], answer["segments"]) == ("unreachable", {"synced": 5})
    assert answer["lag"]["seconds"] > 0, "since it was heard before the restart"
    assert [read(target, seq) for seq in (0, 4)] == [(200, b"film 0"), (200, b"film 4")]
    assert httpx.post(f"{base(target)}/film/5", content=b"x").status_code == 503


def test_a_choice_is_narrowed_and_widened(stack: ExitStack, tmp_path: Path) -> None:
    """What is not chosen any more ends here; what is chosen again comes back."""
    source, target = stack.enter_context(durable(None)), stack.enter_context(durable(None))
    publish(source, 0)
    publish(source, 0, name="other")
    mirror(base(source), base(target), detach=True)
    eventually(lambda: len(target.node.plane.registry.channels) == 3, what="both copies")
    mirror(base(source), base(target), channel=["film"], detach=True)
    eventually(lambda: asked(target)["live"] == 1, what="one is left")
    assert httpx.post(f"{base(target)}/other/next", content=b"x").status_code != 503
    mirror(base(source), base(target), channel=["film"], max_rate="1MB", oldest_first=True, detach=True)
    assert asked(target)["setting"] == {
        **{"source": base(source), "channels": ["film"], "order": "oldest", "max_rate": 1_000_000},
        **{"source_api": None, "promoted": []},
    }


def test_a_mirror_that_is_stopped_copies_nothing(stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    """Its copies stay, and take no publishers; the same command goes on."""
    source, target = stack.enter_context(durable(None)), stack.enter_context(durable(None))
    publish(source, 0)
    mirror(base(source), base(target), detach=True)
    eventually(lambda: read(target, 0)[0] == 200, what="the copy")
    run(stop(base(target)))
    assert "copies nothing more" in capsys.readouterr().out
    publish(source, 1)
    answer = asked(target)
    assert (answer["state"], read(target, 0)[0]) == ("stopped", 200)
    assert 0 < answer["lag"]["seconds"] <= time.time() - answer["last_contact"]
    run(status(base(target)))
    assert "0 segments, 0 B that are known, " in capsys.readouterr().out
    assert httpx.post(f"{base(target)}/film/1", content=b"x").status_code == 503
    run(stop(base(target)))
    mirror(base(source), base(target), detach=True)
    eventually(lambda: read(target, 1) == (200, b"film 1"), what="the rest")


def test_the_other_site_takes_over_and_the_first_returns(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promoted one epoch up; the old source is told, shows what only it has, and mirrors the new one."""
    with durable(tmp_path / "old") as old:
        new = stack.enter_context(durable(tmp_path / "new"))
        publish(old, *range(5))
        mirror(base(old), base(new), detach=True)
        copied(new, 5)
        run(stop(base(new)))
        publish(old, 5)
        run(promote(base(new), accept_loss=True))
        assert "has taken over 1 channel" in capsys.readouterr().out
        publish(new, 5, 6)
        assert httpx.get(f"{base(new)}/film/6").headers["Lp-Trickle-Epoch"] == "2"
        eventually(lambda: asked(old)["state"] == "deposed", what="the old one has heard")
        assert httpx.post(f"{base(old)}/film/6", content=b"x").status_code == 503
        with pytest.raises(TrickleError, match="mirrors nothing"):
            run(promote(base(new)))
        run(status(base(old)))
        assert base(new) in capsys.readouterr().out
    old = stack.enter_context(durable(tmp_path / "old"))
    assert (asked(old)["state"], read(old, 5)) == ("deposed", (200, b"film 5"))


def test_some_channels_are_promoted_alone(stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others stay copies; the source is told which. All of that is so after a restart, and for names to come."""
    source = stack.enter_context(durable(tmp_path / "source"))
    for name in ("cam1", "film"):
        publish(source, 0, name=name)
    for again in (False, True):
        with durable(tmp_path / "target") as target:
            if not again:
                mirror(base(source), base(target), detach=True)
                copied(target, 2)
                run(promote(base(target), channel=["cam*"]))
                assert "has taken over 1 channel" in capsys.readouterr().out
            publish(target, 1 + again, name="cam1")
            assert httpx.get(f"{base(target)}/cam1/{1 + again}").headers["Lp-Trickle-Epoch"] == "2"
            publish(target, 0 + again, name="cam2")
            assert httpx.post(f"{base(target)}/film/9", content=b"x").status_code == 503
            publish(source, 1 + again)
            eventually(partial(has, target, 1 + again), what="the others go on")
            eventually(lambda: asked(source)["deposed"] == ["cam*"], what="the source has heard")
            assert httpx.post(f"{base(source)}/cam1/1", content=b"x").status_code == 503
            answer = asked(target)
            assert (answer["state"], answer["setting"]["promoted"]) == ("following", ["cam*"])
            assert "cam1" not in [row["channel"] for row in asked(target, route="?for_promotion=1")["lost"]]
            eventually(lambda: asked(target)["complete"], what="all others")
            run(status(base(target)))
            assert "promoted" in capsys.readouterr().out
    target = stack.enter_context(durable(tmp_path / "target"))
    eventually(lambda: asked(target)["complete"], what="nothing would be lost")
    run(promote(base(target)))
    publish(target, 3)
    eventually(lambda: asked(source)["deposed"] == ["*"], what="the source has heard of all")


def test_patterns_that_are_promoted_are_bounded(stack: ExitStack) -> None:
    """Each name is tried with all of them."""
    source, target = stack.enter_context(durable(None)), stack.enter_context(durable(None))
    mirror(base(source), base(target), detach=True)
    for n in (0, 200):
        query = "&".join(f"pattern=c{n + one}" for one in range(200))
        answer = asked(target, "POST", f"/promote?{query}")
    assert "at most 256 patterns" in answer["detail"]


def test_a_promotion_that_was_cut_off_is_finished(stack: ExitStack, tmp_path: Path) -> None:
    """What was a copy still when the server was killed is promoted when it starts."""
    source = stack.enter_context(durable(tmp_path / "source"))
    for name in ("cam", "film"):
        publish(source, 0, name=name)
    with durable(tmp_path / "target") as target:
        mirror(base(source), base(target), detach=True)
        copied(target, 2)
        settled(target)
        mirrored = target.node.mirror
        for about in ({"promoted": ("cam",)}, {"phase": "promoted"}):
            kept = replace(mirrored._set(), **about)
            setting = {"setting": orjson.dumps(asdict(kept)).decode()}
            target.inside(partial(mirrored._rows.change_settings, setting))
            shutil.copytree(tmp_path / "target", tmp_path / "+".join(about), dirs_exist_ok=True)
    for folder, names in (("promoted", ["cam"]), ("phase", ["cam", "film"])):
        with durable(tmp_path / folder) as target:
            for name in names:
                eventually(partial(takes, target, name), what=name)
                assert httpx.get(f"{base(target)}/{name}/1").headers["Lp-Trickle-Epoch"] == "2"


def test_what_a_promotion_loses_is_listed_exactly(stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing, if all had come when the source was lost; else the segment that was being written."""
    target = stack.enter_context(durable(None))
    with durable(None) as source:
        publish(source, 0)
        mirror(base(source), base(target), detach=True)
        eventually(lambda: read(target, 0)[0] == 200, what="the copy")
        client = source.target()
        upload, _ = client.channel("film").started(1, b"half")
        eventually(lambda: asked(target, route="?for_promotion=1")["lost"], what="it has begun here")
        run_status(target, 1)
        upload.end()
        eventually(lambda: not asked(target, route="?for_promotion=1")["lost"], what="it has come")
        client.close()
    eventually(lambda: asked(target)["state"] == "unreachable", what="the source is gone")
    run_status(target, 0)
    run(promote(base(target)))
    publish(target, 2)
    assert "segment 1 (it is being written, and its end is missing: 4 bytes" in capsys.readouterr().out


def run_status(server: LocalServer, code: int) -> None:
    """Ask what a promotion would lose; the exit code says whether that is something."""
    asking = status(base(server), for_promotion=True)
    if not code:
        run(asking)
        return
    with pytest.raises(typer.Exit) as ended:
        run(asking)
    assert ended.value.exit_code == code


def test_a_planned_move_loses_nothing(stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The source takes no new segment, the open one ends, all of it is copied, and then the destination is promoted."""
    old, new = (stack.enter_context(durable(tmp_path / name)) for name in ("old", "new"))
    publish(old, *range(3))
    mirror(base(old), base(new), detach=True)
    copied(new, 3)
    upload, _ = film(old).started(3, b"begun")
    waiting = film(old).preconnect(4)
    eventually(lambda: [one["seq"] for one in asked(new, route="?for_promotion=1")["lost"]] == [3], what="it is open")
    with pytest.raises(TrickleError, match="--drain-s"):
        run(promote(base(new)))
    with ThreadPoolExecutor(1) as thread:
        moving = thread.submit(run, promote(base(new), drain_s=30.0))
        assert waiting.answer().status == 503
        refused = httpx.post(f"{base(old)}/film/4", content=b"x")
        told = f"{base(new)} is about to take this server's place: publish there"
        assert (refused.status_code, refused.text) == (503, told)
        upload.chunk(b" and ended")
        assert not moving.done()
        upload.end()
        moving.result(WITHIN_S)
    assert read(new, 3) == (200, b"begun and ended")
    assert "not copied" not in capsys.readouterr().err
    publish(new, 4)
    eventually(lambda: asked(old)["state"] == "deposed", what="the old one has heard")
    run(back(base(new), base(old)))
    copied(old, 5)
    run(promote(base(old), drain_s=30.0))
    publish(old, 5)  # it has promised nothing to anybody any more


def test_a_source_goes_on_if_a_planned_move_takes_too_long(stack: ExitStack, tmp_path: Path) -> None:
    """The segment that does not end is as it was, nothing is promoted, and publishers are taken again at once."""
    old, new = (stack.enter_context(durable(tmp_path / name)) for name in ("old", "new"))
    publish(old, 0)
    mirror(base(old), base(new), detach=True)
    copied(new, 1)
    upload, _ = film(old).started(1, b"begun")
    with pytest.raises(TrickleError, match=r"after 0.2 s 1 segments are open there"):
        run(promote(base(new), drain_s=0.2))
    publish(old, 2)
    upload.chunk(b".")
    upload.end().stored()
    assert read(old, 1) == (200, b"begun.")
    assert asked(new)["state"] != "promoted"


def test_who_hands_over_and_hears_no_more_goes_on_by_itself(stack: ExitStack) -> None:
    """Its heir may have been lost: publishers are refused for the time that was asked for, and no longer."""
    old = stack.enter_context(durable(None))
    publish(old, 0)
    heir = {"by": "http://heir.example/trickle", "channels": ["*"], "within_s": 0.2}
    assert asked(old, "POST", "/handover", heir) == {"open": 0, "heads": {"film": [1, 1]}}
    eventually(lambda: takes(old, "film"), what="it takes publishers again")


def test_a_source_that_cannot_hand_over_is_not_promoted_over(stack: ExitStack) -> None:
    """It is no tricklecast, or an older one: this is said, and nothing is done."""
    old, new = stack.enter_context(durable(None, control_port=0)), stack.enter_context(durable(None))
    publish(old, 0)
    mirror(base(old), base(new), detach=True)
    eventually(lambda: asked(new)["live"] == 1, what="live by plain GETs")
    with pytest.raises(TrickleError, match=r"the source does not hand over: .* cannot hand over"):
        run(promote(base(new), drain_s=5.0))
    assert asked(new)["state"] == "following"


def test_a_promoted_server_names_the_port_of_its_channels(stack: ExitStack) -> None:
    """Also if its control plane, which was told to mirror, has another one."""
    old, new = stack.enter_context(durable(None)), stack.enter_context(durable(None, control_port=0))
    api = f"http://127.0.0.1:{new.control_port}"
    publish(old, 0)
    mirror(base(old), api, detach=True)
    run(promote(api, accept_loss=True))
    eventually(lambda: asked(old)["successor"] == base(new), what="where publishers go")


def test_a_source_that_refuses_is_asked_more_and_more_seldom(stack: ExitStack) -> None:
    """A feed that is refused at once, while everything else is answered, is no retry storm."""
    target = stack.enter_context(durable(None))
    source = stack.enter_context(durable(None, max_readers=1, storm_guard="off"))
    publish(source, 0)
    client = source.target()
    client.channel("film").read(1)
    eventually(lambda: source.plane.registry.readers == 1, what="the only reader")
    mirror(base(source), base(target), detach=True)
    registry = target.node.mirror._registry
    assert registry is not None

    def attempts() -> int:
        row = target.inside(lambda: registry.channel("film"))
        return 0 if row is None else row.attempts

    eventually(lambda: attempts() >= 3, what="three attempts")
    assert sum(record.op == "feed" for record in source.records) <= attempts() + 1
    assert asked(target)["errors"][-1]["channel"] == "film"
    client.close()


def test_what_only_the_former_source_has_is_exported_first(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a word about it nothing is replaced; then it is in files, and the server is a mirror."""
    old, new = (stack.enter_context(durable(tmp_path / name)) for name in ("old", "new"))
    publish(old, *range(4))
    publish(old, 0, name="lost")
    publish(new, *range(3))
    httpx.post(f"{base(new)}/film/3", content=b"another one")
    snapshot = f"http://127.0.0.1:{old.port}/api/v1/changes?snapshot=1"
    eventually(lambda: len(httpx.get(snapshot).json()["channels"]) == 2, what="storage has both channels")
    with pytest.raises(TrickleError, match="2 segments would be lost: use --export"):
        run(back(base(new), base(old)))
    assert asked(old)["state"] == "none"
    run(back(base(new), base(old), export=tmp_path / "only"))
    found = {
        path.relative_to(tmp_path / "only").as_posix(): path.read_bytes() for path in (tmp_path / "only").rglob("*-*")
    }
    assert found == {"film/1-00000003": b"film 3", "lost/1-00000000": b"lost 0"}
    copied(old, 4)
    assert read(old, 3) == (200, b"another one")
    assert "only at" in capsys.readouterr().err


def test_the_former_source_may_have_its_control_plane_elsewhere(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named beside the address of the channels; without it nothing is done, and the option is named."""
    old = stack.enter_context(durable(tmp_path / "old", control_port=0))
    new = stack.enter_context(durable(tmp_path / "new"))
    publish(old, *range(4))
    publish(new, *range(3))
    api = f"http://127.0.0.1:{old.control_port}"
    snapshot = f"{api}/api/v1/changes?snapshot=1"
    eventually(lambda: httpx.get(snapshot).json()["channels"], what="storage has the channel")
    with pytest.raises(TrickleError, match=r"cannot be a mirror: .* \(--old-api\)"):
        run(back(base(new), base(old), discard=True))
    run(back(base(new), base(old), export=tmp_path / "only", old_api=api))
    assert (tmp_path / "only/film/1-00000003").read_bytes() == b"film 3"
    assert f"only at {base(old)}: film" in capsys.readouterr().err
    assert httpx.get(f"{api}/api/v1/mirror").json()["setting"]["source"] == base(new)


def test_what_cannot_be_done_is_said(stack: ExitStack, tmp_path: Path) -> None:
    """One line that says what to do."""
    source, target = stack.enter_context(durable(None)), stack.enter_context(durable(None))
    for command in (stop(base(target)), promote(base(target)), resync(base(target)), reverify(base(target))):
        with pytest.raises(TrickleError, match="mirrors nothing"):
            run(command)
    publish(target, 0)
    with pytest.raises(TrickleError, match=r"1 channels of its own.*'film'"):
        mirror(base(source), base(target), detach=True)
    mirror(base(source), base(target), channel=["other"], detach=True)
    with pytest.raises(TrickleError, match="use another server for another source"):
        mirror("http://127.0.0.1:1/trickle", base(target), channel=["other"], detach=True)
    with pytest.raises(ConnectionLost):
        run(status("http://127.0.0.1:1"))
    with pytest.raises(typer.BadParameter, match="ends with this command"):
        mirror(base(source), str(tmp_path / "folder"), detach=True)


def test_a_rate_has_bounds() -> None:
    """They are named, and the API has the same."""
    for text in ("0", "2TB", "fast"):
        with pytest.raises(typer.BadParameter, match=r"from 1B to 1\.0 TB: 10MB, not"):
            mirror("http://127.0.0.1:1/trickle", "http://127.0.0.1:1", max_rate=text)
    for rate in (0, MAX_RATE + 1):
        with pytest.raises(ValidationError):
            NewSettingModel(source="http://a/trickle", max_rate=rate)


def test_the_status_names_the_next_step(stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a server that mirrors nothing, of a mirror that is stopped, and of a server that was deposed."""
    source, target = stack.enter_context(durable(None)), stack.enter_context(durable(None))
    run(status(base(target)))
    assert "tricklecast mirror SRC DST` begins" in capsys.readouterr().out
    mirror(base(source), base(target), detach=True)
    run(stop(base(target)))
    run(status(base(target)))
    assert "tricklecast mirror SRC DST` goes on" in capsys.readouterr().out
    run(promote(base(target), accept_loss=True))
    run(status(base(target)))
    out = capsys.readouterr().out
    assert "makes the former source a mirror" in out
    assert "segments copied" not in out, "they are its own now"
    eventually(lambda: asked(target)["told"] == "yes", what="the source has heard")
    run(status(base(target)))
    assert "knows that it was replaced" in capsys.readouterr().out
    with pytest.raises(TrickleError, match=r"takes no publishers, since .* has its place: are the two swapped"):
        run(back(base(source), base(target)))
    run(status(base(source)))
    assert "tricklecast mirror back NEW OLD`" in capsys.readouterr().out


def test_a_destination_that_is_away_is_told_of_once(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command that shows how far it is; its old state is not shown as news meanwhile."""
    source, target = stack.enter_context(durable(None)), stack.enter_context(durable(None))
    mirror(base(source), base(target), detach=True)
    answer, out = eventually(lambda: (now := asked(target))["complete"] and now), StringIO()
    monkeypatch.setattr(mirror_cli, "LOOK_S", 0.01)

    async def breaks(peer: Peer) -> None:
        await peer.head()

    async def answers(peer: Peer) -> None:
        await peer.head()
        await peer.answer(200, body=orjson.dumps(answer | {"state": "stopped"}))

    async def show() -> None:
        async with fake_server(breaks, breaks, answers) as fake:
            server = mirror_cli._Server(fake.base, NO_CREDENTIALS)
            await mirror_cli._show(server, {}, answer, Screen(out), as_json=False)

    run(show())
    first, away, last = out.getvalue().splitlines()
    assert (first.split(",")[0], last.split(",")[0]) == ("following", "stopped")
    assert "connection lost" in away


def test_what_is_looked_at_again_is_there(stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    """A name without a copy, and a mirror that does not copy, are errors; that nothing has failed is none."""
    source, target = stack.enter_context(durable(None)), stack.enter_context(durable(None))
    publish(source, 0)
    mirror(base(source), base(target), detach=True)
    eventually(lambda: asked(target)["complete"], what="the copy")
    for again in (resync, reverify):
        with pytest.raises(TrickleError, match="no copy of a channel with the name 'cam\\*'"):
            run(again(base(target), "cam*"))
    run(resync(base(target), failed=True))
    assert "nothing has failed" in capsys.readouterr().out
    run(stop(base(target)))
    for again in (resync, reverify):
        with pytest.raises(TrickleError, match=r"the mirror is stopped.*begin again first"):
            run(again(base(target)))
    away = stack.enter_context(durable(None))
    mirror("http://127.0.0.1:1/trickle", base(away), detach=True)
    with pytest.raises(TrickleError, match="the source is not open yet"):
        run(resync(base(away)))


def test_a_source_that_does_not_answer_is_told_before_the_command_returns(
    stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--detach` waits for the first answer for a moment: a wrong URL is seen at once."""
    target = stack.enter_context(durable(None))
    mirror("http://127.0.0.1:1/trickle", base(target), detach=True)
    assert "warning: http://127.0.0.1:1/trickle: " in capsys.readouterr().err


def test_a_server_that_can_mirror_nothing_says_why() -> None:
    """It has several workers, or is a node of a cluster."""
    service = MirrorService(None, None, "a node of a cluster mirrors no other server")
    assert service.status(lost=True).state == "none"
    with pytest.raises(Conflict, match="a node of a cluster"):
        run(service.set(NewSettingModel(source="http://a/trickle"), ""))
    with pytest.raises(Conflict, match="a node of a cluster"):
        run(service.depose("http://a/trickle"))


def test_a_wrong_source_is_a_problem_that_is_shown(stack: ExitStack) -> None:
    """The mirror goes on trying."""
    source, target = stack.enter_context(durable(None)), stack.enter_context(durable(None))
    mirror(f"http://127.0.0.1:{source.port}/wrong", base(target), channel=["x"], detach=True)
    eventually(lambda: "base path" in asked(target)["problem"], what="the problem")


def test_a_source_whose_control_plane_is_elsewhere(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is read by plain GETs, and the status says so and why; who says where it is gets all, and may promote."""
    source = stack.enter_context(durable(tmp_path / "source", control_port=0))
    api = f"http://127.0.0.1:{source.control_port}"
    publish(source, *range(8))
    plain, whole = (stack.enter_context(durable(tmp_path / name)) for name in ("plain", "whole"))
    mirror(base(source), base(plain), detach=True)
    eventually(lambda: asked(plain)["live"] == 1, what="live by plain GETs")
    assert f"since {api.rpartition(':')[0]}" in asked(plain)["plain"]
    run(status(base(plain)))
    assert "by plain GETs, since http://" in capsys.readouterr().out
    with pytest.raises(TrickleError, match="use another server"):
        mirror(f"{base(source)}2", base(plain), detach=True)
    mirror(base(source), base(whole), source_api=api, detach=True)
    copied(whole, 8)
    answer = asked(whole)
    assert (answer["plain"], answer["setting"]["source_api"]) == ("", api)
    run(promote(base(whole)))
    route = f"{api}/api/v1/mirror"
    eventually(lambda: httpx.get(route).json()["successor"] == base(whole), what="the source has heard")
    other = stack.enter_context(durable(None))
    mirror(base(source), base(other), source_api=base(source), detach=True)
    eventually(lambda: "is it the address of its control plane?" in asked(other)["problem"], what="the problem")


def test_a_source_that_cannot_be_told_is_no_secret(stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    """One without mirrors goes on to take publishers after a promotion, and the status says so."""
    source, target = stack.enter_context(durable(None, control_port=0)), stack.enter_context(durable(None))
    publish(source, 0)
    mirror(base(source), base(target), detach=True)
    eventually(lambda: has(target, 0), what="the copy")
    run(promote(base(target), accept_loss=True))
    eventually(lambda: asked(target)["told"] == "impossible", what="it was tried")
    run(status(base(target)))
    assert "cannot be told that it was replaced" in capsys.readouterr().out


def test_a_full_disk_is_in_the_status(stack: ExitStack) -> None:
    """All may be here, and nothing of it on the disk."""
    source, target = stack.enter_context(durable(None)), stack.enter_context(durable(None))
    mirror(base(source), base(target), detach=True)
    answer = asked(target) | {"storage": "the data directory cannot be written: no space"}
    for said in (table(answer), summary(answer)):
        assert "cannot be written: no space" in said


def test_a_folder_is_a_destination(stack: ExitStack, tmp_path: Path) -> None:
    """A server runs in the command, until Ctrl-C; the folder is a data directory."""
    source = stack.enter_context(durable(tmp_path / "source"))
    publish(source, *range(5))
    command = forked("mirror", base(source), tmp_path / "folder")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        while "following" not in said:
            said += process.stderr.readline()
        assert "readers find them at http://127.0.0.1:" in said
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0
        assert "cancelled" not in process.stderr.read(), "the display ends with the server"
    registry = MirrorRegistry(tmp_path / "folder" / FILE)
    assert registry.counts()["segment", "synced"][0] == 5
    registry.close()
    target = stack.enter_context(durable(tmp_path / "folder"))
    assert read(target, 0) == (200, b"film 0")
