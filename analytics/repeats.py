"""How many requests of a row, or of a stretch of rows, asked again for what had been asked for.

A failure counts whatever it was about. A segment is right *once* per seq and reader: only what exceeds that counts. How
many readers there are is told from connections; where those are a proxy's, from the name that a client gives itself.
Each rule is there as SQL, for the queries of this package, and as a column, for whoever builds others from the roll-up.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.answers import ONCE_PER_SEQ, Answer, quoted
from tricklecast.analytics.durations import micros
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.rollup import WAIT_CLASS_BITS, WAIT_CLASSES_US

if TYPE_CHECKING:
    from pyspark.sql import Column

BITS: Final = 64

FULL: Final = 58
"""From so many bits of 64 on, a set of bits says no more than "many" (linear counting errs by a fifth there)."""

FEW: Final = 4
"""Up to so many connections, 64 bits count them well enough to be taken as they are."""

SLACK: Final = 1.5
"""More connections than that are an estimate, with an error of a tenth to a fifth: so much is allowed for it."""

SHARED: Final = 2
"""Two connections may share a bit. So many more readers than were counted there may be, if requests waited that long
for their segments: who has to wait for a segment asks for the first time."""

WAITED_US: Final = 256_000
"""Waiting begins here, microseconds: an answer that is there already takes less."""

MANY: Final = 8
"""More connections than a reader has of its own, and than the few devices of one user have."""

_HASH_LENGTH: Final = 16
_HASHED: Final = "^[0-9a-f]+$"
_ADDRESS: Final = "^[0-9a-fA-F]*[.:][0-9a-fA-F.:]*($|[#+])"


def counted_sql(bits: str) -> str:
    """About how many distinct values a set of 64 bits stands for (linear counting: ``m * ln(m / empty)``); null if it
    is full."""
    used = f"coalesce(bit_count({bits}), 0)"
    return f"IF({used} < {FULL}, -{BITS}D * ln(1 - {used} / {BITS}D), NULL)"


def distinct_seqs_sql() -> str:
    """How many seqs a row is about, in its favour: exact where they lie within 64 of each other.

    Where no seq is known, nothing can be told to be a repeat (a reader on -1 gets another segment each time), except
    among empty answers: of those one per bucket may be right.
    """
    span = "(seq_hi - seq_lo + 1)"
    several = f"cast(ceil(coalesce({counted_sql('seq_bits')} * {SLACK}D, n)) AS bigint)"
    return f"""cast(CASE WHEN seq_bits IS NULL THEN IF(answer = '{Answer.ZERO_BYTE}', 1, n)
        WHEN {span} <= {BITS} THEN least(n, bit_count(seq_bits)) ELSE least(n, {span}, {several}) END AS bigint)"""


def shared_sql(side: str) -> str:
    """Whether a row and its neighbour were about a seq that is the same. Bits alone say no more than modulo 64.

    Args:
        side: what the names of the neighbour's columns end with, after ``_``.
    """
    overlap = f"seq_lo <= seq_hi_{side} AND seq_lo_{side} <= seq_hi"
    return f"(seq_bits & seq_bits_{side}) <> 0 AND {overlap}"


def n_shared_sql(side: str) -> str:
    """How many seqs a row and its neighbour were both about, at most: bits they share, but no more than lie between the
    bounds of both. A fast publisher's next hundred seqs have the bits of those before them.

    Args:
        side: as in :func:`shared_sql`, which has to hold.
    """
    common = f"least(seq_hi, seq_hi_{side}) - greatest(seq_lo, seq_lo_{side}) + 1"
    return f"least(bit_count(seq_bits & seq_bits_{side}), {common})"


def connections_sql(bits: str = "conn_bits", most: str = "n") -> str:
    """About how many connections the lines came over: at least 1, at most ``most``; 1 where the log does not say."""
    estimate = f"coalesce({counted_sql(bits)}, {most})"
    return f"IF({bits} IS NULL, 1, greatest(1, least({most}, cast(round({estimate}) AS bigint))))"


def waited_sql() -> str:
    """How many requests of a row of the roll-up waited for their answer."""
    # More lines than a class can count would have spilled into the next one.
    first = WAIT_CLASSES_US[1].index(WAITED_US) + 1
    mask = (1 << WAIT_CLASS_BITS) - 1
    counts = [
        f"(shiftright(waits_slow, {WAIT_CLASS_BITS * place}) & {mask})"
        for place in range(first, len(WAIT_CLASSES_US[1]))
    ]
    return f"IF(n <= {mask}, coalesce({' + '.join(counts)}, 0L), 0L)"


def own_name_sql() -> str:
    """Whether a client's key is what it calls itself: no hash that a server made, no address with or without more."""
    hashed = f"length(client) = {_HASH_LENGTH} AND client RLIKE '{_HASHED}'"
    return f"coalesce(named AND NOT ({hashed}) AND NOT client RLIKE '{_ADDRESS}', false)"


