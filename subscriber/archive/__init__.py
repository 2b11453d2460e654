"""Keeping a channel in a folder: one file per segment, and an index of them."""
