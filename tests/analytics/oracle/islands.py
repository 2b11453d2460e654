"""The rules of detection once more, for DuckDB: written down from what they say, not from how Spark runs them.

Each view is a step. Names are those of the rules: a *bucket* is what one client got in one of the roll-up's buckets, an
*chain* all of them without a pause that no storm spans, an *island* a stretch of it, a *part* an island or several slow
ones put together.
"""

from __future__ import annotations

from tricklecast.analytics.answers import COUNTED, FAILURES, GRAINS, ONCE_PER_SEQ, REPEATABLE, WATCHED
from tricklecast.analytics.durations import micros
from tricklecast.analytics.params import StormParams

P = StormParams()

READERS = """stretch_readers(client, named, answer, n, conn_bits, seqs, busy_s, last_us - first_us, own_s, peak_rps,
    waited)"""
"""How many readers share the key of a stretch."""


def words(names: object) -> str:
    """Names as a list of SQL texts."""
    assert isinstance(names, tuple)
    return ", ".join(f"'{name}'" for name in names)


def _macros() -> str:
    """What is counted from sets of 64 bits: linear counting, and what follows from it."""
    return f"""
    CREATE MACRO about(bits) AS
        CASE WHEN coalesce(bit_count(bits), 0) < 58 THEN -64 * ln(1 - coalesce(bit_count(bits), 0) / 64) END;
    CREATE MACRO seqs_of(answer, n, bits, lo, hi) AS CASE
        WHEN bits IS NULL THEN CASE WHEN answer = 'zero_byte' THEN 1 ELSE n END
        WHEN hi - lo + 1 <= 64 THEN least(n, bit_count(bits))
        ELSE least(n, hi - lo + 1, ceil(coalesce(about(bits) * 1.5, n))::BIGINT) END;
    CREATE MACRO conns_of(bits, n) AS
        CASE WHEN bits IS NULL THEN 1 ELSE greatest(1, least(n, round(coalesce(about(bits), n))::BIGINT)) END;
    CREATE MACRO readers_of(answer, n, bits, seqs, busy_s, length_us) AS CASE
        WHEN answer = 'post' THEN 1
        WHEN seqs <= {P.same_seq_few} AND length_us >= {micros(P.same_seq_s)}
            AND busy_s * 1e6 >= {P.same_seq_share} * length_us THEN 1
        WHEN conns_of(bits, n) > 4 THEN least(n, ceil(conns_of(bits, n) * 1.5)::BIGINT)
        ELSE least(n, conns_of(bits, n)) END;
    CREATE MACRO is_name(client, named) AS named AND NOT regexp_full_match(client, '[0-9a-f]{{16}}')
        AND NOT regexp_matches(client, '^[0-9a-fA-F]*[.:][0-9a-fA-F.:]*($|[#+])');
    CREATE MACRO clients_at_once(length_us, held_ms) AS
        greatest(1, ceil((held_ms * 1000 - 1000000) / greatest(1, length_us)));
    CREATE MACRO own_time(length_us, held_ms, n) AS greatest(
        CASE WHEN clients_at_once(length_us, held_ms) > 1 THEN length_us / 10 ELSE 0 END,
        length_us - held_ms * 1000 * (n - 1) / n / clients_at_once(length_us, held_ms)) / 1e6;
    CREATE MACRO stretch_readers(client, named, answer, n, bits, seqs, busy_s, length_us, own_s, peak_rps, waited)
        AS CASE
        WHEN coalesce(is_name(client, named), false) AND (seqs <= {P.same_seq_few}
            AND length_us > {micros(P.crowd_s)} * seqs AND 2 * n >= peak_rps * own_s
            AND 2 * busy_s >= length_us / 1e6 OR conns_of(bits, n) > 8 AND 2 * waited BETWEEN seqs AND 3 * seqs) THEN 1
        ELSE readers_of(answer, n, bits, seqs, busy_s, length_us) END;
    CREATE MACRO right_once(seqs, readers, waited) AS greatest(seqs * readers, least(waited, seqs * (readers + 2)));
    CREATE MACRO level(hits, node_bits, rate) AS CASE
        WHEN hits >= {P.critical_hits_alone} THEN 'critical'
        WHEN hits / greatest(1, round(coalesce(about(node_bits), 1))) >= {P.critical_hits}
            AND rate >= {P.critical_rps} THEN 'critical'
        WHEN hits >= {P.warn_hits_alone} THEN 'warn'
        WHEN hits / greatest(1, round(coalesce(about(node_bits), 1))) >= {P.warn_hits}
            AND rate >= {P.warn_rps} THEN 'warn' END;
    CREATE MACRO quick(hits, node_bits, rate) AS
        hits / greatest(1, round(coalesce(about(node_bits), 1))) >= {P.warn_hits} AND rate >= {P.warn_rps};"""


