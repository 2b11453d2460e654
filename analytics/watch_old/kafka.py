"""Lines from a Kafka topic, through librdkafka: it comes with pip, where Spark's own connector is a jar from elsewhere.

Offsets are kept by Spark's checkpoint, not by a consumer group: a batch that is repeated gets the same messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.reading import Health

MESSAGES: Final = 20_000
"""At most so many messages per batch."""

PARTITIONS_EVERY_S: Final = 30.0
"""How often new partitions are looked for. Seconds."""

_FIXED: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # What goes wrong is told as a problem; librdkafka's own words go to a stderr that nobody reads.
    "log_level": 2,
}
_GROUP: Final = "tricklecast-storms-watch"
"""librdkafka insists on a group; nothing is ever committed to it."""


class KafkaLines:
    """:class:`analytics.watch_old.stream.Lines` of a topic: each message is a line, or several."""

    def __init__(
        self,
        servers: str,
        topic: str,
        config: Mapping[str, str],
        *,
        earliest: bool,
        limits: WatchLimits | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            servers: brokers to ask first; topic: which; config: further settings of librdkafka.
            earliest: begin with the oldest message there is.
            wall: the time, seconds.
        """
        self._topic = topic
        self._earliest = earliest
        self._limits = limits or WatchLimits()
        self._wall = wall
        settings = {"group.id": _GROUP, **config, "bootstrap.servers": servers, **_FIXED}
        self._consumer = Consumer({**settings, "error_cb": self._failed})
        self._at: dict[int, int] = {}
        self._looked = float("-inf")
        self._partitions: list[int] = []
        self.health = Health()

    def beginning(self) -> dict[str, Any]:
        """Behind what is there, or before it."""
        self._find_partitions()
        ends = {str(number): self._bounds(number) for number in self._partitions}
        offsets = {number: low if self._earliest else high for number, (low, high) in ends.items()}
        return {"read_us": round(self._wall() * 1e6), "offsets": offsets}

    def read(self, since: Mapping[str, Any]) -> tuple[list[bytes], dict[str, Any]]:
        """The messages since, at most so many; waits a moment for them."""
        if time.monotonic() >= self._looked + PARTITIONS_EVERY_S:
            self._find_partitions()
        offsets: dict[str, int] = dict(since["offsets"])
        self._seek({number: offsets.get(str(number), 0) for number in self._partitions})
        blocks: list[bytes] = []
        size = 0
        until = time.monotonic() + self._limits.wait_s
        while size < self._limits.batch_bytes and len(blocks) < MESSAGES:
            # The first message is waited for; then only what has arrived already is taken along.
            wait_s = 0.0 if blocks else max(0.0, until - time.monotonic())
            messages = self._consumer.consume(min(1_000, MESSAGES - len(blocks)), timeout=min(wait_s, 0.02))
            for message in messages:
                if (line := self._line(message)) is not None:
                    offsets[str(message.partition())] = self._at[message.partition() or 0] = (message.offset() or 0) + 1
                    blocks.append(line)
                    size += len(line)
            if not messages and (blocks or time.monotonic() >= until):
                break
        self._note(blocks, offsets)
        if not blocks:
            return [], dict(since)
        read_us = max(since["read_us"], round(self._wall() * 1e6))
        return [b"\n".join(blocks)], {"read_us": read_us, "offsets": offsets}

    def again(self, since: Mapping[str, Any], until: Mapping[str, Any]) -> list[bytes]:
        """The same messages once more; those that the broker has dropped since are lost."""
        begin: dict[str, int] = since["offsets"]
        left = {int(number): end for number, end in until["offsets"].items() if end > begin.get(number, 0)}
        self._seek({number: begin.get(str(number), 0) for number in left})
        blocks: list[bytes] = []
        ends = time.monotonic() + self._limits.answer_s * 2
        while left and time.monotonic() < ends:
            for message in self._consumer.consume(1_000, timeout=0.1):
                number, line = message.partition() or 0, self._line(message)
                if line is None or number not in left:
                    continue
                if (message.offset() or 0) < left[number]:
                    blocks.append(line)
                if (message.offset() or 0) + 1 >= left[number]:
                    del left[number]
        return [b"\n".join(blocks)]

    def _seek(self, offsets: dict[int, int]) -> None:
        """Makes the consumer go on at these offsets; it is there already unless a batch has failed."""
        if offsets == self._at:
            return
        self._at = dict(offsets)
        places = [TopicPartition(self._topic, number, at or OFFSET_BEGINNING) for number, at in offsets.items()]
        self._consumer.assign(places)

    def _line(self, message: Message) -> bytes | None:
        error = message.error()
        if error is None:
            self.health.problems.pop(self._topic, None)
            value = message.value() or b""
            longest = self._limits.chunk_bytes
            return value if len(value) <= longest else b'{"too_long":true}'
        if error.code() != KafkaError._PARTITION_EOF:
            self.health.problems[self._topic] = error.str()
        return None

    def _find_partitions(self) -> None:
        self._looked = time.monotonic()
        try:
            found = self._consumer.list_topics(self._topic, timeout=self._limits.answer_s).topics.get(self._topic)
        except KafkaException as error:
            self._failed(error.args[0])
            return
        if found is None or found.error is not None:
            self.health.problems[self._topic] = "no such topic" if found is None else found.error.str()
            return
        self.health.problems.pop(self._topic, None)
        self._partitions = sorted(found.partitions)
        self.health.files = len(self._partitions)

    def _bounds(self, number: int) -> tuple[int, int]:
        bounds = self._consumer.get_watermark_offsets(
            TopicPartition(self._topic, number), timeout=self._limits.answer_s
        )
        return bounds if bounds is not None else (0, 0)

    def _note(self, blocks: list[bytes], offsets: Mapping[str, int]) -> None:
        self.health.lines += len(blocks)
        self.health.bytes += sum(map(len, blocks))
        lag = 0
        for number in self._partitions:
            known = self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), cached=True)
            if known is not None and known[1] > 0:
                lag += max(0, known[1] - offsets.get(str(number), 0))
        self.health.lag_bytes = lag

    def _failed(self, error: KafkaError) -> None:
        self.health.problems[self._topic] = error.str()
