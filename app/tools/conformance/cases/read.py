"""Section 4: which segment a GET means, what a reader receives and when, and many readers at once."""

from __future__ import annotations

from tricklecast.app.tools.conformance.response import ConnectionCut, check, equal
from tricklecast.app.tools.conformance.runner import Group, each, needs
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.trickle import wire

_TWELVE = [b"%d" % seq for seq in range(12)]


class Finished(Group, section="4. Read"):
    def range_is_206(self, c: RemoteChannel) -> None:
        """A range of a finished segment is 206 with these bytes and `Content-Range`."""
        c.publish(0, b"0123456789")
        for asked, place, body in (("2-5", "2-5", b"2345"), ("8-", "8-9", b"89"), ("-3", "7-9", b"789")):
            answer = c.get(0, {"Range": f"bytes={asked}"}).expect(206, seq=0, size=10)
            equal("Content-Range", answer.get("Content-Range"), f"bytes {place}/10")
            equal("the body", answer.body, body)

    def range_that_is_not_there_is_416(self, c: RemoteChannel) -> None:
        """A range that the segment does not have is 416 with its size; several ranges may be ignored."""
        answer = c.publish(0, b"0123456789").get(0, {"Range": "bytes=10-"}).expect(416)
        equal("Content-Range", answer.get("Content-Range"), "bytes */10")
        c.get(0, {"Range": "bytes=0-0,5-5"}).segment(0, b"0123456789")

    def known_segment_is_304(self, c: RemoteChannel) -> None:
        """A GET or HEAD with the tag of a finished segment in `If-None-Match` is 304; with another one, 200."""
        c.publish(0, b"a", b"b")
        tags = [c.get(seq).expect(200).get("ETag") or "" for seq in (0, 1)]
        check(all(tags) and tags[0] != tags[1], "two different tags", tags)
        for method in ("GET", "HEAD"):
            c.target.ask(method, c.at(0), {"If-None-Match": tags[0]}).expect(304)
        c.get(0, {"If-None-Match": tags[1]}).segment(0, b"a")
        c.get(0, {"Range": "bytes=0-0", "If-Range": tags[1]}).expect(200)

    def open_segment_has_no_ranges(self, c: RemoteChannel) -> None:
        """An open segment is sent whole, without a tag, whatever range is asked for."""
        upload, _ = c.started(0, b"begun")
        reader = c.read(0, {"Range": "bytes=1-2"})
        head = reader.head().expect(200)
        equal("ETag and Accept-Ranges", (head.get("ETag"), head.get("Accept-Ranges")), (None, None))
        reader.gets(b"begun")
        upload.stored()


class Missing(Group, section="4. Read, rules 1-3"):
    def channel_is_404(self, c: RemoteChannel) -> None:
        """A GET of a channel that does not exist is 404 `Stream not found`, whatever the seq, and creates none."""
        for seq in ("0", "-1", "-2", "next"):
            c.get(seq).unknown(closed=None)

    @needs("no-drain")
    def channel_that_ended_is_404_and_says_so(self, c: RemoteChannel) -> None:
        """A GET of a channel that ended recently is 404 with Closed, and with the Latest of its last epoch."""
        c.publish(0).end()
        c.get(0).unknown(latest=1, epoch=1).ended()
        c.get(-1).unknown(latest=1, epoch=1).ended()

    def segment_ahead_is_470(self, c: RemoteChannel) -> None:
        """A GET beyond the head is 470 `Entry not found` with Latest, and Seq as asked, at once."""
        c.publish(0, b"a", b"b").get(3).missing(2, 3)
        c.get(1000).missing(2, 1000)

    def segment_ahead_of_nothing_is_470(self, c: RemoteChannel) -> None:
        """Before the first byte of a channel a GET of 2 or more is 470 with Latest 0."""
        c.create().get(2).missing(0, 2)

    def segment_names_the_earliest(self, c: RemoteChannel) -> None:
        """470 names the oldest kept segment in `Lp-Trickle-Earliest`."""
        c.publish(5, b"five", b"six").get(100).missing(7, 100, earliest=5)

    def segment_below_the_head_names_the_next(self, c: RemoteChannel) -> None:
        """470 below the head names in `Lp-Trickle-Next` the oldest later segment that can be read."""
        c.publish(5, b"five", b"six").get(3).missing(7, 3, next=5)
        c.has(5, b"five").get(9).missing(7, 9, next=None)

    def segment_in_a_hole_names_the_next(self, c: RemoteChannel) -> None:
        """470 in a hole between kept segments names the segment behind the hole: the reader needs one request."""
        c.publish(0, b"before").post(50, b"behind", {wire.RESET: "1"}).expect(200)
        for seq in (1, 30, 49):
            c.get(seq).missing(51, seq, earliest=0, next=50)
        c.has(50, b"behind")

    def segment_in_a_hole_names_an_open_one(self, c: RemoteChannel) -> None:
        """470 below the head names in `Lp-Trickle-Next` also a segment that is still open."""
        c.started(5, b"open")
        c.get(2).missing(6, 2, next=5)

    @needs("small-window")
    def segment_that_left_the_window_is_470(self, c: RemoteChannel) -> None:
        """A segment that left the window is 470 with Earliest and Next; both name the oldest kept segment."""
        oldest = c.publish(0, *_TWELVE).get(0).missing(12, 0).number(wire.EARLIEST)
        c.get(0).missing(12, 0, next=oldest)
        c.has(oldest, b"%d" % oldest).has(11, b"11").get(oldest - 1).missing(12, oldest - 1, next=oldest)

    @needs("small-window")
    def window_keeps_as_many_segments_as_configured(self, c: RemoteChannel) -> None:
        """The window holds the newest closed segments, up to its limit of count."""
        c.publish(0, *_TWELVE)
        kept = [seq for seq in range(12) if c.get(seq).status == 200]
        equal("the kept segments", kept, list(range(12 - c.target.settings.window_segments, 12)))

    def retries_are_spread(self, c: RemoteChannel) -> None:
        """The `Retry-After` of 470 has jitter: clients refused together are not told the same."""
        c.publish(0)
        # Clients of different names, since a server may delay a client that repeats a fruitless request.
        answers = [c.get(9, {wire.CLIENT: f"conformance-{number}"}).expect(470) for number in range(40)]
        told = {answer.number(wire.RETRY_AFTER) for answer in answers}
        check(len(told) > 1, "different values in 40 answers", told)

    def segment_does_not_come_into_being_by_asking(self, c: RemoteChannel) -> None:
        """A refused GET leaves nothing behind: the head, and the answer to the next GET, are the same."""
        c.publish(0).get(5).missing(1, 5)
        c.get(5).missing(1, 5)
        c.head_is(1)