def is_own_name(client: str) -> bool:
    """:func:`own_name_sql` of a client that is known."""
    hashed = len(client) == _HASH_LENGTH and re.search(_HASHED, client)
    return not hashed and not re.search(_ADDRESS, client)


def readers_sql(params: StormParams) -> str:
    """How many readers share a stretch's client key, as far as it matters for counting repeats.

    Several readers behind one NAT get every segment once *each*, over connections of their own, at the same moment. One
    or two segments that are asked for all the time, though, are a loop, even if every request opens a connection.
    """
    lasting = f"""seqs <= {params.same_seq_few} AND last_us - first_us >= {micros(params.same_seq_s)}
        AND busy_s * 1e6 >= {params.same_seq_share} * (last_us - first_us)"""
    conns = connections_sql()
    # Publishers do not share a key and a channel; and who publishes one segment twice repeats it.
    return f"""CASE WHEN answer = '{Answer.POST}' OR ({lasting}) THEN 1L
        ELSE least(n, IF({conns} > {FEW}, cast(ceil({conns} * {SLACK}D) AS bigint), {conns})) END"""


def stretch_readers_sql(params: StormParams) -> str:
    """:func:`readers_sql` for a stretch whose ``client``, ``peak_rps``, ``own_s`` and ``waited`` are known as well.

    Behind a proxy the connections are the proxy's, and say nothing. What tells a loop from a crowd is the client's own
    name, which a NAT's clients do not have. As one name may stand for all users of an application, they are a crowd
    while they might be: each segment's rush is over within a moment, and every one of them waits for new segments.
    """
    length = "((last_us - first_us) / 1e6)"
    steady = f"2 * n >= peak_rps * own_s AND 2 * busy_s >= {length}"
    outlasts = f"seqs <= {params.same_seq_few} AND {length} > {params.crowd_s} * seqs AND {steady}"
    alone = f"{connections_sql()} > {MANY} AND 2 * waited BETWEEN seqs AND 3 * seqs"
    return f"IF({own_name_sql()} AND (({outlasts}) OR ({alone})), 1L, {readers_sql(params)})"


def stretch_hits_sql(params: StormParams) -> str:
    """How many lines of a stretch count towards a storm: all, or the repeats and the request that they repeat."""
    readers = stretch_readers_sql(params)
    right = f"greatest(seqs * {readers}, least(waited, seqs * ({readers} + {SHARED})))"
    repeated = f"greatest(0L, n - {right} + 1)"
    return f"cast(IF(answer IN ({quoted(ONCE_PER_SEQ)}), {repeated}, n) AS bigint)"


def counted(bits: str) -> Column:
    """:func:`counted_sql` of a column."""
    return _column(counted_sql(bits))


def distinct_seqs() -> Column:
    """:func:`distinct_seqs_sql`; needs ``answer``, ``n``, ``seq_bits``, ``seq_lo``, ``seq_hi``."""
    return _column(distinct_seqs_sql())


def connections(bits: str = "conn_bits", most: str = "n") -> Column:
    """:func:`connections_sql`.

    Args:
        bits: the column with one bit per connection; most: the one with the number of requests.
    """
    return _column(connections_sql(bits, most))


def readers(params: StormParams) -> Column:
    """:func:`readers_sql`; needs ``answer``, ``n``, ``conn_bits``, ``seqs``, ``busy_s``, ``first_us``, ``last_us``."""
    return _column(readers_sql(params))


def _column(text: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text)
