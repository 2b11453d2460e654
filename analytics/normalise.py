"""Lines to normalised rows: what the roll-up needs of each exchange, and nothing that a hostile line could break.

A log is written by whoever sends requests. Numbers outside their range are dropped rather than summed, texts are cut,
and a line that is no record becomes a row of kind ``unparsable``, to be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.answers import CODES, FAILURES, GRAINS, PATIENCE_US, Answer, codes, from_code, upto
from tricklecast.analytics.durations import DAY_US
from tricklecast.analytics.schema import CORRUPT, EXPECTED
from tricklecast.trickle.records import Kind, Op, Reason
from tricklecast.trickle.wire import LAST_SEQ, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

MAX_TEXT: Final = 256
"""Characters kept of a name. Channel names have at most 255 bytes (protocol, section 2)."""

MAX_TS_US: Final = 4_102_444_800_000_000
"""2100-01-01, microseconds: a later arrival is a broken line."""

MAX_BYTES: Final = 1 << 40
MAX_DUR_US: Final = 7 * DAY_US

MAX_IP: Final = 45
"""Characters of the longest address, an IPv6 one that ends in an IPv4 one."""

_REJECTIONS: Final = ", ".join(
    f"{status:d}" for status in (Status.BAD_REQUEST, Status.UNAUTHORIZED, Status.FORBIDDEN, Status.METHOD_NOT_ALLOWED)
)

IDENTITY: Final = ("ts_us", "conn", "dur_us", "seq")
"""What tells one line from another of the same client, channel and node: two requests may arrive in one microsecond,
even on one connection, but not with all of this the same."""


def normalise(lines: DataFrame, keep: Sequence[str] = ()) -> DataFrame:
    """Lines as of :func:`analytics.schema.log_schema` to rows for
    :func:`analytics.rollup.roll_up`.

    Args:
        keep: further columns of ``lines`` that are to stay as they are.

    Returns:
        one row per line, none dropped: ``code`` (of its :class:`~analytics.answers.Answer`), the key's
        fields as far as :data:`analytics.answers.GRAINS` has them, and the measures of this one line.
        ``seq`` is as resolved, else as asked for; ``id`` is a 64-bit hash of the line, null where the log does not
        say the connection and so cannot tell lines apart.
    """
    # By name from here on: an expression that is repeated in every column would be compiled, and run, for each of them.
    return lines.withColumn("code", F.expr(_code())).selectExpr(*keep, "code", *_columns())


def answer_kind() -> Column:
    """The :class:`~analytics.answers.Answer` of a line, as text."""
    return F.expr(from_code(_code()))


def network() -> Column:
    """The network of ``ip``: ``192.0.2.0/24`` or ``2001:db8:7::/48``; a salted hash has none and is null."""
    return F.expr(_network())


def _columns() -> list[str]:
    """What is kept of a line, as SQL. Texts and numbers of a broken line are not."""
    readable = f"code <> {codes((Answer.UNPARSABLE,))}"
    exchange = f"code < {CODES[Answer.EVENT]}"

    def when(condition: str, value: str, name: str, otherwise: str = "NULL") -> str:
        return f"IF({condition}, {value}, {otherwise}) AS {name}"

    return [
        when(readable, "ts_us", "ts_us"),
        when(readable, _text("node"), "node"),
        when(readable, _text("channel"), "channel"),
        when(exchange, _text("release"), "release"),
        when(upto(kind for kind, grain in GRAINS.items() if grain.by_client), _text("client"), "client"),
        when(upto(FAILURES), _network(), "net"),
        when(f"code = {codes((Answer.EVENT,))}", _text("event"), "event"),
        when(exchange, _asked_seq(), "seq"),
        when(f"{exchange} AND {_inside('next_seq', LAST_SEQ)}", "next_seq", "head"),
        when(exchange, "conn", "conn"),
        *(
            when(f"{exchange} AND {_inside(name, maximum)}", name, name)
            for name, maximum in (
                ("bytes_in", MAX_BYTES),
                ("bytes_out", MAX_BYTES),
                ("wait_us", MAX_DUR_US),
                ("dur_us", MAX_DUR_US),
                ("retry_after_ms", MAX_DUR_US),
                ("guard_ms", MAX_DUR_US),
            )
        ),
        when(f"{exchange} AND attempt > 1", "1", "retried", "0"),
        when(f"{exchange} AND client IS NULL", "1", "anonymous", "0"),
        when(f"{exchange} AND eos", "1", "closed", "0"),
        when(exchange, _present(), "present", "0"),
        when(f"{exchange} AND conn IS NOT NULL", f"xxhash64({', '.join(IDENTITY)})", "id"),
    ]


def _code() -> str:
    """The code of a line's :class:`~analytics.answers.Answer`, as SQL."""
    gone = f"coalesce(reason IN ('{Reason.CLIENT_GONE}', '{Reason.EVICTED}'), false)"
    on_channel = f"(op IS NULL OR op <> '{Op.API}')"
    get = f"op = '{Op.READ}' AND (method IS NULL OR method = 'GET')"
    read = f"{get} AND status = {Status.OK:d}"
    nothing = "coalesce(bytes_out, 0) = 0"
    # Where a log does not say for how long, it may have been a moment (analytics.episodes).
    given_up = f"status IS NULL AND reason = '{Reason.CLIENT_GONE}' AND coalesce(dur_us < {PATIENCE_US}, true)"
    cases: list[tuple[str, Answer]] = [
        (_broken(), Answer.UNPARSABLE),
        (f"kind = '{Kind.EVENT}'", Answer.EVENT),
        (f"{read} AND NOT ({nothing})", Answer.SERVED),
        (f"status IN ({Status.TOO_MANY_REQUESTS:d}, {Status.UNAVAILABLE:d})", Answer.OVERLOAD),
        (f"status >= {Status.SERVER_ERROR:d}", Answer.SERVER_ERROR),
        (f"status = {Status.NOT_FOUND:d} AND {on_channel}", Answer.NOT_FOUND),
        (f"status = {Status.SEQ_MISSING:d} AND {on_channel}", Answer.SEQ_MISSING),
        # Requests that name no channel are those of scanners, and come to an end by themselves.
        (f"status IN ({_REJECTIONS}) AND channel IS NOT NULL AND {on_channel}", Answer.REJECTED),
        (f"{read} AND {nothing} AND NOT {gone} AND coalesce(eos, false)", Answer.ENDED),
        (f"{get} AND {nothing} AND {given_up}", Answer.ABANDONED),
        (f"{read} AND {nothing} AND NOT {gone}", Answer.ZERO_BYTE),
        (f"op = '{Op.PUBLISH}' AND NOT {gone}", Answer.POST),
    ]
    whens = " ".join(f"WHEN {condition} THEN {codes((answer,))}" for condition, answer in cases)
    return f"CASE {whens} ELSE {codes((Answer.OK,))} END"


