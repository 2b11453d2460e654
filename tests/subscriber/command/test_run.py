"""``tricklecast subscribe``: what is written, what people are told, and what programs are."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.publisher.media.clips import make_clip
from tests.subscriber.fake import Exchange, Handler, fake, run
from tests.support.local import local_server
from tests.support.segments import cut
from tests.support.waiting import eventually, until
from tricklecast import subscriber
from tricklecast.subscriber.archive import Entry, read_index
from tricklecast.subscriber.command import run as command
from tricklecast.subscriber.command.moments import Moment
from tricklecast.subscriber.command.run import COUNTED, Progress, Report, Request, name_of
from tricklecast.subscriber.command.run import run as run_command
from tricklecast.subscriber.core import OnLag
from tricklecast.subscriber.events import SubscriberStatistics
from tricklecast.subscriber.media.joiner import NothingToWrite, Undescribed
from tricklecast.subscriber.relay.target import ConnectionBroke
from tricklecast.subscriber.segment import Segment, Shortened
from tricklecast.subscriber.sinks import FileSink, Output, PipeSink, SinkClosed, SinkFailed
from tricklecast.trickle import errors
from tricklecast.trickle.errors import ChannelNotFound, InvalidInput, Position, Refused, SegmentMissing, TrickleError
from tricklecast.trickle.pyav import MissingPyAV
from tricklecast.trickle.terminal import Screen

DOCS = Path(__file__).parents[3] / "docs" / "reference"


class Heard(Report):
    """Keeps every event with its fields."""

    def __init__(self) -> None:
        super().__init__(Screen(io.StringIO()))
        self.events: list[dict[str, Any]] = []

    async def tell(self, event: str, *lines: str, **fields: object) -> None:
        self.events.append({"event": event, **fields})

    def of(self, event: str) -> list[dict[str, Any]]:
        """Those of one kind."""
        return [fields for fields in self.events if fields["event"] == event]


def told(handler: Handler, path: Path | str | None, **options: Any) -> tuple[SubscriberStatistics, list[str]]:
    """Receive from a fake server; what people are told is returned with the numbers."""
    said = io.StringIO()

    async def main() -> SubscriberStatistics:
        async with fake(handler) as server:
            request = Request(server.url, None if path is None else str(path), **options)
            return (await run_command(request, Report(Screen(said)))).statistics

    return run(main), said.getvalue().splitlines()


def heard(handler: Handler, path: Path | str | None = None, **options: Any) -> Heard:
    """Receive from a fake server; the events."""
    events = Heard()

    async def main() -> None:
        async with fake(handler) as server:
            await run_command(Request(server.url, None if path is None else str(path), **options), events)

    run(main)
    return events


async def faulty(exchange: Exchange) -> None:
    """0 whole, 1 gone, 6 truncated and in a new epoch, 7 whole, then the end."""
    match exchange.tail:
        case "0":
            await exchange.segment(0, b"zero", epoch=1, Content_Type="text/plain")
        case "1":
            await exchange.text(470, "Entry not found", latest=7, earliest=6)
        case "6":
            await exchange.begin(6, epoch=2)
            await exchange.chunk(b"[bold]six")
            await exchange.end(truncated="publisher [red]lost")
        case "7":
            await exchange.segment(7, b"seven", epoch=2)
        case _:
            await exchange.empty(closed="terminated")


async def endless(exchange: Exchange) -> None:
    """Segment 0 begins, and never ends."""
    if exchange.tail == "0":
        await exchange.begin(0, epoch=4)
        await exchange.chunk(b"live")
    await exchange.closed_by_client()


class TestPeople:
    def test_segments_are_concatenated_and_faults_told(self, tmp_path: Path) -> None:
        """Every fault is one line, and the last line sums up; and names where to go on."""
        totals, said = told(faulty, tmp_path / "out", start=0)
        assert (tmp_path / "out").read_bytes() == b"zero[bold]sixseven"
        assert totals.segments == 3
        assert said[0].endswith("; going on at segment 6")
        lines = said[1:]
        assert lines[:3] == [
            "warning: the channel's numbering has changed; going on with its segment 6",
            "warning: missed segments 1 to 5 of the new numbering",
            "warning: segment 6 is truncated: publisher [red]lost",
        ]
        assert lines[3].startswith("received 3 segments (18 B) in ")
        assert lines[3].endswith("; 1 gap (5 segments missed), 1 truncated; the next one is 8@2")

    def test_what_a_media_file_leaves_out_is_counted(self, tmp_path: Path) -> None:
        """In the last line and in the totals, beside the line that says why."""
        first, second = cut(make_clip(tmp_path / "clip.mp4", seconds=2))
        segments = [first, b"no media" * 100, second]

        async def handler(exchange: Exchange) -> None:
            if (seq := int(exchange.tail)) < len(segments):
                await exchange.segment(seq, segments[seq], epoch=1)
            else:
                await exchange.empty(closed="terminated")

        _, said = told(handler, tmp_path / "out.mp4", start=0)
        assert said[0].startswith("warning: segment 1 is left out: ")
        assert said[-1].endswith("; 1 left out; the next one is 3@1")
        (end,) = heard(handler, tmp_path / "again.mp4", start=0).of("end")
        assert (end["totals"]["segments"], end["totals"]["left_out"]) == (3, 1)

    def test_the_past_of_a_channel_that_is_over_is_elsewhere(self, tmp_path: Path) -> None:
        """Its server says that it has ended, and its segments are read by other commands."""
        said = io.StringIO()
        with local_server(data_dir=tmp_path, channel_drain_s=0.3) as server, server.client() as target:
            channel = target.channel("over")
            channel.publish(0, b"stored")
            channel.end()
            eventually(lambda: target.ask("GET", "/api/v1/channels/over/segments").status == 404)
            url = f"http://127.0.0.1:{server.port}/trickle/over"
            run(partial(run_command, Request(url, None, since=Moment(60.0)), Report(Screen(said))))
        assert said.getvalue().endswith(f"; no gaps; {command.OF_THE_PAST}\n")

    def test_an_error_at_the_start_is_all_that_is_said(self, tmp_path: Path) -> None:
        """And no file is left behind."""
        said = io.StringIO()

        async def main() -> None:
            async with fake(lambda exchange: exchange.text(404, "Stream not found\n")) as server:
                with pytest.raises(ChannelNotFound):
                    await run_command(Request(server.url, str(tmp_path / "out")), Report(Screen(said)))

        run(main)
        assert said.getvalue() == ""
        assert not (tmp_path / "out").exists()

    def test_an_error_later_says_how_to_go_on(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The bytes that had come by then are in the file, and are counted."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"zero", epoch=3)
            else:
                await exchange.text(404, "Stream not found\n")

        async def main() -> None:
            async with fake(handler) as server:
                await run_command(Request(server.url, str(tmp_path / "out"), start=0, reconnect_s=0.0))

        with pytest.raises(ChannelNotFound) as raised:
            run(main)
        assert str(raised.value.resume) == "1@3"
        assert (tmp_path / "out").read_bytes() == b"zero"
        first, second = capsys.readouterr().err.splitlines()
        assert first.startswith("received 1 segment (4 B) in ")
        assert second == "to go on without loss: --start 1@3, into another file: -o replaces one"

    def test_a_full_disk_names_the_first_segment_that_it_lacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Which is not the one at which it was full: an output may have gathered some."""

        class Full(Output):
            unsaved = Position(1, 3)

            async def begin(self, segment: Segment) -> None:
                if segment.seq == 3:
                    raise SinkFailed("cannot write to it: No space left on device")

        async def handler(exchange: Exchange) -> None:
            await exchange.segment(int(exchange.tail), b"x", epoch=3)

        monkeypatch.setattr(command, "open_output", lambda *_: Full())
        events = Heard()

        async def main() -> None:
            async with fake(handler) as server:
                with pytest.raises(SinkFailed):
                    await run_command(Request(server.url, "out", start=0), events)

        run(main)
        assert (events.of("segment")[-1]["seq"], events.of("error")[0]["resume"]) == (2, "1@3")

    def test_a_refusal_of_the_token_names_no_place_to_go_on(self) -> None:
        """The same token is refused there, too."""
        said = io.StringIO()

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"zero", epoch=3)
            else:
                await exchange.text(403, "not for you\n")

        async def main() -> None:
            async with fake(handler) as server:
                with pytest.raises(Refused) as raised:
                    await run_command(Request(server.url, None, start=0, reconnect_s=None), Report(Screen(said)))
                assert raised.value.resume is None

        run(main)
        assert "go on" not in said.getvalue()

    def test_the_same_error_again_and_again_is_told_once(self) -> None:
        """Until a segment has come in between."""
        left = 3

        async def handler(exchange: Exchange) -> None:
            nonlocal left
            if exchange.tail == "0":
                await exchange.segment(0, b"zero", epoch=3)
            elif left:
                left -= 1
                await exchange.text(503, "busy\n")
            else:
                await exchange.empty(closed="terminated")

        _, said = told(handler, None, start=0)
        assert len([line for line in said if "busy" in line]) == 1

    def test_an_outage_is_one_line_and_its_end_another(self) -> None:
        """The retries are for the segment that was cut, and for the next one, in turn."""
        left = 6

        async def handler(exchange: Exchange) -> None:
            nonlocal left
            if left == 6 and exchange.tail == "0":
                await exchange.begin(0, epoch=3)
                await exchange.chunk(b"ze")
                left -= 1
                exchange.abort()
            elif left:
                left -= 1
                exchange.abort()
            elif exchange.tail == "0":
                await exchange.segment(0, b"zero", epoch=3)
            else:
                await exchange.empty(closed="terminated")

        _, said = told(handler, None, start=0)
        trouble = [line for line in said if "trying again" in line or "answers" in line]
        assert [line.partition(":")[0].partition(",")[0] for line in trouble] == ["warning", "the server answers again"]


