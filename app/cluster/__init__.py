"""Many machines, one namespace: each node answers for all, and one node owns each channel."""
