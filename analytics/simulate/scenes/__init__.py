"""The scripts: storms of every class, and what looks like them."""
