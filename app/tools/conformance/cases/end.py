"""Sections 5 to 7: the end of a channel, its drain and next epoch, refusals and limits, and clients in the field."""

from __future__ import annotations

import time

from tricklecast.app.tools.conformance.cases.publish import RESET
from tricklecast.app.tools.conformance.connection import AT_ONCE_S, RawConnection
from tricklecast.app.tools.conformance.profiles import PATIENT, QUICK
from tricklecast.app.tools.conformance.response import Failure, Skip, check, equal
from tricklecast.app.tools.conformance.runner import Group, needs
from tricklecast.app.tools.conformance.target import POLL_S, RemoteChannel
from tricklecast.trickle import wire


class End(Group, section="5. End of a channel"):
    def delete_of_a_missing_channel_is_400(self, c: RemoteChannel) -> None:
        """`DELETE` of a channel that never was is 400 `Invalid stream`."""
        c.ask("DELETE").refused(400, "Invalid stream")

    def waiting_readers_are_answered(self, c: RemoteChannel) -> None:
        """Readers that wait are answered at once with the empty answer and `Lp-Trickle-Closed: terminated`."""
        c.publish(0)
        readers = [c.waiting(-1), c.waiting(1)]
        c.end()
        for reader in readers:
            reader.response().empty(1).ended()

    def every_publisher_is_answered(self, c: RemoteChannel) -> None:
        """Every POST in flight is answered at once with `Lp-Trickle-Closed: terminated`, mid-body or idle."""
        writing, _ = c.started(0, b"part")
        idle = c.preconnect(1)
        c.end()
        writing.last(200, seq=0, size=4).ended()
        idle.last(200, seq=1).ended()

    def readers_mid_segment_get_a_clean_end(self, c: RemoteChannel) -> None:
        """Readers in the middle of a segment get the bytes so far and a final chunk."""
        _, reader = c.started(0, b"part")
        c.end()
        reader.ends()

    def preconnect_may_be_closed_first(self, c: RemoteChannel) -> None:
        """After a preconnect that closes before DELETE, a subscriber on -1 asks once more, and not in a loop."""
        upload = c.publish(0).preconnect(1)
        first = c.waiting(-1)
        upload.end()
        first.response().empty(1)
        second = c.waiting(-1).silent()
        c.end()
        second.response().empty(2).ended()

    def preconnect_may_be_aborted_first(self, c: RemoteChannel) -> None:
        """A publisher that aborts its preconnect before DELETE leaves a subscriber on -1 waiting until the end."""
        upload = c.publish(0).preconnect(1)
        reader = c.waiting(-1)
        c.lose(upload)
        reader.silent()
        c.end()
        reader.response().empty(1).ended()

    @needs(*PATIENT, within="channel_drain_s")
    def preconnect_may_be_closed_after(self, c: RemoteChannel) -> None:
        """A publisher that closes its preconnect after DELETE resurrects nothing: the channel stays ended."""
        upload = c.publish(0).preconnect(1)
        c.end()
        upload.connection.try_send(b"0\r\n\r\n")
        upload.answer().expect(200).ended()
        c.get(-1).expect(200).ended()


def _wait_until_forgotten(c: RemoteChannel) -> None:
    """Read a kept segment again and again until the server has forgotten the channel."""
    within_s = c.target.settings.channel_drain_s + AT_ONCE_S
    deadline = time.monotonic() + within_s
    while (response := c.get(0)).status != 404:
        response.expect(200)
        if time.monotonic() > deadline:
            raise Failure(f"404 after the drain, within {within_s:g} s", str(response))
        time.sleep(POLL_S)


class Drain(Group, section="5. End of a channel"):
    @needs(*PATIENT, within="channel_drain_s")
    def kept_segments_stay_readable(self, c: RemoteChannel) -> None:
        """While an ended channel drains, the segments that are kept stay readable."""
        c.publish(0, b"a", b"b").started(2, b"part")
        c.end()
        c.has(0, b"a").has(1, b"b").has(2, b"part")

    @needs(*PATIENT, within="channel_drain_s")
    def head_and_beyond_say_the_end(self, c: RemoteChannel) -> None:
        """While an ended channel drains, a GET at or past the head is 200 with `Lp-Trickle-Closed: terminated`."""
        c.publish(0).end()
        for seq in (-1, 1, 2, 1000):
            c.get(seq).expect(200).ended()

    @needs(*QUICK)
    def then_the_name_is_forgotten(self, c: RemoteChannel) -> None:
        """After the drain the name is forgotten: 404."""
        c.publish(0).end()
        _wait_until_forgotten(c)
        c.get(-1).unknown()
        c.get("next").unknown()

    @needs("no-drain")
    def of_zero_forgets_at_once(self, c: RemoteChannel) -> None:
        """With a drain of 0 the name is forgotten with the DELETE."""
        c.publish(0).end()
        c.get(0).unknown()
        c.get("next").unknown()

    @needs("no-drain")
    def of_zero_still_answers_those_in_flight(self, c: RemoteChannel) -> None:
        """With a drain of 0, too, readers that wait and publishers are told that the channel ends."""
        writing, reader = c.started(0, b"part")
        waiting = c.waiting(1)
        c.end()
        writing.last(200, seq=0, size=4).ended()
        reader.ends()
        waiting.response().empty(1).ended()


