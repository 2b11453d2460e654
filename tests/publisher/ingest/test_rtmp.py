"""The server's side of RTMP: what it answers, what it makes of messages, and which limits it keeps."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.publisher.ingest.encoder import (
    AUDIO,
    COMMAND,
    CONNECT,
    CREATE_STREAM,
    HANDSHAKE,
    METADATA,
    UNPUBLISH,
    VIDEO,
    chunks,
    command,
    publish,
)
from tricklecast.publisher.ingest import rtmp
from tricklecast.publisher.ingest.rtmp import Connection, MediaReceived, ProtocolError, PublishRequested, Unpublished

SET_CHUNK_SIZE, ABORT, ACKNOWLEDGEMENT, USER_CONTROL, AGGREGATE = 1, 2, 3, 4, 22


def publishing() -> Connection:
    """A connection that was allowed to publish."""
    connection = Connection()
    connection.receive(publish("key"))
    connection.accept()
    connection.take_output()
    return connection


def received(connection: Connection, data: bytes) -> list[rtmp.Event]:
    """All events that these bytes bring, in as many calls as that takes."""
    events = connection.receive(data)
    while connection.has_more:
        events += connection.receive(b"")
    return events


def tags(connection: Connection, data: bytes) -> list[tuple[int, int, bytes]]:
    """Type, timestamp and payload of the media that these bytes bring."""
    found = []
    for event in connection.receive(data):
        assert isinstance(event, MediaReceived)
        tag = event.data[13:] if event.data.startswith(b"FLV") else event.data
        length = int.from_bytes(tag[1:4], "big")
        assert len(tag) == 11 + length + 4
        assert int.from_bytes(tag[-4:], "big") == 11 + length
        found.append((tag[0], int.from_bytes(tag[7:8] + tag[4:7], "big"), tag[11 : 11 + length]))
    return found


def test_an_encoder_is_answered_until_it_may_publish() -> None:
    """The handshake echoes C1, ``connect`` and ``createStream`` get their results, and ``publish`` is the caller's."""
    connection = Connection()
    first = bytes(range(256)) * 6
    assert connection.receive(b"\x03" + first) == []
    answer = connection.take_output()
    assert (answer[0], answer[5:9], answer[1537:]) == (3, bytes(4), first)
    assert connection.receive(bytes(1536) + command(*CONNECT)) == []
    assert b"NetConnection.Connect.Success" in connection.take_output()
    assert connection.receive(command("releaseStream", 2.0, None, "key") + command("FCPublish", 3.0, None, "key")) == []
    assert connection.take_output().count(b"_result") == 2
    assert connection.receive(command("createStream", 4.0, None)) == []
    assert connection.take_output().endswith(rtmp.encode_amf(4.0) + rtmp.encode_amf(None) + rtmp.encode_amf(1.0))
    request = PublishRequested("key", "")
    assert connection.receive(command("publish", 5.0, None, "key", "live")) == [request]
    assert connection.take_output() == b""
    assert connection.accept() == []
    assert b"NetStream.Publish.Start" in connection.take_output()


@pytest.mark.parametrize(
    ("name", "key", "token"),
    [("cam?token=a%20b&x=1", "cam", "a b"), ("cam?x=1", "cam", ""), ("?token=t", "", "t"), (None, "", "")],
)
def test_a_token_follows_the_stream_key(name: str | None, key: str, token: str) -> None:
    """``KEY?token=VALUE`` is taken apart; a name that is no text is no key."""
    connection = Connection()
    connection.receive(HANDSHAKE + command(*CONNECT))
    assert connection.receive(command("publish", 3.0, None, name)) == [PublishRequested(key, token)]


def test_what_arrives_with_the_request_waits_for_its_answer() -> None:
    """Media behind ``publish`` is no event before the caller has accepted."""
    connection = Connection()
    events = connection.receive(publish("key") + chunks(AUDIO, 0, b"sound"))
    assert events == [PublishRequested("key", "")]
    assert [type(event) for event in connection.accept()] == [MediaReceived]


