"""Why a request got no response, or only a part of one: the errors between a connection and :mod:`.exchange`.

They have the names that httpx gives to its own, and httpx is not imported for them: it takes longer to load than both
clients. :mod:`.bridge` turns the one kind into the other where a program uses httpx itself.
"""

from __future__ import annotations


class TransportError(Exception):
    """Base class of all of them."""


class ConnectError(TransportError):
    """No connection could be made."""


class ConnectTimeout(TransportError):
    """No connection could be made in time."""


class ReadError(TransportError):
    """The connection ended before the response did, or was closed here."""


class CertificateRefused(TransportError):
    """The server wants a certificate of its clients, and this one has none, or the wrong one. Asking again does not
    help."""


class NoAnswer(ReadError):
    """The connection ended before the first byte of a response."""


class ReadTimeout(TransportError):
    """The response, or its next byte, did not come in time."""


class WriteError(TransportError):
    """The request's body cannot be written."""


class WriteTimeout(TransportError):
    """The server has stopped reading, and did not respond."""


class LocalProtocolError(TransportError):
    """The program wants to send something that HTTP does not allow."""


class RemoteProtocolError(TransportError):
    """The peer broke a rule of HTTP."""


class InvalidAnswer(RemoteProtocolError):
    """The response is not HTTP, or a cut of its body would look like its end. Asking again does not help."""


class UnsupportedProtocol(TransportError):
    """No connection can be made for a URL of this scheme."""
