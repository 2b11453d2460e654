"""``tricklecast gateway``: gives channels to clients of other protocols."""
