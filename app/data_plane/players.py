"""The routes of HLS: a GET of a playlist, or of a file of one: a segment, a part or an init segment.

A name of media means the same bytes at every server, and a holder of a channel makes the playlist that its owner makes
(docs/adr/0029). So any holder answers what it has; :func:`only_owner_answers` tells what it has not.
"""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import quote

from tricklecast.app.clock import to_us
from tricklecast.app.content_coding import takes_gzip
from tricklecast.app.core.results import Refusal
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.state import Channel
from tricklecast.app.core.storm_guard import ReplyKind
from tricklecast.app.data_plane.context import DataPlane, ParkedFor
from tricklecast.app.data_plane.exchange import Caller, Exchange, Parked
from tricklecast.app.data_plane.ranges import SpanReader, has_it, range_of, unsatisfiable_reply
from tricklecast.app.data_plane.request import ACCEPT_ENCODING, Request
from tricklecast.app.data_plane.responses import (
    SEQ_RETRY_S,
    Headers,
    Reply,
    ResponseHead,
    media_caching,
    media_lines,
    playlist_caching,
    refusal_reply,
    shutdown_reply,
)
from tricklecast.app.data_plane.routing import FROM_PARAMETER, Blocking, Media, Route, Start
from tricklecast.app.data_plane.stages import delay, kind_of, noted, park
from tricklecast.app.hls.demuxed import track_init
from tricklecast.app.hls.multivariant import multivariant
from tricklecast.app.hls.packager import Packager
from tricklecast.app.hls.pictures import has_pictures, pictures
from tricklecast.app.hls.playlist import CONTENT_TYPE as PLAYLIST_TYPE
from tricklecast.app.hls.playlist import playlist
from tricklecast.app.hls.recording import Recording
from tricklecast.app.hls.rendered import Rendered
from tricklecast.app.hls.renditions import renditions, texts, track_file, track_of
from tricklecast.trickle import wire
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import MP4, MP4_AUDIO, MPEG_TS, WEBVTT, Status

FIRST_SEGMENT_S: Final = 10.0
"""A request for a playlist waits this long for the first whole segment of a channel."""

BLOCKING_TARGETS: Final = 3
"""A blocking request for a playlist waits this many target durations (draft-pantos-hls-rfc8216bis, section 6.2.5.2)."""

NEVER_COMES_S: Final = 2.0
"""The part at which the last playlist before the end has hinted gets its 404 after this time. Shaka gives the whole
stream up at that 404, unless it has seen in the playlist before that the stream has ended."""

NEWEST: Final = 64
"""The live edge is where the last one of as many segments has closed."""

CONTENT_TYPES: Final = {"ts": MPEG_TS, "m4s": MP4, "m4a": MP4_AUDIO, "mp4": MP4, "vtt": WEBVTT}


class MediaReader(SpanReader):
    """The exchange of a player that is sent a media segment, or a part of one."""

    __slots__ = ()

    counted_elsewhere: ClassVar[bool] = True