class TestEvents:
    def test_every_event_has_its_facts(self) -> None:
        """In their order, and without an output."""
        events = heard(faulty, start=0)
        start, end = events.events[0], events.events[-1]
        assert (start["event"], start["output"], start["start"]) == ("start", None, "0")
        first, second, third = events.of("segment")
        assert (first["seq"], first["epoch"], first["bytes"], first["content_type"]) == (0, 1, 4, "text/plain")
        assert 0 <= first["wait_ms"] <= first["first_byte_ms"]
        assert (second["gap"], second["restarted"], second["truncated"]) == (5, True, "publisher [red]lost")
        assert (third["gap"], third["restarted"], third["truncated"], third["broken"]) == (0, False, None, None)
        assert events.of("gap") == [{"event": "gap", "missed": 5, "before": 6}]
        assert sum(event["retries"] for event in events.of("retry")) == 1
        assert (end["event"], end["reason"], end["resume"]) == ("end", "channel", "8@2")
        assert (end["totals"]["segments"], end["totals"]["missed"]) == (3, 5)

    def test_a_gap_before_the_end_is_one_too(self) -> None:
        """Nothing follows it that could tell of it."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"zero", epoch=3)
            else:
                await exchange.empty(closed="terminated", latest=5)

        assert heard(handler, start=0).of("gap") == [{"event": "gap", "missed": 4, "before": None}]

    def test_the_time_is_over(self, tmp_path: Path) -> None:
        """What had come by then is in the file; a segment that was not read to its end is the place to go on."""
        events = heard(endless, tmp_path / "out", start=0, for_s=0.2)
        assert (tmp_path / "out").read_bytes() == b"live"
        (end,) = events.of("end")
        assert (end["reason"], end["resume"], end["totals"]["bytes"]) == ("time", "0@4", 4)

    def test_a_run_that_is_cancelled_says_so(self, tmp_path: Path) -> None:
        """As by Ctrl-C."""
        events = Heard()

        async def main() -> None:
            async with fake(endless) as server, anyio.create_task_group() as group:
                group.start_soon(run_command, Request(server.url, str(tmp_path / "out"), start=0), events)
                await until(lambda: server.tails[1:])
                group.cancel_scope.cancel()

        run(main)
        assert events.of("end")[0]["reason"] == "signal"

    def test_an_error_is_the_last_event(self) -> None:
        """With its type, and where to go on."""
        events = Heard()

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"zero", epoch=3)
            else:
                await exchange.text(470, "Entry not found", latest=9, earliest=7)

        async def main() -> None:
            async with fake(handler) as server:
                with pytest.raises(SegmentMissing):
                    await run_command(Request(server.url, None, start=0, on_lag=OnLag.FAIL), events)

        run(main)
        (failed,) = events.of("error")
        assert (failed["error"], failed["resume"], failed["totals"]["segments"]) == ("SegmentMissing", "1@3", 1)

    def test_they_are_lines_of_json(self, tmp_path: Path) -> None:
        """With a version, the time and all their fields; the numbers of a segment are readable."""
        with (tmp_path / "events").open("wb") as file:

            async def main() -> None:
                async with fake(faulty) as server:
                    await run_command(Request(server.url, None, start=0), Report(sink=FileSink(file.fileno())))

            run(main)
        lines = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
        assert {line["v"] for line in lines} == {1}
        assert all(isinstance(line["time"], float) for line in lines)
        kinds = [line["event"] for line in lines if line["event"] != "retry"]
        assert kinds == ["start", "segment", "gap", "segment", "segment", "end"]
        assert lines[-1]["totals"]["bytes"] == 18


class TestReconnecting:
    def test_it_goes_on_where_it_was(self, tmp_path: Path) -> None:
        """After an error that would have been the end, which is told as a retry."""
        missing = 1

        async def handler(exchange: Exchange) -> None:
            nonlocal missing
            match exchange.tail:
                case "0":
                    await exchange.segment(0, b"zero", epoch=3)
                case "1" if missing:
                    missing -= 1
                    await exchange.text(404, "Stream not found\n")
                case "1":
                    await exchange.segment(1, b"one", epoch=3)
                case _:
                    await exchange.empty(closed="terminated")

        events = heard(handler, tmp_path / "out", start=0, reconnect_s=None)
        (again,) = events.of("retry")
        assert (again["retries"], "404" in again["error"]) == (1, True)
        assert (tmp_path / "out").read_bytes() == b"zeroone"
        assert events.of("end")[0]["totals"]["segments"] == 2

    def test_what_the_user_did_wrong_stays_wrong(self) -> None:
        """No wait makes it better."""
        with pytest.raises(InvalidInput):
            heard(faulty, "/no/such/folder/out", reconnect_s=None)


class TestFolders:
    def test_a_slash_makes_a_folder(self, tmp_path: Path) -> None:
        """Each segment is a file, and its event names it."""
        events = heard(faulty, f"{tmp_path}/cam/", start=0)
        files = [segment["file"] for segment in events.of("segment")]
        assert files == ["life1/00000000.txt", "life2/00000006.bin", "life2/00000007.bin"]
        assert [(tmp_path / "cam" / name).read_bytes() for name in files] == [b"zero", b"[bold]six", b"seven"]
        assert [entry.truncated for entry in read_index(tmp_path / "cam")] == [None, "publisher [red]lost", None]

    def test_a_folder_goes_on_where_it_was_left(self, tmp_path: Path) -> None:
        """Whatever the user says; the segment under way is read again."""
        events = heard(endless, tmp_path, start=0, for_s=1)
        assert events.of("end")[0]["resume"] == "0@4"
        assert read_index(tmp_path) == []
        heard(faulty, tmp_path, start=6)
        events = heard(faulty, tmp_path, start=0)
        assert (events.events[0]["output"], events.events[0]["start"]) == (str(tmp_path), "8@2")
        assert [entry.seq for entry in read_index(tmp_path)] == [6, 7]


def test_a_reader_who_leaves_the_pipe_is_a_normal_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tricklecast subscribe URL | head`` ends without an error, and so does ``--json | head``."""

    class Gone(Output):
        async def write(self, data: bytes) -> None:
            raise SinkClosed("gone")

    monkeypatch.setattr("tricklecast.subscriber.command.run.open_sink", lambda _: Gone())
    events = heard(faulty, "-", start=0)
    assert events.of("end")[0]["reason"] == "reader"

    async def main() -> None:
        async with fake(endless) as server:
            await run_command(Request(server.url, None, start=0), Report(sink=Gone()))

    run(main)