class Resolve(Group, section="4. Read, rules 1-3"):
    def minus_one_is_the_head(self, c: RemoteChannel) -> None:
        """GET -1 waits for the segment that comes next."""
        reader = c.publish(0, b"a", b"b").waiting(-1).silent()
        c.publish(2, b"c")
        reader.segment(2, b"c")

    def minus_one_past_an_open_segment(self, c: RemoteChannel) -> None:
        """GET -1 while a segment is open means the one after it."""
        upload, _ = c.started(0, b"open")
        reader = c.waiting(-1).silent()
        upload.stored()
        c.publish(1, b"next")
        reader.segment(1, b"next")

    def minus_two_is_the_current_segment(self, c: RemoteChannel) -> None:
        """GET -2 means the newest segment that has begun: all of it so far, and what follows."""
        upload, _ = c.publish(0, b"done").started(1, b"so far,")
        reader = c.read(-2)
        reader.head().expect(200, seq=1)
        reader.gets(b"so far,")
        upload.chunk(b"on").end()
        reader.ends(b"on")

    def minus_two_of_a_closed_segment(self, c: RemoteChannel) -> None:
        """GET -2 between two segments gives the newest closed one at once; Seq is its seq, not the requested one."""
        c.publish(0, b"a", b"b").get(-2).segment(1, b"b")

    def minus_two_of_nothing_is_zero(self, c: RemoteChannel) -> None:
        """GET -2 before the first byte of a channel waits for segment 0."""
        reader = c.create().waiting(-2).silent()
        c.publish(0, b"zero", b"one")
        reader.segment(0, b"zero")

    def minus_n_counts_from_the_head(self, c: RemoteChannel) -> None:
        """GET -N means head - (N - 1)."""
        c.publish(0, *_TWELVE).get(-3).segment(10, b"10")
        c.get(-13).segment(0, b"0")

    def minus_n_stops_at_the_oldest(self, c: RemoteChannel) -> None:
        """GET -N further back than the oldest kept segment means that one."""
        c.publish(0, b"a", b"b").get(-100).segment(0, b"a")
        c.get("-" + "9" * 15).segment(0, b"a")

    @needs("small-window")
    def minus_n_stops_at_the_oldest_kept(self, c: RemoteChannel) -> None:
        """GET -N does not reach below the window: it means the oldest segment that is still kept."""
        oldest = c.publish(0, *_TWELVE).get(0).expect(470).number(wire.EARLIEST)
        c.get(-100).segment(oldest, b"%d" % oldest)

    def kept_segments_are_served(self, c: RemoteChannel) -> None:
        """Every segment that is kept is served at once, in any order, any number of times."""
        c.publish(0, b"a", b"b", b"c")
        for seq in (2, 0, 1, 0):
            c.has(seq, b"abc"[seq : seq + 1])

    def one_is_waited_for_before_zero(self, c: RemoteChannel) -> None:
        """Before the first byte of a channel a GET of 1 waits, too: subscribers preconnect one ahead."""
        reader = c.create().waiting(1)
        c.publish(0, b"zero")
        reader.silent()
        c.publish(1, b"one")
        reader.segment(1, b"one")

    def preconnected_segments_are_waited_for(self, c: RemoteChannel) -> None:
        """A GET waits for a segment beyond the head that a preconnect has created."""
        upload = c.publish(0).preconnect(2)
        reader = c.waiting(2).silent()
        c.publish(1)
        upload.chunk(b"two").end()
        reader.segment(2, b"two")


