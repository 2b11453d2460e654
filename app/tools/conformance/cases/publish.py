"""Section 3: the answers to a publisher, takeover, the order in which segments close, and publishers that are lost."""

from __future__ import annotations

from tricklecast.app.tools.conformance.connection import AT_ONCE_S, ChunkedPost, RawConnection, encode_chunk
from tricklecast.app.tools.conformance.profiles import PATIENT, QUICK
from tricklecast.app.tools.conformance.response import check, equal
from tricklecast.app.tools.conformance.runner import Group, needs
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.trickle import wire

RESET = {wire.RESET: "1"}

_KEY = {wire.IDEMPOTENCY_KEY: "key-1"}
_FIRST = {wire.CLIENT: "first"}
_BESIDE_FIRST = {wire.CLIENT: "second", wire.IF_IDLE: "1"}
_SECOND_ATTEMPT = {**_KEY, wire.ATTEMPT: "2"}


class Publish(Group, section="3. Publish"):
    @needs("no-autocreate")
    def missing_channel_is_refused_before_the_body(self, c: RemoteChannel) -> None:
        """Without autocreate, a POST to a missing channel is 404 `Stream not found` at once, its body unread."""
        c.upload(0).last().unknown()

    @needs("no-autocreate")
    def missing_channel_is_not_created(self, c: RemoteChannel) -> None:
        """Without autocreate, a refused POST creates no channel."""
        c.post(0).unknown()
        c.get("next").unknown()

    def body_with_bytes_is_stored(self, c: RemoteChannel) -> None:
        """A body that ends after at least one byte is 200 with `Lp-Trickle-Seq` and `Lp-Trickle-Size`."""
        c.upload(0, b"four", b"five5").stored(seq=0, size=9)
        c.has(0, b"fourfive5")

    def counted_body_is_stored(self, c: RemoteChannel) -> None:
        """A body with Content-Length is stored like a chunked one."""
        c.post(0, b"counted").expect(200, seq=0, size=7)
        c.has(0, b"counted")

    def connection_stays_open_after_a_stored_segment(self, c: RemoteChannel) -> None:
        """After a stored segment the connection stays open and takes the next POST, chunked or counted."""
        upload = c.upload(0, b"a")
        upload.stored().keeps_open()
        connection = upload.connection
        connection.request("POST", c.at(1), body=b"b")
        connection.expect(200).keeps_open()
        connection.request("POST", c.at(2), body=b"c")
        connection.expect(200, seq=2)

    def zero_byte_close_advances_the_head(self, c: RemoteChannel) -> None:
        """A body that ends with 0 bytes is 200 with Seq and `Connection: close`; the head moves past the segment."""
        c.publish(0).upload(1).end().last(200, seq=1)
        c.head_is(2).get(1).empty(1)

    def counted_zero_bytes_advance_the_head(self, c: RemoteChannel) -> None:
        """`Content-Length: 0` is a body that ends with 0 bytes."""
        c.target.send("POST", c.at(0), body=b"").last(200, seq=0)
        c.head_is(1)

    def no_body_at_all_advances_the_head(self, c: RemoteChannel) -> None:
        """A POST with neither Content-Length nor Transfer-Encoding has a body of 0 bytes."""
        c.target.send("POST", c.at(0)).last(200, seq=0)
        c.head_is(1)

    def segment_closed_before_the_first_byte(self, c: RemoteChannel) -> None:
        """A preconnect whose segment another client closes gets the zero-byte answer at once, its body unread."""
        upload = c.preconnect(0).silent()
        c.close(0).expect(200)
        upload.last(200, seq=0, closed=None)

    def segment_deleted_mid_body(self, c: RemoteChannel) -> None:
        """A segment deleted mid-body answers its publisher at once: 200, Seq, Size, `Connection: close`."""
        upload, _ = c.started(0, b"part")
        c.close(0).expect(200)
        upload.last(200, seq=0, size=4, closed=None)

    def segment_reset_mid_body(self, c: RemoteChannel) -> None:
        """A segment closed by a later publisher's reset answers its own publisher like a deleted one."""
        upload, _ = c.started(0, b"part")
        c.post(1, b"new", RESET).expect(200)
        upload.last(200, seq=0, size=4)

    def minus_one_is_never_shared(self, c: RemoteChannel) -> None:
        """Two concurrent `POST -1` get different seqs: the request reserves the seq, not its first byte."""
        c.create()
        uploads = [c.upload(-1), c.upload(-1)]
        c.target.settle()
        for upload in uploads:
            upload.chunk(b"x").end()
        equal("the seqs", {upload.answer().expect(200).number(wire.SEQ) for upload in uploads}, {0, 1})

    @needs(*PATIENT)
    def aborted_preconnect_changes_nothing(self, c: RemoteChannel) -> None:
        """A preconnect that breaks off leaves the head where it was and the segment to the next publisher."""
        c.lose(c.create().preconnect(0))
        reader = c.head_is(0).waiting(0).silent()
        c.publish(0, b"second try")
        reader.segment(0, b"second try")


