"""From a stream key to the channel: the URL's template, and the file with secret keys."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote

import anyio

from tricklecast.publisher.ingest.sessions import SourceRefused
from tricklecast.trickle.client.arguments import channel_urls
from tricklecast.trickle.errors import InvalidChannelName, InvalidInput
from tricklecast.trickle.paths import ChannelURL
from tricklecast.trickle.wire import split_urls

PLACEHOLDER: Final = "{key}"

_STANDARD: Final = "#!::"
"""How a stream id begins that has keys and values."""

MAX_FILE_BYTES: Final = 1 << 20

MIN_SECRET: Final = 8
"""Characters of a secret: a shorter one can be guessed."""

WRONG_KEY_S: Final = 0.5
"""Delay of the answer to a wrong key, in seconds. Connections are bounded, and so are guesses."""


class Channels:
    """Finds the channel of a stream.

    Args:
        to: where channels are published: a URL with ``{key}``, as in ``http://host:2939/trickle/{key}``, or one that
            ends with a slash, behind which the key is added; or several such URLs, one for each node of a cluster, with
            commas between them.
        keys: a file with secrets; without it, each stream key is the name of a channel. A line of the file is
            ``CHANNEL SECRET``; empty lines and those that begin with ``#`` are left out. The encoder sends the secret
            as its stream key, or ``CHANNEL?token=SECRET``. The file is read for each stream.

    Raises:
        InvalidInput: the URL or the file cannot be used.
    """

    def __init__(self, to: str, keys: Path | None = None) -> None:
        self._templates = [_template(url) for url in split_urls(to)]
        self._keys = keys
        self._urls("KEY")
        self._secrets: list[tuple[str, bytes]] = [] if keys is None else _read(keys)

    async def find(self, key: str, token: str) -> tuple[ChannelURL, ...]:
        """Check a stream key. If it is wrong, this takes :data:`WRONG_KEY_S`.

        Args:
            key: as the encoder sent it, without a query.
            token: the query's ``token``; empty if there is none.

        Raises:
            SourceRefused: the key is not allowed, or is not the name of a channel.
        """
        if not key:
            raise SourceRefused("no stream key: an encoder streams to rtmp://HOST:PORT/live/KEY")
        if self._keys is not None:
            key = await self._checked(key, token)
        try:
            return self._urls(key)
        except InvalidChannelName as error:
            raise SourceRefused(f"the stream key cannot name a channel ({error.why})") from None

    def _urls(self, key: str) -> tuple[ChannelURL, ...]:
        return channel_urls([url.replace(PLACEHOLDER, quote(key, safe="")) for url in self._templates])

    async def _checked(self, key: str, token: str) -> str:
        assert self._keys is not None
        try:
            self._secrets = _read(self._keys)
        except InvalidInput as error:  # while the file is being replaced, the last one counts
            if not self._secrets:
                raise SourceRefused(str(error)) from None
        sent = (token or key).encode()
        # All secrets are compared, each in a time that does not depend on where it differs.
        matches = [channel for channel, secret in self._secrets if hmac.compare_digest(secret, sent)]
        if not matches or (token and key not in matches):
            await anyio.sleep(WRONG_KEY_S)
            raise SourceRefused("wrong stream key")
        return key if token else matches[0]


def names_many(to: str) -> bool:
    """Whether a URL is for many channels, as :class:`Channels` takes it."""
    base = to.partition("?")[0]
    return PLACEHOLDER in base or base.endswith("/")


def parse_stream_id(text: str) -> tuple[str, str]:
    """Read the stream id of an SRT caller: the key, and the token or ``""``, as :meth:`Channels.find` takes them.

    It is ``CHANNEL`` or ``CHANNEL?token=SECRET``, or ``#!::r=CHANNEL,m=publish,s=SECRET``, as SRT's makers propose.

    Raises:
        SourceRefused: it is none of that, or the caller wants to read.
    """
    if not text.startswith(_STANDARD[:2]):
        key, _, query = text.partition("?")
        fields = dict(parse_qsl(query))
        return _named(key.strip("/")), fields.get("token", "")
    if not text.startswith(_STANDARD):
        raise SourceRefused(f"a stream id that is a list begins with {_STANDARD}")
    fields = dict(pair.partition("=")[::2] for pair in text.removeprefix(_STANDARD).split(","))
    if fields.get("m", "publish") != "publish":
        raise SourceRefused("only encoders connect here, with m=publish: players read the channel by HTTP")
    return _named(fields.get("r", "")), fields.get("s", "")


def _named(key: str) -> str:
    if not key:
        raise SourceRefused("no channel in the stream id: an encoder streams to srt://HOST:PORT?streamid=CHANNEL")
    return key


def _template(url: str) -> str:
    base, question, query = url.partition("?")
    if not names_many(url):
        raise InvalidInput(f"{base!r} names one channel; end it with / or with /{PLACEHOLDER}: each stream has its own")
    return (base if PLACEHOLDER in base else base + PLACEHOLDER) + question + query


def _read(path: Path) -> list[tuple[str, bytes]]:
    """The lines of the file: channels and secrets. Messages do not repeat them: a part may be a secret."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        lines = text.decode().splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    if len(text) > MAX_FILE_BYTES:
        raise InvalidInput(f"{path} has more than {MAX_FILE_BYTES} bytes")
    secrets: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.lstrip().startswith("#"):
            continue
        if len(words) != 2:
            raise InvalidInput(f"{path}, line {number}: use CHANNEL SECRET")
        channel, secret = words[0], words[1].encode()
        if len(words[1]) < MIN_SECRET:
            raise InvalidInput(f"{path}, line {number}: the secret has fewer than {MIN_SECRET} characters")
        if secrets.setdefault(secret, channel) != channel:
            raise InvalidInput(f"{path}, line {number}: the secret is another channel's")
    if not secrets:
        raise InvalidInput(f"{path} has no lines of the form CHANNEL SECRET")
    return [(channel, secret) for secret, channel in secrets.items()]
