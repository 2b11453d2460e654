"""Lines from anywhere."""
