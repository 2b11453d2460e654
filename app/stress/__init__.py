"""``tricklecast stress``: publishers and subscribers in processes of their own, whose accounts are compared."""
