"""Find out the kind of a source: a tricklecast server, with an API and feeds, or any other that speaks trickle."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence

import orjson

from tricklecast.app.mirror.plain_source import PlainSource
from tricklecast.app.mirror.requests import Requests
from tricklecast.app.mirror.sides import SourceError
from tricklecast.app.mirror.trickle_source import TrickleSource
from tricklecast.trickle import wire
from tricklecast.trickle.wire import redacted

logger = logging.getLogger("tricklecast.mirror")

RIGHTS = "manage, and the right subscribe, for the channels that are mirrored"


async def open_source(
    url: str,
    token: str | None = None,
    channels: Sequence[str] = ("*",),
    *,
    api: str | None = None,
    last_epoch: Callable[[str], int] = lambda name: 0,
    tls: ssl.SSLContext | None = None,
) -> TrickleSource | PlainSource:
    """Find out what answers at a URL.

    Args:
        url: of the base path, as clients have it: ``http://host:2939/trickle``.
        token: for its access control. tls: the authorities that are trusted; ``None``: the system's.
        channels: patterns of the channels that are mirrored; a plain source without a changefeed needs their names.
        api: any URL of its control plane, if that has another address: then it has to be one of ours.
        last_epoch: the last epoch of a channel that is known here, 0 for none: a plain source counts none.

    Raises:
        InvalidInput: that is no URL of a server. SourceError: nothing answers there that can be mirrored.
    """
    requests = Requests(url, token, tls, api=api)
    try:
        is_ours = await _has_api(requests)
        await _check_base_path(requests)
        if is_ours:
            return TrickleSource(requests)
        if api is not None:
            raise SourceError(
                f"{redacted(requests.root)} has no API of tricklecast: is it the address of its control plane?"
            )
        logger.warning("%s has no API of tricklecast here: it is mirrored by plain requests", requests.shown)
        return PlainSource(requests, [name for name in channels if "*" not in name], last_epoch)
    except BaseException:
        await requests.close()
        raise


async def _has_api(requests: Requests) -> bool:
    response, body = await requests.get(f"{requests.root}/api/v1/changes?wait_s=0")
    status = response.status_code
    if status == 200:
        try:
            return "instance" in orjson.loads(body)
        except (ValueError, TypeError):
            return False
    if status in (wire.Status.UNAUTHORIZED, wire.Status.FORBIDDEN, wire.Status.UNAVAILABLE):
        raise requests.refusal(status, body, RIGHTS)
    return False


async def _check_base_path(requests: Requests) -> None:
    """Ask for the head of a channel that need not be there: only below the base path this is answered as such."""
    response, body = await requests.get(requests.path(wire.CHANGEFEED, wire.NEXT_ROUTE))
    status = response.status_code
    is_below = status in (wire.Status.OK, wire.Status.UNAUTHORIZED, wire.Status.FORBIDDEN)
    if not is_below and not (status == wire.Status.NOT_FOUND and body.startswith(b"Stream not found")):
        problem = requests.refusal(status, body, RIGHTS)
        hint = f"is that the URL of its base path, such as {requests.root}{wire.DEFAULT_BASE_PATH}?"
        raise SourceError(f"{problem}: {hint}")
