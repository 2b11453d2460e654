"""Overload: what is run, what is expected of it, and how it is told."""
