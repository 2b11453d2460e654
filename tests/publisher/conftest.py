"""The fixtures of the tests of the publisher."""

from tests.support.fixtures import certificate, server

__all__ = ["certificate", "server"]
