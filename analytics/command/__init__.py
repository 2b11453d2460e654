"""``tricklecast storms``: its options, checked before Spark starts, and where its results go."""
