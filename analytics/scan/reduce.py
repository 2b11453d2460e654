"""What of a roll-up the rules read: rows that could belong to a storm, and sums for all else.

* ``candidate``: the roll-up's rows of kinds that can be repeated, and of what cures them, with ``distinct_seqs``; of
  what was served only rows in which something was served again. A client that changes its name at every request is no
  client that repeats anything: the failures of clients that fail once or twice are added up per network as well, with
  ``named`` false.
* ``traffic``: everything, per node and minute: what a storm's share is a share of.
* ``happened``: lifecycle events. ``lived``: from when to when each channel gave other answers than 404.
* ``quality``: how many lines were read, could not be read, or have a clock that is wrong.
"""

from __future__ import annotations

from typing import Final

from tricklecast.analytics.scan.rollup import merged_measures

FAILURES: Final = ("overload", "server_error", "not_found", "seq_missing", "rejected")
"""Answers that say no: each counts, whatever seq it was about."""

ONCE_PER_SEQ: Final = ("zero_byte", "post", "served")
"""Answers that are right once per seq and reader."""

WATCHED: Final = (*FAILURES, "web", "again", "ended", "abandoned", *ONCE_PER_SEQ)
"""Kinds of answer that can be a storm."""

CROWD: Final = (*FAILURES, "web", "cured")
"""Kinds of answer that say whether many clients together are one."""


def quoted(names: tuple[str, ...]) -> str:
    """Names of this package as a list of SQL texts."""
    return ", ".join(f"'{name}'" for name in names)


# Where the seqs lie within 62 of each other their bits are exact; beyond, linear counting (Whang 1990) with some
# slack in the row's favour. Without seqs nothing is known to be a repeat, but for empty answers: one may be right.
_DISTINCT: Final = """CAST(CASE
    WHEN seq_bits IS NULL THEN CASE WHEN answer = 'zero_byte' THEN 1 ELSE n END
    WHEN seq_hi - seq_lo < 62 THEN least(n, CAST(bit_count(seq_bits) AS BIGINT))
    ELSE least(n, seq_hi - seq_lo + 1, CAST(ceil(coalesce(1.5 * CASE
        WHEN bit_count(seq_bits) < 57 THEN -62 * ln(1 - bit_count(seq_bits) / CAST(62 AS DOUBLE)) END, n)) AS BIGINT))
    END AS BIGINT)"""

SELDOM: Final = 2
"""A client that fails no more often than this on one channel may be a new name for one that has failed before."""

REPEATED: Final = f"""
        SELECT *, CAST(CASE WHEN answer IN ({quoted(ONCE_PER_SEQ)}) THEN {_DISTINCT} ELSE 0 END AS BIGINT)
            AS distinct_seqs
        FROM rollup
        WHERE answer IN ({quoted((*WATCHED, "cured"))}) AND client IS NOT NULL
            AND (answer <> 'served' OR n > {_DISTINCT})"""

ANONYMOUS: Final = f"""
        SELECT answer, node, channel, network AS client, false AS named, CAST(NULL AS VARCHAR) AS event, bucket_us,
            {merged_measures()}, CAST(0 AS BIGINT) AS distinct_seqs
        FROM (
            SELECT answer, node, channel, client, min(bucket_us) AS bucket_us, {merged_measures()}
            FROM rollup
            WHERE answer IN ({quoted(FAILURES)}) AND named AND network IS NOT NULL
            GROUP BY answer, node, channel, client
        ) clients
        WHERE n <= {SELDOM}
        GROUP BY answer, node, channel, network, bucket_us"""
"""Rows of networks, of all rows of their clients."""

QUERIES: Final[dict[str, str]] = {
    "candidate": f"{REPEATED}\n        UNION ALL{ANONYMOUS}",
    "traffic": f"""
        SELECT node, bucket_us - bucket_us % 60000000 AS minute_us,
            CAST(sum(n) AS BIGINT) AS n,
            CAST(sum(coalesce(bytes_in, 0) + coalesce(bytes_out, 0)) AS BIGINT) AS bytes,
            CAST(sum(coalesce(dur_us, 0)) AS BIGINT) AS dur_us,
            CAST(sum(CASE WHEN answer IN ({quoted((*FAILURES, "web"))}) THEN n ELSE 0 END) AS BIGINT) AS failed,
            CAST(sum(CASE WHEN answer IN ('overload', 'server_error') THEN n ELSE 0 END) AS BIGINT) AS refused,
            CAST(sum(kept) AS BIGINT) AS kept,
            CAST(sum(kept_slow) AS BIGINT) AS kept_slow,
            CAST(bit_or(slots) AS BIGINT) AS slots
        FROM rollup WHERE answer NOT IN ('event', 'unparsable', 'future', 'cured')
        GROUP BY node, bucket_us - bucket_us % 60000000""",
    "happened": """
        SELECT node, channel, event, first_us AS ts_us FROM rollup WHERE answer = 'event'
        UNION
        SELECT node, channel, event, last_us AS ts_us FROM rollup WHERE answer = 'event'""",
    "lived": """
        SELECT channel, min(first_us) AS from_us, max(last_us) AS until_us
        FROM rollup
        WHERE channel IS NOT NULL AND (event = 'channel_create'
            OR answer IN ('served', 'zero_byte', 'ended', 'abandoned', 'post', 'seq_missing', 'ok')
            AND coalesce(status_hi, 200) <> 404)
        GROUP BY channel""",
    "quality": """
        SELECT answer, CAST(sum(n) AS BIGINT) AS n, min(first_us) AS first_us, max(last_us) AS last_us
        FROM rollup WHERE answer <> 'cured' GROUP BY answer""",
}
"""Name of the result → its query over ``rollup``, for both engines."""
