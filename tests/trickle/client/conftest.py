"""The fixtures of the tests of what both clients share."""

from tests.support.fixtures import certificate, server

__all__ = ["certificate", "server"]
