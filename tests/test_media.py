"""A relay passes a channel through a function: it changes pictures and keeps times and sound."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import numpy as np
import pytest
from anyio import to_thread
from av import VideoFrame

from tests.publisher.media.clips import decode
from tests.publisher.media.test_publisher import picture, read_all, sound
from tests.support.local import local_server
from tests.support.waiting import WITHIN_S, until
from tricklecast import testing
from tricklecast.media import (
    FrameReader,
    FrameStatistics,
    MediaPublisher,
    MediaStatistics,
    RelayStatistics,
    _Arrays,
    _Called,
    frames,
    relay,
)
from tricklecast.publisher import Retrying
from tricklecast.publisher.media.publisher import MediaEvent
from tricklecast.subscriber import Subscriber
from tricklecast.subscriber.check.probe import Probe
from tricklecast.subscriber.check.rules import Level, judge
from tricklecast.subscriber.media.frames import BLOCKED_S
from tricklecast.trickle.errors import ChannelNotFound, ConnectionLost, InvalidInput

pytestmark = pytest.mark.anyio
TICK = Fraction(1, 25)
PICTURES = 50


@pytest.fixture
def anyio_backend() -> str:
    """One of the event loops; a test names it if it runs on the other one, too."""
    return "asyncio"


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """A server that keeps ended channels for long; each test uses targets of its own."""
    with local_server(channel_drain_s=300) as server:
        yield f"http://127.0.0.1:{server.port}/trickle"


@pytest.fixture(scope="module")
def source(base: str) -> str:
    """A channel of two seconds that has ended."""

    async def publish() -> None:
        async with MediaPublisher(f"{base}/source", audio=True, when_full="wait", fps=25) as publisher:
            for number in range(PICTURES):
                await publisher.write(picture(number), pts=100 + number, time_base=TICK, captured_at=1e9 + number / 25)
                await publisher.write(sound(100 + number))

    anyio.run(publish)
    return f"{base}/source"


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_relay_changes_pictures_and_keeps_times_and_sound(source: str, anyio_backend: str) -> None:
    """The function may be a coroutine; times of capture are kept, and each segment stands alone."""
    seen: list[int] = []
    target = f"{source}-{anyio_backend}"

    async def inverted(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        seen.append(int(image[32, 48, 0]))
        return 255 - image

    with anyio.fail_after(WITHIN_S):
        counts = await relay(source, target, inverted, start="earliest", when_full="wait", fps=25)
        before = decode(b"".join(await read_all(source)), "mpegts")
        after = decode(b"".join(await read_all(target)), "mpegts")
        found = [frame async for frame in frames(target, start="earliest", format="rgb24")]
    assert counts.dropped == 0
    assert counts.frames == PICTURES == len(after.times["video"]) == len(seen)
    assert set(after.times["video"]) <= set(before.times["video"])
    assert after.hashes["audio"] == before.hashes["audio"]
    for frame, level in zip(found, seen, strict=True):
        assert abs(int(frame.array[32, 48, 0]) - (255 - level)) <= 6
        assert frame.captured_at == pytest.approx(1e9 + float(frame.pts * frame.time_base) - 4, abs=1e-3)


async def test_a_relay_that_waits_drops_no_picture(source: str) -> None:
    """However slow its function is: the source waits for it, too."""
    seen: list[int] = []

    def slow(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not seen:
            time.sleep(0.2)  # a reader that drops would have dropped most of them by then
        seen.append(1)
        return image

    with anyio.fail_after(WITHIN_S):
        counts = await relay(source, f"{source}-slow", slow, audio=False, start="earliest", when_full="wait")
    assert (counts.frames, counts.dropped, len(seen)) == (PICTURES, 0, PICTURES)


async def test_a_relay_leaves_out_what_the_function_leaves_out(source: str) -> None:
    """``None`` drops a picture. A target without pictures is ended, too."""
    counts = RelayStatistics()
    with anyio.fail_after(WITHIN_S):
        await relay(source, f"{source}-none", lambda image: None, audio=False, start="earliest", statistics=counts)
        assert await read_all(f"{source}-none") == []
    assert counts.frames + counts.dropped == PICTURES
    assert counts.publisher is not None
    assert counts.publisher.frames == 0


async def test_the_function_gets_pictures_of_the_wanted_size(source: str) -> None:
    """Options of the source go to ``frames()``: with a size, pictures are arrays."""
    shapes: set[tuple[int, ...]] = set()
    with anyio.fail_after(WITHIN_S):
        await relay(
            source,
            f"{source}-small",
            lambda image: shapes.add(image.shape),
            format=None,
            start="earliest",
            subscriber={"size": (48, 32), "hwaccel": None},
        )
    assert shapes == {(32, 48, 3)}


@pytest.mark.parametrize("format", ["rgb24", "bgr24", "rgba", "argb", "yuv444p", "nv12", "gray", "gray16"])
async def test_an_array_is_taken_in_the_format_in_which_it_was_given(base: str, format: str) -> None:
    """So that a function which returns its picture changes nothing; a gray one has lost its colour before."""
    color = np.array([200, 30, 60], np.uint8)
    url = f"{base}/format-{format}"
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, when_full="wait", fps=25) as publisher:
            for number in range(3):
                await publisher.write(np.full((64, 96, 3), color), pts=number, time_base=TICK)
        await relay(url, f"{url}-out", lambda image: image, format=format, start="earliest")
        found = [frame.array[32, 48].astype(int) async for frame in frames(f"{url}-out", format="rgb24", start=0)]
    wanted = np.full(3, color @ [0.299, 0.587, 0.114]) if format.startswith("gray") else color
    assert found
    assert np.abs(found - wanted).max() <= 6


async def test_an_array_of_another_format_is_refused(source: str) -> None:
    """The message has both. A frame of PyAV has a format of its own."""

    def colored(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.stack([image] * 3, axis=2)

    url = f"{source}-colored"
    with anyio.fail_after(WITHIN_S):
        with pytest.raises(InvalidInput, match=r"arrays like those it gets \(gray\) .*, not 64x96x3 uint8"):
            await relay(source, url, colored, format="gray", start="earliest")
        framed = await relay(
            source, url, lambda image: VideoFrame.from_ndarray(colored(image)), format="gray", start="earliest"
        )
    assert framed.publisher is not None
    assert framed.publisher.frames


def test_an_array_has_the_colours_of_its_picture() -> None:
    """Its numbers do not say what they mean; those of RGB, and of a picture that was RGB, always mean the same."""
    picture, rgb = VideoFrame(64, 48, "yuv420p"), VideoFrame(64, 48, "gbrp")
    picture.colorspace, picture.color_range, picture.color_primaries, picture.color_trc = 1, 2, 1, 1
    rgb.colorspace = 0
    unknown = VideoFrame(64, 48, "yuv420p").colorspace
    for format, source, colorspace in (("yuv444p", picture, 1), ("rgb24", picture, unknown), ("yuv444p", rgb, unknown)):
        made = _Arrays(format).picture(source.to_ndarray(format=format), source)
        assert made.colorspace == colorspace
        assert (made.color_range, made.color_primaries, made.color_trc) == (
            (2, 1, 1) if colorspace == 1 else (0, unknown, unknown)
        )


async def test_the_target_begins_with_the_source(base: str) -> None:
    """A source that is missing or empty creates no target."""
    url = f"{base}/empty"
    with anyio.fail_after(WITHIN_S):
        with pytest.raises(ChannelNotFound):
            await relay(url, f"{url}-out", lambda image: image)
        async with MediaPublisher(url):
            pass
        await relay(url, f"{url}-out", lambda image: image, start="earliest")
        with pytest.raises(ChannelNotFound):
            await read_all(f"{url}-out")


async def test_a_function_that_fails_ends_the_relay(source: str) -> None:
    """Its own error is raised; the target's channel stays open for a successor."""

    def broken(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise ZeroDivisionError("no picture")

    with anyio.fail_after(WITHIN_S):
        with pytest.raises(ZeroDivisionError, match="no picture"):
            await relay(source, f"{source}-broken", broken, start="earliest")
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{source}-broken/next")
    assert answer.status_code == 200
    assert "Lp-Trickle-Closed" not in answer.headers


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_relay_that_is_stopped_ends_its_target(base: str, anyio_backend: str) -> None:
    """After a cancellation, viewers have whole segments and a normal end."""
    url = f"{base}/stopped-{anyio_backend}"
    counts = RelayStatistics()
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, fps=25) as publisher, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: relay(url, f"{url}-out", lambda image: image, reconnect=True, statistics=counts))
            for number in range(10):
                await publisher.write(picture(number), pts=number, time_base=TICK)
            async with Subscriber(f"{url}-out", start=0, wait_for_channel_s=WITHIN_S) as viewer:
                await anext(viewer)
            tasks.cancel_scope.cancel()
        async with Subscriber(f"{url}-out", start=0) as viewer:
            found = [segment async for segment in viewer if await segment.read()]
    assert [segment.truncated for segment in found] == [None]
    assert counts.publisher is not None
    assert counts.publisher.segments == 1