@pytest.mark.parametrize(
    ("name", "content_type", "raw", "said"),
    [
        ("out.ts", "video/mp4", False, "the channel is fragmented MP4, and so is"),
        ("out.AVI", "video/mp2t", False, "the channel is MPEG-TS, and so is"),
        ("out.mp4", "video/mp2t", True, "the channel is MPEG-TS, and so is"),
        ("out.ts", "video/mp2t", False, ""),
        ("out.bin", "video/mp2t", False, ""),
        ("out.avi", "application/json", False, ""),
    ],
)
def test_a_file_whose_name_belies_it_is_noted(
    name: str, content_type: str, raw: bool, said: str, tmp_path: Path
) -> None:
    """The bytes of a channel as they come, in a file that is called otherwise."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "0":
            await exchange.segment(0, b"zero", Content_Type=content_type)
        else:
            await exchange.empty(closed="terminated")

    _, lines = told(handler, tmp_path / name, start=0, raw=raw)
    assert [said in line for line in lines if "would fit" in line] == [True] * bool(said)


def test_a_channel_without_media_says_how_to_get_its_bytes(tmp_path: Path) -> None:
    """A file of media cannot be made of them."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "0":
            await exchange.segment(0, b"zero")
        else:
            await exchange.empty(closed="terminated")

    with pytest.raises(TrickleError, match=r"a \.mp4 file: .* \(--raw, or another ending, takes any bytes\)$"):
        told(handler, tmp_path / "out.mp4", start=0)