def _rollup() -> str:
    widths = " ".join(f"WHEN '{answer}' THEN {micros(grain.bucket_s)}" for answer, grain in GRAINS.items())
    by_client = words(tuple(answer for answer, grain in GRAINS.items() if grain.by_client))
    return f"""
    CREATE VIEW placed AS SELECT * EXCLUDE (client, net),
        CASE WHEN answer IN ({by_client}) THEN client END AS client,
        CASE WHEN answer IN ({words(FAILURES)}) THEN net END AS net, CASE answer {widths} END AS width
        FROM exchanges;
    CREATE TABLE rollup AS SELECT answer, node, channel, release, client, net, ts_us - ts_us % width AS bucket_us,
        count(*) AS n, min(ts_us) AS first_us, max(ts_us) AS last_us, min(seq) AS seq_lo, max(seq) AS seq_hi,
        bit_or(1::UBIGINT << (seq % 64)) AS seq_bits, min(head) AS head_lo, max(head) AS head_hi,
        bit_or(1::UBIGINT << conn_bit) AS conn_bits, bit_or(1::UBIGINT << node_bit) AS node_bits,
        bit_or(1::UBIGINT << (ts_us % width * 64 // width)) AS slots,
        max(retry_after_ms) AS retry_after_ms, sum(guard_ms) AS guard_ms, sum(closed) AS closed, sum(dur_us) AS dur_us,
        CASE WHEN count(*) < 1 << 15 THEN sum(waited) ELSE 0 END AS waited
        FROM placed GROUP BY ALL;"""


