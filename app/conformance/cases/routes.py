"""Section 1 and 2: the words head and epoch, and what each route does."""

from __future__ import annotations

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.profiles import PATIENT
from tricklecast.app.conformance.target import Target
from tricklecast.trickle import wire

HEAD = Group("head", "1. Words")
ROUTES = Group("routes", "2. Routes")


@HEAD.case()
def starts_at_zero(target: Target) -> None:
    """The head of a new channel is 0."""
    channel = target.channel()
    channel.create()
    expect.equal("the head", channel.next_seq(), 0)


@HEAD.case()
def moves_with_the_first_byte(target: Target) -> None:
    """The head is one past the newest segment that got its first byte, also while that segment is open."""
    channel = target.channel()
    channel.started(0, b"a")
    expect.equal("the head", channel.next_seq(), 1)


@HEAD.case()
def does_not_move_for_a_preconnect(target: Target) -> None:
    """A POST whose body has not begun does not move the head."""
    channel = target.channel()
    channel.publish(0)
    channel.preconnect(1)
    channel.preconnect(2)
    expect.equal("the head", channel.next_seq(), 1)


@HEAD.case(profiles=PATIENT)
def never_decreases(target: Target) -> None:
    """Bytes for an older segment do not bring the head back."""
    channel = target.channel()
    with target.within(target.settings.skip_grace_s):
        older = channel.preconnect(0)
        channel.started(1, b"b")
        older.chunk(b"a")
        channel.arrived(0, b"a")
        expect.equal("the head", channel.next_seq(), 2)
        older.end()
        expect.status(older.answer(), 200)
    expect.equal("the head", channel.next_seq(), 2)


@HEAD.case()
def epoch_of_a_new_name_is_one(target: Target) -> None:
    """The first life of a name is epoch 1."""
    channel = target.channel()
    channel.publish(0)
    expect.header(channel.get(0), wire.EPOCH, 1)


@HEAD.case(profiles=PATIENT)
def epoch_grows_when_an_ended_name_is_created_again(target: Target) -> None:
    """A name that ended and is created again during its drain lives in the next epoch."""
    channel = target.channel()
    channel.publish(0, b"old")
    with target.within(target.settings.channel_drain_s):
        channel.end()
        channel.create()
    channel.publish(0, b"new")
    response = expect.segment(channel.get(0), 0, b"new")
    expect.header(response, wire.EPOCH, 2)


@ROUTES.case()
def post_channel_creates_it(target: Target) -> None:
    """`POST /{channel}` creates the channel."""
    channel = target.channel()
    expect.status(channel.get("next"), 404)
    channel.create()
    expect.status(channel.get("next"), 200)


@ROUTES.case()
def create_takes_the_mime_from_expect_content(target: Target) -> None:
    """`POST /{channel}` takes the channel's media type from `Expect-Content`."""
    channel = target.channel()
    channel.create(mime="video/mp2t")
    channel.publish(0)
    expect.header(channel.get(0), "Content-Type", "video/mp2t")


@ROUTES.case()
def create_is_idempotent(target: Target) -> None:
    """Creating a channel that exists is 200 and leaves its segments and head alone."""
    channel = target.channel()
    channel.create()
    channel.publish(0, b"kept")
    channel.create()
    expect.equal("the head", channel.next_seq(), 1)
    expect.segment(channel.get(0), 0, b"kept")


@ROUTES.case()
def create_never_changes_a_mime(target: Target) -> None:
    """A second `POST /{channel}` with another `Expect-Content` leaves the media type as it was."""
    channel = target.channel()
    channel.create(mime="video/mp2t")
    channel.create(mime="application/json")
    channel.publish(0)
    expect.header(channel.get(0), "Content-Type", "video/mp2t")


@ROUTES.case()
def post_segment_autocreates_the_channel(target: Target) -> None:
    """`POST /{channel}/{seq}` creates a missing channel where the server allows it."""
    channel = target.channel()
    expect.status(channel.post(0, b"first"), 200)
    expect.segment(channel.get(0), 0, b"first")


@ROUTES.case()
def published_bytes_are_read_back_unchanged(target: Target) -> None:
    """`GET /{channel}/{seq}` gives the published bytes, each of the 256 values of them."""
    channel = target.channel()
    data = bytes(range(256)) * 300
    channel.publish(0, data)
    expect.segment(channel.get(0), 0, data)


@ROUTES.case()
def post_minus_one_takes_the_head(target: Target) -> None:
    """`POST /{channel}/-1` publishes at the head and says which seq that was."""
    channel = target.channel()
    for seq in range(3):
        response = expect.status(channel.post(-1, b"n%d" % seq), 200)
        expect.header(response, wire.SEQ, seq)
        expect.segment(channel.get(seq), seq, b"n%d" % seq)


