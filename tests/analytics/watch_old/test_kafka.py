"""Lines of a Kafka topic, over real sockets: librdkafka brings a broker of its own for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.support.waiting import eventually
from tricklecast.analytics.watch_old.kafka import KafkaLines
from tricklecast.analytics.watch_old.limits import WatchLimits

TOPIC = "access"


@pytest.fixture(scope="module")
def producer() -> Iterator[Producer]:
    """A producer, and the broker inside it."""
    made = Producer({"test.mock.num.brokers": 1, "linger.ms": 1})
    yield made
    made.flush(10)


@pytest.fixture(scope="module")
def servers(producer: Producer) -> str:
    """The broker's address."""
    [broker] = producer.list_topics(timeout=120).brokers.values()
    return f"{broker.host}:{broker.port}"


def send(producer: Producer, topic: str, *lines: bytes) -> None:
    """Writes messages, and waits until they are there."""
    for line in lines:
        producer.produce(topic, line)
    assert producer.flush(10) == 0


def reader(servers: str, topic: str, *, earliest: bool, limits: WatchLimits | None = None) -> KafkaLines:
    """A source of that topic."""
    return KafkaLines(servers, topic, {}, earliest=earliest, limits=limits)


def lines_of(blocks: list[bytes]) -> list[bytes]:
    """The lines in them, in no order: those of several partitions have none."""
    return sorted(line for block in blocks for line in block.split(b"\n") if line)


def test_earliest_reads_all(producer: Producer, servers: str) -> None:
    """Messages of all partitions, each once; and then nothing more."""
    send(producer, "all", *(b"line %03d" % number for number in range(100)))
    source = reader(servers, "all", earliest=True)
    read: list[bytes] = []
    at = source.beginning()

    def some() -> bool:
        nonlocal at
        blocks, at = source.read(at)
        read.extend(lines_of(blocks))
        return len(read) >= 100

    eventually(some)
    assert sorted(read) == [b"line %03d" % number for number in range(100)]
    assert source.read(at) == ([], at)
    assert (source.health.lines, source.health.problems) == (100, {})


def test_latest_reads_what_comes(producer: Producer, servers: str) -> None:
    """What was there before is left alone."""
    send(producer, "latest", *[b"old"] * 10)
    source = reader(servers, "latest", earliest=False)
    at = source.beginning()
    send(producer, "latest", b"new")
    blocks: list[bytes] = []

    def some() -> bool:
        nonlocal at
        more, at = source.read(at)
        blocks.extend(more)
        return bool(blocks)

    eventually(some)
    assert lines_of(blocks) == [b"new"]


def test_a_batch_can_be_read_again(producer: Producer, servers: str) -> None:
    """Another process gets the same messages between two positions, and goes on after them."""
    send(producer, "again", *(b"line %02d" % number for number in range(40)))
    first = reader(servers, "again", earliest=True)
    since = at = first.beginning()
    read: list[bytes] = []

    def some() -> bool:
        nonlocal at
        blocks, at = first.read(at)
        read.extend(lines_of(blocks))
        return len(read) >= 40

    eventually(some)
    send(producer, "again", b"later")
    second = reader(servers, "again", earliest=False)
    assert lines_of(second.again(since, at)) == sorted(read)
    later: list[bytes] = []

    def more() -> bool:
        nonlocal at
        blocks, at = second.read(at)
        later.extend(lines_of(blocks))
        return bool(later)

    eventually(more)
    assert later == [b"later"]


def test_a_long_message_is_no_record(producer: Producer, servers: str) -> None:
    """It counts as one, and costs no memory further on."""
    send(producer, "long", b"x" * 3_000)
    source = reader(servers, "long", earliest=True, limits=WatchLimits(chunk_bytes=1_000))
    at = source.beginning()
    blocks: list[bytes] = []

    def some() -> bool:
        nonlocal at
        more, at = source.read(at)
        blocks.extend(more)
        return bool(blocks)

    eventually(some)
    assert lines_of(blocks) == [b'{"too_long":true}']


def test_a_broker_that_is_not_there_is_a_problem() -> None:
    """It is said, rather than waited for in silence; and it is no stack trace."""
    source = KafkaLines("127.0.0.1:9", TOPIC, {}, earliest=True, limits=WatchLimits(answer_s=0.2))
    at = {"read_us": 0, "offsets": {}}

    def said() -> bool:
        assert source.read(at) == ([], at)
        return TOPIC in source.health.problems

    eventually(said)
