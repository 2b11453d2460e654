"""The one record shape: the columns of ``line``, and how the fields of any format become them.

Each format gives SQL for some *fields*, named in :data:`FIELDS`. From there on all formats, and both engines, share one
chain of SELECTs (:func:`parsed`): ranges are checked, the path is read, and ``bad`` says what is wrong with a line. A
line is bad if it would say something else without the field that could not be read; any other nonsense is as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tricklecast.analytics.lines.dialect import cut, text, whole
from tricklecast.analytics.lines.routes import routed
from tricklecast.trickle.records import VERSION, Kind, Op, Reason
from tricklecast.trickle.wire import DEFAULT_BASE_PATH, LAST_SEQ, Status

LINE: Final[tuple[tuple[str, str], ...]] = (
    ("ts_us", "BIGINT"),
    ("node", "VARCHAR"),
    ("kind", "VARCHAR"),
    ("event", "VARCHAR"),
    ("op", "VARCHAR"),
    ("method", "VARCHAR"),
    ("path", "VARCHAR"),
    ("status", "INT"),
    ("grpc", "INT"),
    ("channel", "VARCHAR"),
    ("epoch", "BIGINT"),
    ("seq", "BIGINT"),
    ("rseq", "BIGINT"),
    ("next_seq", "BIGINT"),
    ("reason", "VARCHAR"),
    ("bytes_in", "BIGINT"),
    ("bytes_out", "BIGINT"),
    ("wait_us", "BIGINT"),
    ("dur_us", "BIGINT"),
    ("eos", "BOOLEAN"),
    ("client", "VARCHAR"),
    ("ip", "VARCHAR"),
    ("ua", "VARCHAR"),
    ("release", "VARCHAR"),
    ("attempt", "INT"),
    ("retry_after_ms", "BIGINT"),
    ("guard_ms", "BIGINT"),
    ("conn", "BIGINT"),
    ("request", "VARCHAR"),
    ("blind", "VARCHAR"),
)
"""Columns of ``line``, in order, with DuckDB's types.

``request`` is an id that no other request has, where the format has one; ``blind`` names, between commas, the columns
that the line's format cannot know. ``ts_us`` among them means that the log's times are whole seconds. ``grpc`` is the
status of a gRPC call, 0 to 16, whose HTTP status is 200 also where it failed.
"""

PARSED: Final = (*LINE, ("file", "INT"), ("no", "BIGINT"), ("bad", "VARCHAR"), ("text", "VARCHAR"))
"""Columns of all lines, the bad ones too: which file, which line in it (where the engine knows), what is wrong with it,
and, only if something is, how it begins."""

DETAILS: Final = (
    ("worker", "INT"),
    ("answered_by", "VARCHAR"),
    ("via", "VARCHAR"),
    ("trace", "VARCHAR"),
    ("detail", "VARCHAR"),
)
"""Columns that no analysis needs; they are read for those who keep or show whole records. ``to`` is a word of SQL, so
names of columns stand in quotes where these may be among them."""

MAX_TS_US: Final = 4_102_444_800_000_000
"""2100-01-01: a later arrival is a broken line."""
MAX_DUR_US: Final = 7 * 86_400_000_000
MAX_LINE: Final = 1 << 20
"""Bytes; a longer line is not looked at."""

OTHER: Final = "other"
"""The fault of a line of another program in a container's log: it is none of the server's, and counted apart."""

MAX_SAMPLE: Final = 200
"""Characters that are kept of a bad line."""

_BYTES: Final = 1 << 50
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "ts_us": (1, MAX_TS_US),
    "status": (100, 999),
    "grpc": (0, 16),
    "epoch": (0, 1 << 31),
    "seq": (-LAST_SEQ, LAST_SEQ),
    "rseq": (0, LAST_SEQ),
    "next_seq": (0, LAST_SEQ + 1),
    "bytes_in": (0, _BYTES),
    "bytes_out": (0, _BYTES),
    "wait_us": (0, MAX_DUR_US),
    "dur_us": (0, MAX_DUR_US),
    "attempt": (1, 1_000_000),
    "retry_after_ms": (0, MAX_DUR_US // 1000),
    "guard_ms": (0, MAX_DUR_US // 1000),
    "conn": (0, 1 << 53),
    "worker": (0, 1 << 20),
}
"""The range of numbers; any other is dropped rather than summed."""

HELD_US: Final = 100_000
"""A request that took longer, and had nothing to wait for, was held back by the storm guard. A proxy cannot tell this
time from that of the server's work, so the time of the work is not known. Microseconds."""

_FRUITLESS: Final = f"""coalesce(r_op = '{Op.READ}' AND (status IN ({Status.NOT_FOUND:d}, {Status.SEQ_MISSING:d})
    OR status = {Status.OK:d} AND bytes_out = 0 AND (eos OR rseq + 1 < next_seq)), false)"""

