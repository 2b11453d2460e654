"""Sections 1 and 2: head and epoch, the routes, names and seqs, other methods, browsers, and the changefeed."""

from __future__ import annotations

import json
import time

from tricklecast.app.tools.conformance.connection import AT_ONCE_S
from tricklecast.app.tools.conformance.profiles import PATIENT, QUICK
from tricklecast.app.tools.conformance.response import Failure, Response, check
from tricklecast.app.tools.conformance.runner import Group, each, needs
from tricklecast.app.tools.conformance.target import RemoteChannel, Target
from tricklecast.trickle import wire

_ORIGIN = "https://player.example"


class Head(Group, section="1. Words"):
    def starts_at_zero(self, c: RemoteChannel) -> None:
        """The head of a new channel is 0."""
        c.create().head_is(0)

    def moves_with_the_first_byte(self, c: RemoteChannel) -> None:
        """The head is one past the newest segment that got its first byte, also while that segment is open."""
        c.started(0, b"a")
        c.head_is(1)

    def does_not_move_for_a_preconnect(self, c: RemoteChannel) -> None:
        """A POST whose body has not begun does not move the head."""
        c.publish(0).preconnect(1)
        c.preconnect(2)
        c.head_is(1)

    @needs(*PATIENT, within="skip_grace_s")
    def never_decreases(self, c: RemoteChannel) -> None:
        """Bytes for an older segment do not bring the head back."""
        older = c.preconnect(0)
        c.started(1, b"b")
        older.chunk(b"a")
        c.arrived(0, b"a")
        c.head_is(2)
        older.stored()
        c.head_is(2)

    def epoch_of_a_new_name_is_one(self, c: RemoteChannel) -> None:
        """The first epoch of a name is 1."""
        c.publish(0).get(0).expect(epoch=1)