def test_a_refused_encoder_is_told_why() -> None:
    """The reason is the status of its stream. Who has not shaken hands is told nothing."""
    connection = Connection()
    connection.receive(publish("key"))
    connection.take_output()
    connection.refuse("no such key")
    answer = connection.take_output()
    assert b"NetStream.Publish.BadName" in answer
    assert b"no such key" in answer
    assert connection.receive(chunks(AUDIO, 0, b"x")) == []
    stranger = Connection()
    stranger.refuse("not RTMP")
    assert stranger.take_output() == b""


def test_messages_become_tags_wherever_they_are_cut() -> None:
    """Audio, video and metadata keep their type, time and payload, also when bytes come one at a time."""
    sent = (
        chunks(METADATA, 0, rtmp.encode_amf("@setDataFrame") + rtmp.encode_amf("onMetaData") + rtmp.encode_amf({}))
        + chunks(VIDEO, 40, b"v" * 1000, number=4)
        + chunks(AUDIO, 50, b"", number=5)
        + chunks(AUDIO, 60, b"a" * 128, number=5)
    )
    expected = [
        (METADATA, 0, rtmp.encode_amf("onMetaData") + rtmp.encode_amf({})),
        (VIDEO, 40, b"v" * 1000),
        (AUDIO, 60, b"a" * 128),
    ]
    assert tags(publishing(), sent) == expected
    slow = publishing()
    assert [tag for byte in sent for tag in tags(slow, bytes([byte]))] == expected


@pytest.mark.parametrize(
    ("metadata", "flags"),
    [
        ({"videocodecid": 7.0, "audiocodecid": 10.0}, 5),
        ({"videocodecid": 7.0}, 1),
        ({"audiocodecid": 10.0}, 4),
        (None, 5),
    ],
)
def test_the_header_announces_the_streams_of_the_metadata(metadata: dict[str, object] | None, flags: int) -> None:
    """A demuxer waits for what is announced: nothing else is. Without metadata, it waits for both."""
    sent = b""
    if metadata is not None:
        sent += chunks(METADATA, 0, rtmp.encode_amf("onMetaData") + rtmp.encode_amf(metadata))
    first, *others = publishing().receive(sent + chunks(AUDIO, 0, b"x") + chunks(AUDIO, 0, b"y"))
    assert isinstance(first, MediaReceived)
    assert first.data.startswith(b"FLV\x01" + bytes([flags, 0, 0, 0, 9, 0, 0, 0, 0]))
    assert not any(isinstance(event, MediaReceived) and event.data.startswith(b"FLV") for event in others)


def test_short_headers_refer_to_the_one_before() -> None:
    """Formats 1 to 3 repeat length, type and the difference of timestamps."""
    connection = publishing()
    length = (2).to_bytes(3, "big")
    sent = (
        b"\x04" + (1000).to_bytes(3, "big") + length + bytes([AUDIO]) + bytes(4) + b"00"
        b"\x44" + (20).to_bytes(3, "big") + length + bytes([VIDEO]) + b"11"
        b"\x84" + (30).to_bytes(3, "big") + b"22"
        b"\xc4" + b"33"
    )
    assert tags(connection, sent) == [
        (AUDIO, 1000, b"00"),
        (VIDEO, 1020, b"11"),
        (VIDEO, 1050, b"22"),
        (VIDEO, 1080, b"33"),
    ]


@pytest.mark.parametrize("timestamp", [0xFFFFFE, 0xFFFFFF, 0x1000000, 0xFFFFFFFF])
def test_timestamps_go_beyond_three_bytes(timestamp: int) -> None:
    """After 4.7 hours timestamps need four bytes, which each chunk of a message has."""
    assert tags(publishing(), chunks(VIDEO, timestamp, b"v" * 300)) == [(VIDEO, timestamp, b"v" * 300)]


