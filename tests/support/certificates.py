"""Certificates that nobody but a test trusts."""

from __future__ import annotations

from pathlib import Path

import trustme


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key, as files.

    The first file also holds the authority that signed it, so that a client can be told to trust that file.
    """
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    chain = [*server.cert_chain_pems, authority.cert_pem]
    certificate.write_bytes(b"".join(pem.bytes() for pem in chain))
    key.write_bytes(server.private_key_pem.bytes())
    return certificate, key
