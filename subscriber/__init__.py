"""Subscribe to a channel."""
