"""Tests of the figures beside the episodes."""