def _buckets() -> str:
    kinds = ", ".join(f"sum(n) FILTER (answer = '{kind}') AS n_{kind}" for kind in FAILURES)
    return f"""
    CREATE VIEW all_buckets AS SELECT coalesce(client, net) AS client, client IS NOT NULL AS named, channel,
        CASE WHEN answer NOT IN ({words(FAILURES)}) THEN node END AS place,
        CASE WHEN answer IN ({words(FAILURES)}) THEN 'failure' ELSE answer END AS family, bucket_us,
        sum(n)::BIGINT AS n, min(first_us) AS first_us, max(last_us) AS last_us, min(seq_lo) AS seq_lo,
        max(seq_hi) AS seq_hi, bit_or(seq_bits) AS seq_bits, min(head_lo) AS head_lo, max(head_hi) AS head_hi,
        bit_or(conn_bits) AS conn_bits, bit_or(node_bits) AS node_bits, bit_or(slots) AS slots,
        max(retry_after_ms) AS retry_after_ms, sum(guard_ms) AS guard_ms, sum(closed) AS closed, sum(dur_us) AS dur_us,
        sum(waited)::BIGINT AS waited,
        min(node) AS node_lo, max(node) AS node_hi,
        min(release) AS release_lo, max(release) AS release_hi, {kinds}
        FROM rollup WHERE answer IN ({words(WATCHED)}) AND coalesce(client, net) IS NOT NULL
            AND (answer <> 'served' OR n > seqs_of(answer, n, seq_bits, seq_lo, seq_hi))
        GROUP BY ALL;
    CREATE TABLE buckets AS SELECT * EXCLUDE (pause), count(*) FILTER (pause IS NULL OR pause > {micros(P.slow_gap_s)})
            OVER (PARTITION BY client, named, channel, place, family ORDER BY bucket_us) AS chain
        FROM (SELECT *, first_us - lag(last_us) OVER
            (PARTITION BY client, named, channel, place, family ORDER BY bucket_us) AS pause FROM all_buckets);
    CREATE VIEW beside AS SELECT *,
        CASE WHEN family IN ({words(ONCE_PER_SEQ)}) THEN seqs_of(family, n, seq_bits, seq_lo, seq_hi) ELSE 0 END AS own,
        coalesce(first_us - lag(last_us) OVER w <= {micros(P.gap_s)} AND seq_lo <= lag(seq_hi) OVER w
            AND lag(seq_lo) OVER w <= seq_hi, false) AS follows,
        coalesce(lead(first_us) OVER w - last_us <= {micros(P.gap_s)} AND seq_lo <= lead(seq_hi) OVER w
            AND lead(seq_lo) OVER w <= seq_hi, false) AS goes_on,
        coalesce(least(bit_count(seq_bits & lag(seq_bits) OVER w),
            least(seq_hi, lag(seq_hi) OVER w) - greatest(seq_lo, lag(seq_lo) OVER w) + 1), 0) AS known,
        coalesce(bit_count(seq_bits & lead(seq_bits) OVER w), 0) AS known_next
        FROM buckets WINDOW w AS (PARTITION BY client, named, channel, place, family, chain ORDER BY bucket_us);
    CREATE TABLE signals AS SELECT *, greatest(0, own - CASE WHEN follows THEN known ELSE 0 END)::BIGINT AS seqs,
        n - greatest(0, greatest(0, own - CASE WHEN follows THEN known ELSE 0 END) - 1) AS row_hits,
        CASE WHEN family <> 'failure' THEN 1 ELSE
            {" + ".join(f"(coalesce(n_{kind}, 0) > 0)::INTEGER * {1 << place}" for place, kind in enumerate(FAILURES))}
        END AS kinds
        FROM beside WHERE family NOT IN ({words(ONCE_PER_SEQ)}) OR n > own OR follows AND known > 0
            OR goes_on AND known_next > 0;"""


def _islands() -> str:
    key = "PARTITION BY client, named, channel, place, family, chain ORDER BY bucket_us"
    return f"""
    CREATE VIEW around AS SELECT *, first_us - lag(last_us) OVER w AS pause,
        greatest(row_hits / greatest(1, own_time(last_us - first_us, guard_ms, n)),
            CASE WHEN family NOT IN ({words(REPEATABLE)}) THEN
            (row_hits + lag(row_hits) OVER w) / greatest(1, own_time(last_us - lag(first_us) OVER w,
                guard_ms + lag(guard_ms) OVER w, n + lag(n) OVER w)) END) AS peak_rps,
        CASE WHEN family = 'served' THEN bit_count(slots) * {GRAINS[REPEATABLE[1]].bucket_s / 64} ELSE 1 END AS busy_s,
        coalesce(kinds & bit_or(kinds) OVER ({key} ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING) = 0
            AND coalesce(lag(kinds) OVER w & bit_or(kinds) OVER ({key} ROWS BETWEEN 1 FOLLOWING AND 4 FOLLOWING), 0)
                = 0, false) AS another
        FROM signals WINDOW w AS ({key});
    CREATE TABLE numbered AS SELECT *,
        count(*) FILTER (pause IS NULL OR pause > {micros(P.gap_s)} OR another) OVER w AS island,
        count(*) FILTER (pause IS NULL OR pause > {micros(P.slow_gap_s)} OR another) OVER w AS coarse
        FROM around WINDOW w AS ({key});"""


