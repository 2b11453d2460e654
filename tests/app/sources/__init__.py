"""Sources: inputs in the configuration of a server."""
