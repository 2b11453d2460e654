"""The nodes of a cluster as one server: its channels, nodes, changes and dashboard, from any node."""