def test_messages_are_interleaved() -> None:
    """Chunks of one message may come between those of another; numbers of chunk streams have one to three bytes."""
    connection = publishing()
    video, audio = chunks(VIDEO, 0, b"v" * 200, number=4), chunks(AUDIO, 7, b"a")
    wide = b"\x00\x05" + audio[1:]  # number 69
    wider = b"\x01\x05\x01" + audio[1:]  # number 325
    found = tags(connection, video[:140] + wide + wider + video[140:])
    assert found == [(AUDIO, 7, b"a"), (AUDIO, 7, b"a"), (VIDEO, 0, b"v" * 200)]


def test_a_message_may_be_given_up() -> None:
    """An abort message, or the header of another message, ends one that is unfinished."""
    connection = publishing()
    unfinished = chunks(VIDEO, 0, b"v" * 200, number=4)[:140]
    abort = chunks(ABORT, 0, (4).to_bytes(4, "big"), number=2)
    assert tags(connection, unfinished + abort + b"\xc4" + b"w" * 128) == []
    assert tags(connection, unfinished + chunks(VIDEO, 9, b"x", number=4)) == [(VIDEO, 9, b"x")]
    assert tags(connection, chunks(ABORT, 0, (63).to_bytes(4, "big"), number=2)) == []


def test_the_client_chooses_its_chunk_size() -> None:
    """The new size counts from the next chunk on; one beyond any message is the same as none."""
    connection = publishing()
    for size in (4096, 0x7FFFFFFF):
        connection.receive(chunks(SET_CHUNK_SIZE, 0, size.to_bytes(4, "big"), number=2))
        assert tags(connection, chunks(VIDEO, 0, b"v" * 5000, size=size)) == [(VIDEO, 0, b"v" * 5000)]


def test_a_ping_is_answered() -> None:
    """A user control message of type 6 gets one of type 7 with the same number."""
    connection = publishing()
    connection.receive(chunks(USER_CONTROL, 0, struct.pack(">HI", 6, 1234), number=2))
    assert connection.take_output().endswith(struct.pack(">HI", 7, 1234))
    connection.receive(chunks(USER_CONTROL, 0, struct.pack(">HI", 3, 1), number=2))
    assert connection.take_output() == b""


def test_received_bytes_are_acknowledged() -> None:
    """Some encoders stop sending without it."""
    connection = publishing()
    message = chunks(VIDEO, 0, b"v" * 60_000)
    while not (output := connection.take_output()):
        connection.receive(message)
    assert output[7] == ACKNOWLEDGEMENT
    assert int.from_bytes(output[-4:], "big") >= rtmp.WINDOW_BYTES


@pytest.mark.parametrize("values", [UNPUBLISH, ("deleteStream", 7.0, None, 1.0), ("closeStream", 7.0, None)])
def test_an_encoder_ends_its_stream(values: tuple[object, ...]) -> None:
    """That is an event, once; nothing that follows counts."""
    assert publishing().receive(command(*values) + command(*values) + chunks(AUDIO, 0, b"x")) == [Unpublished()]
    connection = Connection()
    assert connection.receive(HANDSHAKE + command(*CONNECT) + command(*values)) == []


def test_commands_may_come_as_amf3() -> None:
    """Such a message has one more byte, and the same values behind it."""
    connection = Connection()
    connection.receive(HANDSHAKE)
    payload = b"\x00" + b"".join(map(rtmp.encode_amf, CREATE_STREAM))
    assert connection.receive(chunks(17, 0, payload)) == []
    assert b"_result" in connection.take_output()