async def test_a_relay_that_reconnects_gives_each_life_of_the_source_one_of_the_target(base: str) -> None:
    """It waits for a source that does not exist yet; counters go on over the epochs."""
    url, levels, counts = f"{base}/lives", [40, 220], RelayStatistics()

    async def life(reader: FrameReader) -> set[int]:
        found = set()
        while (frame := await reader.next()) is not None:
            found.add(round(int(frame.array[32, 48, 0]), -1))
        return found

    with anyio.fail_after(WITHIN_S):
        async with anyio.create_task_group() as tasks, frames(f"{url}-out", format="rgb24", reconnect=True) as reader:
            tasks.start_soon(lambda: relay(url, f"{url}-out", lambda image: image, reconnect=True, statistics=counts))
            for level in levels:
                async with MediaPublisher(url, when_full="wait", fps=25) as publisher:
                    for number in range(50):
                        await publisher.write(np.full((64, 96, 3), level, np.uint8), pts=number, time_base=TICK)
                assert await life(reader) == {level}
            tasks.cancel_scope.cancel()
    assert counts.publisher is not None
    assert counts.publisher.segments >= 2
    assert counts.frames == counts.publisher.frames


async def test_a_relay_that_reconnects_waits_for_its_target(source: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its server may come later; it is not asked anew with each picture."""
    tried: list[Retrying] = []

    def on_event(event: MediaEvent) -> None:
        if isinstance(event, Retrying):
            tried.append(event)

    async def relayed(target: str) -> None:
        await relay(source, target, lambda image: image, start=0, reconnect=True, on_event=on_event)

    with testing.server() as server, anyio.fail_after(WITHIN_S):
        target = server.url("target")
        server.stop()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(relayed, target)
            await until(lambda: len(tried) > 1)
            await to_thread.run_sync(server.restart)
            async with Subscriber(target, start=0, wait_for_channel_s=WITHIN_S) as viewer:
                assert await (await anext(viewer)).read()
            tasks.cancel_scope.cancel()
    assert "begins anew" not in caplog.text


async def test_a_relay_that_reconnects_outlives_the_end_of_its_target(
    source: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the target cannot be ended with the source, that is told; without ``reconnect`` it is an error."""
    told = anyio.Event()

    async def failing(publisher: MediaPublisher, *error: Any) -> None:
        await leave(publisher, *error)
        told.set()
        raise ConnectionLost

    leave = MediaPublisher.__aexit__
    monkeypatch.setattr(MediaPublisher, "__aexit__", failing)
    with anyio.fail_after(WITHIN_S):
        with pytest.raises(ConnectionLost):
            await relay(source, f"{source}-once", lambda image: image, start=0)
        told = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: relay(source, f"{source}-anew", lambda image: image, start=0, reconnect=True))
            await told.wait()
            await until(lambda: "connection lost; the relay's target begins anew" in caplog.messages)
            tasks.cancel_scope.cancel()


