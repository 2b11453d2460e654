"""A ladder: one input, decoded once and encoded in several sizes, each of which is a source of its own.

Each rung is published as any media is: it has a remuxer, a segmenter, and a publisher to a channel of its own, in a
thread of its own. They share the input (:class:`SharedInput`). A thread reads, decodes and encodes it for all
rungs (:meth:`~.encode.Transcoder.rungs`), and puts the packets of each into a queue. All encoders get the same pictures
and count keyframes from the same first one, so all segmenters cut at the same times, and count the same segments.

An input that is opened again is a new *generation*. Each rung asks for the next one when it has come to the end of the
one before; the first that asks opens it for all.

Queues are short: a rung that is behind holds up the others, and the input. So a rung that waits for the pace of a file,
or for room in its publisher's buffer, bounds the memory of all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from tricklecast.publisher.media.encode import Encoding, Transcoder
from tricklecast.publisher.media.inputs import Input, Opened
from tricklecast.publisher.media.reader import MediaInput, MediaOptions
from tricklecast.publisher.steps import POLL_S, IsStopped, Report, Step
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.media.ladder import Rung

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream
    from av.video.stream import VideoStream

    Item: TypeAlias = tuple[int, Packet[Stream]] | OSError | None
    """A packet of a rung with the number of its stream; or the end, and why the input broke, if it did."""

PACKETS: Final = 64
"""At most this many packets of a rung wait: a second or so of pictures and sound."""

CLOSE_S: Final = 2.0
"""The end of an input may take this many seconds, where threads wait for each other."""


class RungInput(MediaInput):
    """One rung of a ladder, as a source.

    Args:
        shared: the input of all rungs.
        number: of the rung, from 0 for the highest.
    """

    def __init__(self, shared: SharedInput, number: int) -> None:
        super().__init__(shared.input, shared.options)
        self._shared = shared
        self._number = number
        self._generation = 0  # the newest one that this rung has opened
        self.clock_s = 0.0  # when its last packet came, so that a gap is as long for all rungs
        self._clock = lambda: self.clock_s

    def open(self, report: Report, is_stopped: IsStopped) -> Iterator[Step]:
        # The highest rung alone reports on the input.
        return super().open(_Silent() if self._number else report, is_stopped)

    def shorten(self, size: int) -> None:
        """Do nothing: a rung that were cut elsewhere would have other numbers than the others from then on."""

    def _open(self, within_s: float | None = None) -> Opened:
        opened = self._shared.opened(
            self._generation + 1, self._number, warn=self._warn, is_stopped=self._is_stopped, within_s=within_s
        )
        self._generation += 1
        return opened


class SharedInput:
    """The input of a ladder.

    Args:
        source: the input. options: how it is read and encoded. ladder: its rungs, the highest first.

    Attributes:
        rungs: the sources, the highest rung first. All are to be opened, each once, at the same time.
    """

    def __init__(self, source: Input, options: MediaOptions, ladder: Sequence[Rung]) -> None:
        self.input, self.options = source, options
        self.rungs = [RungInput(self, number) for number in range(len(ladder))]
        encoding = options.encoding or Encoding()
        self._encodings = [replace(encoding, video_bitrate=rung.bitrate, rung=rung) for rung in ladder]
        self._lock = threading.Lock()  # guards all that follows
        self._generation = 0  # that was opened last
        self._untaken: dict[tuple[int, int], Opened] = {}  # by generation and rung
        self._failed: InvalidInput | None = None  # the input could not be opened at all
        self._reading: _Reading | None = None  # the generation

    def opened(
        self,
        generation: int,
        rung: int,
        *,
        warn: Callable[[str], None],
        is_stopped: IsStopped,
        within_s: float | None,
    ) -> Opened:
        """The input, as one rung has it; blocks.

        Args:
            generation: how often this rung has opened it, this time included.

        Raises:
            InvalidInput: it cannot be read, or not encoded in these sizes.
        """
        with self._lock:
            if generation > self._generation:
                if self._failed is not None and generation == 1:
                    raise self._failed  # one rung has said so already
                try:
                    self._begin(generation, warn, is_stopped, within_s)
                except InvalidInput as error:
                    self._failed = error
                    raise
            return self._untaken.pop((generation, rung))

    def _begin(
        self, generation: int, warn: Callable[[str], None], is_stopped: IsStopped, within_s: float | None
    ) -> None:
        opened = self.input.open(is_stopped, within_s=within_s)
        if opened.note:
            warn(opened.note)
        transcoder = Transcoder(opened.source, self._encodings, warn)
        try:
            self._check_sizes(transcoder)
        except InvalidInput:
            transcoder.close()
            raise
        self._reading = _Reading(transcoder, self.rungs, is_stopped, self._reading)
        for number, view in enumerate(self._reading.views):
            self._untaken[generation, number] = replace(opened, source=view)
        self._generation = generation

    def _check_sizes(self, transcoder: Transcoder) -> None:
        """Refuse a ladder of which two rungs would have the same pictures, since none is enlarged, or no pictures."""
        sizes = []
        for rung in range(len(self._encodings)):
            videos = [stream for stream in transcoder.streams_of(rung).values() if stream.type == "video"]
            if not videos:
                raise InvalidInput(f"{self.input.name} has no pictures: a ladder is for video")
            context = cast("VideoStream", videos[0]).codec_context
            sizes.append((context.width, context.height))
        for above, below, encoding in zip(sizes, sizes[1:], self._encodings[1:], strict=False):
            if above == below and encoding.rung is not None:
                raise InvalidInput(
                    f"{self.input.name} has pictures of {above[0]}x{above[1]}, which are not enlarged: leave out the "
                    f"rung above {encoding.rung.name}"
                )


class _Reading:
    """A thread that encodes one generation of the input for all rungs.

    Args:
        before: the generation before, which is over.

    Attributes:
        clock_s: the time of the generation: that of the one before, and the time from its last packet to the first.
        late: streams of the input that began too late. (The input may be asked in this thread only.)
    """

    def __init__(
        self, transcoder: Transcoder, rungs: Sequence[RungInput], is_stopped: IsStopped, before: _Reading | None
    ) -> None:
        self.transcoder = transcoder
        self.is_stopped = is_stopped
        self.clock_s = 0.0
        self.late: Mapping[int, str] = {}
        self.views = [_View(self, number, rung) for number, rung in enumerate(rungs)]
        self._before = before
        self._last_at = 0.0  # its last packet, in seconds (monotonic)
        self._left = threading.Event()  # no rung uses it any more
        self._thread = threading.Thread(target=self._run, name="tricklecast ladder", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether no packet comes any more."""
        return self.is_stopped() or not self._thread.is_alive()

    def leave(self) -> None:
        """A rung takes no more packets. With the last one the input is closed, and may be opened again."""
        if not any(view.is_open for view in self.views):
            self._left.set()
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        end: OSError | None = None
        try:
            for rung, track, packet in self.transcoder.rungs():
                self._last_at = time.monotonic()
                if self._before is not None:
                    self.clock_s = self._before.clock_s + self._last_at - self._before._last_at
                    self._before = None
                if not rung and packet.is_keyframe and packet.stream.type == "video":
                    self.late = dict(self.transcoder.late())
                self.views[rung].put((track, packet))
                if self._left.is_set() or self.is_stopped():
                    break
            self.late = dict(self.transcoder.late())
        except OSError as error:
            end = error
        finally:
            for view in self.views:
                view.put(end)
            # Muxers of the rungs use its streams.
            while not self._left.wait(POLL_S) and not self.is_stopped():
                pass
            self._left.wait(CLOSE_S)
            self.transcoder.close()