def test_all_types_of_values_are_read() -> None:
    """Commands of some encoders have dates, arrays and long texts."""
    values = (
        b"\x01\x01"  # boolean
        b"\x06"  # undefined
        b"\x08\x00\x00\x00\x01\x00\x01k\x05\x00\x00\x09"  # array with names
        b"\x0a\x00\x00\x00\x02\x05\x01\x00"  # array
        b"\x0b" + bytes(10) + b"\x0c\x00\x00\x00\x02hi"
    )
    connection = Connection()
    payload = b"".join(map(rtmp.encode_amf, ("connect", 1.0, {"app": None}))) + values
    connection.receive(HANDSHAKE + chunks(COMMAND, 0, payload))
    assert b"NetConnection.Connect.Success" in connection.take_output()
    assert connection.receive(command("publish", 1.0, None, "key")) == [PublishRequested("key", "")]
    assert Connection().receive(HANDSHAKE + command("connect")) == []


def large_frame(length: int) -> bytes:
    """A header that announces so many bytes."""
    return bytes(3) + length.to_bytes(3, "big") + bytes([VIDEO]) + bytes(4)


BAD = {
    "not RTMP": (b"GET / HTTP/1.1\r\n\r\n", "not RTMP"),
    "TLS": (b"\x16\x03\x01", "rtmps://"),
    "a long command": (HANDSHAKE + chunks(COMMAND, 0, b"\x05" * (rtmp.MAX_COMMAND_BYTES + 1)), "too long"),
    "a long frame": (HANDSHAKE + b"\x04" + large_frame(rtmp.MAX_MEDIA_BYTES + 1), "too long"),
    "many chunk streams": (
        HANDSHAKE + b"".join(chunks(AUDIO, 0, b"x", number=number) for number in range(3, 30)),
        "chunk streams",
    ),
    "nested objects": (HANDSHAKE + chunks(COMMAND, 0, b"\x0a\x00\x00\x00\x01" * 20), "nested"),
    "a cut command": (HANDSHAKE + chunks(COMMAND, 0, b"\x02\x00\x09conn"), "cut off"),
    "an array without end": (HANDSHAKE + chunks(COMMAND, 0, b"\x0a\xff\xff\xff\xff\x05"), "cut off"),
    "an unknown value": (HANDSHAKE + chunks(COMMAND, 0, b"\x11"), "unknown type 17"),
    "no chunk size": (HANDSHAKE + chunks(SET_CHUNK_SIZE, 0, bytes(4), number=2), "chunk size of 0"),
    "aggregates": (HANDSHAKE + chunks(AGGREGATE, 0, b"x"), "aggregate"),
    "a player": (HANDSHAKE + command("play", 4.0, None, "key"), "play"),
    "a text as a number": (HANDSHAKE + command("createStream", "x" * 30_000), "no number"),
    "an id of bytes that are no text": (
        HANDSHAKE + chunks(COMMAND, 0, rtmp.encode_amf("connect") + b"\x02\x75\x30" + b"\xff" * 30_000),
        "no number",
    ),
    "many values": (HANDSHAKE + chunks(COMMAND, 0, b"\x0a\x00\x00\x10\x00" + b"\x05" * 4096), "values"),
    "many members": (HANDSHAKE + chunks(COMMAND, 0, b"\x03" + b"\x00\x00\x05" * 4096), "values"),
    "many empty messages": (HANDSHAKE + chunks(AUDIO, 0, b"") * (rtmp.MAX_MESSAGES_BEFORE + 1), "before it asks"),
    "many chunks": (
        HANDSHAKE + chunks(SET_CHUNK_SIZE, 0, b"\0\0\0\1", number=2) + chunks(COMMAND, 0, b"\x05" * 2000, size=1),
        "before it asks",
    ),
    "a large frame before its key": (HANDSHAKE + b"\x04" + large_frame(rtmp.MAX_COMMAND_BYTES + 1), "too long"),
    "many parameters": (HANDSHAKE + command("publish", 3.0, None, "key?" + "a=1&" * 50), "parameters"),
}