_LEFT_OUT: Final = {"bytes_in": 0, "bytes_out": 0, "attempt": 1}
"""Fields that our own log leaves out of the record of an exchange; other logs write them."""

_IF_EXCHANGE: Final = f"CASE WHEN kind = '{Kind.EXCHANGE}' THEN {{}} END"

_MATTERS: Final = ("status", "seq", "rseq", "bytes_out", "dur_us")
"""Numbers without which a line would say something else: what is there must be one, and in its range."""

_LENGTHS: Final = {"method": 16, "path": 512, "ua": 256, "release": 64, "ip": 64}
_MAX_TEXT: Final = 256
_BACKSLASH: Final = "chr(92)"
_MAX_NESTED: Final = 500
"""Brackets in a line of JSON. Readers differ in how deep they go; nothing that is logged goes deep."""

INTERNAL: Final = ("broken", "gone", "coarse", "stated", "v", "client_key", "end_us", "target")
FIELDS: Final = frozenset(name for name, _ in (*LINE, *DETAILS)) | frozenset(INTERNAL)
"""Results that a format may give besides columns: ``broken`` (BOOLEAN: the line cannot be read), ``gone`` (BOOLEAN: the
client left first), ``coarse`` (BOOLEAN: times are in whole seconds), ``stated`` (text of the status), ``v`` (version),
``client_key`` (who it is from), ``end_us`` in place of ``ts_us`` (when the request ended), ``target`` (path and query).
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the lines of one format are read, as SQL over a SELECT of its raw values.

    Attributes:
        fields: SQL for each field that the format has; the others are null.
        native: the lines are our own records.
        prefix: what the paths of channels begin with.
        blind: columns that the format cannot know.
        parts: SQL of what several fields are made of, by the name that they have for it. To make a plan of it twice
            takes twice as long, and so does each line.
    """

    fields: Mapping[str, str]
    native: bool = False
    prefix: str = DEFAULT_BASE_PATH
    blind: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)


def own_fields(texts: Mapping[str, str]) -> dict[str, str]:
    """The fields of our own record.

    Args:
        texts: SQL for the text of each field of :data:`trickle.records.SCHEMA`.
    """
    types = dict((*LINE, *DETAILS))
    made = {name: value for name, value in texts.items() if types.get(name) == "VARCHAR"}
    for name in [*_RANGES, "v"]:
        if name in texts:
            made[name] = whole(texts[name])
            made[f"has_{name}"] = f"{texts[name]} IS NOT NULL"
    if "eos" in texts:
        made["eos"] = f"CASE {texts['eos']} WHEN 'true' THEN true WHEN 'false' THEN false END"
        made["has_eos"] = f"{texts['eos']} IS NOT NULL"
    made["target"] = made.pop("path", "CAST(NULL AS VARCHAR)")
    return made


def unreadable() -> str:
    """SQL for whether a JSON line is not to be parsed: no object, too long, too deep, or half of a surrogate pair."""
    size = "strlen(line)"
    nested = (
        f"CASE WHEN {size} > 1000 THEN length(line) - length(translate(line, '{{[', '')) > {_MAX_NESTED} ELSE false END"
    )
    # Half of a surrogate pair is no text. No control character is in valid JSON.
    escapes = f"replace(replace(line, {_BACKSLASH} || {_BACKSLASH}, ''), {_BACKSLASH} || 'u', chr(1))"
    halves = f"regexp_replace({escapes}, chr(1) || '[dD][89abAB]..' || chr(1) || '[dD][c-fC-F]..', '', 'g')"
    suspect = f"instr(line, {_BACKSLASH} || 'u') > 0"
    half = f"regexp_matches({halves}, chr(1) || '[dD][89a-fA-F]')"
    lone = f"CASE WHEN {suspect} THEN {half} ELSE false END"
    return f"(left(ltrim(line), 1) <> '{{' OR {size} > {MAX_LINE} OR {nested} OR {lone})"


