"""Moved: see :mod:`tricklecast.trickle.client.tasks`."""

from tricklecast.trickle.client.tasks import BackgroundTask as Background

__all__ = ["Background"]