def test_dropped_pictures_are_one_sum() -> None:
    """It counts pictures dropped before the function and after it."""
    counts = RelayStatistics(reader=FrameStatistics(dropped=2), publisher=MediaStatistics(9, 3, 1, 0, 0, 99, 0))
    assert counts.dropped == 5


async def test_check_finds_nothing_wrong_with_a_relay(source: str) -> None:
    """``check`` accepts media of a program and of a relay."""
    with anyio.fail_after(WITHIN_S):
        await relay(source, f"{source}-checked", lambda image: image, start="earliest", when_full="wait", fps=25)
        for url in (source, f"{source}-checked"):
            probe = Probe(url, start="earliest", for_s=WITHIN_S)
            await probe.look()
            judgement = judge(probe.run())
            assert judgement.level is Level.OK, [one for one in judgement.findings if one.level is not Level.OK]
            assert judgement.finding("times_across").level is Level.OK


def test_without_pyav_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """``import tricklecast`` loads no media code."""
    code = "import sys, tricklecast; assert not {'av', 'tricklecast.media'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setitem(sys.modules, "av", None)
    for make in (
        lambda: MediaPublisher("http://127.0.0.1:1/trickle/x"),
        lambda: frames("http://127.0.0.1:1/trickle/x"),
    ):
        with pytest.raises(Exception, match=r"pip install '\.\[media\]' in a clone"):
            make()


class Doubler:
    """An object with an asynchronous `__call__` or method."""

    async def __call__(self, picture: int) -> int:
        return 2 * picture

    async def method(self, picture: int) -> int:
        return 2 * picture


async def doubled(factor: int, picture: int) -> int:
    return factor * picture


@pytest.mark.parametrize(
    "function",
    [
        Doubler(),
        Doubler().method,
        functools.partial(doubled, 2),
        functools.partial(Doubler()),
        functools.partial(Doubler().method),
        lambda picture: doubled(2, picture),
        lambda picture: 2 * picture,
        functools.partial(int.__mul__, 2),
    ],
)
async def test_a_function_may_be_anything_that_can_be_called(function: Any) -> None:
    """A result that can be awaited is awaited."""
    assert await _Called(function)(21) == 42