def parsed(
    shape: Shape,
    raw: str,
    window: tuple[int | None, int | None] = (None, None),
    *,
    node: str | None = None,
    details: bool = False,
    other: str | None = None,
    texts: bool = False,
) -> str:
    """SELECT of the columns :data:`PARSED` of every line, the bad ones too; blank lines are left out.

    Args:
        shape: the format.
        raw: SELECT with ``file``, ``no``, ``line`` and what the shape's fields are made of.
        window: first moment, and the first after the last, microseconds; lines of other times are left out.
        node: SQL for the server of a line that does not name one.
        details: add the columns :data:`DETAILS`, and the second lines of requests that one node of a cluster has passed
            on to another (``via``); analyses count such a request once, by the line of the node that it came to.
        other: SQL for whether an unreadable line is of something else, :data:`OTHER`.
        texts: give the whole text of every line.
    """
    if shape.parts:
        raw = f"SELECT *, {', '.join(f'{sql} AS {name}' for name, sql in shape.parts.items())} FROM ({raw}) alone"
    values = f"SELECT file, no, line, {', '.join(_fields(shape))} FROM ({raw}) raw"
    # Our own log says what each path means.
    known = f"SELECT *, target AS path FROM ({values}) own" if shape.native else routed(values, shape.prefix)
    if not shape.native:
        known = f"SELECT *, {_moment(shape)} AS moment, {_FRUITLESS} AS fruitless FROM ({known}) routed"
    wrong = _what_is_wrong(shape)
    if other is not None:
        wrong = wrong.replace("CASE ", f"CASE WHEN broken AND {other} THEN '{OTHER}' ", 1)
    checked = f"SELECT *, {wrong} AS bad FROM ({known}) known"
    wanted_columns = [*LINE, *(DETAILS if details else ())]
    columns = ", ".join(_column(shape, name, kind, node) for name, kind in wanted_columns)
    left = "rtrim(line, chr(13) || chr(10))"
    if not texts:
        left = f"CASE WHEN bad IS NOT NULL THEN rtrim(left(line, {MAX_SAMPLE}), chr(13) || chr(10)) END"
    once = "" if details else " WHERE via IS NULL"
    rows = f"SELECT {columns}, file, no, bad, {left} AS text FROM ({checked}) checked{once}"
    wanted = ["(bad IS NULL OR text IS NULL OR trim(translate(text, chr(9) || chr(13), '')) <> '')"]
    start, end = window
    if start is not None:
        wanted.append(f"coalesce(ts_us >= {start:d}, true)")
    if end is not None:
        wanted.append(f"coalesce(ts_us < {end:d}, true)")
    return f"SELECT * FROM ({rows}) rows WHERE {' AND '.join(wanted)}"


def _fields(shape: Shape) -> list[str]:
    types = dict((*LINE, *DETAILS)) | {
        "broken": "BOOLEAN",
        "gone": "BOOLEAN",
        "coarse": "BOOLEAN",
        "end_us": "BIGINT",
        "v": "BIGINT",
    }
    found = []
    for name in sorted(FIELDS - {"path"}):
        value = shape.fields.get(name)
        if name in ("broken", "gone", "coarse"):
            found.append(f"coalesce({value or 'false'}, false) AS {name}")
        else:
            kind = types.get(name, "VARCHAR").replace("INT", "BIGINT").replace("BIGBIG", "BIG")
            kind = kind.replace("VARCHAR", "STRING")
            found.append(f'{value or f"CAST(NULL AS {kind})"} AS "{name}"')
    return found + [f"{value} AS {name}" for name, value in shape.fields.items() if name.startswith("has_")]


def _inside(name: str) -> str:
    low, high = _RANGES[name]
    return f"{name} BETWEEN {low} AND {high}"


def _moment(shape: Shape) -> str:
    """Arrival: a proxy writes down the end, and the difference to it is the whole wait of a long poll."""
    if "end_us" not in shape.fields:
        return "ts_us"
    # Numbers that are out of range must not be reckoned with: DuckDB refuses an overflow.
    spent = f"coalesce(CASE WHEN {_inside('dur_us')} THEN dur_us END, 0)"
    end = f"CASE WHEN end_us BETWEEN 1 AND {MAX_TS_US + MAX_DUR_US} THEN end_us END"
    # A fraction that comes from the duration alone would look like one of the clock.
    seconds = f"CAST(floor({spent} / 1e6 + 0.5e0) AS BIGINT) * 1000000"
    return f"({end} - CASE WHEN coarse THEN {seconds} ELSE {spent} END)"


def _what_is_wrong(shape: Shape) -> str:
    """SQL for what is wrong with a line, in a word or two; null if nothing is."""
    moment = "ts_us" if shape.native else "moment"
    span = f"{moment} BETWEEN {_RANGES['ts_us'][0]} AND {_RANGES['ts_us'][1]}"
    causes = [("broken", "unreadable")]
    if shape.native:
        causes.append((f"v IS NOT NULL AND v <> {VERSION}", "version"))
        causes.append((f"NOT coalesce(kind IN ('{Kind.EXCHANGE}', '{Kind.EVENT}'), false)", "kind"))
    causes.append((f"NOT coalesce({span}, false)", "time"))
    if "has_eos" in shape.fields:
        causes.append(("has_eos AND eos IS NULL", "eos"))
    for name in _MATTERS:
        if f"has_{name}" in shape.fields:
            causes.append((f"has_{name} AND NOT coalesce({_inside(name)}, false)", name))
        elif name == "status" and not shape.native:
            # 0 and 000 are what proxies write for no answer.
            causes.append(("stated IS NOT NULL AND NOT coalesce(status BETWEEN 0 AND 999, false)", name))
            causes.append(("stated IS NULL AND coalesce(method, '') = ''", "request"))
        elif name in shape.fields:
            causes.append((f"{name} < 0", name))
    causes.append(("wait_us < 0", "wait_us"))
    return "CASE " + " ".join(f"WHEN {condition} THEN '{word}'" for condition, word in causes) + " END"