def _summed(source: str, part: str) -> str:
    """Buckets of a part, added up, with all that follows from the sums."""
    counts = ", ".join(f"coalesce(sum(n_{kind}), 0) AS n_{kind}" for kind in FAILURES)
    most = f"greatest({', '.join(f'n_{kind}' for kind in FAILURES)})"
    commonest = " ".join(f"WHEN n_{kind} = {most} THEN '{kind}'" for kind in sorted(FAILURES, reverse=True))
    hits = f"greatest(0, n - right_once(seqs, {READERS}, waited) + 1)"
    return f"""
    SELECT *, hits / greatest(1, own_s) AS mean_rps, greatest(hits / greatest(1, own_s), peak_rps) AS rate
    FROM (SELECT *, CASE WHEN answer IN ({words(ONCE_PER_SEQ)}) THEN {hits} ELSE n END::BIGINT AS hits
        FROM (SELECT *, CASE WHEN family <> 'failure' THEN family {commonest} END AS answer,
                own_time(last_us - first_us, guard_ms, n) AS own_s
            FROM (SELECT client, named, channel, place, family, chain, {part} AS part, sum(n)::BIGINT AS n,
                min(first_us) AS first_us, max(last_us) AS last_us, min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi,
                min(head_lo) AS head_lo, max(head_hi) AS head_hi, bit_or(conn_bits) AS conn_bits,
                bit_or(node_bits) AS node_bits, max(retry_after_ms) AS retry_after_ms, sum(guard_ms) AS guard_ms,
                sum(closed) AS closed, sum(dur_us) AS dur_us, sum(waited)::BIGINT AS waited,
                min(node_lo) AS node_lo, max(node_hi) AS node_hi,
                min(release_lo) AS release_lo, max(release_hi) AS release_hi, max(peak_rps) AS peak_rps,
                sum(seqs)::BIGINT AS seqs,
                sum(busy_s) AS busy_s, {counts} FROM {source} GROUP BY ALL)))"""


def _candidates() -> str:
    same = " AND ".join(f"b.{name} IS NOT DISTINCT FROM i.{name}" for name in ("client", "named", "channel", "place"))
    slowable = "'not_found', 'seq_missing', 'overload'"
    return f"""
    CREATE TABLE islands AS {_summed("numbered", "island")};
    CREATE TABLE judged AS SELECT *, level(hits, node_bits, rate) IS NOT NULL AND (answer <> 'not_found'
        OR quick(hits, node_bits, rate) OR mean_rps >= {P.not_found_rps}) AS alone FROM islands;
    CREATE TABLE parted AS SELECT b.*, CASE WHEN i.alone THEN b.island ELSE -b.coarse END AS part_of
        FROM numbered b JOIN judged i ON {same} AND b.family = i.family AND b.chain = i.chain AND b.island = i.part
        WHERE i.alone OR i.answer IN ({slowable});
    CREATE TABLE parts AS {_summed("parted", "part_of")};
    CREATE TABLE candidates AS SELECT * EXCLUDE (n, part, chain, node_hi, peak_rps), rate AS peak_rps,
        level(hits, node_bits, rate) AS severity, part < 0 AS slow,
        CASE WHEN answer = 'served' OR answer IN ({words(ONCE_PER_SEQ)}) AND 2 * hits < n THEN hits ELSE n END AS n,
        CASE WHEN n > 1 THEN own_s * 1000 / (n - 1) END AS gap_ms,
        CASE WHEN node_lo = node_hi THEN node_lo END AS node
        FROM parts WHERE level(hits, node_bits, rate) IS NOT NULL
        AND NOT (answer IN ({words(COUNTED)}) AND (NOT named AND conn_bits IS NULL
            OR n < {P.crowd_per_conn} * conns_of(conn_bits, n)
                AND (last_us - first_us) / 1e6 <= CASE WHEN named THEN {P.crowd_s} ELSE {P.anonymous_s} END))
        AND NOT (answer IN ({words(REPEATABLE)}) AND (hits - 1) * {P.gap_s} < (last_us - first_us) / 1e6)
        AND NOT (answer = 'served' AND 2 * waited < seqs AND n < {P.browse_times} * seqs * {READERS}
            AND hits < {P.browse_rps} * (last_us - first_us) / 1e6)
        AND NOT (answer = 'abandoned' AND dur_us = 0 AND NOT quick(hits, node_bits, rate));"""


def islands() -> list[str]:
    """From the table ``exchanges`` to ``rollup`` and, of single clients, ``candidates``."""
    return [_macros(), _rollup(), _buckets(), _islands(), _candidates()]