class Ahead(Group, section="3. Publish"):
    def far_ahead_is_470_before_the_body(self, c: RemoteChannel) -> None:
        """A seq beyond head + 1 is 470 with Latest, Seq and `Connection: close` at once, its body unread."""
        c.publish(0).upload(3).last().refused(470, latest=1, seq=3)

    def refused_seq_changes_nothing(self, c: RemoteChannel) -> None:
        """After a 470 the head is what it was, and the seq does not exist."""
        c.publish(0).post(3).expect(470)
        c.head_is(1).get(3).missing(1, 3)

    def one_ahead_is_accepted(self, c: RemoteChannel) -> None:
        """A seq of head + 1 is accepted: publishers preconnect one ahead."""
        upload = c.publish(0).preconnect(2).silent()
        c.publish(1)
        upload.chunk(b"two").stored(seq=2)
        c.has(2, b"two")

    def new_channel_starts_anywhere(self, c: RemoteChannel) -> None:
        """Before the first byte of a channel any seq is accepted: a publisher resumes its numbering."""
        c.create().publish(700, b"resumed").head_is(701).has(700, b"resumed")

    def reset_jumps_ahead(self, c: RemoteChannel) -> None:
        """With `Lp-Trickle-Reset` any seq from the head on is accepted."""
        c.publish(0).post(50, b"jumped", RESET).expect(200)
        c.head_is(51).has(50, b"jumped")

    def empty_reset_is_none(self, c: RemoteChannel) -> None:
        """`Lp-Trickle-Reset` without a value is no reset: a seq beyond head + 1 is 470."""
        c.publish(0).post(50, b"x", {wire.RESET: ""}).expect(470)