class TestWaiting:
    def test_it_says_what_it_waits_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With ``--start next`` and long segments, a line says so, and when the newest segment began."""
        monkeypatch.setattr(command, "WAITING_S", 0.0)
        events = Heard()

        async def main() -> None:
            async with anyio.create_task_group() as group:
                request = Request(f"http://127.0.0.1:{server.port}/trickle/cam", None, start="next")
                group.start_soon(run_command, request, events)
                await until(lambda: events.of("note"))
                group.cancel_scope.cancel()

        with local_server() as server, server.client() as target:
            channel = target.channel("cam")
            channel.create("video/mp2t")
            channel.started(0, b"half")
            run(main)
        (note,) = events.of("note")
        assert re.fullmatch(r"waiting for the next segment of cam; the newest one began \d+ s ago", note["message"]), (
            note["message"]
        )

    def test_a_run_without_a_segment_says_why(self) -> None:
        """The summary of ``--start next`` names the channel."""
        _, said = told(endless, None, start="next", for_s=0.1)
        assert said[-1].endswith("no segment of cam began in this time")

    def test_the_default_is_the_newest_segment_that_has_begun(self) -> None:
        """Who watches a channel sees something at once."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "-2":
                await exchange.segment(7, b"newest")
            else:
                await exchange.empty(closed="terminated")

        assert [segment["seq"] for segment in heard(handler).of("segment")] == [7]


