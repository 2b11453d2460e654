"""The streams of a channel as a multivariant playlist names them: codecs, sizes, languages.

**The problem.** A player decides by ``CODECS`` and ``RESOLUTION`` whether it can play at all, before it has asked for
any media. Only the media say what they are: in MP4 the init segment, in MPEG-TS the tables and the first bytes of each
stream.

**The idea.** Two readers of few bytes, :func:`mp4_streams` and :func:`ts_streams`. They raise for no bytes. A codec
that they cannot name is an empty text, and a playlist then names none: a list of codecs that lacks one is wrong, and no
list is allowed.

Codecs are written as in RFC 6381, and as ISO/IEC 14496-15 (H.264, HEVC), and the mappings of AV1, VP9, Opus and FLAC to
MP4 say. Sections of H.264 and HEVC are those of ITU-T H.264 and H.265.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from tricklecast.trickle.media.containers import MAX_CHILDREN, MAX_TRACKS, boxes, find_box, nal_units, number

VIDEO: Final = b"vide"
SOUND: Final = b"soun"
TEXT: Final = b"sbtl"

MAX_OPENING: Final = 2048
"""Bytes of the first packet of each stream of MPEG-TS that are read: they have the parameter sets of a key picture."""

AVC, HEVC = 0x1B, 0x24
_AAC: Final = 0x0F
_MPEG_AUDIO: Final = frozenset({0x03, 0x04})
_AC3, _EAC3 = 0x81, 0x87
_PRIVATE: Final = 0x06
"""Stream types of MPEG-TS (ISO/IEC 13818-1, table 2-34, and ATSC A/53 part 3)."""

_REGISTRATION, _LANGUAGE, _DVB_AC3, _DVB_EAC3 = 0x05, 0x0A, 0x6A, 0x7A
"""Descriptors (section 2.6, and ETSI EN 300 468)."""


class Stream(NamedTuple):
    """One stream of a channel.

    Attributes:
        number: of the track, or the PID. kind: ``vide``, ``soun``, or another handler of MP4;
            ``sbtl`` of timed text, whatever its handler.
        codec: as RFC 6381 writes it; empty if it is not known.
        width, height: of the pictures as they are shown; 0 if they are not known.
        language: as the media tell it, for example ``eng``; empty if they do not. channels: of sound; 0: not known.
        captions: channels of closed captions in the first key picture (CEA-608: CC1, CC3; CEA-708: SERVICE1).
    """

    number: int
    kind: bytes
    codec: str = ""
    width: int = 0
    height: int = 0
    language: str = ""
    channels: int = 0
    captions: tuple[str, ...] = ()


# MP4.


def mp4_streams(init: bytes) -> list[Stream]:
    """The tracks of an init segment, in their order."""
    moov = islice(boxes(find_box(init, b"moov")), MAX_CHILDREN)
    return [_track(item.body) for item in islice((item for item in moov if item.kind == b"trak"), MAX_TRACKS)]


def _track(trak: memoryview) -> Stream:
    parts = {part.kind: part.body for part in islice(boxes(trak), MAX_CHILDREN)}
    media = {part.kind: part.body for part in islice(boxes(parts.get(b"mdia", b"")), MAX_CHILDREN)}
    header = bytes(parts.get(b"tkhd", b""))
    late = header[:1] == b"\1"  # times of 64 bits
    ident = number(header, 20 if late else 12, 4)
    kind = bytes(media.get(b"hdlr", b"")[8:12])
    times = bytes(media.get(b"mdhd", b""))
    language = _packed_language(number(times, 32 if times[:1] == b"\1" else 20, 2))
    table = find_box(media.get(b"minf", b""), b"stbl", b"stsd")[8:]
    entry = next(boxes(table), None)
    if entry is None:
        return Stream(ident, kind, language=language)
    if entry.kind == b"tx3g":
        return Stream(ident, TEXT, "tx3g", language=language)
    body = bytes(entry.body)
    if kind == VIDEO:
        place = 88 if late else 76
        size = number(header, place, 4) >> 16, number(header, place + 4, 4) >> 16
        width, height = size if all(size) else (number(body, 24, 2), number(body, 26, 2))
        matrix = 52 if late else 40
        if not number(header, matrix, 4) and number(header, matrix + 4, 4):  # a quarter of a turn
            width, height = height, width
        return Stream(ident, kind, _video(entry.kind, body[78:]), width, height, language)
    return Stream(ident, kind, _sound(entry.kind, body), language=language, channels=number(body, 16, 2))


_CODES: Final = (
    "ara=ar ben=bn bul=bg cat=ca ces=cs cze=cs chi=zh zho=zh dan=da deu=de ger=de ell=el gre=el eng=en est=et fas=fa "
    "per=fa fin=fi fra=fr fre=fr gle=ga glg=gl heb=he hin=hi hrv=hr hun=hu ind=id isl=is ice=is ita=it jpn=ja kor=ko "
    "lav=lv lit=lt mal=ml mar=mr msa=ms may=ms nld=nl dut=nl nor=no nob=nb nno=nn pan=pa pol=pl por=pt ron=ro rum=ro "
    "rus=ru slk=sk slo=sk slv=sl spa=es sqi=sq alb=sq srp=sr swe=sv swa=sw tam=ta tel=te tgl=tl tha=th tur=tr ukr=uk "
    "urd=ur vie=vi cym=cy wel=cy eus=eu baq=eu"
)
"""Languages that have a code of two letters, by their codes of three (ISO 639). RFC 5646 wants the shortest."""


_SHORT: Final = {long: short for long, _, short in (pair.partition("=") for pair in _CODES.split())}


def tag_of(language: str) -> str:
    """A language as RFC 5646 writes it: ``en`` for ``eng``."""
    return _SHORT.get(language, language)


def _packed_language(packed: int) -> str:
    """Three letters of five bits each (ISO/IEC 14496-12, section 8.4.2); empty if they say nothing."""
    letters = "".join(chr(0x60 + (packed >> shift & 0x1F)) for shift in (10, 5, 0))
    return letters if letters.isalpha() and letters != "und" else ""


def _video(kind: bytes, children: bytes) -> str:
    name = kind.decode("latin-1")
    match kind:
        case b"avc1" | b"avc3":
            config = find_box(children, b"avcC")
            return f"{name}.{config[1:4].hex()}" if len(config) >= 4 else ""
        case b"hvc1" | b"hev1":
            config = find_box(children, b"hvcC")
            return hevc_codec(name, config[1:13]) if len(config) >= 13 else ""
        case b"av01":
            config = find_box(children, b"av1C")
            return _av1(config) if len(config) >= 3 else ""
        case b"vp09":
            config = find_box(children, b"vpcC")[4:]
            return f"vp09.{config[0]:02}.{config[1]:02}.{config[2] >> 4:02}" if len(config) >= 3 else ""
        case _:
            return ""


def hevc_codec(name: str, level: bytes) -> str:
    """HEVC as ISO/IEC 14496-15, annex E, writes it.

    Args:
        level: 12 bytes: profile, compatibility, constraints and level, as in ``hvcC`` and ``profile_tier_level()``.
    """
    first, fits = level[0], number(level, 1, 4)
    reverse = int(f"{fits:032b}"[::-1], 2)
    profile = f"{('', 'A', 'B', 'C')[first >> 6]}{first & 0x1F}"
    constraints = "".join(f".{one:X}" for one in level[5:11].rstrip(b"\0"))
    return f"{name}.{profile}.{reverse:X}.{'H' if first & 0x20 else 'L'}{level[11]}{constraints}"


def _av1(config: bytes) -> str:
    profile, level = config[1] >> 5, config[1] & 0x1F
    tier, high, twelve = config[2] >> 7, config[2] & 0x40, config[2] & 0x20
    depth = (12 if twelve else 10) if high else 8
    return f"av01.{profile}.{level:02}{'H' if tier else 'M'}.{depth:02}" if profile < 3 else ""


def _sound(kind: bytes, entry: bytes) -> str:
    match kind:
        case b"mp4a":
            more = {0: 0, 1: 16, 2: 36}.get(number(entry, 8, 2), 0)  # versions of QuickTime have more fields
            return _aac(find_box(entry[28 + more :], b"esds")[4:])
        case b"Opus" | b"fLaC" | b"alac" | b"ac-3" | b"ec-3":
            return kind.decode()
        case _:
            return ""


def _aac(data: bytes) -> str:
    """The codec that an elementary stream descriptor names (ISO/IEC 14496-1, section 7.2.6)."""
    tag, body = _descriptor(data)
    if tag != 3:
        return ""
    flags = number(body, 2, 1)
    at = 3 + (2 if flags & 0x80 else 0) + (1 + number(body, 3, 1) if flags & 0x40 else 0) + (2 if flags & 0x20 else 0)
    tag, config = _descriptor(body[at:])
    kind = number(config, 0, 1)
    if tag != 4 or not kind:
        return ""
    if kind != 0x40:
        return f"mp4a.{kind:02X}" if kind in (0x69, 0x6B) else ""
    tag, special = _descriptor(config[13:])
    if tag != 5:
        return ""
    form = number(special, 0, 1) >> 3
    if form == 31:
        form = 32 + (number(special, 0, 2) >> 5 & 0x3F)
    return f"mp4a.40.{form}" if form else ""


def _descriptor(data: bytes) -> tuple[int, bytes]:
    """Tag and content of the first descriptor; the size has seven bits in each of at most four bytes."""
    size = 0
    for at in range(1, 5):
        size = size << 7 | number(data, at, 1) & 0x7F
        if not number(data, at, 1) & 0x80:
            return number(data, 0, 1), data[at + 1 : at + 1 + size]
    return 0, b""


# MPEG-TS.


def ts_streams(
    kinds: Mapping[int, int], descriptors: Mapping[int, bytes], openings: Mapping[int, bytes], video: frozenset[int]
) -> list[Stream]:
    """The streams of a segment that are pictures or sound, in the order of the tables.

    Args:
        kinds, descriptors: of the streams, by PID. openings: the first bytes of each, by PID, without the PES header.
        video: stream types of video.
    """
    found = []
    for pid, kind in kinds.items():
        told, opening = dict(_descriptors(descriptors.get(pid, b""))), openings.get(pid, b"")
        if kind in video:
            codec, width, height = _picture(kind, opening)
            found.append(Stream(pid, VIDEO, codec, width, height, captions=captions_of(kind, opening)))
            continue
        if (sound := sound_codec(kind, told, opening)) is not None:
            letters = told.get(_LANGUAGE, b"")[:3].decode("latin-1")
            language = letters if letters.isascii() and letters.isalpha() and letters != "und" else ""
            channels = number(opening, 2, 2) >> 6 & 7 if kind == _AAC else 0
            found.append(Stream(pid, SOUND, sound, language=language, channels=8 if channels == 7 else channels))
    return found


def private_codec(told: bytes) -> bytes:
    """The four letters by which private data of MPEG-TS are registered; empty if they are not."""
    return dict(_descriptors(told)).get(_REGISTRATION, b"")[:4]


def sound_codec(kind: int, told: Mapping[int, bytes], opening: bytes) -> str | None:
    """The codec of a stream of sound, empty if it has no name; ``None`` if the stream is no sound that is known.

    Args:
        told: the contents of its descriptors, by tag.
    """
    if kind == _AAC:
        is_header = number(opening, 0, 2) & 0xFFF6 == 0xFFF0
        return f"mp4a.40.{(opening[2] >> 6) + 1}" if is_header and len(opening) > 2 else ""
    if kind in _MPEG_AUDIO:
        is_layer_3 = number(opening, 0, 2) & 0xFFE6 == 0xFFE2
        return "mp4a.40.34" if is_layer_3 else ""
    if kind == _AC3 or (kind == _PRIVATE and _DVB_AC3 in told):
        return "ac-3"
    if kind == _EAC3 or (kind == _PRIVATE and _DVB_EAC3 in told):
        return "ec-3"
    is_sound = kind in _OTHER_SOUND or (kind == _PRIVATE and told.get(_REGISTRATION, b"")[:4] == b"Opus")
    return "" if is_sound else None


_OTHER_SOUND: Final = frozenset({0x11, 0x1C, 0x80, 0x82, 0x83, 0x85, 0x86})


def _descriptors(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 2 <= len(data):
        yield data[at], data[at + 2 : at + 2 + data[at + 1]]
        at += 2 + data[at + 1]


def _picture(kind: int, opening: bytes) -> tuple[str, int, int]:
    """Codec, width and height from the parameter sets in front of a key picture."""
    if kind in (AVC, HEVC):
        for unit in nal_units(opening):
            if kind == AVC and unit[0] & 0x1F == 7:
                return _avc_picture(unit)
            if kind == HEVC and unit[0] >> 1 & 0x3F == 33:
                return _hevc_picture(unit)
    return "", 0, 0


_CAPTIONS: Final = b"\xb5\0\x31GA94\x03"
"""The head of captions in a message of user data (ATSC A/53, part 4, section 6.2)."""


def captions_of(kind: int, opening: bytes) -> tuple[str, ...]:
    """The channels of captions that a picture has (CEA-708-E, section 4.3); padding is none.

    Which of the two channels or many services of a field has the text, the bytes of one picture do not tell. Nearly all
    programs use the first.
    """
    found = set()
    for unit in nal_units(opening):
        is_message = unit[0] & 0x1F == 6 if kind == AVC else unit[0] >> 1 & 0x3F in (39, 40)
        data = unit.replace(b"\0\0\3", b"\0\0") if is_message and kind in (AVC, HEVC) else b""
        at = data.find(_CAPTIONS) + len(_CAPTIONS)
        if at < len(_CAPTIONS):
            continue
        places = range(at + 2, at + 2 + 3 * (number(data, at, 1) & 0x1F), 3)
        for place in places:
            head, pair = number(data, place, 1), number(data, place + 1, 2)
            if head & 4 and pair & 0x7F7F:
                found.add(("CC1", "CC3", "SERVICE1", "SERVICE1")[head & 3])
    return tuple(sorted(found))


class _Bits:
    """Reads bits of a NAL unit without its emulation prevention (7.3.1). Behind its end they are zeros."""

    def __init__(self, unit: bytes) -> None:
        data = unit.replace(b"\0\0\3", b"\0\0")
        self._value, self._left = int.from_bytes(data), 8 * len(data)

    def take(self, bits: int) -> int:
        """Read an unsigned number of this many bits."""
        self._left -= bits
        value = self._value >> self._left if self._left >= 0 else self._value << -self._left
        return value & ((1 << bits) - 1)

    def skip(self, bits: int) -> None:
        """Pass over this many bits."""
        self._left -= bits

    def golomb(self) -> int:
        """An Exp-Golomb number (9.1), of less than 32 bits."""
        zeros = 0
        while zeros < 32 and not self.take(1):
            zeros += 1
        return (1 << zeros | self.take(zeros)) - 1


_HIGH_PROFILES: Final = frozenset({44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244})


@lru_cache(maxsize=64)
def _avc_picture(unit: bytes) -> tuple[str, int, int]:
    """Of a sequence parameter set (7.3.2.1.1)."""
    if len(unit) < 4:
        return "", 0, 0
    bits, chroma, is_separate = _Bits(unit[4:]), 1, 0
    bits.golomb()
    if unit[1] in _HIGH_PROFILES:
        chroma = bits.golomb()
        is_separate = bits.take(1) if chroma == 3 else 0
        bits.golomb()
        bits.golomb()
        bits.skip(1)
        if bits.take(1):
            for place in range(12 if chroma == 3 else 8):
                if bits.take(1):
                    _skip_scaling_list(bits, 16 if place < 6 else 64)
    bits.golomb()
    match bits.golomb():
        case 0:
            bits.golomb()
        case 1:
            bits.skip(1)
            bits.golomb()
            bits.golomb()
            for _ in range(min(255, bits.golomb())):
                bits.golomb()
    bits.golomb()
    bits.skip(1)
    wide, high, is_frame = bits.golomb() + 1, bits.golomb() + 1, bits.take(1)
    bits.skip(1 if is_frame else 2)
    crop = [bits.golomb() for _ in range(4)] if bits.take(1) else [0, 0, 0, 0]
    is_halved = 0 < chroma < 3 and not is_separate
    step_x, step_y = (2 if is_halved else 1), (2 if chroma == 1 else 1) * (2 - is_frame)
    width = 16 * wide - step_x * (crop[0] + crop[1])
    height = 16 * high * (2 - is_frame) - step_y * (crop[2] + crop[3])
    return f"avc1.{unit[1:4].hex()}", *_sensible(width, height)


def _skip_scaling_list(bits: _Bits, size: int) -> None:
    """Pass over a list of 7.3.2.1.1.1."""
    last = following = 8
    for _ in range(size):
        if following:
            code = bits.golomb()
            following = (last + (code + 1 >> 1 if code & 1 else -(code >> 1))) % 256
        last = following or last


@lru_cache(maxsize=64)
def _hevc_picture(unit: bytes) -> tuple[str, int, int]:
    """Of a sequence parameter set (H.265, 7.3.2.2.1)."""
    data = unit.replace(b"\0\0\3", b"\0\0")
    if len(data) < 15:
        return "", 0, 0
    layers, bits = data[2] >> 1 & 7, _Bits(unit)
    bits.skip(8 * 15)
    told = [(bits.take(1), bits.take(1)) for _ in range(layers)]
    if layers:
        bits.skip(2 * (8 - layers))
    for has_profile, has_level in told:
        bits.skip(88 * has_profile + 8 * has_level)
    bits.golomb()
    chroma = bits.golomb()
    if chroma == 3:
        bits.skip(1)
    width, height = bits.golomb(), bits.golomb()
    if bits.take(1):
        left, right, top, bottom = (bits.golomb() for _ in range(4))
        width -= (2 if chroma in (1, 2) else 1) * (left + right)
        height -= (2 if chroma == 1 else 1) * (top + bottom)
    return hevc_codec("hvc1", data[3:15]), *_sensible(width, height)


def _sensible(width: int, height: int) -> tuple[int, int]:
    """A size that pictures have, or none: what comes from damaged bytes is not told."""
    return (width, height) if 0 < width <= 1 << 15 and 0 < height <= 1 << 15 else (0, 0)