class Read(Group, section="4. Read, rules 4-7"):
    def no_byte_before_first_body_byte(self, c: RemoteChannel) -> None:
        """Not even headers come before the first byte of a segment: clients preconnect the next when they see them."""
        reader = c.create().waiting(0)
        upload = c.preconnect(0)
        reader.silent()
        upload.chunk(b"now")
        # A server that wrote the head early could not have known the size.
        reader.head().expect(200, size=3)

    def no_byte_before_an_empty_close(self, c: RemoteChannel) -> None:
        """Not even headers come before the close of a segment that stays empty."""
        reader = c.create().waiting(0)
        upload = c.preconnect(0)
        reader.silent()
        upload.end()
        reader.response().empty(0)

    def has_a_content_type_of_any_channel(self, c: RemoteChannel) -> None:
        """A segment of a channel that was created without a media type has some Content-Type."""
        c.create().publish(0).get(0).typed()

    def has_the_head(self, c: RemoteChannel) -> None:
        """`Lp-Trickle-Latest` is the head."""
        c.publish(0, b"a", b"b", b"c").get(0).expect(latest=3)

    def has_the_head_as_it_was_when_asked(self, c: RemoteChannel) -> None:
        """`Lp-Trickle-Latest` of a reader that waited is the head as it was when its request came."""
        reader = c.create().waiting(1)
        c.publish(0, b"zero", b"one")
        reader.segment(1, b"one", latest=0)

    def leaves_the_head_out_where_it_is_the_seq(self, c: RemoteChannel) -> None:
        """`Lp-Trickle-Latest` is left out when it equals the seq."""
        reader = c.publish(0).waiting(-1)
        c.publish(1, b"b")
        reader.segment(1, b"b", latest=None)

    def has_the_size_of_a_closed_segment(self, c: RemoteChannel) -> None:
        """`Lp-Trickle-Size` of a closed segment is its size."""
        c.publish(0, b"12345").get(0).expect(size=5)

    def has_the_size_so_far_of_an_open_segment(self, c: RemoteChannel) -> None:
        """`Lp-Trickle-Size` of an open segment is the number of bytes available now."""
        c.started(0, b"123", b"45")
        c.read(0).head().expect(size=5)

    def has_the_epoch(self, c: RemoteChannel) -> None:
        """`Lp-Trickle-Epoch` counts how often a channel of this name has begun; a segment and 470 have it."""
        c.started(0, b"a")
        epoch = c.read(0).head().number(wire.EPOCH)
        equal("the epoch of 470", c.get(9).missing(1, 9).number(wire.EPOCH), epoch)

    def late_reader_gets_everything_from_the_beginning(self, c: RemoteChannel) -> None:
        """A reader that comes while a segment is open gets all bytes so far at once, then the rest as it comes."""
        upload, _ = c.started(0, b"one,", b"two,", b"three,")
        late = c.arrived(0, b"one,two,three,")
        upload.chunk(b"four").end()
        late.ends(b"four")

    def chunks_come_while_the_segment_is_open(self, c: RemoteChannel) -> None:
        """Each published chunk reaches the reader before the next is published."""
        upload, reader = c.started(0, b"begin")
        for number in range(20):
            upload.chunk(b"%02d" % number)
            reader.gets(b"%02d" % number)
        upload.end()
        reader.ends()

    @each(*((str(size), str(size), size) for size in (1, 4096, 32_768)))
    def chunk_of_X_bytes_is_not_split(self, c: RemoteChannel, size: int) -> None:
        """A published chunk of {} bytes comes as one chunk: control clients read just one."""
        upload, reader = c.started(0, b"begin")
        for letter in (b"a", b"b"):
            upload.chunk(letter * size)
            got = reader.chunk() or b""
            equal("the size of the chunk", len(got), size)
            equal("the chunk", got, letter * size)

    def first_chunk_is_not_split(self, c: RemoteChannel) -> None:
        """A message published as one chunk comes as one chunk to the reader that waited for it."""
        reader = c.create().waiting(0)
        message = b'{"keys": [' + b"1," * 10_000 + b"1]}"
        upload = c.upload(0, message)
        response = reader.head().expect(200)
        check(response.head.chunked, "a chunked body", response)
        equal("the first chunk", reader.chunk(), message)
        upload.end()
        reader.ends()

    def large_segment_is_whole(self, c: RemoteChannel) -> None:
        """A segment of 8 MiB comes through unchanged, live and from the window."""
        live = c.create().waiting(0)
        data = b"".join(b"%08d" % number for number in range(1 << 20))
        upload = c.upload(0)
        for start in range(0, len(data), 1 << 18):
            upload.chunk(data[start : start + (1 << 18)])
        upload.stored()
        check(live.response().body == data, "the published bytes", "other bytes live")
        check(c.get(0).body == data, "the published bytes", "other bytes from the window")

    def complete_segment_is_not_called_truncated(self, c: RemoteChannel) -> None:
        """A complete segment carries no `Lp-Trickle-Truncated`, live or kept."""
        upload, reader = c.started(0, b"all")
        upload.end()
        reader.ends().whole()
        c.get(0).segment(0, b"all").whole()


