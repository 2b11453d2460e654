"""A check of a real server's channel: what is noted, how it ends, and what the command prints."""

from __future__ import annotations

import io
import json
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from rich.console import Console

from tests.publisher.media.clips import make_clip
from tests.subscriber.check.segments import cut, judged, numbered, received
from tests.support.forked import forked
from tests.support.local import local_server
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.cli import main
from tricklecast.publisher import Publisher
from tricklecast.subscriber.check.probe import Probe
from tricklecast.subscriber.check.report import as_json, print_report
from tricklecast.subscriber.check.rules import Judgement, Level, judge
from tricklecast.subscriber.check.study import Ended, Run
from tricklecast.trickle import wire
from tricklecast.trickle.errors import ChannelNotFound
from tricklecast.trickle.media.containers import Container


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """The base URL of a server."""
    with local_server(channel_drain_s=300) as server:  # ended channels can be read for long
        yield f"http://127.0.0.1:{server.port}/trickle"


@pytest.fixture
def url(base: str, request: pytest.FixtureRequest) -> str:
    """A channel of the test's own."""
    return f"{base}/{request.node.name}"


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Four seconds of well-made MPEG-TS."""
    return numbered(cut(make_clip(tmp_path_factory.mktemp("clip") / "clip.mp4", seconds=4.0)))


def looked(url: str, publish: Callable[[Probe], Awaitable[None]] | None = None, **options: Any) -> tuple[Probe, Run]:
    """A look at a channel while it is published to."""
    found: list[Probe] = []
    usual: dict[str, Any] = {"start": "0", "for_s": WITHIN_S, "wait_s": WITHIN_S}

    async def both() -> None:
        probe = Probe(url, **(usual | options))
        found.append(probe)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(probe.look)
            if publish is not None:
                await publish(probe)

    anyio.run(both)
    return found[0], found[0].run()


def has_seen(probe: Probe, segments: int) -> bool:
    """Whether a probe is through with so many."""
    return probe.segments >= segments


def test_a_channel_is_noted_from_its_first_byte_to_its_end(url: str, segments: list[bytes]) -> None:
    """Every segment with its times, its content and its first picture; and the channel is fine."""

    async def publish(probe: Probe) -> None:
        async with Publisher(url, content_type=wire.MPEG_TS, start=0) as publisher:
            for number, data in enumerate(segments):
                async with publisher.segment() as segment:
                    for at in range(0, len(data), 4000):
                        await segment.write(data[at : at + 4000])
                await until(partial(has_seen, probe, number + 1))

    _, run = looked(url, publish)
    assert run.ended is Ended.CHANNEL
    assert [seen.seq for seen in run.segments] == [0, 1, 2, 3]
    assert [seen.size for seen in run.segments] == [len(data) for data in segments]
    for seen in run.segments:
        assert seen.whole
        assert seen.requested_s <= seen.answered_s <= seen.first_s <= seen.last_s
        assert seen.media.container is Container.MPEGTS
        assert seen.epoch == 1
    pictures = [seen.media.picture for seen in run.segments if seen.media.picture is not None]
    assert pictures
    assert all(picture.decoded and picture.key for picture in pictures)
    judgement = judge(run)
    for name in ("gaps", "content_type", "damage", "stands_alone", "keyframes", "times_across", "counters_across"):
        assert judgement.finding(name).level is Level.OK, judgement.finding(name)


@pytest.mark.parametrize(
    ("deleted", "finding", "figure"),
    [(True, "empty", "1 segment dropped"), (False, "skipped", "1 segment skipped")],
    ids=["deleted", "passed over"],
)
def test_a_segment_without_its_media_is_found(segments: list[bytes], deleted: bool, finding: str, figure: str) -> None:
    """Whether its publisher closed it as empty or nobody wrote it: told once, as what it is."""
    with local_server() as server:
        registry = server.plane.registry
        url = f"http://127.0.0.1:{server.port}/trickle/cam"

        async def publish(probe: Probe) -> None:
            async with httpx.AsyncClient() as http:
                headers = {"Content-Type": wire.MPEG_TS}
                for seq in (0, 1):
                    await http.post(f"{url}/{seq}", content=segments[seq], headers=headers)
                await until(lambda: 2 in registry.channels["cam"].segments)  # the check waits for it
                if deleted:
                    await http.delete(f"{url}/2")
                await http.post(f"{url}/3", content=segments[3], headers=headers)
                await until(lambda: probe.segments == 4)
                await http.delete(url)

        _, run = looked(url, publish)
    judgement = judge(run)
    assert [(seen.seq, bool(seen.size)) for seen in run.segments] == [(0, True), (1, True), (2, False), (3, True)]
    assert [seen.seq for seen in run.segments if seen.skipped] == ([] if deleted else [2])
    assert judgement.finding(finding).level is Level.FAIL
    assert judgement.finding(finding).figure == figure
    assert judgement.finding(finding).segments == (2,)
    for name in {"gaps", "skipped", "empty", "truncated", "times_across"} - {finding}:
        assert judgement.finding(name).level is Level.OK, judgement.finding(name)


def test_segments_that_have_left_the_window_are_a_gap(segments: list[bytes]) -> None:
    """Whoever begins too late learns what is missing, and neither times nor counters are expected to go on over it."""
    with local_server(window_segments=2) as server:
        url = f"http://127.0.0.1:{server.port}/trickle/cam"

        async def late() -> Run:
            async with Publisher(url, content_type=wire.MPEG_TS, start=0) as publisher:
                for data in segments:
                    await publisher.publish(data)
                probe = Probe(url, start=0, for_s=WITHIN_S)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(probe.look)
                    await until(lambda: probe.segments >= 1)
                    await publisher.close()
                return probe.run()

        judgement = judge(anyio.run(late))
    assert judgement.finding("gaps").level is Level.FAIL
    assert judgement.finding("times_across").level in (Level.OK, Level.SKIP)
    assert judgement.finding("counters_across").level is Level.OK


def test_the_time_ends_a_look_in_the_middle_of_a_segment(url: str, segments: list[bytes]) -> None:
    """The segment under way counts as left, and nothing is held against it."""

    async def publish(probe: Probe) -> None:
        async with Publisher(url, content_type=wire.MPEG_TS, start=0) as publisher:
            await publisher.publish(segments[0])
            async with publisher.segment() as segment:
                await segment.write(segments[1][:1000])
                await until(lambda: probe.run().ended is Ended.TIME)
                await segment.write(segments[1][1000:])

    _, run = looked(url, publish, for_s=1.5, wait_s=1.5)
    assert [seen.left for seen in run.segments] == [False, True]
    judgement = judge(run)
    assert {finding.level for finding in judgement.findings} <= {Level.OK, Level.SKIP}


def test_a_channel_that_is_not_there(url: str) -> None:
    """Is an error, not a report."""
    with pytest.raises(ExceptionGroup) as raised:
        looked(url, start="next", for_s=5.0, wait_s=0.0)
    assert raised.group_contains(ChannelNotFound)


def test_messages_are_judged_by_what_arrives(url: str) -> None:
    """JSON is recognised, and rules about media do not apply."""

    async def publish(probe: Probe) -> None:
        async with Publisher(url, content_type="application/json", start=0) as publisher:
            for number in range(3):
                await publisher.publish(b'{"n": %d}' % number)
            await until(lambda: probe.segments == 3)

    _, run = looked(url, publish)
    assert {seen.media.container for seen in run.segments} == {Container.JSON}
    judgement = judge(run)
    assert judgement.level is Level.OK
    assert judgement.finding("keyframes").level is Level.SKIP


def report_of(judgement: Judgement) -> str:
    """What is printed into a file."""
    out = io.StringIO()
    print_report("http://me:secret@host/trickle/cam?token=secret", judgement, Console(file=out, width=100))
    assert "secret" not in out.getvalue()
    return out.getvalue()


def test_the_report_for_people(segments: list[bytes]) -> None:
    """One line per check; what is wrong with what it means and what to do; no word that a terminal would obey."""
    seen = received(segments)
    text = report_of(judged(seen))
    assert "OK    No segment missed" in text or "OK" in text.splitlines()[1]
    assert "fine, after" in text
    assert "\x1b" not in text
    seen[2] = replace(seen[2], gap=4, truncated="\x1b[31mred")
    text = report_of(judged(seen))
    assert "FAIL" in text
    assert "4 segments missed" in text
    assert "the publisher left numbers out" in " ".join(text.split())
    assert "not fine, after" in text
    assert "\x1b" not in text
    nothing = report_of(judged([])).splitlines()
    assert [line.split()[0] for line in nothing if not line.startswith(" ")] == [
        "http://***@host/trickle/cam?token=***",
        "FAIL",
        "not",
    ]


def test_the_report_for_programs(segments: list[bytes]) -> None:
    """A versioned document: every check with its numbers, every segment with its own."""
    judgement = judged(received(segments, decode=True))
    document = json.loads(as_json("http://me:secret@host/trickle/cam", judgement))
    assert document["url"] == "http://***@host/trickle/cam"
    assert (document["report"], document["version"], document["level"]) == ("tricklecast check", 2, "ok")
    checks = {check["id"]: check for check in document["checks"]}
    assert checks["lengths"]["values"]["median_s"] == pytest.approx(1.0, abs=0.01)
    assert checks["times_across"]["values"] == {"seams": 3, "jumps": 0}
    assert [segment["seq"] for segment in document["segments"]] == [0, 1, 2, 3]
    assert document["segments"][1]["tracks"][0]["keyframe_first"] is True
    assert document["segments"][1]["decoded"] is True


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["cam"], 2, "it must begin with http:// or https://"),
        ([__file__], 2, "this is a file, and a check tests a channel: publish it first"),
        (["http://127.0.0.1:9/trickle/cam", "--for", "soon"], 2, "not a duration: 'soon'"),
        (["http://127.0.0.1:9/trickle/cam", "--max-latency", "-1s"], 2, "not a duration"),
        (["http://127.0.0.1:9/trickle/cam", "--start", "yesterday"], 2, "use next, current, earliest, a number"),
        ([], 2, "URL"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With an exit code, and no report."""
    assert command(monkeypatch, *arguments) == code
    said = capfd.readouterr()
    assert says in " ".join(said.err.replace("│", " ").split())
    assert said.out == ""


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run ``tricklecast check``; its exit code."""
    monkeypatch.setattr("sys.argv", ["tricklecast", "check", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert isinstance(left.value.code, int)
    return left.value.code


@contextmanager
def checking(url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which ends with the block."""
    started = forked("check", url, "--start", "0", "--for", f"{WITHIN_S:.0f}s", *arguments)
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def ended(base: str, segments: list[bytes]) -> str:
    """A channel that has ended, with an empty segment: a warning."""
    url = f"{base}/ended"

    async def publish() -> None:
        async with Publisher(url, content_type=wire.MPEG_TS, start=0) as publisher:
            for data in [segments[0], b"", *segments[1:]]:
                await publisher.publish(data)

    anyio.run(publish)
    return url