class Routes(Group, section="2. Routes"):
    def post_channel_creates_it(self, c: RemoteChannel) -> None:
        """`POST /{channel}` creates the channel."""
        c.unknown()
        c.create().get("next").expect(200)

    def create_takes_the_mime_from_expect_content(self, c: RemoteChannel) -> None:
        """`POST /{channel}` takes the channel's media type from `Expect-Content`."""
        c.create(mime="video/mp2t").publish(0).get(0).expect(content_type="video/mp2t")

    def create_is_idempotent(self, c: RemoteChannel) -> None:
        """Creating a channel that exists is 200 and leaves its segments and head alone."""
        c.create().publish(0, b"kept").create().head_is(1).has(0, b"kept")

    def create_never_changes_a_mime(self, c: RemoteChannel) -> None:
        """A second `POST /{channel}` with another `Expect-Content` leaves the media type as it was."""
        c.create(mime="video/mp2t").create(mime="application/json").publish(0)
        c.get(0).expect(content_type="video/mp2t")

    def post_segment_autocreates_the_channel(self, c: RemoteChannel) -> None:
        """`POST /{channel}/{seq}` creates a missing channel where the server allows it."""
        c.publish(0, b"first").has(0, b"first")

    def published_bytes_are_read_back_unchanged(self, c: RemoteChannel) -> None:
        """`GET /{channel}/{seq}` gives the published bytes, each of the 256 values of them."""
        data = bytes(range(256)) * 300
        c.publish(0, data).has(0, data)

    def post_minus_one_takes_the_head(self, c: RemoteChannel) -> None:
        """`POST /{channel}/-1` publishes at the head and answers with that seq."""
        for seq in range(3):
            c.post(-1, b"n%d" % seq).expect(200, seq=seq)
            c.has(seq, b"n%d" % seq)

    def get_waits_for_the_next_segment(self, c: RemoteChannel) -> None:
        """`GET /{channel}/{seq}` of the next segment waits for it instead of failing."""
        reader = c.publish(0).waiting(1).silent()
        c.publish(1, b"later")
        reader.segment(1, b"later")

    def next_answers_the_head_as_text_and_header(self, c: RemoteChannel) -> None:
        """`GET /{channel}/next` answers the head as text and in `Lp-Trickle-Latest`."""
        c.publish(0, b"a", b"b", b"c").head_is(3).get("next").expect(200, latest=3)

    def delete_segment_closes_it(self, c: RemoteChannel) -> None:
        """`DELETE /{channel}/{seq}` closes the segment: its reader gets the bytes so far and a clean end."""
        _, reader = c.started(0, b"part")
        c.close(0).expect(200)
        reader.ends()
        c.has(0, b"part")

    def delete_of_a_waiting_segment_moves_the_head(self, c: RemoteChannel) -> None:
        """Closing the segment at the head before its first byte moves the head past it."""
        c.publish(0).preconnect(1)
        reader = c.waiting(1)
        c.close(1).expect(200)
        reader.response().empty(1)
        c.head_is(2)

    def delete_channel_ends_it(self, c: RemoteChannel) -> None:
        """`DELETE /{channel}` ends the channel, and is exactly 200, because clients in the field check for it."""
        c.create().end()
        c.get(-1).ended()

    def double_slash_is_served_not_redirected(self, c: RemoteChannel) -> None:
        """`//channel/0` is served as `/channel/0`; a redirect would kill a streaming POST."""
        doubled = f"{c.target.base}//{c.name}/0"
        c.target.ask("POST", doubled, body=b"doubled").expect(200)
        c.has(0, b"doubled")
        c.target.ask("GET", doubled).segment(0, b"doubled")

    def query_strings_are_ignored(self, c: RemoteChannel) -> None:
        """A query string, as cache-busters add it, changes nothing on any segment route."""
        query = "?t=1&a/b=../c"
        c.target.ask("POST", c.path + query, body=b"").expect(200)
        c.post(f"0{query}", b"data").expect(200)
        c.get(f"0{query}").segment(0, b"data")
        c.get(f"next{query}").expect(latest=1)
        c.close(f"0{query}").expect(200)
        c.target.ask("DELETE", c.path + query).expect(200)

    @needs("default")
    def outside_the_base_path_are_no_channels(self, c: RemoteChannel) -> None:
        """A path that is not below the base path belongs to the control plane and publishes nothing."""
        c.target.ask("POST", f"/{c.name}/0", body=b"x").expect(404, 405)
        c.unknown()

    @needs("root")
    @each(*((word, word, word) for word in ("api", "metrics", "healthz", "readyz", "docs")))
    def root_base_path_keeps_X(self, c: RemoteChannel, word: str) -> None:
        """With base path `/`, `{}` belongs to the control plane and is refused as a channel name."""
        response = c.target.ask("POST", f"/{word}/0", body=b"x")
        check(400 <= response.status < 500, "a refusal", response)
        check(c.target.ask("GET", f"/{word}/next").get(wire.LATEST) is None, "no channel of that name", word)


def _refused_everywhere(target: Target, name: str) -> None:
    for method, tail, body in (("POST", "/0", b"x"), ("GET", "/0", None), ("DELETE", "/0", None), ("POST", "", b"")):
        target.ask(method, f"{target.base}/{name}{tail}", body=body).refused(400)


