"""``tricklecast stress``: publishers and subscribers in processes of their own, and a comparison of both sides."""
