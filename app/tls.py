"""How a server speaks TLS: its certificate and key, or what is wrong with them."""

from __future__ import annotations

import ssl
from pathlib import Path

from tricklecast.app.listening import CannotServe
from tricklecast.app.settings import Settings


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """What a listener needs to speak TLS; ``None`` if it is not to.

    Raises:
        CannotServe: certificate or key cannot be read or is none, or they do not belong together.
    """
    certificate, key = settings.tls_cert, settings.tls_key
    if certificate is None or key is None:
        return None
    if b"-----BEGIN CERTIFICATE-----" not in _read("tls_cert", certificate):
        raise CannotServe(f"tls_cert: {certificate} holds no certificate in PEM form")
    secret = _read("tls_key", key)
    if b"PRIVATE KEY-----" not in secret:
        raise CannotServe(f"tls_key: {key} holds no private key in PEM form")
    if b"ENCRYPTED" in secret:
        # OpenSSL would ask for the password at the terminal, and a server that nobody watches would wait for ever.
        raise CannotServe(f"tls_key: {key} is encrypted; give a key without a password that only the server can read")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise CannotServe(f"tls_key: {key} is not the key of {certificate}") from None
        raise CannotServe(f"tls_cert, tls_key: cannot use {certificate} with {key}: {error}") from None
    return context


def _read(setting: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CannotServe(f"{setting}: cannot read {file}: {error.strerror or error}") from None