@pytest.mark.parametrize(("sent", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(sent: bytes, message: str) -> None:
    """Each limit has an error of its own."""
    with pytest.raises(ProtocolError, match=message):
        received(Connection(), sent)


def test_one_call_reads_few_chunks() -> None:
    """A publisher's empty messages cost a turn no more than others; what follows them is not lost."""
    connection = publishing()
    sent = chunks(AUDIO, 0, b"") * 3 * rtmp.TURN_CHUNKS + chunks(AUDIO, 0, b"sound")
    assert connection.receive(sent) == []
    calls = 1
    while connection.has_more:
        events = connection.receive(b"")
        calls += 1
    assert calls == 4
    assert [type(event) for event in events] == [MediaReceived]


def test_one_stream_for_each_connection() -> None:
    """A second ``publish`` is an error."""
    with pytest.raises(ProtocolError, match="second stream"):
        publishing().receive(command("publish", 9.0, None, "other"))


def test_unfinished_messages_have_a_limit_together() -> None:
    """Many streams, each with a large message that is never finished, must not fill the memory."""
    connection = publishing()
    connection.receive(chunks(SET_CHUNK_SIZE, 0, (1 << 20).to_bytes(4, "big"), number=2))
    header, part = large_frame(rtmp.MAX_MEDIA_BYTES), bytes(1 << 20)
    for number in range(3, 3 + rtmp.MAX_MEDIA_BYTES // len(part)):
        connection.receive(bytes([number]) + header + part)
    with pytest.raises(ProtocolError, match="unfinished"):
        connection.receive(b"\x0f" + header + part)


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_read_or_refused(data: bytes, is_publishing: bool) -> None:
    """No other exception than ProtocolError, whatever comes, and at once or in pieces it is the same."""
    outcomes: list[list[rtmp.Event] | None] = []
    for pieces in ([data], [data[at : at + 7] for at in range(0, len(data), 7)]):
        connection = publishing() if is_publishing else Connection()
        if not is_publishing:
            connection.receive(HANDSHAKE)
        try:
            outcomes.append([event for piece in pieces for event in received(connection, piece)])
        except ProtocolError:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]


TRACKS = "several (video|audio) tracks"


@pytest.mark.parametrize(
    ("type_", "payload", "message"),
    [
        (VIDEO, b"\x96\x00hvc1\x00x", TRACKS),
        (AUDIO, b"\x95\x00Opus\x00x", TRACKS),
        (VIDEO, b"\x97\x02abc\x06\x01avc1\x01x", TRACKS),  # behind a time in nanoseconds
        (VIDEO, b"\x97\xff\x00\x01ab\x07\x00a\x06\x00avc1\x01x", TRACKS),  # behind a long addition, and another
        (VIDEO, b"\x90vvc1x", "video in a codec that channels do not carry: 'vvc1'"),
        (AUDIO, b"\x91\xff\xff\xff\xffx", "audio in a codec that channels do not carry"),
    ],
)
def test_what_a_channel_cannot_carry_is_refused(type_: int, payload: bytes, message: str) -> None:
    """Of enhanced RTMP: several tracks of a kind, and codecs that no segment has."""
    with pytest.raises(ProtocolError, match=message):
        publishing().receive(chunks(type_, 0, payload))


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        (VIDEO, b"\x90hvc1x"),
        (VIDEO, b"\x91av01x"),
        (VIDEO, b"\x97\x02abc\x01vp09x"),
        (VIDEO, b"\x94hvc1x"),  # metadata of the picture, such as its colours
        (VIDEO, b"\xd0\x00"),  # a seek
        (AUDIO, b"\x91Opusx"),
        (AUDIO, b"\xaf\x01x"),  # AAC, as all encoders send it
        (VIDEO, b"\x17\x01\0\0\0x"),
        (VIDEO, b"\x97"),  # cut off
        (VIDEO, b"\x97\x02a"),
        (VIDEO, b"\x91av"),
    ],
)
def test_other_messages_pass(type_: int, payload: bytes) -> None:
    """Those of enhanced RTMP with one track, of older encoders, and fragments, of which the demuxer decides."""
    assert tags(publishing(), chunks(type_, 0, payload)) == [(type_, 0, payload)]