class Empty(Group, section="4. Read, rules 4-7"):
    def segment_is_200_without_a_body(self, c: RemoteChannel) -> None:
        """A segment closed without bytes is 200 with `Content-Length: 0`, Content-Type, Seq and the head of now."""
        c.create(mime="video/mp2t").publish(0, b"").get(0).empty(0, content_type="video/mp2t", latest=1)

    def waiting_reader_is_answered_at_once(self, c: RemoteChannel) -> None:
        """A reader that waits for a segment gets the empty answer the moment it closes without a byte."""
        reader = c.publish(0).waiting(1)
        c.publish(1, b"")
        reader.response().empty(1, latest=2)

    def is_not_the_end_of_the_channel(self, c: RemoteChannel) -> None:
        """An empty segment of a living channel does not announce an end, and the channel goes on behind it."""
        for seq in range(3):
            c.publish(seq, b"").get(seq).empty(seq, closed=None)
        c.publish(3, b"goes on").has(3, b"goes on")


class Readers(Group, section="4. Read"):
    def all_get_the_same_bytes(self, c: RemoteChannel) -> None:
        """Any number of readers get the same bytes, wherever they came in."""
        c.create()
        readers = [c.read(0) for _ in range(10)]
        upload, _ = c.started(0, b"one,")
        readers += [c.read(0) for _ in range(10)]
        upload.chunk(b"two,").stored()
        readers += [c.read(0) for _ in range(5)]
        for reader in readers:
            reader.segment(0, b"one,two,")

    def stalled_one_does_not_slow_others(self, c: RemoteChannel) -> None:
        """A reader that does not read slows no other reader of its segment."""
        upload, _stalled = c.started(0, b"first")
        reader = c.arrived(0, b"first")
        data = b"m" * 65_536
        for _ in range(160):
            upload.chunk(data)
            equal("bytes received", len(reader.body(len(data))), len(data))

    def evicted_one_does_not_take_the_part_for_the_whole(self, c: RemoteChannel) -> None:
        """A reader too slow for the server is cut without a final chunk; a body that ends well is whole."""
        upload, stalled = c.started(0, b"first")
        for _ in range(320):
            upload.chunk(b"m" * 65_536)
        upload.stored()
        try:
            rest = len(stalled.rest())
        except ConnectionCut:
            return
        equal("bytes of a body that ended well", rest, 320 * 65_536)

    def gone_one_is_forgotten(self, c: RemoteChannel) -> None:
        """Readers that wait and go away leave nothing behind: the next one waits and is served as usual."""
        c.create()
        for _ in range(30):
            c.read(0).abort()
        reader = c.waiting(0).silent()
        c.head_is(0).publish(0, b"served")
        reader.segment(0, b"served")

    def gone_mid_segment_disturbs_nobody(self, c: RemoteChannel) -> None:
        """A reader that breaks off in the middle of a segment disturbs neither its publisher nor other readers."""
        upload, leaving = c.started(0, b"one,")
        staying = c.arrived(0, b"one,")
        leaving.abort()
        upload.chunk(b"two,")
        staying.gets(b"two,")
        upload.chunk(b"three").stored(size=13)
        staying.ends(b"three")

    @needs("few-readers", alone=True)
    def gone_one_frees_its_place(self, c: RemoteChannel) -> None:
        """The server forgets a waiting reader at once when it disconnects: its place under the limit is free."""
        c.create()
        readers = [c.waiting(0) for _ in range(c.target.settings.max_readers)]
        c.get(0).refused(503)
        c.lose(readers[0])
        again = c.waiting(0).silent()
        c.publish(0, b"served")
        again.segment(0, b"served")
