"""Section 2: the grammars of channel names and seqs."""

from __future__ import annotations

from functools import partial

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.target import Target
from tricklecast.trickle import wire

NAMES = Group("names", "2. Routes")
SEQS = Group("seqs", "2. Routes")


@NAMES.case()
def are_percent_decoded(target: Target) -> None:
    """A name and its percent-encoded spelling are the same channel."""
    channel = target.channel()
    spelled = "".join(f"%{byte:02X}" for byte in channel.name.encode())
    channel.publish(0, b"same")
    expect.segment(target.ask("GET", f"{target.base}/{spelled}/0"), 0, b"same")


@NAMES.case()
def may_hold_spaces_and_any_letters(target: Target) -> None:
    """A name may hold spaces, punctuation and letters of any script."""
    channel = target.channel(f"{target.channel().name} \u00e9\u4e16 a+b.c;d=1")
    channel.publish(0, b"x")
    expect.segment(channel.get(0), 0, b"x")


@NAMES.case()
def of_255_bytes_are_allowed(target: Target) -> None:
    """A name has up to 255 bytes, counted after percent-decoding."""
    stem = target.channel().name
    for filler in ("x" * 255, "\u00e9" * 128):
        name = (stem + filler).encode()[:255].decode("utf-8", "ignore")
        channel = target.channel(name)
        channel.publish(0)
        expect.segment(channel.get(0), 0, b"x")


@NAMES.case()
def of_256_bytes_are_refused(target: Target) -> None:
    """A name of 256 bytes after percent-decoding is 400."""
    stem = target.channel().name
    for name in (f"{stem:x<256}", stem + "%C3%A9" * ((257 - len(stem)) // 2)):
        _refused_everywhere(target, name)


def _refused_everywhere(target: Target, name: str) -> None:
    path = f"{target.base}/{name}"
    expect.refusal(target.ask("POST", f"{path}/0", body=b"x"), 400)
    expect.refusal(target.ask("GET", f"{path}/0"), 400)
    expect.refusal(target.ask("DELETE", f"{path}/0"), 400)
    expect.refusal(target.ask("POST", path, body=b""), 400)


for _name, _what, _raw in (
    ("encoded-slash-is-refused", "a percent-encoded slash", "a%2Fb"),
    ("dotdot-is-refused", "`..`", ".."),
    ("encoded-dotdot-is-refused", "a percent-encoded `..`", "%2e%2E"),
    ("dotdot-inside-is-refused", "`..` somewhere inside", "a..b"),
    ("nul-is-refused", "a NUL", "a%00b"),
    ("line-feed-is-refused", "a line feed", "a%0Ab"),
    ("carriage-return-is-refused", "a carriage return", "a%0Db"),
    ("delete-is-refused", "the control character DEL", "a%7Fb"),
):
    NAMES.add(_name, f"A name that holds {_what} is 400 on every route.", partial(_refused_everywhere, name=_raw))


@NAMES.case()
def of_the_server_are_not_written(target: Target) -> None:
    """Every write to a name that begins with `_` is 403."""
    channel = target.channel()
    path = f"{target.base}/_{channel.name}"
    expect.refusal(target.ask("POST", path, body=b""), 403)
    expect.refusal(target.ask("POST", f"{path}/0", body=b"x"), 403)
    expect.refusal(target.ask("POST", f"{path}/-1", body=b"x"), 403)
    expect.refusal(target.ask("DELETE", f"{path}/0"), 403)
    expect.refusal(target.ask("DELETE", path), 403)


@NAMES.case()
def of_the_server_may_be_read(target: Target) -> None:
    """Reading a name that begins with `_` is allowed: a missing one is 404, not 403."""
    expect.refusal(target.ask("GET", f"{target.base}/_{target.channel().name}/0"), 404)


@SEQS.case()
def may_have_fifteen_digits(target: Target) -> None:
    """A seq has up to 15 digits."""
    channel = target.channel()
    channel.publish(0)
    expect.missing(channel.get("9" * 15), 1, 999_999_999_999_999)


@SEQS.case()
def may_have_leading_zeros(target: Target) -> None:
    """Leading zeros follow the grammar: `007` is 7."""
    channel = target.channel()
    channel.publish(7, b"seven")
    expect.segment(channel.get("007"), 7, b"seven")


def _invalid(target: Target, raw: str) -> None:
    channel = target.channel()
    expect.refusal(channel.post(raw), 400, "Invalid idx")
    expect.status(channel.get("next"), 404)
    channel.create()
    expect.refusal(channel.get(raw), 400, "Invalid idx")
    expect.refusal(channel.close(raw), 400, "Invalid idx")
    expect.equal("the head", channel.next_seq(), 0)


for _name, _what, _raw in (
    ("sixteen-digits-are-refused", "16 digits", "1" * 16),
    ("plus-is-refused", "A plus sign", "+1"),
    ("fraction-is-refused", "A fraction", "1.0"),
    ("exponent-is-refused", "An exponent", "1e3"),
    ("underscore-is-refused", "An underscore between digits", "1_0"),
    ("letters-are-refused", "A word", "abc"),
    ("lone-minus-is-refused", "A lone minus", "-"),
    ("double-minus-is-refused", "A double minus", "--1"),
    ("space-is-refused", "A percent-encoded space before a digit", "%201"),
    ("hexadecimal-is-refused", "A hexadecimal number", "0x1"),
    ("unicode-digits-are-refused", "A percent-encoded Arabic digit", "%D9%A1"),
    ("fullwidth-digits-are-refused", "A percent-encoded full-width digit", "%EF%BC%91"),
):
    SEQS.add(
        _name,
        f"{_what} in place of a seq is 400 `Invalid idx` on every route, and creates no channel.",
        partial(_invalid, raw=_raw),
    )


@SEQS.case()
def negative_ones_are_not_published(target: Target) -> None:
    """POST takes -1 or a seq from 0 on; -2 is 400 and creates no channel."""
    channel = target.channel()
    expect.refusal(channel.post(-2), 400, "Invalid idx")
    expect.status(channel.get("next"), 404)


@SEQS.case()
def negative_ones_are_not_deleted(target: Target) -> None:
    """DELETE takes a seq from 0 on; -1 is 400 and closes nothing."""
    channel = target.channel()
    upload, _ = channel.started(0, b"a")
    expect.refusal(channel.close(-1), 400, "Invalid idx")
    upload.chunk(b"b").end()
    expect.header(expect.status(upload.answer(), 200), wire.SIZE, 2)


@SEQS.case()
def next_is_not_written(target: Target) -> None:
    """`next` is for GET: a POST or DELETE of it is refused and creates no channel."""
    channel = target.channel()
    expect.status(channel.post("next"), 400, 405)
    expect.status(channel.close("next"), 400, 405)
    expect.status(channel.get("next"), 404)


@SEQS.case()
def empty_is_not_zero(target: Target) -> None:
    """Nothing in place of a seq is not read as a seq: a GET is refused."""
    channel = target.channel()
    channel.publish(0)
    expect.status(channel.get(""), 400, 404, 405)