class _View:
    """A generation of the input as one rung has it (:class:`~.source.MediaSource`).

    Attributes:
        is_open: the rung still uses it.
    """

    def __init__(self, reading: _Reading, number: int, rung: RungInput) -> None:
        self.is_open = True
        self._reading, self._number, self._rung = reading, number, rung
        self._queue: Queue[Item] = Queue(PACKETS)

    def put(self, item: Item) -> None:
        """Wait until there is room for it, unless nobody takes it."""
        while self.is_open and not self._reading.is_stopped():
            with suppress(Full):
                self._queue.put(item, timeout=POLL_S)
                return

    @property
    def streams(self) -> Mapping[int, Stream]:
        return self._reading.transcoder.streams_of(self._number)

    def packets(self) -> Iterator[tuple[int, Packet[Stream]]]:
        while True:
            try:
                item = self._queue.get(timeout=POLL_S)
            except Empty:
                if self._reading.is_over:
                    return
                continue
            if item is None:
                return
            if isinstance(item, OSError):
                raise item
            self._rung.clock_s = self._reading.clock_s
            yield item

    @property
    def strays(self) -> int:
        return self._reading.transcoder.strays

    def late(self) -> Mapping[int, str]:
        return self._reading.late

    def close(self) -> None:
        self.is_open = False
        self._reading.leave()


class _Silent:
    """A report that tells nobody."""

    def say(self, message: str, /) -> None: ...

    def source(self, state: str, /) -> None: ...