def answer_player(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """The stage of a request for a playlist, or for a file of one."""
    return (_playlist if route.op is Op.PLAYLIST else _media)(connection, request, route)


def only_owner_answers(plane: DataPlane, route: Route) -> bool:
    """Whether a server that holds a replica of the channel must forward this request to the channel's owner."""
    channel = plane.registry.find(route.channel)
    if isinstance(channel, Refusal) or not channel.playlist:
        return True
    found, asked = plane.packagers.of(channel), route.blocking
    if route.media is not None:
        return _find(plane, found, route.media) is None
    if asked is None or asked.start is not None or not found.in_step:
        return True
    return (asked.msn or 0) > found.timeline.next_msn + 1


def _playlist(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """Answer with the playlist, as soon as it has the segment or part that the client waits for."""
    plane = connection.plane
    if (recording := _recording(plane, route)) is not None:
        return _recorded(connection, request, route, recording)
    found = _packager(connection, request, route)
    if not isinstance(found, Packager):
        return found
    asked = route.blocking
    assert asked is not None, "a playlist's route has its query"
    msn, part, is_whole = asked.msn, asked.part, asked.msn is None and not asked.is_media
    if asked.start is not None and asked.start.seq is not None:
        found = _when_ready(connection, request, route, plane.packagers.of_event(found, asked.start.seq))
        if not isinstance(found, Packager):
            return found
    if msn is not None and request.method != b"HEAD" and not found.ended:
        if msn > (last := found.timeline.next_msn + 1):
            reply = Reply(Status.BAD_REQUEST, Reason.AHEAD, body=f"_HLS_msn is beyond {last}".encode())
            return delay(connection, request, route, ReplyKind.REFUSED, 0, answer_player) or reply
        if not found.has(msn, part):
            late = Reply(Status.UNAVAILABLE, Reason.TIMEOUT, body=b"Nothing new yet", retry_after_s=1)
            return _await(connection, request, route, found, BLOCKING_TARGETS * found.timeline.target_s) or late
    tracks = renditions(found)
    if lacking := _lacking(asked, found):
        return _no_such(connection, request, route, lacking)
    # A player asks for several tracks, and for pictures beside them.
    is_counted = not asked.is_pictures and (asked.track is None or asked.track in [one.number for one in tracks[:1]])
    if request.method != b"HEAD" and not is_whole and is_counted:
        found.served(msn, part)
    target_s, private = found.timeline.target_s, plane.authorizer is not None
    caching = playlist_caching(target_s, blocking=msn is not None, private=private)
    if is_whole:
        text = multivariant(found, asked.ladder, together=asked.start is not None)
    else:
        text = pictures(found) if asked.is_pictures else playlist(found, asked.track)
    first = _first_seq(plane, found.channel, asked.start) if is_whole and asked.start is not None else None
    reply = _playlist_reply(request, text, _query(asked, first), caching)
    # A player asks for the playlists of one state one after the other.
    about = -found.version if is_whole else found.version + ((-1 if asked.is_pictures else asked.track or 0) << 32)
    delayed = delay(connection, request, route, ReplyKind.SAME, about, answer_player)
    return delayed or noted(request, plane.registry, route, reply)


def _lacking(asked: Blocking, found: Packager | Recording) -> str:
    """Name what the request wants of a channel that does not have it; empty if it does."""
    if asked.is_pictures and not has_pictures(found):
        return "pictures"
    if asked.track is None or any(one.number == asked.track for one in (*renditions(found), *texts(found))):
        return ""
    return "track"


def _no_such(connection: Caller, request: Request, route: Route, what: str) -> Reply | Exchange:
    reply = Reply(Status.NOT_FOUND, Reason.NOT_FOUND, body=f"No such {what}: ask for index.m3u8 again".encode())
    return delay(connection, request, route, ReplyKind.MISSING, 0, answer_player) or reply


def _query(asked: Blocking, first: int | None = None) -> str:
    """The query of the URLs in a playlist.

    Args:
        first: the seq with which the media playlist begins that a multivariant playlist names.
    """
    fields = [] if first is None else [f"{FROM_PARAMETER}={first}"]
    return "&".join([*fields, f"token={quote(asked.token, safe='')}"] if asked.token else fields)


def _first_seq(plane: DataPlane, channel: Channel, start: Start) -> int:
    """The segment in which a playlist begins: the first one that has closed at this time or later."""
    at_us = start.at_us
    if at_us is None:
        newest = channel.listed(max(0, channel.next_seq - NEWEST), 0, to_us)
        edge_us = max((one.closed_us for one in newest if one.closed_us is not None), default=plane.wall_us())
        at_us = edge_us - round((start.back_s or 0.0) * 1e6)
    found = next(channel.listed(0, at_us, to_us), None)
    return channel.next_seq if found is None else found.seq


def _playlist_reply(request: Request, found: Rendered, query: str, caching: str) -> Reply:
    """A playlist, compressed for a client that takes it; 304 if the client has it.

    Args:
        query: of the URLs in it. With one it is of one client, and nobody else would use what is compressed.
    """
    packed = not query and takes_gzip(request.text(ACCEPT_ENCODING))
    tag = f'"{found.digest_of(query)}{"-gzip" if packed else ""}"'
    headers: Headers = ((wire.ETAG, tag), ("vary", "accept-encoding"))
    if has_it(request, tag.encode()):
        return Reply(Status.NOT_MODIFIED, Reason.COMPLETE, headers, content_type="", caching=caching)
    if packed:
        headers = (*headers, ("content-encoding", "gzip"))
    body = found.compressed if packed else found.text(f"?{query}" if query else "")
    return Reply(Status.OK, Reason.COMPLETE, headers, body, PLAYLIST_TYPE, caching=caching)


def _media(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """Answer with a file of a playlist. A part that the playlist only hints at is sent as soon as it is whole."""
    if (recording := _recording(connection.plane, route)) is not None:
        return _recorded(connection, request, route, recording)
    found = _packager(connection, request, route)
    if not isinstance(found, Packager):
        return found
    media = route.media
    assert media is not None, "the route of media says which"
    there = _find(connection.plane, found, media)
    if there is not None:
        return _file(connection, request, found.channel, media, there)
    is_ours = media.prefix == found.prefix or track_of(found, media.prefix) is not None
    hinted = is_ours and (media.seq, media.part) == found.next_part
    if hinted and request.method != b"HEAD":
        if not found.ended:
            waits: Parked | None = _await(connection, request, route, found, BLOCKING_TARGETS * found.timeline.target_s)
        else:
            waits = _outlive(connection, request, route)
        if waits is not None:
            return waits
    reply = Reply(Status.NOT_FOUND, Reason.NOT_FOUND, body=b"No such media: ask for the playlist again")
    delayed = delay(connection, request, route, ReplyKind.MISSING, 0, answer_player)
    return delayed or noted(request, connection.plane.registry, route, reply)


def _outlive(connection: Caller, request: Request, route: Route) -> Parked | None:
    """Let a request for a part that will never come wait for a little, once; ``None`` if it has waited."""
    if request.held or connection.plane.registry.shutting_down:
        return None
    request.held = True
    parked = park(connection, request, route, ParkedFor.PLAYLIST, answer_player)
    parked.wait(NEVER_COMES_S)
    return parked


def _recording(plane: DataPlane, route: Route) -> Recording | None:
    """The recording of a channel that has ended, and has drained; ``None``: there is none, or the channel is here."""
    if plane.recordings is None or plane.registry.channels.get(route.channel) is not None:
        return None
    return plane.recordings.of(route.channel)


def _recorded(connection: Caller, request: Request, route: Route, found: Recording) -> Reply | Exchange:
    """Answer with the playlist of a recording, or a file of it, as soon as the recording is made."""
    if not found.ready:
        if found.unsuited:
            return Reply(Status.UNSUPPORTED, Reason.BAD_REQUEST, body=found.unsuited.encode())
        late = Reply(Status.UNAVAILABLE, Reason.TIMEOUT, body=b"The recording is being read", retry_after_s=1)
        return (request.method != b"HEAD" and _await(connection, request, route, found, FIRST_SEGMENT_S)) or late
    if (asked := route.blocking) is not None:
        if lacking := _lacking(asked, found):
            return _no_such(connection, request, route, lacking)
        private = connection.plane.authorizer is not None
        caching = playlist_caching(found.target_s, blocking=False, private=private)
        is_whole = asked.msn is None and not asked.is_media
        text = found.announced if is_whole else found.pictures if asked.is_pictures else found.rendered
        text = text if asked.track is None or is_whole or asked.is_pictures else found.playlist_of(asked.track)
        return _playlist_reply(request, text, _query(asked), caching)
    media = route.media
    assert media is not None, "it is a playlist, or a file of one"
    there: bytes | tuple[Segment, int, int] | None = None
    track, is_text = track_of(found, media.prefix), media.extension == "vtt"
    is_ours = track is not None or (media.prefix == found.prefix and not is_text)
    if is_ours and not media.at and media.part is None:
        there = found.inits.get(media.init) if media.seq is None else found.find(media.seq)
        if track is not None and isinstance(there, bytes):
            there = track_init(there, track)
        elif track is not None and there is not None and media.seq is not None:
            name = media.tag.decode()
            there = found.track_file(name, track, media.seq, is_text=is_text)
            if there is None and not found.cannot(name, media.seq):
                late = Reply(Status.UNAVAILABLE, Reason.TIMEOUT, body=b"The file is being made", retry_after_s=1)
                return (
                    request.method != b"HEAD" and _await(connection, request, route, found, FIRST_SEGMENT_S)
                ) or late
    if there is not None:
        return _file(connection, request, found.channel, media, there)
    reply = Reply(Status.NOT_FOUND, Reason.NOT_FOUND, body=b"No such media: ask for the playlist again")
    return delay(connection, request, route, ReplyKind.MISSING, 0, answer_player) or reply


def _file(
    connection: Caller, request: Request, channel: Channel, media: Media, there: bytes | tuple[Segment, int, int]
) -> Reply | Exchange:
    """A file of a playlist, or a range of it."""
    caching = media_caching(private=connection.plane.authorizer is not None)
    content_type, tag = CONTENT_TYPES[media.extension], media.tag
    size = len(there) if isinstance(there, bytes) else there[2] - there[1]
    if has_it(request, tag):
        lines = media_lines(tag, None, size)
        return Reply(Status.NOT_MODIFIED, Reason.COMPLETE, content_type="", caching=caching, lines=lines)
    span = range_of(request, size, tag)
    if span is not None and not span.end:
        return unsatisfiable_reply(size, "file")
    status = Status.OK if span is None else Status.PARTIAL_CONTENT
    lines, (begin, end) = media_lines(tag, span, size), span or (0, size)
    if isinstance(there, bytes):
        body = there[begin:end]
        return Reply(status, Reason.COMPLETE, body=body, content_type=content_type, caching=caching, lines=lines)
    segment, first, _ = there
    head = ResponseHead(status, lines, content_type, end - begin, caching)
    return MediaReader(connection, request, channel, segment, first + begin, first + end, head)


def _find(plane: DataPlane, live: Packager, media: Media) -> bytes | tuple[Segment, int, int] | None:
    """A file; or a segment of the channel, and where the media begin and end in it; or nothing.

    Args:
        live: the packager of the live edge. Playlists that begin in the past name more.
    """
    there = (_find_in(found, media) for found in (live, *plane.packagers.events_of(live.channel)))
    return next((one for one in there if one is not None), None)


def _find_in(found: Packager, media: Media) -> bytes | tuple[Segment, int, int] | None:
    track = None if media.prefix == found.prefix else track_of(found, media.prefix)
    is_text = media.extension == "vtt"
    if (track is None and (is_text or media.prefix != found.prefix)) or (is_text and media.part is not None):
        return None
    there = found.inits.get(media.init) if media.seq is None else found.find(media.seq, media.at, media.part)
    if track is None or there is None:
        return there
    return track_file(found, media.tag.decode(), track, there, is_text=is_text)


def _packager(connection: Caller, request: Request, route: Route) -> Packager | Reply | Parked:
    """The packager of the channel; or a response, or a wait for the channel's first segment."""
    channel = connection.plane.registry.find(route.channel)
    found = channel if isinstance(channel, Refusal) else connection.plane.packagers.of(channel)
    return _when_ready(connection, request, route, found)


def _when_ready(
    connection: Caller, request: Request, route: Route, found: Packager | Refusal
) -> Packager | Reply | Parked:
    """A packager whose playlist can be made; or a response, or a wait for its first segment."""
    plane = connection.plane
    if isinstance(found, Refusal):
        reply = refusal_reply(found, route.op, plane.jitter)
        return delay(connection, request, route, kind_of(found), 0, answer_player) or reply
    if found.ready:
        return found
    if found.unsuited:
        reply = Reply(Status.UNSUPPORTED, Reason.BAD_REQUEST, body=found.unsuited.encode())
        return delay(connection, request, route, ReplyKind.REFUSED, 0, answer_player) or reply
    if request.method != b"HEAD" and not found.ended:
        if plane.registry.shutting_down:
            return shutdown_reply(plane.jitter, plane.registry.come_back_s)
        if parked := _await(connection, request, route, found, FIRST_SEGMENT_S):
            return parked
    body = b"No whole segment yet"
    reply = Reply(Status.NOT_FOUND, Reason.NOT_FOUND, body=body, retry_after_s=plane.jitter(*SEQ_RETRY_S))
    return delay(connection, request, route, ReplyKind.MISSING, 0, answer_player) or noted(
        request, plane.registry, route, reply
    )


def _await(
    connection: Caller, request: Request, route: Route, found: Packager | Recording, wait_s: float
) -> Parked | None:
    """Let a request wait for news of a playlist until this time after its arrival; ``None`` if that is over."""
    left_s = request.arrived + wait_s - connection.plane.clock()
    if left_s <= 0 or connection.plane.registry.shutting_down:
        return None
    parked = park(connection, request, route, ParkedFor.PLAYLIST, answer_player)
    parked.wait(left_s)
    found.waiting[parked] = None
    timer = parked.cancel

    def cancel() -> None:
        timer()
        found.waiting.pop(parked, None)

    parked.cancel = cancel
    return parked
