"""Publish segments of a channel."""