class Repeated(Group, section="3. Publish"):
    def closed_segment_is_409_before_the_body(self, c: RemoteChannel) -> None:
        """A POST to a closed segment is 409 with `Lp-Trickle-Latest` at once, before any of its body."""
        c.publish(0, b"first", b"second").upload(0).answer().refused(409, latest=2)

    def closed_segment_is_not_changed(self, c: RemoteChannel) -> None:
        """A POST that is answered 409 stores nothing."""
        c.publish(0, b"first").post(0, b"second").expect(409)
        c.has(0, b"first").head_is(1)

    def empty_segment_is_closed_too(self, c: RemoteChannel) -> None:
        """A segment that closed empty stays so: a POST to it is 409."""
        c.publish(0, b"").post(0, b"late").expect(409)
        c.get(0).empty(0)

    def same_key_is_200(self, c: RemoteChannel) -> None:
        """A repeated POST is 200 if its `Idempotency-Key` wrote the segment to its end; it stores nothing twice."""
        c.post(0, b"once", _KEY).expect(200)
        c.post(0, b"once", _KEY).expect(200)
        c.has(0, b"once").head_is(1)

    def other_key_is_409(self, c: RemoteChannel) -> None:
        """Another `Idempotency-Key`, or none, gets the 409."""
        c.post(0, b"mine", _KEY).expect(200)
        c.post(0, b"theirs", {wire.IDEMPOTENCY_KEY: "key-2"}).expect(409)
        c.post(0, b"theirs").expect(409)
        c.has(0, b"mine")

    def same_key_of_an_empty_segment_is_200(self, c: RemoteChannel) -> None:
        """A repeated POST is 200 also if the same key closed the segment without a byte."""
        c.post(0, b"", _KEY).expect(200)
        c.post(0, b"", _KEY).expect(200)
        c.head_is(1)

    def retry_goes_on_where_its_body_broke_off(self, c: RemoteChannel) -> None:
        """A POST with the key of an unfinished segment is the same body from its start: no byte is stored twice."""
        first, reader = c.started(0, b"abc", headers=_KEY)
        first.abort()
        c.upload(0, b"ab", b"cdef", headers=_KEY).stored(size=6)
        reader.ends(b"def")

    def retry_takes_over_from_a_half_dead_connection(self, c: RemoteChannel) -> None:
        """A retry ends the earlier attempt with 409 at once, and the server drops its late bytes."""
        first, _ = c.started(0, b"abc", headers=_KEY)
        retry = c.upload(0, b"abc", headers=_SECOND_ATTEMPT)
        first.answer().refused(409)
        first.connection.try_send(encode_chunk(b"late"))
        retry.chunk(b"def").stored(size=6)
        c.has(0, b"abcdef")

    def overtaken_attempt_is_409(self, c: RemoteChannel) -> None:
        """A first attempt that arrives after the second one does not take the segment back."""
        retry, _ = c.started(0, b"abc", headers=_SECOND_ATTEMPT)
        c.upload(0, b"abc", headers=_KEY).answer().refused(409)
        retry.stored()

    def key_behind_which_others_wrote_is_409(self, c: RemoteChannel) -> None:
        """A retry is refused after another publisher's bytes followed, because it would double its own."""
        c.started(0, b"mine", headers=_KEY)
        theirs = c.upload(0, b"theirs")
        c.arrived(0, b"minetheirs")
        c.upload(0, headers=_KEY).answer().refused(409)
        theirs.stored()
        c.has(0, b"minetheirs")

    def retry_that_ends_too_early_is_409(self, c: RemoteChannel) -> None:
        """A retry whose body is shorter than its stored bytes is another body, and does not complete the segment."""
        _, reader = c.started(0, b"abc", headers=_KEY)
        c.upload(0, b"ab", headers=_KEY).end().answer().refused(409, size=3)
        c.upload(0, b"abcd", headers=_KEY).stored()
        reader.ends(b"d")

    def segment_closed_by_request_is_409_to_its_key(self, c: RemoteChannel) -> None:
        """A retry of a body that a DELETE cut off is 409: the server does not have all of it."""
        c.started(0, b"abc", headers=_KEY)
        c.close(0).expect(200)
        c.post(0, b"abcdef", _KEY).expect(409)

    def segment_closed_as_a_part_is_truncated(self, c: RemoteChannel) -> None:
        """DELETE of a segment with `Lp-Trickle-Truncated` closes it truncated: its readers learn that it is a part."""
        upload, reader = c.started(0, b"part")
        c.close(0, {wire.TRUNCATED: "dropped"}).expect(200)
        upload.last(200, seq=0, size=4)
        reader.rest()
        c.get(0).truncated()

    @needs("small-segments")
    def same_key_of_a_truncated_segment_is_409(self, c: RemoteChannel) -> None:
        """A key that did not write its segment complete does not turn a repetition into a success."""
        _overflow(c, c.upload(0, headers=_KEY)).answer().expect(413)
        c.post(0, b"again", _KEY).expect(409)


