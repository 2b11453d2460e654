"""Fixtures for the tests of trickle/client."""

from tests.support.fixtures import certificate, server

__all__ = ["certificate", "server"]