@pytest.mark.parametrize(
    ("arguments", "code", "level"),
    [([], 0, "warn"), (["--max-segment", "900ms"], 1, "fail"), (["--strict"], 1, "warn")],
)
def test_the_exit_code_tells_how_it_is(
    ended: str,
    arguments: list[str],
    code: int,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Fine, beyond a limit that was given, and with a warning (an empty segment) that counts."""
    assert command(monkeypatch, ended, "--start", "0", "--json", *arguments) == code
    said = capfd.readouterr()
    assert said.err == ""
    document = json.loads(said.out)
    assert document["ended"] == "channel ended"
    assert document["level"] == level
    assert len(document["segments"]) == 5


def test_interrupted_it_reports_what_it_has(segments: list[bytes]) -> None:
    """Ctrl-C prints the report so far; the exit code says that it was interrupted."""
    with local_server() as server:
        url = f"http://127.0.0.1:{server.port}/trickle/cam"

        async def publish() -> str:
            async with Publisher(url, content_type=wire.MPEG_TS, start=0) as publisher:
                await publisher.publish(segments[0])
                await publisher.publish(segments[1])
                with checking(url) as process:
                    # Asked for when the one before was handed out, so that one is in the report, whatever comes first.
                    await anyio.to_thread.run_sync(lambda: server.record(op="read", seq=1, reason="complete"))
                    process.send_signal(signal.SIGINT)
                    out, err = await anyio.to_thread.run_sync(process.communicate)
                assert err == ""
                assert process.returncode == 128 + signal.SIGINT
                return out

        report = anyio.run(publish)
    assert "segment" in report
    assert "(interrupted)" in report