class Occupied(Group, section="3. Publish"):
    def publisher_beside_another_is_409(self, c: RemoteChannel) -> None:
        """A POST with `Lp-Trickle-If-Idle` is 409 at once while another client has one open: who, and for how long."""
        c.started(0, b"live", headers=_FIRST)
        refused = c.upload(1, headers=_BESIDE_FIRST).last().refused(409, latest=1)
        equal(wire.PUBLISHER, refused.get(wire.PUBLISHER), "first")
        check(refused.number(wire.PUBLISHING_FOR) < 60, "the seconds that it has published", refused)

    def publisher_beside_a_preconnect_is_409(self, c: RemoteChannel) -> None:
        """A preconnect counts, before the channel has a byte."""
        c.upload(0, headers=_FIRST)
        c.target.settle()
        c.post(0, b"x", _BESIDE_FIRST).refused(409, latest=0)
        c.head_is(0)

    def publisher_after_another_is_told_when_to_come(self, c: RemoteChannel) -> None:
        """A client that has just published and holds no request counts for some seconds, which Retry-After names."""
        c.post(0, b"x", _FIRST).expect(200)
        check(c.post(1, b"x", _BESIDE_FIRST).expect(409).number("Retry-After") >= 1, "seconds", 0)

    def publisher_after_one_that_left_is_let_in(self, c: RemoteChannel) -> None:
        """A client that says with `Lp-Trickle-Leave` that it leaves does not count, whatever it still has open."""
        c.post(0, b"x", _FIRST).expect(200)
        c.upload(1, headers=_FIRST)
        c.target.settle()
        c.post(1, b"y", _BESIDE_FIRST).refused(409, latest=1)
        c.close(0, {**_FIRST, wire.TRUNCATED: "left", wire.LEAVE: "1"}).expect(200)
        c.post(1, b"y", _BESIDE_FIRST).expect(200)

    def own_requests_are_not_another_client(self, c: RemoteChannel) -> None:
        """A client's own requests never refuse it, even if both carry the header."""
        first, _ = c.started(0, b"a", headers={**_FIRST, wire.IF_IDLE: "1"})
        c.post(1, b"b", {**_FIRST, wire.IF_IDLE: "1"}).expect(200)
        first.stored()

    def without_the_header_publishers_take_over(self, c: RemoteChannel) -> None:
        """A POST without the header is served beside another client's, as ever."""
        first, _ = c.started(0, b"live", headers=_FIRST)
        c.post(1, b"x", {wire.CLIENT: "second"}).expect(200)
        first.stored()

    def live_channel_is_not_ended_by_another(self, c: RemoteChannel) -> None:
        """DELETE of the channel with the header is 409 while another client publishes, and ends nothing."""
        first, _ = c.started(0, b"live", headers=_FIRST)
        c.ask("DELETE", _BESIDE_FIRST).refused(409, latest=1)
        first.stored()
        c.ask("DELETE", {**_FIRST, wire.IF_IDLE: "1"}).expect(200)


