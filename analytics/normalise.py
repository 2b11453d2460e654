"""Lines to normalised rows: what the roll-up needs of each exchange, and nothing that a hostile line could break.

A log is written by whoever sends requests. Numbers outside their range are dropped rather than summed, texts are cut,
and a line that is no record becomes a row of kind ``unparsable``, to be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics.answers import FAILURES, GRAINS, Answer, among
from analytics.schema import CORRUPT, EXPECTED
from trickle.records import Kind, Op, Reason
from trickle.wire import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame

MAX_TEXT: Final = 256
"""Characters kept of a name. Channel names have at most 255 bytes (protocol, section 2)."""

MAX_TS_US: Final = 4_102_444_800_000_000
"""2100-01-01, microseconds: a later arrival is a broken line."""

MAX_SEQ: Final = 10**15 - 1
"""The largest seq that the protocol's grammar allows (section 2)."""

MAX_BYTES: Final = 1 << 40
MAX_DUR_US: Final = 7 * 86_400 * 1_000_000

IDENTITY: Final = ("ts_us", "conn", "seq", "status", "bytes_out", "wait_us", "dur_us", "attempt")
"""What tells one line from another of the same client, channel and node: two requests may arrive in one microsecond,
even on one connection, but not with all of this the same."""


def normalise(lines: DataFrame, keep: Sequence[str] = ()) -> DataFrame:
    """Lines as of :func:`analytics.schema.log_schema` to rows for :func:`analytics.rollup.roll_up`.

    Args:
        keep: further columns of ``lines`` that are to stay as they are.

    Returns:
        one row per line, none dropped: ``answer``, the key's fields as far as :data:`analytics.answers.GRAINS` has
        them, and the measures of this one line. ``seq`` is as resolved, else as asked for; ``id`` is a 64-bit hash of
        the line, null where the log does not say the connection and so cannot tell lines apart.
    """
    # By name from here on: an expression that is repeated in every column would be compiled, and run, for each of them.
    named = lines.withColumn("answer", answer_kind())
    exchange = ~among((Answer.EVENT, Answer.UNPARSABLE))
    readable = F.col("answer") != Answer.UNPARSABLE.value
    return named.select(
        *keep,
        "answer",
        F.when(readable, F.col("ts_us")).alias("ts_us"),
        F.when(readable, _text("node")).alias("node"),
        F.when(readable, _text("channel")).alias("channel"),
        F.when(exchange, _text("release")).alias("release"),
        F.when(among(_by_client()), _text("client")).alias("client"),
        F.when(among(FAILURES), network()).alias("net"),
        F.when(F.col("answer") == Answer.EVENT.value, _text("event")).alias("event"),
        F.when(exchange, asked_seq()).alias("seq"),
        F.when(exchange, _bounded("next_seq", MAX_SEQ)).alias("head"),
        F.when(exchange, F.col("conn")).alias("conn"),
        F.when(exchange, _bounded("bytes_in", MAX_BYTES)).alias("bytes_in"),
        F.when(exchange, _bounded("bytes_out", MAX_BYTES)).alias("bytes_out"),
        F.when(exchange, _bounded("wait_us", MAX_DUR_US)).alias("wait_us"),
        F.when(exchange, _bounded("dur_us", MAX_DUR_US)).alias("dur_us"),
        F.when(exchange, _bounded("retry_after_ms", MAX_DUR_US)).alias("retry_after_ms"),
        F.when(exchange, _bounded("guard_ms", MAX_DUR_US)).alias("guard_ms"),
        F.when(exchange & (F.col("attempt") > 1), 1).otherwise(0).alias("retried"),
        F.when(exchange & F.col("client").isNull(), 1).otherwise(0).alias("anonymous"),
        F.when(exchange & F.col("eos"), 1).otherwise(0).alias("closed"),
        F.when(exchange, _present()).otherwise(F.lit(0)).alias("present"),
        F.when(exchange & F.col("conn").isNotNull(), F.xxhash64(*IDENTITY)).alias("id"),
    )


def answer_kind() -> Column:
    """The :class:`~analytics.answers.Answer` of a line, as text."""
    status, op = F.col("status"), F.col("op")
    on_channel = op.isNull() | (op != Op.API.value)
    read = (op == Op.READ.value) & (F.col("method").isNull() | (F.col("method") == "GET"))
    given_up = F.coalesce(F.col("reason").isin(Reason.CLIENT_GONE.value, Reason.EVICTED.value), F.lit(False))
    nothing = F.coalesce(F.col("bytes_out"), F.lit(0)) == 0
    empty_read = read & (status == int(Status.OK)) & nothing & ~given_up
    return (
        F.when(_broken(), Answer.UNPARSABLE.value)
        .when(F.col("kind") == Kind.EVENT.value, Answer.EVENT.value)
        .when(status.isin(int(Status.TOO_MANY_REQUESTS), int(Status.UNAVAILABLE)), Answer.OVERLOAD.value)
        .when(status >= int(Status.SERVER_ERROR), Answer.SERVER_ERROR.value)
        .when((status == int(Status.NOT_FOUND)) & on_channel, Answer.NOT_FOUND.value)
        .when((status == int(Status.SEQ_MISSING)) & on_channel, Answer.SEQ_MISSING.value)
        .when(empty_read & F.coalesce(F.col("eos"), F.lit(False)), Answer.ENDED.value)
        .when(empty_read, Answer.ZERO_BYTE.value)
        .when((op == Op.PUBLISH.value) & ~given_up, Answer.POST.value)
        .when(read & (status == int(Status.OK)) & ~nothing, Answer.SERVED.value)
        .otherwise(Answer.OK.value)
    )


def _broken() -> Column:
    # A line whose fields have wrong types keeps the fields that could be read; half a record is not used.
    kind = F.col("kind").isin(Kind.EXCHANGE.value, Kind.EVENT.value)
    return (
        F.col(CORRUPT).isNotNull()
        | ~F.coalesce(F.col("ts_us").between(1, MAX_TS_US), F.lit(False))
        | ~F.coalesce(kind, F.lit(False))
    )


def asked_seq() -> Column:
    """The seq that the request was about: as resolved, else as asked if that was a concrete one."""
    return F.coalesce(_bounded("rseq", MAX_SEQ), _bounded("seq", MAX_SEQ))


def network() -> Column:
    """The network of ``ip``: ``192.0.2.0/24`` or ``2001:db8:7::/48``; a salted hash has none and is null."""
    address = _text("ip")
    # An IPv4 address may be written as an IPv6 one: "::ffff:192.0.2.7".
    v4 = F.substring_index(F.substring_index(address, ":", -1), ".", 3)
    # "2001:db8::1" leaves out zeros: what stands before the gap is all that is known of its first three parts.
    v6 = F.substring_index(F.substring_index(address, "::", 1), ":", 3)
    return F.when(address.contains("."), F.concat(v4, F.lit(".0/24"))).when(
        address.contains(":"), F.concat(v6, F.lit("::/48"))
    )


def _by_client() -> Iterable[Answer]:
    return (kind for kind, grain in GRAINS.items() if grain.by_client)


def _text(name: str) -> Column:
    return F.substring(F.col(name), 1, MAX_TEXT)


def _bounded(name: str, maximum: int) -> Column:
    return F.when(F.col(name).between(0, maximum), F.col(name))


def _present() -> Column:
    """One bit per expected field that this line has."""
    bits = [F.when(F.col(name).isNotNull(), 1 << place).otherwise(0) for place, name in enumerate(EXPECTED)]
    mask = bits[0]
    for bit in bits[1:]:
        mask = mask.bitwiseOR(bit)
    return mask