class Names(Group, section="2. Routes"):
    def are_percent_decoded(self, c: RemoteChannel) -> None:
        """A name and its percent-encoded spelling are the same channel."""
        spelled = "".join(f"%{byte:02X}" for byte in c.name.encode())
        c.publish(0, b"same")
        c.target.ask("GET", f"{c.target.base}/{spelled}/0").segment(0, b"same")

    def may_hold_spaces_and_any_letters(self, c: RemoteChannel) -> None:
        """A name may hold spaces, punctuation and letters of any script."""
        channel = c.target.channel(f"{c.name} \u00e9\u4e16 a+b.c;d=1")
        channel.publish(0).has(0, b"x")

    def of_255_bytes_are_allowed(self, c: RemoteChannel) -> None:
        """A name has up to 255 bytes, counted after percent-decoding."""
        for filler in ("x" * 255, "\u00e9" * 128):
            channel = c.target.channel((c.name + filler).encode()[:255].decode("utf-8", "ignore"))
            channel.publish(0).has(0, b"x")

    def of_256_bytes_are_refused(self, c: RemoteChannel) -> None:
        """A name of 256 bytes after percent-decoding is 400."""
        for name in (f"{c.name:x<256}", c.name + "%C3%A9" * ((257 - len(c.name)) // 2)):
            _refused_everywhere(c.target, name)

    @each(
        ("encoded-slash", "a percent-encoded slash", "a%2Fb"),
        ("dotdot", "`..`", ".."),
        ("encoded-dotdot", "a percent-encoded `..`", "%2e%2E"),
        ("dotdot-inside", "`..` somewhere inside", "a..b"),
        ("nul", "a NUL", "a%00b"),
        ("line-feed", "a line feed", "a%0Ab"),
        ("carriage-return", "a carriage return", "a%0Db"),
        ("delete", "the control character DEL", "a%7Fb"),
    )
    def X_is_refused(self, c: RemoteChannel, name: str) -> None:
        """A name that holds {} is 400 on every route."""
        _refused_everywhere(c.target, name)

    def of_the_server_are_not_written(self, c: RemoteChannel) -> None:
        """Every write to a name that begins with `_` is 403."""
        server = RemoteChannel(c.target, f"_{c.name}")
        answers = [server.ask("POST", body=b""), server.post(0), server.post(-1), server.close(0), server.ask("DELETE")]
        for answer in answers:
            answer.refused(403)

    def of_the_server_may_be_read(self, c: RemoteChannel) -> None:
        """Reading a name that begins with `_` is allowed: a missing one is 404, not 403."""
        RemoteChannel(c.target, f"_{c.name}").get(0).refused(404)


class Seqs(Group, section="2. Routes"):
    def may_have_fifteen_digits(self, c: RemoteChannel) -> None:
        """A seq has up to 15 digits."""
        c.publish(0).get("9" * 15).missing(1, 999_999_999_999_999)

    def may_have_leading_zeros(self, c: RemoteChannel) -> None:
        """Leading zeros follow the grammar: `007` is 7."""
        c.publish(7, b"seven").get("007").segment(7, b"seven")

    @each(
        ("sixteen-digits-are", "16 digits", "1" * 16),
        ("plus-is", "A plus sign", "+1"),
        ("fraction-is", "A fraction", "1.0"),
        ("exponent-is", "An exponent", "1e3"),
        ("underscore-is", "An underscore between digits", "1_0"),
        ("letters-are", "A word", "abc"),
        ("lone-minus-is", "A lone minus", "-"),
        ("double-minus-is", "A double minus", "--1"),
        ("space-is", "A percent-encoded space before a digit", "%201"),
        ("hexadecimal-is", "A hexadecimal number", "0x1"),
        ("unicode-digits-are", "A percent-encoded Arabic digit", "%D9%A1"),
        ("fullwidth-digits-are", "A percent-encoded full-width digit", "%EF%BC%91"),
    )
    def X_refused(self, c: RemoteChannel, seq: str) -> None:
        """{} in place of a seq is 400 `Invalid idx` on every route, and creates no channel."""
        c.post(seq).refused(400, "Invalid idx")
        c.unknown()
        c.create().get(seq).refused(400, "Invalid idx")
        c.close(seq).refused(400, "Invalid idx")
        c.head_is(0)

    def negative_ones_are_not_published(self, c: RemoteChannel) -> None:
        """POST takes -1 or a seq from 0 on; -2 is 400 and creates no channel."""
        c.post(-2).refused(400, "Invalid idx")
        c.unknown()

    def negative_ones_are_not_deleted(self, c: RemoteChannel) -> None:
        """DELETE takes a seq from 0 on; -1 is 400 and closes nothing."""
        upload, _ = c.started(0, b"a")
        c.close(-1).refused(400, "Invalid idx")
        upload.chunk(b"b").stored(size=2)

    def next_is_not_written(self, c: RemoteChannel) -> None:
        """`next` is for GET: a POST or DELETE of it is refused and creates no channel."""
        c.post("next").expect(400, 405)
        c.close("next").expect(400, 405)
        c.unknown()

    def empty_is_not_zero(self, c: RemoteChannel) -> None:
        """An empty text in place of a seq is not read as 0: a GET is refused."""
        c.publish(0).get("").expect(400, 404, 405)


class Methods(Group, section="2. Routes"):
    @each(
        ("put-of-a-segment", "PUT of a segment", "PUT", "/0", {"get", "post", "delete"}),
        ("put-of-a-channel", "PUT of a channel", "PUT", "", {"post", "delete"}),
        ("patch-of-a-segment", "PATCH of a segment", "PATCH", "/0", {"get", "post", "delete"}),
        ("patch-of-a-channel", "PATCH of a channel", "PATCH", "", {"post", "delete"}),
        ("get-of-a-channel", "GET of a channel, which cannot be read itself,", "GET", "", {"post", "delete"}),
    )
    def X_is_refused(self, c: RemoteChannel, method: str, tail: str, allowed: set[str]) -> None:
        """{} is 405 with `Allow`, and changes nothing."""
        c.publish(0, b"kept")
        body = None if method == "GET" else b""
        response = c.target.ask(method, c.path + tail, body=body).refused(405)
        check(allowed <= response.tokens("Allow"), f"Allow with {', '.join(sorted(allowed))}", response)
        c.has(0, b"kept")

    def head_of_a_segment_has_its_headers(self, c: RemoteChannel) -> None:
        """HEAD answers with the headers known now and no body; the connection goes on."""
        c.create(mime="video/mp2t").publish(0, b"data")
        connection = c.target.send("HEAD", c.at(0))
        connection.expect(200, seq=0, content_type="video/mp2t")
        connection.request("GET", c.at(0))
        connection.segment(0, b"data")

    def head_never_waits(self, c: RemoteChannel) -> None:
        """HEAD of a segment that a GET would wait for answers at once."""
        c.create()
        for seq in ("0", "-1", "-2"):
            c.target.ask("HEAD", c.at(seq))
        c.started(0, b"open")
        c.target.ask("HEAD", c.at(0))

    def head_of_a_missing_channel_is_404(self, c: RemoteChannel) -> None:
        """HEAD of a missing channel is 404, and creates none."""
        c.target.ask("HEAD", c.at(0)).expect(404)
        c.unknown()


def _preflight(c: RemoteChannel, method: str, path: str) -> Response:
    wanted = ("Expect-Content", "Content-Type", wire.RESET, "Authorization", wire.IDEMPOTENCY_KEY)
    headers = {
        "Origin": _ORIGIN,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": ", ".join(wanted).lower(),
    }
    return c.target.ask("OPTIONS", path, headers)


def _readable(response: Response) -> None:
    check(response.get("Access-Control-Allow-Origin") in ("*", _ORIGIN), "Access-Control-Allow-Origin", response)
    exposed = response.tokens("Access-Control-Expose-Headers")
    needed = {name.lower() for name in (wire.SEQ, wire.LATEST, wire.EARLIEST, wire.SIZE, wire.CLOSED, "Retry-After")}
    check(needed <= exposed or "*" in exposed, f"exposed: {', '.join(sorted(needed))}", response)


class Browsers(Group, section="2. Routes, 7. Clients in the field"):
    def preflight_allows_reading(self, c: RemoteChannel) -> None:
        """A CORS preflight for a GET allows any page, and each request header of the protocol by name."""
        response = _preflight(c, "GET", c.at(0)).expect(200, 204)
        origin = response.get("Access-Control-Allow-Origin")
        check(origin in ("*", _ORIGIN), f"Access-Control-Allow-Origin: * or {_ORIGIN}", response)
        needed = {"expect-content", "content-type", "lp-trickle-reset", "authorization", "idempotency-key"}
        allowed = response.tokens("Access-Control-Allow-Headers")
        check(needed <= allowed, f"Access-Control-Allow-Headers with {', '.join(sorted(needed))}", response)

    def preflight_does_not_allow_writing(self, c: RemoteChannel) -> None:
        """A CORS preflight for a POST or DELETE of another origin gives no permission, and creates nothing."""
        for method in ("POST", "DELETE"):
            for path in (c.at(0), c.path):
                response = _preflight(c, method, path)
                check(response.get("Access-Control-Allow-Origin") is None, "no Access-Control-Allow-Origin", response)
                allowed = response.tokens("Access-Control-Allow-Methods")
                check(method.lower() not in allowed, f"{method} not to be allowed", response)
        c.unknown()

    def pages_of_other_origins_do_not_write(self, c: RemoteChannel) -> None:
        """A POST or DELETE by a page of another origin is 403 and changes nothing; a simple POST needs no preflight."""
        c.publish(0, b"kept")
        page = {"Origin": _ORIGIN, "Content-Type": "text/plain"}
        for method, path in (("POST", c.at(1)), ("POST", c.path), ("DELETE", c.at(0)), ("DELETE", c.path)):
            c.target.ask(method, path, page, b"").refused(403)
        c.has(0, b"kept").head_is(1)

    def pages_of_the_same_origin_write(self, c: RemoteChannel) -> None:
        """A page whose origin is the server's own may publish and end a channel."""
        address = c.target.address
        page = {"Origin": f"{'http' if address.tls is None else 'https'}://{address.authority}"}
        c.post(0, b"own", page).expect(200)
        c.ask("DELETE", page).expect(200)

    def scripts_may_read_segments_and_headers(self, c: RemoteChannel) -> None:
        """Scripts of any page may read a segment, with the protocol's headers exposed."""
        _readable(c.publish(0, b"data").get(0, {"Origin": _ORIGIN}).expect(200))

    def scripts_may_read_refusals(self, c: RemoteChannel) -> None:
        """Scripts of any page may read a 470, too, because they need its headers to go on."""
        _readable(c.publish(0).get(9, {"Origin": _ORIGIN}).expect(470))


def _feed(c: RemoteChannel) -> RemoteChannel:
    return RemoteChannel(c.target, wire.CHANGEFEED)


def _changes(c: RemoteChannel, kind: str, start: int, within_s: float) -> list[dict[str, list[str]]]:
    """Read the changefeed from a seq on, up to the change of this kind that names the channel."""
    deadline = time.monotonic() + within_s
    seen: list[dict[str, list[str]]] = []
    for seq in range(start, start + 10_000):
        reader = _feed(c).read(seq)
        response = reader.response(max(0.1, deadline - time.monotonic())).expect(200)
        reader.close()
        try:
            change = json.loads(response.body)
        except ValueError:
            raise Failure("one JSON object per segment of the changefeed", repr(response.body)) from None
        check(isinstance(change, dict), "a JSON object", response.body)
        seen.append(change)
        if c.name in change.get(kind, []):
            break
    return seen


class Changefeed(Group, section="2. Routes"):
    def tells_of_new_channels(self, c: RemoteChannel) -> None:
        """`GET /_changes/{seq}` tells of each new channel as `{"added": [name]}`."""
        start = _feed(c).next_seq()
        c.create()
        _changes(c, "added", start, AT_ONCE_S)

    @needs(*QUICK)
    def tells_of_removed_channels(self, c: RemoteChannel) -> None:
        """`GET /_changes/{seq}` tells of each channel that is gone as `{"removed": [name]}`, after its `added`."""
        start = _feed(c).next_seq()
        c.create().end()
        seen = _changes(c, "removed", start, c.target.settings.channel_drain_s + AT_ONCE_S)
        check(any(c.name in change.get("added", []) for change in seen), "added before removed", seen)

    def is_waited_for_like_any_channel(self, c: RemoteChannel) -> None:
        """A GET of the changefeed's head waits for the next change."""
        reader = _feed(c).waiting(-1)
        c.create()
        change = json.loads(reader.expect(200).body)
        check(bool(change.get("added") or change.get("removed")), "a change", change)

    def is_not_written_by_others(self, c: RemoteChannel) -> None:
        """A client that writes to the changefeed gets 403."""
        _feed(c).post(-1, b"{}").refused(403)
        _feed(c).ask("DELETE").refused(403)
        _feed(c).get("next").expect(200)