class Pinned(Group, section="3. Publish"):
    def publisher_of_another_epoch_is_409(self, c: RemoteChannel) -> None:
        """A POST with a former epoch is 409 with the present one, at once, and changes nothing."""
        c.publish(0).end()
        c.publish(0, b"new").head_is(1)
        refused = c.upload(1, headers={wire.EPOCH: "1"}).last().refused(409, latest=1)
        equal(wire.EPOCH, refused.number(wire.EPOCH), 2)
        c.post(0, b"old", {wire.EPOCH: "1", wire.RESET: "1"}).refused(409, latest=1)
        c.head_is(1).has(0, b"new")

    def publisher_of_the_present_epoch_is_served(self, c: RemoteChannel) -> None:
        """A POST and a DELETE with the channel's epoch are served as those without."""
        c.publish(0).post(1, b"x", {wire.EPOCH: "1"}).expect(200, seq=1)
        c.close(1, {wire.EPOCH: "1"}).expect(200)
        c.ask("DELETE", {wire.EPOCH: "1"}).expect(200)

    def answer_tells_the_epoch_to_publishers_that_can_use_it(self, c: RemoteChannel) -> None:
        """The 200 to a POST that names its numbering has the epoch, unless the POST has it; no other 200 has."""
        for seq, headers, epoch in (
            (0, {wire.LIFE: "mine:0"}, "1"),
            (1, {wire.LIFE: "mine:0", wire.EPOCH: "1"}, None),
            (2, {}, None),
        ):
            equal("the epoch", c.post(seq, b"x", headers).expect(200).get(wire.EPOCH), epoch)

    def publisher_of_an_epoch_that_has_ended_begins_none(self, c: RemoteChannel) -> None:
        """A POST of seq 0 with the epoch of an ended channel is 404 with Closed, of an unknown one 404; none begins."""
        c.post(0, b"x", {wire.EPOCH: "1"}).unknown()
        c.publish(0).end()
        c.post(0, b"late", {wire.EPOCH: "1"}).unknown(latest=1, epoch=1).ended()
        equal("the next epoch", c.publish(0).get(0).number(wire.EPOCH), 2)

    def delete_of_another_epoch_ends_nothing(self, c: RemoteChannel) -> None:
        """DELETE of the channel, or of a segment, with a former epoch is 409."""
        c.publish(0).end()
        upload, _ = c.publish(0).started(1, b"live")
        c.ask("DELETE", {wire.EPOCH: "1"}).refused(409, latest=2)
        c.close(1, {wire.EPOCH: "1"}).refused(409, latest=2)
        upload.stored(seq=1, size=4)

    def epoch_that_is_no_number_is_400(self, c: RemoteChannel) -> None:
        """Anything but a number of at most 15 digits is 400, and creates no channel."""
        for value in ("one", "-1", "1" * 16):
            c.post(0, b"x", {wire.EPOCH: value}).expect(400)
        c.unknown()


def _overflow(c: RemoteChannel, upload: ChunkedPost) -> ChunkedPost:
    """Send one byte more than fits; the server may stop reading at any time."""
    for data in (b"l" * c.target.settings.max_segment_bytes, b"!"):
        upload.connection.try_send(encode_chunk(data))
    return upload


class TooLarge(Group, section="3. Publish"):
    @needs("small-segments")
    def chunked_segment_is_413(self, c: RemoteChannel) -> None:
        """A segment that grows beyond the limit is 413 with Seq and `Connection: close` while its body goes on."""
        _overflow(c, c.upload(0)).last().refused(413, seq=0)

    @needs("small-segments")
    def counted_segment_is_413(self, c: RemoteChannel) -> None:
        """A Content-Length beyond the limit is 413 with Seq and `Connection: close`."""
        size = c.target.settings.max_segment_bytes + 1
        connection = c.target.send("POST", c.at(0), {"Content-Length": str(size)})
        connection.try_send(b"l" * size)
        connection.last().refused(413, seq=0)

    @needs("small-segments")
    def segment_closes_truncated(self, c: RemoteChannel) -> None:
        """A segment that was too large closes truncated, and early and late readers learn it."""
        upload, reader = c.started(0, b"begin")
        _overflow(c, upload).answer().expect(413)
        reader.rest()
        late = c.get(0).expect(200).truncated().body
        fits = len(late) <= c.target.settings.max_segment_bytes
        check(late.startswith(b"begin") and fits, "the bytes up to the limit", late)

    @needs("small-segments")
    def segment_of_the_limit_is_stored(self, c: RemoteChannel) -> None:
        """A segment of exactly the limit is stored whole."""
        data = b"m" * c.target.settings.max_segment_bytes
        c.post(0, data).expect(200, size=len(data))
        c.get(0).segment(0, data).whole()


