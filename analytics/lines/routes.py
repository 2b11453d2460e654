"""Paths to op, channel and seq (docs/reference/protocol.md, section 2), as the server reads them, in SQL."""

from __future__ import annotations

from typing import Final

from tricklecast.analytics.lines.dialect import text
from tricklecast.trickle.records import Op
from tricklecast.trickle.wire import (
    CHANGEFEED,
    CLIP_MP4_ROUTE,
    CLIP_TS_ROUTE,
    HLS_ROUTE,
    MEDIA_PLAYLIST_ROUTE,
    NEXT_ROUTE,
    PLAYLIST_ROUTE,
    SEQ_NEXT,
    STREAM_ROUTE,
)

CONTROL_PLANE: Final = (
    "api",
    "metrics",
    "healthz",
    "readyz",
    "docs",
    "redoc",
    "openapi.json",
    "dashboard",
    "static",
    "favicon.ico",
)
"""First path segments that name no channel where channels have no prefix (protocol, section 2)."""

_SEGMENT: Final = {"GET": Op.READ, "HEAD": Op.READ, "POST": Op.PUBLISH, "DELETE": Op.CLOSE_SEGMENT}
_CHANNEL: Final = {"POST": Op.CREATE, "DELETE": Op.DELETE}


def routed(rows: str, prefix: str) -> str:
    """SELECT that adds ``path``, ``r_op``, ``r_channel`` and ``r_seq`` to rows with ``method`` and ``target``.

    ``path`` is the target without its query. The others are null where it matches no route.

    Args:
        rows: a SELECT; prefix: what the channels' paths begin with, ``/trickle``; ``""`` for the root.
    """
    bare = "split_part(target, '?', 1)"
    # http://host/path, as proxies are asked; and runs of slashes, which count as one.
    single = f"regexp_replace(regexp_replace({bare}, '^[A-Za-z][A-Za-z0-9+.-]*://[^/]*', ''), '/+', '/', 'g')"
    plain = f"CASE WHEN instr({bare}, '//') > 0 THEN {single} ELSE {bare} END"
    below = f"substr(path, {len(prefix) + 2})"
    inside = f"left(path, {len(prefix) + 1}) = {text(prefix + '/')} AND length(path) > {len(prefix) + 1}"
    if not prefix:
        inside += f" AND split_part({below}, '/', 1) NOT IN ({', '.join(map(text, CONTROL_PLANE))})"
    first = "split_part(r_below, '/', 1)"
    rest = "substr(r_below, length(r_name) + 2)"
    # A slash at the end means nothing; but "film/" has a tail, and it is empty.
    tail = f"CASE WHEN right({rest}, 1) = '/' THEN left({rest}, length({rest}) - 1) ELSE {rest} END"
    decoded = "CASE WHEN instr(r_name, '%') > 0 THEN try(url_decode(r_name)) ELSE r_name END"
    digits = "regexp_matches(r_tail, '^-?[0-9]{1,15}$')"
    return f"""
SELECT *, CASE WHEN r_valid THEN {_op()} END AS r_op,
    CASE WHEN r_valid AND {_allowed()} THEN r_number END AS r_seq,
    CASE WHEN r_valid THEN r_decoded END AS r_channel
FROM (SELECT *, CASE WHEN {digits} THEN try_cast(r_tail AS BIGINT) END AS r_number, {_valid()} AS r_valid
FROM (SELECT *, CASE WHEN instr(r_below, '/') > 0 THEN {tail} END AS r_tail, {decoded} AS r_decoded
FROM (SELECT *, {first} AS r_name
FROM (SELECT *, CASE WHEN {inside} THEN {below} END AS r_below
FROM (SELECT *, {plain} AS path FROM ({rows}) a) b) c) d) e) f"""


def _valid() -> str:
    """Whether a name can be a channel's, as :func:`trickle.paths.parse_channel` says: UTF-8, no slash, no ``..``."""
    return (
        "coalesce(r_decoded <> '' AND r_decoded <> '.' AND instr(r_decoded, '..') = 0 AND instr(r_decoded, '/') = 0"
        " AND instr(r_decoded, chr(92)) = 0 AND instr(r_decoded, '\ufffd') = 0 AND length(r_decoded) <= 255, false)"
    )


def _cases(ops: dict[str, Op]) -> str:
    return " ".join(f"WHEN method = '{method}' THEN '{op}'" for method, op in ops.items())


def _op() -> str:
    return f"""CASE WHEN r_tail IS NULL THEN CASE {_cases(_CHANNEL)} END
        WHEN r_tail = '{NEXT_ROUTE}' THEN {_if_read(Op.NEXT)}
        WHEN r_tail = '{STREAM_ROUTE}' THEN {_if_read(Op.STREAM)}
        WHEN r_tail IN ('{PLAYLIST_ROUTE}', '{MEDIA_PLAYLIST_ROUTE}') THEN {_if_read(Op.PLAYLIST)}
        WHEN r_tail IN ('{CLIP_MP4_ROUTE}', '{CLIP_TS_ROUTE}') THEN {_if_read(Op.CLIP)}
        WHEN left(r_tail, {len(HLS_ROUTE) + 1}) = '{HLS_ROUTE}/' THEN {_if_read(Op.HLS)}
        WHEN instr(r_tail, '/') > 0 THEN NULL
        WHEN r_decoded = '{CHANGEFEED}' AND r_number IS NOT NULL AND method IN ('GET', 'HEAD') THEN '{Op.CHANGES}'
        ELSE CASE {_cases(_SEGMENT)} END END"""


def _if_read(op: Op) -> str:
    return f"CASE WHEN method IN ('GET', 'HEAD') THEN '{op}' END"


def _allowed() -> str:
    """Which seqs an op may ask for: any for reading, -1 or N for publishing, N for closing."""
    return f"(method NOT IN ('POST', 'DELETE') OR r_number >= 0 OR (method = 'POST' AND r_number = {SEQ_NEXT}))"
