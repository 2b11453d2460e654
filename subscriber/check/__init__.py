"""Judges the media of a live channel: how much of it arrives, how it is made, and when (docs/reference/check.md).

``probe`` subscribes, ``media`` looks into each segment, ``study`` compares them, ``rules`` judge, ``report`` prints.
"""
