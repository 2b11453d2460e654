"""Media for segments: where packets come from, and how they are cut and written into containers."""
