"""Contracts that tricklecast's server, clients and analytics share: the wire, errors, log records, media formats.

They use the standard library only, and do not read a clock, draw a random number or open a file: the caller passes the
time and the random generator. The exceptions are ``client`` (HTTP, with httpx and anyio), ``terminal`` (commands, with
typer) and ``pyav``, which only the clients and commands import.
"""

__version__ = "0.1.0"


def version_line() -> str:
    """The line that ``tricklecast --version`` prints: the version, and whether the hot path is compiled."""
    from tricklecast.trickle import wire

    return f"tricklecast {__version__}{'' if (wire.__file__ or '').endswith('.py') else ' (compiled)'}"