class TestProgress:
    def test_the_live_line(self) -> None:
        """It names the segment, the bit rate, and what was lost; or what is waited for."""
        now = 100.0
        progress = Progress("cam", lambda: now)
        assert progress.line().startswith("waiting for the next segment of cam · lag 0 · 0 kbit/s · 0 B · 0 s")
        received = SubscriberStatistics(bytes=4_000_000, gaps=1, missed=5, truncated=1, retries=1)
        progress.statistics = lambda: received
        progress.begun(7, 2)
        now += 4
        line = "segment 7 · lag 2 · 8.00 Mbit/s · 4.0 MB · 4 s · 5 missed in 1 gap · 1 cut · 1 retry"
        assert progress.line() == line
        progress.ended()
        assert progress.line().startswith("waiting for the next segment of cam; the newest one began 4 s ago · ")
        progress.state = "reconnecting"
        assert progress.line().startswith("reconnecting · ")

    def test_a_perfect_summary(self) -> None:
        """Says that nothing was missed."""
        now = 0.0
        progress = Progress("cam", lambda: now)
        progress.statistics = lambda: SubscriberStatistics(segments=1, bytes=5)
        now = 1.25
        assert progress.summary() == "received 1 segment (5 B) in 1.2 s; no gaps"


def kinds(kind: type[TrickleError]) -> set[type[TrickleError]]:
    """That type of error and all below it that the subscriber has to do with; not those of the gateway."""
    is_ours = kind.__module__.startswith(("tricklecast.subscriber.", "tricklecast.trickle."))
    here = {kind} if is_ours and ".gateway." not in kind.__module__ else set()
    return here.union(*(kinds(below) for below in kind.__subclasses__()))


@pytest.mark.parametrize("turns", range(6))
def test_two_tasks_tell_programs_at_once(turns: int) -> None:
    """One after the other: a pipe has one writer that waits for room, whenever the second one comes."""

    reader, writer = os.pipe()

    async def main() -> None:
        report = Report(sink=PipeSink(writer))

        async def later() -> None:
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            await report.tell("gap")

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(report.tell, "retry")
                group.start_soon(later)

    run(main)
    os.close(writer)
    with open(reader) as told:
        assert sorted(json.loads(line)["event"] for line in told) == ["gap", "retry"]


def test_errors_have_names_that_can_be_imported() -> None:
    """Private types are named by a public one; those that scripts can tell apart have a name of their own."""
    named = {kind: name_of(kind.__new__(kind)) for kind in kinds(TrickleError)}
    assert {hasattr(errors, name) or name in subscriber.__all__ for name in named.values()} == {True}
    assert {kind: name for kind, name in named.items() if name != kind.__name__} == {
        Shortened: "ConnectionLost",
        MissingPyAV: "MissingExtra",
        # None of these comes out of a run.
        SinkClosed: "TrickleError",
        NothingToWrite: "TrickleError",
        Undescribed: "TrickleError",
        ConnectionBroke: "TrickleError",
    }


def test_every_field_is_documented(tmp_path: Path) -> None:
    """On the pages that readers of the events, or of the index, go by."""
    events = heard(faulty, f"{tmp_path}/cam/", start=0).events
    names = {"seconds", "left_out", *COUNTED} | {name for event in events for name in event}
    names |= {event["event"] for event in events}
    page = (DOCS / "subscribe-events.md").read_text(encoding="utf-8")
    assert names - set(re.findall(r"`(\w+)`", page)) == set()
    page = (DOCS / "outputs.md").read_text(encoding="utf-8")
    assert {field.name for field in fields(Entry)} - set(re.findall(r"`(\w+)`", page)) == set()