def _reborn(c: RemoteChannel, seq: int) -> None:
    c.has(seq, b"new", epoch=2).head_is(seq + 1)


class Rebirth(Group, section="5. End of a channel"):
    @needs(*PATIENT, within="channel_drain_s")
    def by_creating_the_channel(self, c: RemoteChannel) -> None:
        """During the drain `POST /{channel}` begins a new epoch, whose head is 0 and which knows no old segment."""
        c.publish(0, b"old", b"old").end()
        reader = c.create().head_is(0).waiting(0).silent()
        c.publish(0, b"new")
        reader.segment(0, b"new")
        _reborn(c, 0)

    @needs(*PATIENT, within="channel_drain_s")
    def by_publishing_segment_zero(self, c: RemoteChannel) -> None:
        """During the drain a POST of seq 0 begins a new epoch."""
        c.publish(0, b"old", b"old").end()
        c.publish(0, b"new")
        _reborn(c, 0)

    @needs(*PATIENT, within="channel_drain_s")
    def by_a_reset(self, c: RemoteChannel) -> None:
        """During the drain a POST with `Lp-Trickle-Reset` begins a new epoch, at any seq."""
        c.publish(0, b"old", b"old").end()
        c.post(7, b"new", RESET).expect(200)
        _reborn(c, 7)

    @needs(*PATIENT, within="channel_drain_s")
    def not_by_a_late_comer(self, c: RemoteChannel) -> None:
        """During the drain any other POST is a late-comer: 404 with `Lp-Trickle-Closed`, and resurrects nothing."""
        c.publish(0, b"a", b"b").end()
        for seq in (2, 3, -1):
            c.post(seq, b"late").refused(404).ended()
        c.get(-1).expect(200).ended()
        c.has(1, b"b")

    @needs(*PATIENT, within="channel_drain_s")
    def old_publisher_cannot_write_into_the_new_epoch(self, c: RemoteChannel) -> None:
        """A POST of the old epoch can neither write into the new one nor close its segments."""
        old, _ = c.started(0, b"old,")
        c.end()
        new, reader = c.started(0, b"new,")
        old.connection.try_send(b"4\r\nold!\r\n0\r\n\r\n")
        old.answer().expect(200).ended()
        old.connection.close()
        c.target.settle()
        reader.silent()
        new.chunk(b"new!").stored(size=8)
        reader.ends(b"new!")

    @needs(*QUICK)
    def survives_the_old_drain(self, c: RemoteChannel) -> None:
        """The end of the old epoch's drain does not take the new epoch with it."""
        witness = c.target.channel()
        c.publish(0, b"old").end()
        c.create().publish(0, b"new")
        witness.publish(0)
        witness.end()
        # The witness ended later with the same drain, so the old epoch's drain is over when the witness is forgotten.
        _wait_until_forgotten(witness)
        c.has(0, b"new")


class Expiry(Group, section="5. End of a channel"):
    @needs("idle")
    def idle_channel_ends(self, c: RemoteChannel) -> None:
        """A channel that is idle for long ends by itself: waiting readers are told like after a DELETE."""
        c.publish(0).read(1).response(c.target.settings.idle_timeout_s + AT_ONCE_S).empty(1).ended()

    @needs("idle")
    def bytes_of_a_long_segment_keep_it_alive(self, c: RemoteChannel) -> None:
        """The bytes of one long segment count as activity."""
        upload, reader = c.started(0, b"0")
        timeout_s = c.target.settings.idle_timeout_s
        start = last = time.monotonic()
        while (now := time.monotonic()) < start + 2.5 * timeout_s:
            if now - last > 0.75 * timeout_s:
                raise Skip("this machine is too slow to keep a channel busy")
            last = now
            upload.chunk(b"+")
            reader.gets(b"+")
            time.sleep(timeout_s / 8)
        upload.stored()

    @needs("idle")
    def names_of_the_server_are_exempt(self, c: RemoteChannel) -> None:
        """Names that begin with `_` do not expire: the changefeed outlives channels that do."""
        c.publish(0).read(1).response(c.target.settings.idle_timeout_s + AT_ONCE_S)
        RemoteChannel(c.target, wire.CHANGEFEED).get("next").expect(200)


