"""Reload: at SIGHUP a running server reads its settings and its files again.

Certificates are renewed, keys are replaced and tokens are revoked while publishers and readers are connected, so none
of this may need a restart. The settings are read from the same sources as at the start. Of those that have changed, the
ones in :data:`RELOADED` apply at once; the log names the others, which need a restart. The files that settings name
are read in any case, since their contents may have changed under the same name.

Each part stands alone: where the new one is invalid, the old one stays, and all others are replaced. So a certificate
that was copied half does not keep a stolen token valid. The log, the metrics and a warning say that something failed.

With several workers, each process reloads. The supervisor puts the settings together as well, for a worker that is
started again later.

Running connections keep the certificate that they began with. Requests that run under a removed key or a revoked token
are ended within a quarter of a second, as those under a token that expires.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tricklecast.app.access.authorizer import Access
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.listener import Tls
from tricklecast.app.settings import InvalidSettings, Settings
from tricklecast.app.source_settings import SourceSettings
from tricklecast.trickle.errors import TrickleError

RELOADED: Final = (
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "jwt_secret_file",
    "jwt_key_file",
    "jwks_file",
    "revoked_file",
    "control_token_file",
    "webhook_secret_file",
    "trusted_proxies",
    "allowed_hosts",
    "cors_read_origins",
    "cors_write_origins",
    "shutdown_drain_s",
    "shutdown_deadline_s",
    "shutdown_restart_s",
    "source",
)
"""Settings whose new value applies at once, unless it switches a part on or off (:func:`_switches`)."""

SOON_S: Final = 7 * 86_400.0
"""A certificate that expires within this time is an ailment: programs that renew it do so weeks before."""

_LOGGER = logging.getLogger(__name__)


@dataclass
class ReloadCounts:
    """The results of the reloads so far.

    Attributes:
        succeeded, failed: their numbers.
        last_at: the time of the last one, in seconds since 1970; 0 if there was none.
        last_failed: whether a part of it failed.
    """

    succeeded: int = 0
    failed: int = 0
    last_at: float = 0.0
    last_failed: bool = False


class Reload:
    """The settings of a running server; a call reads them again.

    Args:
        settings: at the start.
        reread: puts the settings together again; ``None``: they do not change, only files do.
        sources: gets the sources that are configured now.

    Attributes:
        settings: that are in force.
        tls: certificate and key; ``None`` without TLS.
        counts: of the reloads so far.

    Raises:
        CannotServe: certificate or key cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        access: Access,
        plane: DataPlane,
        reread: Callable[[], Settings] | None = None,
        sources: Callable[[Mapping[str, SourceSettings]], None] | None = None,
    ) -> None:
        self.settings = settings
        self.tls = None if settings.tls_cert is None else Tls(settings)
        self.counts = ReloadCounts()
        self._access = access
        self._plane = plane
        self._reread = reread
        self._sources = sources

    def __call__(self) -> None:
        """Read the settings and all files again, and apply each part that is valid."""
        before = self.settings
        problems: list[str] = []
        unapplied: list[str] = []
        with _noting_errors(problems):
            self.settings, unapplied = merged(before, before if self._reread is None else self._reread())
        with _noting_errors(problems):
            problems += map(str, self._access.reload(self.settings))
        if self.tls is not None:
            with _noting_errors(problems):
                self.tls.load(self.settings)
        with _noting_errors(problems):
            self._plane.use(self.settings.options())
        if self._sources is not None:
            with _noting_errors(problems):
                self._sources(self.settings.source)
        self._tell(
            problems, [name for name in RELOADED if getattr(before, name) != getattr(self.settings, name)], unapplied
        )

    def ailments(self, now: float) -> dict[str, str]:
        """Name the settings and files that are wrong at present, and say why each one is.

        Args:
            now: seconds since 1970.
        """
        found: dict[str, str] = {}
        if self.counts.last_failed:
            found["reload"] = "what could not be read is as it was before; the server's log names it"
        ends = now + SOON_S if self.tls is None else self.tls.valid[1]
        if ends < now + SOON_S:
            day = datetime.fromtimestamp(ends, UTC)
            found["certificate"] = f"it {'expires' if ends > now else 'has expired'} on {day:%Y-%m-%d at %H:%M} UTC"
        return found

    def _tell(self, problems: list[str], changed: list[str], unapplied: list[str]) -> None:
        counts = self.counts
        counts.last_at, counts.last_failed = time.time(), bool(problems)
        counts.failed += bool(problems)
        counts.succeeded += not problems
        if problems:
            _LOGGER.error("reload failed, and what could not be read stays as it was: %s", "; ".join(problems))
        else:
            _LOGGER.info("reloaded the files of the settings; changed settings: %s", ", ".join(changed) or "none")
        if unapplied:
            _LOGGER.warning("these settings have changed and need a restart: %s", ", ".join(unapplied))


@contextlib.contextmanager
def _noting_errors(problems: list[str]) -> Iterator[None]:
    """Note the error of a part that could not be replaced. The next part is replaced all the same."""
    try:
        yield
    except (InvalidSettings, TrickleError) as error:
        problems.append(str(error))
    except Exception as error:
        _LOGGER.error("fault of the server in a reload", exc_info=error)
        problems.append(f"a fault of the server: {error!r}")


def merged(before: Settings, after: Settings) -> tuple[Settings, list[str]]:
    """The settings that apply now, and the names of those that have changed and cannot apply."""
    changed = [name for name in Settings.model_fields if getattr(before, name) != getattr(after, name)]
    switched = [name for name in changed if _switches(name, before, after)]
    unapplied = [name for name in changed if name not in RELOADED or name in switched]
    values = {name: getattr(after, name) for name in changed if name not in unapplied}
    return before.model_copy(update=values), unapplied


def _switches(name: str, before: Settings, after: Settings) -> bool:
    """Whether a changed setting switches a part of the server on or off, which needs a restart."""
    if name.startswith(("jwt_", "jwks_", "revoked_")):
        return before.has_tokens != after.has_tokens
    if name in ("tls_cert", "tls_key", "tls_client_ca"):
        return (before.tls_cert is None) != (after.tls_cert is None)
    if name == "control_token_file":
        return (before.control_token_file is None) != (after.control_token_file is None)
    return False


class Terminal:
    """The terminal that a server was started at, if it was: when that is closed, SIGHUP ends the server.

    The kernel and shells send the same signal as ``systemctl reload``. A terminal that was closed is known by its
    descriptor, which has hung up. With ``nohup``, standard input is no terminal.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        try:
            self.is_one = os.isatty(descriptor)
        except OSError:
            self.is_one = False

    def is_gone(self) -> bool:
        """Whether the terminal was closed."""
        if not self.is_one:
            return False
        poll = select.poll()
        poll.register(self._descriptor, 0)
        return bool(poll.poll(0))
