"""The product at work, in two demonstrations: media and retry storms, and a cluster that loses a node."""