def _taken_over(c: RemoteChannel) -> tuple[ChunkedPost, ChunkedPost, RawConnection]:
    """A publisher that has lost its segment to another one, that other one, and a reader of the segment."""
    first, reader = c.started(0, b"first,")
    second = c.upload(0)
    first.answer().expect(409)
    return first, second, reader


class Takeover(Group, section="3. Publish"):
    def earlier_writer_is_409(self, c: RemoteChannel) -> None:
        """A POST that takes an open segment over: the earlier is 409 with Seq, Size and `Connection: close` at once."""
        first, _ = c.started(0, b"first")
        c.upload(0)
        first.last(409, seq=0, size=5)

    def earlier_preconnect_is_409(self, c: RemoteChannel) -> None:
        """A POST that takes over a segment without a byte: the earlier is 409 with Size 0."""
        first = c.preconnect(0)
        c.upload(0)
        first.last(409, seq=0, size=0)

    def bytes_follow_what_is_there(self, c: RemoteChannel) -> None:
        """The bytes of the POST that took a segment over follow the bytes of the earlier one."""
        _, second, reader = _taken_over(c)
        second.chunk(b"second").stored(seq=0)
        reader.ends(b"second")
        c.get(0).segment(0, b"first,second").whole()

    def late_bytes_are_dropped(self, c: RemoteChannel) -> None:
        """The server drops bytes that the earlier publisher sends after the takeover."""
        first, second, _ = _taken_over(c)
        first.connection.try_send(encode_chunk(b"late"))
        c.target.settle()
        second.chunk(b"second").stored()
        c.has(0, b"first,second")

    def stale_end_closes_nothing(self, c: RemoteChannel) -> None:
        """The end of the earlier publisher's body does not close the segment under its new publisher."""
        first, second, reader = _taken_over(c)
        first.connection.try_send(b"0\r\n\r\n")
        c.target.settle()
        reader.silent()
        second.chunk(b"second").stored()
        reader.ends(b"second")

    @needs(*QUICK)
    def stale_abort_closes_nothing(self, c: RemoteChannel) -> None:
        """The earlier publisher's connection breaking does not truncate the segment under its new publisher."""
        first, second, reader = _taken_over(c)
        c.lose(first)
        # Longer than the grace, if that is short enough to wait for.
        reader.silent(min(2 * c.target.settings.publisher_grace_s, 2.0))
        second.chunk(b"second").stored()
        reader.ends(b"second")


class Order(Group, section="3. Publish"):
    def segments_may_overlap(self, c: RemoteChannel) -> None:
        """An older open segment stays open for its publisher when a newer one begins, and when that one completes."""
        older, reader = c.started(0, b"older,")
        newer, _ = c.started(1, b"newer")
        older.chunk(b"goes on,")
        reader.gets(b"goes on,")
        newer.stored()
        older.chunk(b"and on").stored(size=20)
        reader.ends(b"and on")

    def first_byte_skips_older_segments_without_a_writer(self, c: RemoteChannel) -> None:
        """The first byte of a segment closes older ones without a publisher: readers get the empty answer at once."""
        reader = c.create().waiting(0)
        c.started(1, b"b")
        reader.response().empty(0, latest=2, closed=None)

    def what_nobody_wrote_is_told_from_what_is_empty(self, c: RemoteChannel) -> None:
        """The empty answer calls a skipped segment truncated, and one that its publisher ended without a byte not."""
        skipped = c.create().waiting(0)
        c.started(1, b"b")
        skipped.response().empty(0).truncated()
        empty = c.target.channel()
        empty.publish(0, b"")
        empty.get(0).empty(0).whole()

    @needs(*PATIENT, within="skip_grace_s")
    def overtaken_preconnect_may_begin(self, c: RemoteChannel) -> None:
        """An overtaken preconnect has a grace to begin in, since two connections may overtake each other."""
        older = c.preconnect(0)
        reader = c.waiting(0)
        c.publish(1, b"newer")
        reader.silent()
        older.chunk(b"older").stored()
        reader.segment(0, b"older")

    @needs(*QUICK)
    def overtaken_preconnect_is_skipped_in_the_end(self, c: RemoteChannel) -> None:
        """An overtaken preconnect that does not begin in its grace is skipped: both sides get the empty answer."""
        older = c.preconnect(0)
        reader = c.waiting(0)
        c.publish(1, b"newer")
        reader.response(c.target.settings.skip_grace_s + AT_ONCE_S).empty(0)
        older.last(200, seq=0)