def future_of(picture: int) -> Any:
    """What can be awaited need not be a coroutine."""

    class Later:
        def __await__(self) -> Any:
            yield from anyio.lowlevel.checkpoint().__await__()
            return 2 * picture

    return Later()


async def test_what_can_be_awaited_is_awaited(anyio_backend: str) -> None:
    """Also if it is no coroutine."""
    assert await _Called(future_of)(21) == 42


async def test_a_thread_has_no_event_loop() -> None:
    """Which a plain function that wants one is told, wherever it runs."""

    def wants_a_loop(picture: int) -> int:
        asyncio.get_running_loop()
        return picture

    def fails(picture: int) -> int:
        raise RuntimeError("of its own")

    with pytest.raises(RuntimeError, match="no running event loop") as raised:
        await _Called(wants_a_loop)(21)
    assert "worker thread" in raised.value.__notes__[0]
    with pytest.raises(RuntimeError, match="of its own") as raised:
        await _Called(fails)(21)
    assert not hasattr(raised.value, "__notes__")


async def test_a_function_needs_none_of_the_programs_threads(anyio_backend: str) -> None:
    """It runs while all threads of anyio's own limiter are busy."""
    limiter = to_thread.current_default_thread_limiter()
    for number in range(int(limiter.total_tokens)):
        limiter.acquire_on_behalf_of_nowait(number)
    try:
        with anyio.fail_after(WITHIN_S):
            assert await _Called(lambda picture: 2 * picture)(21) == 42
    finally:
        for number in range(int(limiter.total_tokens)):
            limiter.release_on_behalf_of(number)


class Steps:
    """An asynchronous function whose steps take so many seconds of a clock."""

    def __init__(self, *steps: float) -> None:
        self.now = 0.0
        self.steps = steps

    async def __call__(self, picture: int) -> int:
        for seconds in self.steps:
            await anyio.lowlevel.checkpoint()
            self.now += seconds
        return picture


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_function_that_keeps_the_event_loop_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, anyio_backend: str
) -> None:
    """Only the time between its awaits counts; the warning says what to do."""
    quick, slow = Steps(0.09, 0.09, 0.09), Steps(0.01, 0.11)
    for function, warnings in ((quick, 0), (slow, 1)):
        monkeypatch.setattr("tricklecast.media.perf_counter", lambda function=function: function.now)
        call = _Called(function)
        assert [await call(number) for number in range(3)] == [0, 1, 2]
        assert len(caplog.messages) == warnings
    assert "kept the event loop for 0.11 s" in caplog.text
    assert "it runs in a thread" in caplog.text


async def test_a_relay_warns_once_of_its_function(source: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its reader does not warn of the same function again."""

    seen: list[Any] = []

    async def blocks(picture: Any) -> Any:
        seen.append(picture)
        if len(seen) < 3:
            time.sleep(2 * BLOCKED_S)  # noqa: ASYNC251 - a program that keeps the event loop
        return picture

    await relay(source, f"{source}-blocked", blocks, start="earliest")
    assert caplog.text.count("kept the event loop") == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_function_that_waits_can_be_cancelled_and_fail(anyio_backend: str) -> None:
    """It sees the cancellation, and its error is raised."""
    seen = []

    async def waits(picture: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(picture)

    async def fails(picture: int) -> None:
        await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError(picture)

    with anyio.move_on_after(0.01) as limit:
        await _Called(waits)(1)
    assert limit.cancelled_caught
    assert seen == [1]
    with pytest.raises(ZeroDivisionError):
        await _Called(fails)(2)


async def test_a_function_is_something_that_can_be_called() -> None:
    """Else the first picture would say so, in a thread."""
    url = "http://127.0.0.1:1/trickle/c"
    with pytest.raises(InvalidInput, match=r"^function takes a picture and returns one, and 3 cannot be called$"):
        await relay(url, url, 3)  # type: ignore[arg-type]


async def test_statistics_of_another_kind_are_refused() -> None:
    """Before anything is read."""
    url = "http://127.0.0.1:1/trickle/c"
    with pytest.raises(InvalidInput, match=r"^statistics is a RelayStatistics, not int$"):
        await relay(url, url, lambda picture: picture, statistics=3)  # type: ignore[arg-type]


async def test_an_unknown_option_is_one_of_the_called_function() -> None:
    """Nothing is begun, and the message names what the program called."""
    url, bogus = "http://127.0.0.1:1/trickle/c", {"bogus": 1}
    with pytest.raises(TypeError, match=r"^frames\(\) got an unexpected"):
        frames(url, **bogus)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"^MediaPublisher\(\) got an unexpected"):
        MediaPublisher(url, **bogus)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^relay\(\) got an unexpected"):
        await relay(url, url, str, **bogus)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^the subscriber= of relay\(\) got an unexpected keyword argument 'start'"):
        await relay(url, url, str, subscriber={"start": "next"})  # type: ignore[arg-type]
