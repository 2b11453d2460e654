"""``tricklecast subscribe``: what is written, what people are told, and what programs are."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from rich.console import Console

from tests.subscriber.fake import Exchange, Handler, fake, run
from tests.support.waiting import until
from tricklecast.subscriber.archive import read_index
from tricklecast.subscriber.command.events import (
    Ended,
    Event,
    Failed,
    Gap,
    Reconnecting,
    Retry,
    SegmentRead,
    Started,
    Totals,
)
from tricklecast.subscriber.command.job import Request, reports_on
from tricklecast.subscriber.command.job import run as run_job
from tricklecast.subscriber.command.progress import Progress
from tricklecast.subscriber.command.reporting import People
from tricklecast.subscriber.sinks import SinkClosed
from tricklecast.trickle.errors import ChannelNotFound, InvalidInput, SegmentMissing, TrickleError


class Heard(list[Event]):
    """Keeps every event; a reporter as good as any."""

    def __init__(self) -> None:
        super().__init__()
        self.people = People(Console(file=io.StringIO()))

    async def tell(self, event: Event) -> None:
        self.append(event)

    def live(self, progress: Progress) -> Any:
        return self.people.live(progress)

    def of(self, kind: type) -> list[Any]:
        """Those of one kind."""
        return [event for event in self if isinstance(event, kind)]


def told(handler: Handler, path: Path | str | None, *, terminal: bool = False, **options: Any) -> tuple[Totals, str]:
    """Receive from a fake server; what people were told is returned with the numbers."""
    said = io.StringIO()
    console = Console(file=said, force_terminal=terminal, soft_wrap=True, width=200)

    async def main() -> Totals:
        async with fake(handler) as server:
            return await run_job(Request(server.url, None if path is None else str(path), **options), People(console))

    return run(main), said.getvalue()


def heard(handler: Handler, path: Path | str | None = None, **options: Any) -> Heard:
    """Receive from a fake server; the events."""
    events = Heard()

    async def main() -> None:
        async with fake(handler) as server:
            await run_job(Request(server.url, None if path is None else str(path), **options), events, Random(1))

    run(main)
    return events


async def faulty(exchange: Exchange) -> None:
    """0 whole, 1 gone, 6 truncated and in a new epoch, 7 whole, then the end."""
    match exchange.tail:
        case "0":
            await exchange.segment(0, b"zero", epoch=1, Content_Type="text/plain")
        case "1":
            await exchange.text(470, "Entry not found", latest=7, earliest=3)
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
        """Every fault is one line, and the last line sums up; a server's words are not taken for markup."""
        totals, said = told(faulty, tmp_path / "out", start="0")
        assert (tmp_path / "out").read_bytes() == b"zero[bold]sixseven"
        assert totals.segments == 3
        lines = [line for line in said.splitlines() if "asked again" not in line]
        assert lines[:3] == [
            "warning: 5 segments missed before segment 6",
            "warning: the channel began anew at segment 6",
            "warning: segment 6 is truncated: publisher [red]lost",
        ]
        assert lines[3].startswith("received 3 segments, 18 B in 0.")
        assert lines[3].endswith("; 1 gap (5 segments missed), 1 truncated; the next is 8@2")

    def test_on_a_terminal_there_is_a_live_line(self, tmp_path: Path) -> None:
        """It names the state, the bit rate and what was lost; the last line is still the summary."""
        _, said = told(faulty, tmp_path / "out", terminal=True, start="0")
        assert "kbit/s" in said
        assert "5 missed in 1 gap · 1 cut · 1 retry" in said

    def test_an_error_at_the_start_is_all_that_is_said(self, tmp_path: Path) -> None:
        """And no file is left behind."""
        said = io.StringIO()

        async def main() -> None:
            async with fake(lambda exchange: exchange.text(404, "Stream not found\n")) as server:
                with pytest.raises(ChannelNotFound):
                    await run_job(Request(server.url, str(tmp_path / "out")), People(Console(file=said)))

        run(main)
        assert said.getvalue() == ""
        assert not (tmp_path / "out").exists()

    def test_an_error_later_says_how_to_go_on(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """What had come by then is in the file, and is counted."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"zero", epoch=3)
            else:
                await exchange.text(404, "Stream not found\n")

        async def main() -> None:
            async with fake(handler) as server:
                await run_job(Request(server.url, str(tmp_path / "out"), start="0"))

        with pytest.raises(ChannelNotFound) as raised:
            run(main)
        assert str(raised.value.resume) == "1@3"
        assert (tmp_path / "out").read_bytes() == b"zero"
        first, second = capsys.readouterr().err.splitlines()
        assert first.startswith("received 1 segment, 4 B in ")
        assert second == "to go on without loss: --start 1@3"

    def test_what_fails_again_and_again_is_told_once(self) -> None:
        """Until a segment has come in between."""
        said = io.StringIO()
        people = People(Console(file=said))

        async def main() -> None:
            segment = SegmentRead(0, 1, None, 0, 0, False, None, "cut off", "", 0, 0.0, None, 0.0, None)
            for event in (Retry(1, "no"), Retry(2, "no"), segment, Retry(3, "no"), Gap(1, None)):
                await people.tell(event)

        run(main)
        assert said.getvalue().splitlines() == [
            "warning: asked again: no",
            "warning: segment 0 was cut after 0 bytes: cut off",
            "warning: asked again 3 times: no",
            "warning: 1 segment missed before the end of the channel",
        ]


class TestEvents:
    def test_every_event_has_its_facts(self) -> None:
        """In their order, and without an output."""
        events = heard(faulty, start="0")
        assert isinstance(events[0], Started)
        assert (events[0].output, events[0].start) == (None, "0")
        first, second, third = events.of(SegmentRead)
        assert (first.seq, first.epoch, first.bytes, first.content_type) == (0, 1, 4, "text/plain")
        assert 0 <= first.wait_ms <= first.first_byte_ms
        assert (second.gap, second.restarted, second.truncated) == (5, True, "publisher [red]lost")
        assert (third.gap, third.restarted, third.truncated, third.broken) == (0, False, None, None)
        assert events.of(Gap) == [Gap(5, 6)]
        assert sum(event.retries for event in events.of(Retry)) == 1
        (end,) = events.of(Ended)
        assert (end.reason, end.resume, end.totals.segments, end.totals.missed) == ("channel", "8@2", 3, 5)
        assert events[-1] is end

    def test_a_gap_before_the_end_is_one_too(self) -> None:
        """Nothing follows it that could tell of it."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"zero", epoch=3)
            else:
                await exchange.empty(closed="terminated", latest=5)

        assert heard(handler, start="0").of(Gap) == [Gap(4, None)]

    def test_the_time_is_over(self, tmp_path: Path) -> None:
        """What had come by then is in the file; a segment that was not read to its end is the place to go on."""
        events = heard(endless, tmp_path / "out", start="0", for_s=0.2)
        assert (tmp_path / "out").read_bytes() == b"live"
        (end,) = events.of(Ended)
        assert (end.reason, end.resume, end.totals.bytes) == ("time", "0@4", 4)

    def test_a_run_that_is_cancelled_says_so(self, tmp_path: Path) -> None:
        """As by Ctrl-C."""
        events = Heard()

        async def main() -> None:
            async with fake(endless) as server, anyio.create_task_group() as group:
                group.start_soon(run_job, Request(server.url, str(tmp_path / "out"), start="0"), events)
                await until(lambda: server.tails[1:])
                group.cancel_scope.cancel()

        run(main)
        assert events.of(Ended)[0].reason == "signal"

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
                    await run_job(Request(server.url, None, start="0", on_lag="fail"), events)  # type: ignore[arg-type]

        run(main)
        failed = events[-1]
        assert isinstance(failed, Failed)
        assert (failed.error, failed.resume, failed.totals.segments) == ("SegmentMissing", "1@3", 1)

    def test_they_are_lines_of_json(self, tmp_path: Path) -> None:
        """With a version, the time and all their fields; the numbers of a segment are readable."""
        with (tmp_path / "events").open("wb") as file:

            async def main() -> None:
                async with fake(faulty) as server:
                    await run_job(Request(server.url, None, start="0"), reports_on(file.fileno()))

            run(main)
        lines = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
        assert {line["v"] for line in lines} == {1}
        assert all(isinstance(line["time"], float) for line in lines)
        kinds = [line["event"] for line in lines if line["event"] != "retry"]
        assert kinds == ["start", "segment", "gap", "segment", "segment", "end"]
        assert lines[-1]["totals"]["bytes"] == 18


class TestReconnecting:
    def test_it_goes_on_where_it_ended(self, tmp_path: Path) -> None:
        """After an error that would have been the end; the numbers are those of all subscriptions."""
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

        events = heard(handler, tmp_path / "out", start="0", reconnect=True)
        (again,) = events.of(Reconnecting)
        assert (again.error, again.start) == ("ChannelNotFound", "1@3")
        assert again.delay_s > 0.25
        assert (tmp_path / "out").read_bytes() == b"zeroone"
        assert events.of(Ended)[0].totals.segments == 2

    def test_the_server_s_word_counts_for_it_too(self) -> None:
        """Sent away for longer than a subscriber waits, the next one does not come any sooner."""

        class Enough(TrickleError):
            pass

        class UpToThere(Heard):
            async def tell(self, event: Event) -> None:
                await super().tell(event)
                if isinstance(event, Reconnecting):
                    raise Enough

        async def handler(exchange: Exchange) -> None:
            await exchange.text(503, "Limit reached: readers", Retry_After=400)

        async def main() -> None:
            async with fake(handler) as server:
                with pytest.raises(Enough):
                    await run_job(Request(server.url, None, start="0", reconnect=True), events, Random(1))
                assert len(server.exchanges) == 1

        events = UpToThere()
        run(main)
        (again,) = events.of(Reconnecting)
        assert 400 < again.delay_s <= 400 + 30

    def test_what_the_user_did_wrong_stays_wrong(self) -> None:
        """No wait makes it better."""
        with pytest.raises(InvalidInput):
            heard(faulty, "/no/such/folder/out", reconnect=True)


class TestFolders:
    def test_a_slash_makes_a_folder(self, tmp_path: Path) -> None:
        """Each segment is a file, and its event names it."""
        events = heard(faulty, f"{tmp_path}/cam/", start="0")
        files = [segment.file for segment in events.of(SegmentRead)]
        assert files == ["life1/00000000.txt", "life2/00000006.bin", "life2/00000007.bin"]
        assert [(tmp_path / "cam" / name).read_bytes() for name in files] == [b"zero", b"[bold]six", b"seven"]
        assert [entry.truncated for entry in read_index(tmp_path / "cam")] == [None, "publisher [red]lost", None]

    def test_a_folder_goes_on_where_it_was_left(self, tmp_path: Path) -> None:
        """Whatever the user says; the segment under way is read again."""
        events = heard(endless, tmp_path, start="0", for_s=1)
        assert events.of(Ended)[0].resume == "0@4"
        assert read_index(tmp_path) == []
        heard(faulty, tmp_path, start="6")
        events = heard(faulty, tmp_path, start="0")
        assert events[0] == Started(events[0].url, str(tmp_path), "8@2")  # type: ignore[union-attr]
        assert [entry.seq for entry in read_index(tmp_path)] == [6, 7]


def test_a_reader_who_leaves_the_pipe_is_a_normal_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tricklecast subscribe URL | head`` ends without an error, and so does ``--json | head``."""

    class Gone:
        written = 0

        async def __aenter__(self) -> Gone:
            return self

        async def __aexit__(self, *exc_info: object) -> None:
            await anyio.lowlevel.checkpoint()

        async def write(self, data: bytes) -> None:
            raise SinkClosed("gone")

        async def flush(self) -> None: ...

    monkeypatch.setattr("tricklecast.subscriber.command.outputs.open_sink", lambda _: Gone())
    events = heard(faulty, "-", start="0")
    assert events.of(Ended)[0].reason == "reader"
    monkeypatch.setattr("tricklecast.subscriber.command.job.descriptor_sink", lambda _: Gone())

    async def main() -> None:
        async with fake(endless) as server:
            await run_job(Request(server.url, None, start="0"), reports_on(1))

    run(main)


def test_a_file_whose_name_belies_it_is_noted(tmp_path: Path) -> None:
    """Fragmented MP4 in a file that is called .ts."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "0":
            await exchange.segment(0, b"zero", Content_Type="video/mp4")
        else:
            await exchange.empty(closed="terminated")

    _, said = told(handler, tmp_path / "out.ts", start="0")
    assert said.startswith("warning: the channel is fragmented MP4, and so is what goes to ")
