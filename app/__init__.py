"""tricklecast's server."""