@ROUTES.case()
def get_waits_for_the_next_segment(target: Target) -> None:
    """`GET /{channel}/{seq}` of the next segment waits for it instead of failing."""
    channel = target.channel()
    channel.publish(0)
    reader = channel.waiting(1)
    reader.silent()
    channel.publish(1, b"later")
    expect.segment(reader.response(), 1, b"later")


@ROUTES.case()
def next_answers_the_head_as_text_and_header(target: Target) -> None:
    """`GET /{channel}/next` answers the head as text and in `Lp-Trickle-Latest`."""
    channel = target.channel()
    channel.publish(0, b"a", b"b", b"c")
    response = expect.status(channel.get("next"), 200)
    expect.equal("the text", response.body.strip(), b"3")
    expect.header(response, wire.LATEST, 3)


@ROUTES.case()
def next_never_waits(target: Target) -> None:
    """`GET /{channel}/next` answers at once, also with nothing written or a segment open."""
    channel = target.channel()
    channel.create()
    expect.header(channel.get("next"), wire.LATEST, 0)
    channel.started(0, b"a")
    expect.header(channel.get("next"), wire.LATEST, 1)


@ROUTES.case()
def delete_segment_closes_it(target: Target) -> None:
    """`DELETE /{channel}/{seq}` closes the segment: its reader gets what there is and a clean end."""
    channel = target.channel()
    _, reader = channel.started(0, b"part")
    expect.status(channel.close(0), 200)
    expect.equal("the rest", reader.rest(), b"")
    expect.segment(channel.get(0), 0, b"part")


@ROUTES.case()
def delete_of_a_waiting_segment_moves_the_head(target: Target) -> None:
    """Closing the segment at the head before its first byte moves the head past it."""
    channel = target.channel()
    channel.publish(0)
    channel.preconnect(1)
    reader = channel.waiting(1)
    expect.status(channel.close(1), 200)
    expect.empty(reader.response(), 1)
    expect.equal("the head", channel.next_seq(), 2)


@ROUTES.case()
def delete_channel_ends_it(target: Target) -> None:
    """`DELETE /{channel}` ends the channel."""
    channel = target.channel()
    channel.create()
    expect.status(target.ask("DELETE", channel.path), 200)
    expect.ended(channel.get(-1))


@ROUTES.case()
def double_slash_is_served_not_redirected(target: Target) -> None:
    """`//channel/0` is served as `/channel/0`; a redirect would kill a streaming POST."""
    channel = target.channel()
    doubled = f"{target.base}//{channel.name}"
    upload_answer = target.ask("POST", f"{doubled}/0", body=b"doubled")
    expect.status(upload_answer, 200)
    expect.segment(channel.get(0), 0, b"doubled")
    expect.segment(target.ask("GET", f"{doubled}/0"), 0, b"doubled")


@ROUTES.case()
def query_strings_are_ignored(target: Target) -> None:
    """A query string, as cache-busters add it, changes nothing on any segment route."""
    channel = target.channel()
    query = "?t=1&a/b=../c"
    expect.status(target.ask("POST", channel.path + query, body=b""), 200)
    expect.status(channel.post(f"0{query}", b"data"), 200)
    expect.segment(channel.get(f"0{query}"), 0, b"data")
    expect.header(channel.get(f"next{query}"), wire.LATEST, 1)
    expect.status(channel.close(f"0{query}"), 200)
    expect.status(target.ask("DELETE", channel.path + query), 200)


@ROUTES.case(profiles=("default",))
def outside_the_base_path_are_no_channels(target: Target) -> None:
    """What is not below the base path belongs to the control plane and publishes nothing."""
    channel = target.channel()
    expect.status(target.ask("POST", f"/{channel.name}/0", body=b"x"), 404, 405)
    expect.status(channel.get("next"), 404)


def _control_plane_wins(target: Target, word: str) -> None:
    response = target.ask("POST", f"/{word}/0", body=b"x")
    expect.true(400 <= response.status < 500, "a refusal", response)
    expect.true(target.ask("GET", f"/{word}/next").get(wire.LATEST) is None, "no channel of that name", word)


for _word in ("api", "metrics", "healthz", "readyz", "docs"):
    ROUTES.add(
        f"root-base-path-keeps-{_word}",
        f"With base path `/`, `{_word}` belongs to the control plane and is refused as a channel name.",
        lambda target, word=_word: _control_plane_wins(target, word),  # type: ignore[misc]
        profiles=("root",),
    )
