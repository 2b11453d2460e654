"""Judges a live channel: what arrives, how it is made, and when (docs/reference/check.md).

The parsers (``mpegts``, ``fmp4`` and their helpers) and the rules are pure; ``probe`` subscribes, ``decode`` asks PyAV.
"""
