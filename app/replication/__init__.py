"""One channel, several holders: the feed that its owner writes, and the replica that is made of it."""
