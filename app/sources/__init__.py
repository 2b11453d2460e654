"""Sources: inputs in the server's configuration, each of which a process of its own publishes to a channel."""