class LostPublisher(Group, section="3. Publish"):
    @needs(*PATIENT, within="publisher_grace_s")
    def may_resume(self, c: RemoteChannel) -> None:
        """A publisher that breaks off mid-body may resume its segment with a new POST, for a grace."""
        first, reader = c.started(0, b"before,")
        c.lose(first)
        reader.silent()
        c.upload(0, b"after").stored()
        reader.ends(b"after")
        c.get(0).segment(0, b"before,after").whole()

    @needs(*QUICK)
    def leaves_a_truncated_segment(self, c: RemoteChannel) -> None:
        """After the grace the segment closes truncated: readers get the bytes so far, a clean end and the reason."""
        upload, reader = c.started(0, b"part")
        upload.abort()
        reader.ends(within_s=c.target.settings.publisher_grace_s + AT_ONCE_S).truncated()
        c.get(0).segment(0, b"part").truncated()

    @needs(*PATIENT)
    def is_overtaken_by_a_later_segment(self, c: RemoteChannel) -> None:
        """The segment of a lost publisher closes truncated as soon as a later segment completes."""
        upload, reader = c.started(0, b"part")
        c.lose(upload)
        c.publish(1, b"later")
        reader.ends()
        c.get(0).segment(0, b"part").truncated()

    @needs(*QUICK)
    def counted_body_cut_short_is_not_complete(self, c: RemoteChannel) -> None:
        """A body that ends before its Content-Length is a lost publisher, not a complete segment."""
        connection = c.target.send("POST", c.at(0), {"Content-Length": "10"}, b"half")
        reader = c.arrived(0, b"half")
        connection.close()
        reader.ends(within_s=c.target.settings.publisher_grace_s + AT_ONCE_S)
        c.get(0).segment(0, b"half").truncated()


class Reset(Group, section="3. Publish"):
    def closes_lower_open_segments(self, c: RemoteChannel) -> None:
        """`Lp-Trickle-Reset` closes all lower open segments: their readers get the bytes so far and a clean end."""
        _, reader_0 = c.started(0, b"zero")
        _, reader_1 = c.started(1, b"one")
        c.post(2, b"two", RESET).expect(200)
        reader_0.ends()
        reader_1.ends()
        c.has(2, b"two")

    def never_lowers_the_head(self, c: RemoteChannel) -> None:
        """`Lp-Trickle-Reset` on a seq below the head does not bring the head back, nor closed segments to life."""
        c.publish(0, b"a", b"b", b"c").post(0, b"again", RESET).expect(409)
        c.head_is(3).has(0, b"a")

    def without_a_value_closes_nothing(self, c: RemoteChannel) -> None:
        """`Lp-Trickle-Reset` without a value leaves lower open segments open."""
        upload, reader = c.started(0, b"open,")
        c.post(1, b"next", {wire.RESET: ""}).expect(200)
        upload.chunk(b"still").stored()
        reader.ends(b"still")


class IdlePublisher(Group, section="3. Publish"):
    def is_not_timed_out(self, c: RemoteChannel) -> None:
        """A preconnect may wait without limit: no final answer comes before its body, an end or a takeover."""
        c.preconnect(0).silent().chunk(b"late").stored(size=4)
