"""``tricklecast subscribe``: what is written, and what people are told."""

from __future__ import annotations

import io
from pathlib import Path

import anyio
import pytest
from rich.console import Console

from subscriber.recording import Request, record, size, summary
from subscriber.sinks import SinkClosed
from subscriber.statistics import Statistics
from tests.subscriber.fake import Exchange, Handler, fake, run
from trickle.errors import ChannelNotFound


def recorded(handler: Handler, path: Path, *, terminal: bool = False, **options: object) -> tuple[Statistics, str]:
    """Record from a fake server; what was said is returned with the numbers."""
    said = io.StringIO()
    console = Console(file=said, force_terminal=terminal, soft_wrap=True, width=200)

    async def main() -> Statistics:
        async with fake(handler) as server:
            return await record(Request(server.url, str(path), **options), console)  # type: ignore[arg-type]

    return run(main), said.getvalue()


async def faulty(exchange: Exchange) -> None:
    """0 whole, 1 gone, 6 truncated and in a new epoch, 7 whole, then the end."""
    match exchange.tail:
        case "0":
            await exchange.segment(0, b"zero", epoch=1)
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


def test_segments_are_concatenated_and_faults_told(tmp_path: Path) -> None:
    """Every fault is one line, and the last line sums up; a server's words are not taken for markup."""
    statistics, said = recorded(faulty, tmp_path / "out", start="0")
    assert (tmp_path / "out").read_bytes() == b"zero[bold]sixseven"
    assert statistics.segments == 3
    lines = said.splitlines()
    assert lines[:3] == [
        "warning: 5 segments missed before segment 6",
        "warning: the channel began anew at segment 6",
        "warning: segment 6 is truncated: publisher [red]lost",
    ]
    assert lines[3].startswith("received 3 segments, 18 B in 0.")
    assert lines[3].endswith("; 1 gap (5 segments missed), 1 truncated")


def test_on_a_terminal_there_is_a_live_line(tmp_path: Path) -> None:
    """It names time, segments, bytes and rate; the last line is still the summary."""
    _, said = recorded(faulty, tmp_path / "out", terminal=True, start="0")
    assert "kbit/s" in said
    assert "5 missed" in said
    assert "1 retries (segment not available (seq 1)" in said


def test_a_cut_segment_is_told(tmp_path: Path) -> None:
    """With how much came of it, which is in the file."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "0":
            await exchange.begin(0)
            await exchange.chunk(b"half")
            exchange.writer.close()
        else:
            await exchange.empty(closed="terminated")

    _, said = recorded(handler, tmp_path / "out", start="0")
    assert (tmp_path / "out").read_bytes() == b"half"
    assert "warning: segment 0 was cut after 4 bytes" in said
    assert said.endswith("; 1 cut\n")


def test_it_stops_after_the_time_that_was_given(tmp_path: Path) -> None:
    """What had come by then is in the file."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "0":
            await exchange.begin(0)
            await exchange.chunk(b"live")
        await exchange.closed_by_client()

    _, said = recorded(handler, tmp_path / "out", start="0", for_s=0.2)
    assert (tmp_path / "out").read_bytes() == b"live"
    assert "received 1 segment, 4 B" in said


def test_an_error_at_the_start_is_all_that_is_said(tmp_path: Path) -> None:
    """And no file is left behind."""

    async def handler(exchange: Exchange) -> None:
        await exchange.text(404, "Stream not found\n")

    with pytest.raises(ChannelNotFound):
        recorded(handler, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_error_later_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What had come by then is in the file, and is counted."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "0":
            await exchange.segment(0, b"zero")
        else:
            await exchange.text(404, "Stream not found\n")

    async def main() -> None:
        async with fake(handler) as server:
            await record(Request(server.url, str(tmp_path / "out"), start="0"))

    with pytest.raises(ChannelNotFound):
        run(main)
    assert (tmp_path / "out").read_bytes() == b"zero"
    assert capsys.readouterr().err.startswith("received 1 segment, 4 B in ")


def test_a_reader_who_leaves_the_pipe_is_a_normal_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``tricklecast subscribe URL | head`` ends without an error."""

    class Gone:
        written = 0

        async def __aenter__(self) -> Gone:
            return self

        async def __aexit__(self, *exc_info: object) -> None:
            await anyio.lowlevel.checkpoint()

        async def write(self, data: bytes) -> None:
            raise SinkClosed("gone")

        async def flush(self) -> None: ...

    monkeypatch.setattr("subscriber.recording.open_sink", lambda _: Gone())
    statistics, said = recorded(faulty, tmp_path / "out", start="0")
    assert statistics.segments == 1
    assert "received 1 segment" in said


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e9, "2.0 GB"), (3.25e12, "3.2 TB")],
)
def test_sizes_are_for_people(number: float, text: str) -> None:
    """Powers of 1000, one digit."""
    assert size(number) == text


def test_a_perfect_summary() -> None:
    """Says that nothing was missed."""
    assert summary(Statistics(segments=1, bytes=5), 1.25) == "received 1 segment, 5 B in 1.2 s; no gaps"