def _broken() -> str:
    # A line whose fields have wrong types keeps the fields that could be read; half a record is not used.
    return f"""({CORRUPT} IS NOT NULL OR NOT coalesce(ts_us BETWEEN 1 AND {MAX_TS_US}, false)
        OR NOT coalesce(kind IN ('{Kind.EXCHANGE}', '{Kind.EVENT}'), false))"""


def _asked_seq() -> str:
    """The seq that the request was about: as resolved, else as asked if that was a concrete one."""
    return f"CASE WHEN {_inside('rseq', LAST_SEQ)} THEN rseq WHEN {_inside('seq', LAST_SEQ)} THEN seq END"


def _network() -> str:
    # An IPv4 address may be written as an IPv6 one: "::ffff:192.0.2.7". And "2001:db8::1" leaves out zeros: what stands
    # before the gap is all that is known of its first three parts.
    v4 = "concat(substring_index(substring_index(ip, ':', -1), '.', 3), '.0/24')"
    v6 = "concat(substring_index(substring_index(ip, '::', 1), ':', 3), '::/48')"
    return (
        f"CASE WHEN octet_length(ip) > {MAX_IP} THEN NULL WHEN ip LIKE '%.%' THEN {v4} WHEN ip LIKE '%:%' THEN {v6} END"
    )


def _text(name: str) -> str:
    # Cutting copies, even what is short enough.
    return f"IF(octet_length({name}) <= {MAX_TEXT}, {name}, substring({name}, 1, {MAX_TEXT}))"


def _inside(name: str, maximum: int) -> str:
    return f"{name} BETWEEN 0 AND {maximum}"


def _present() -> str:
    """One bit per expected field that this line has."""
    return " | ".join(f"IF({name} IS NULL, 0, {1 << place})" for place, name in enumerate(EXPECTED))