def _column(shape: Shape, name: str, kind: str, node: str | None) -> str:
    if name == "blind":
        told = text(",".join(shape.blind))
        return f"coalesce(blind, {told}) AS blind" if "blind" in shape.fields else f"{told} AS blind"
    # Rows that say what their format cannot know were written by "logs compact", which leaves nothing out.
    leaves_out = shape.native and "blind" not in shape.fields
    if name in _RANGES:
        value = "moment" if name == "ts_us" and not shape.native else name
        if name == "seq":
            # What matches no route has its query's number: two searches are not one request made twice.
            query = f"CASE WHEN r_op IS NULL AND instr(target, '?') > 0 THEN hash(target) % {LAST_SEQ} END"
            value = "seq" if shape.native else f"coalesce(seq, r_seq, {query})"
        elif name == "status" and "gone" in shape.fields:
            value = "CASE WHEN NOT gone THEN status END"
        elif name == "rseq" and not shape.native:
            # With 470 the header repeats what was asked for: nothing was resolved.
            value = f"CASE WHEN status = {Status.SEQ_MISSING:d} THEN NULL ELSE rseq END"
        elif name in _LEFT_OUT and leaves_out:
            value = _IF_EXCHANGE.format(f"coalesce({name}, {_LEFT_OUT[name]})")
        elif name == "next_seq" and {"rseq", "next_seq"} <= shape.fields.keys() and not shape.native:
            # The server does not send where the head is with an answer that is about the newest segment.
            value = f"CASE WHEN next_seq IS NULL AND status = {Status.OK:d} THEN rseq + 1 ELSE next_seq END"
        elif name in ("dur_us", "wait_us") and not shape.native:
            value = f"CASE WHEN NOT ({name} >= {HELD_US} AND fruitless) THEN {name} END"
        low, high = _RANGES[name]
        return f"CAST(CASE WHEN {value} BETWEEN {low} AND {high} THEN {value} END AS {kind}) AS {name}"
    if name == "eos":
        return _IF_EXCHANGE.format("coalesce(eos, false)") + " AS eos" if leaves_out else "eos"
    value = f'"{name}"'
    if name == "op":
        value = f"nullif(op, '{Op.API}')" if shape.native else "coalesce(op, r_op)"
    elif name == "channel" and not shape.native:
        value = "coalesce(channel, r_channel)"
    elif name == "kind" and not shape.native:
        return f"'{Kind.EXCHANGE}' AS kind"
    elif name == "reason" and "gone" in shape.fields:
        value = f"coalesce(reason, CASE WHEN gone THEN '{Reason.CLIENT_GONE}' END)"
    elif name == "release" and "release" not in shape.fields:
        value = "split_part(ua, ' ', 1)"
    elif name == "client" and "client_key" in shape.fields:
        value = "client_key"
    elif name == "node" and node is not None:
        value = f"coalesce(node, {node})"
    return f'{cut(value, _LENGTHS.get(name, _MAX_TEXT))} AS "{name}"'


def client_key(key: tuple[tuple[str, ...], ...], texts: Mapping[str, str]) -> str:
    """SQL for whom a line is from.

    A key is a list of choices, the first that a line has counts; a choice is one field, or several: ``ip`` and ``ua``.
    ``ua`` is shortened to a checksum; the others stand as they are, so that a client can be found in the log again.

    Args:
        key: choices of fields; texts: SQL for each field.
    """

    def part(name: str) -> str:
        value = texts.get(name, "CAST(NULL AS STRING)")
        return f"'#' || left(md5({value}), 8)" if name == "ua" else f"'+' || {value}"

    def choice(names: tuple[str, ...]) -> str:
        first = texts.get(names[0], "CAST(NULL AS STRING)")
        # Without its first field it is no choice; the others only tell apart those that share the first.
        return " || ".join([first, *(f"coalesce({part(name)}, '')" for name in names[1:])])

    return f"coalesce({', '.join(map(choice, key))}, CAST(NULL AS STRING))"


def view(table: str = "parsed_line") -> str:
    """SELECT of the columns :data:`LINE` of the good lines from a table of all of them."""
    return f"SELECT {', '.join(name for name, _ in LINE)} FROM {table} WHERE bad IS NULL"