_ENDLESS = 4 << 20
_PIECE = 1 << 16


def _flood(connection: RawConnection, prefix: bytes, filler: bytes) -> RawConnection:
    """Send far more than a server should accept, until the server stops reading."""
    pieces = [prefix] + [filler * (_PIECE // len(filler))] * (_ENDLESS // _PIECE)
    all(map(connection.try_send, pieces))
    return connection


class Lives(Group, section="5. End of a channel"):
    """`Lp-Trickle-Life`: of this server only, since no other has to send it."""

    @needs("patient")
    def every_answer_about_seqs_names_the_numbering(self, c: RemoteChannel) -> None:
        """A segment, an empty one, a 470, `/next`, HEAD and the answer after the end say the same."""
        c.publish(3, b"a", b"")
        life = c.get("next").expect(200).get(wire.LIFE) or ""
        check(life.endswith(":3"), "a name and the first seq", life)
        for seq in (3, 4, 0, 9):
            c.get(seq).expect(life=life)
        c.target.ask("HEAD", c.at(3)).expect(200, life=life)
        c.end()
        c.get(5).empty(5, life=life)

    @needs("patient")
    def a_channel_without_a_segment_names_no_beginning(self, c: RemoteChannel) -> None:
        """Until something is written, `Lp-Trickle-Life` is a name alone."""
        life = c.create().get("next").expect(200).get(wire.LIFE) or ":"
        check(":" not in life, "a name alone", life)

    @needs("patient")
    def a_publisher_goes_on_with_its_numbering(self, c: RemoteChannel) -> None:
        """The first POST that writes may name the numbering; a later one that has another name is told that one."""
        c.post(7, b"again", {wire.LIFE: "mine:2"}).expect(200, life=None)
        c.get(7).expect(200, life="mine:2")
        c.post(8, b"next", {wire.LIFE: "mine:2"}).expect(200, life=None)
        c.post(9, b"joins", {wire.LIFE: "theirs:0"}).expect(200, life="mine:2")

    @needs("patient")
    def what_is_no_name_is_passed_over(self, c: RemoteChannel) -> None:
        """A POST with a `Lp-Trickle-Life` that cannot be read is a POST without it."""
        c.post(0, b"x", {wire.LIFE: "not a name"}).expect(200, life=None)
        check(c.get(0).get(wire.LIFE) != "not a name", "the server's own name", "the publisher's")


class Refusals(Group, section="6. Refusals"):
    def are_one_line_of_text(self, c: RemoteChannel) -> None:
        """Every refusal is a status with a body of one line of text: 400, 403, 404, 405, 409 and 470 alike."""
        c.get(0).refused(404)
        c.publish(0).get("x").refused(400)
        RemoteChannel(c.target, f"_{c.name}").post(0).refused(403)
        c.target.ask("PUT", c.at(0), body=b"x").refused(405)
        c.post(0).refused(409)
        c.post(9).refused(470)
        c.get(9).refused(470)

    def change_nothing(self, c: RemoteChannel) -> None:
        """Refused requests leave head, epoch, media type and segments as they were."""
        before = c.create(mime="video/mp2t").publish(0, b"kept").get(0)
        refusals = [
            *(c.post(seq) for seq in (9, 0, "x", -7)),
            *(c.close(seq) for seq in ("x", -1)),
            *(c.get(seq) for seq in (9, "+1")),
            c.ask("PUT", {"Expect-Content": "text/plain"}, b""),
        ]
        for refused in refusals:
            check(refused.status >= 400, "a refusal", refused)
        after = c.get(0)
        equal("the body", after.body, before.body)
        for name in ("Content-Type", wire.LATEST, wire.EPOCH):
            equal(name, after.get(name), before.get(name))

    @needs("few-readers", alone=True)
    def too_many_readers_are_503(self, c: RemoteChannel) -> None:
        """A reader beyond the server-wide limit is 503 with `Retry-After`; the readers within it are not disturbed."""
        c.create()
        readers = [c.waiting(0) for _ in range(c.target.settings.max_readers)]
        c.get(0).busy()
        c.publish(0, b"served")
        for reader in readers:
            reader.segment(0, b"served")

    @needs("few-channels", alone=True)
    def too_many_channels_are_503(self, c: RemoteChannel) -> None:
        """A channel beyond the server-wide limit is 503 with `Retry-After`, by POST of it or of its first segment."""
        _fill_channels(c)
        c.target.channel().post(0).busy()
        c.target.channel().ask("POST", body=b"").busy()

    @needs("few-channels", alone=True)
    def channel_beyond_the_limit_does_not_exist(self, c: RemoteChannel) -> None:
        """A channel that was refused is not there, and is let in when others have made room."""
        made = _fill_channels(c)
        c.ask("POST", body=b"").busy()
        c.unknown()
        # All of them end, since a server may keep a reserve for publishers that resume.
        for channel in made:
            channel.end()
        c.create()

    def endless_url_is_414(self, c: RemoteChannel) -> None:
        """A URL that does not end is 414, or 431 where the server counts URL and headers together."""
        _flood(c.target.open(), f"GET {c.target.base}/".encode(), b"x").expect(414, 431)

    def endless_headers_are_431(self, c: RemoteChannel) -> None:
        """Headers that do not end are 431."""
        connection = c.target.open()
        filler = b"X-Filler: " + b"y" * 4084 + b"\r\n"
        _flood(connection, connection.render("GET", c.at(0))[:-2], filler).expect(431)

    def endless_header_value_is_431(self, c: RemoteChannel) -> None:
        """One header that does not end is 431."""
        connection = c.target.open()
        _flood(connection, connection.render("GET", c.at(0))[:-2] + b"X-Filler: ", b"y").expect(431)


def _fill_channels(c: RemoteChannel) -> list[RemoteChannel]:
    """Create channels until the server refuses one."""
    channels = [c.target.channel() for _ in range(c.target.settings.max_channels)]
    return [channel for channel in channels if channel.ask("POST", body=b"").status == 200]


class Reserve(Group, section="6. Refusals"):
    @needs("ten-readers", alone=True)
    def of_readers_is_for_those_who_resume(self, c: RemoteChannel) -> None:
        """From 80 % of the readers on, GET -1 and -2 are 503 until fewer than 60 % are left; GET of a seq is served."""
        first, second, third = c, c.target.channel(), c.target.channel()
        for channel in (first, second, third):
            channel.create()
        leaving = [first.waiting(0) for _ in range(3)]
        last = second.waiting(0)
        staying = [third.waiting(0) for _ in range(3)]
        # The server admits the eighth reader of ten, and from then on no new one.
        staying.append(third.waiting(-1))
        for seq in (-1, -2):
            first.get(seq).busy()
        staying.append(third.waiting(0))
        staying[-1].silent()
        first.publish(0, b"first")
        for reader in leaving:
            reader.expect(200)
        # Six readers are left: fewer than 80 %, but not fewer than 60 % yet.
        first.get(-2).busy()
        second.publish(0, b"second")
        last.expect(200)
        first.get(-2).segment(0, b"first")
        third.publish(0, b"third")
        for reader in staying:
            reader.segment(0, b"third")

    @needs("few-channels", alone=True)
    def of_channels_is_for_publishers_that_resume(self, c: RemoteChannel) -> None:
        """A server that refuses new channels accepts a POST of a seq above 0 to a channel that does not exist."""
        made, resumed = _fill_channels(c), c.target.channel()
        for seq in (0, -1):
            c.post(seq).busy()
        made[0].publish(0)
        resumed.publish(5)
        made[-1].end()
        c.post(0).busy()
        for channel in (*made[:-1], resumed):
            channel.end()
        c.post(0).expect(200)


_BETWEEN_MESSAGES_S = 11.0
"""A control channel writes every 10 s on a connection that must still be open."""

_UNTIL_HEADERS_S = 6.0
"""Common servers close a connection that is silent for five seconds."""


class Clients(Group, section="7. Clients in the field"):
    def first_post_may_reset(self, c: RemoteChannel) -> None:
        """A publisher may send `Lp-Trickle-Reset` with the first POST of a new channel."""
        c.post(0, b"first", RESET).expect(200, seq=0)
        c.has(0, b"first")

    def restarted_publisher_goes_on_at_the_head(self, c: RemoteChannel) -> None:
        """A publisher that restarts mid-segment asks `/next`, resets, and goes on; no reader is stuck."""
        lost, reader = c.publish(0).started(1, b"lost")
        lost.abort()
        c.get("next").expect(200, latest=2)
        c.post(2, b"goes on", RESET).expect(200)
        reader.ends()
        c.has(2, b"goes on")

    def idle_connections_are_kept(self, c: RemoteChannel) -> None:
        """A connection that is idle for more than 10 s after a segment takes the next one."""
        connection = c.target.send("POST", c.at(0), body=b"first")
        connection.expect(200).keeps_open()
        connection.silent(_BETWEEN_MESSAGES_S)
        connection.request("POST", c.at(1), body=b"second")
        connection.expect(200)
        c.has(1, b"second")

    def silent_connections_are_kept(self, c: RemoteChannel) -> None:
        """The server keeps a silent connection: some clients hold their headers back until the first byte."""
        connection = c.target.open()
        connection.silent(_UNTIL_HEADERS_S)
        connection.request("POST", c.at(0), body=b"late")
        connection.expect(200)
        c.has(0, b"late")
