"""Several workers of a server."""
