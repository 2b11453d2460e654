"""The fixtures of the tests of the publisher."""

from tests.support.fixtures import certificate, forked_servers, server

__all__ = ["certificate", "forked_servers", "server"]
