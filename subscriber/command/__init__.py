"""The commands `tricklecast subscribe` and `tricklecast channels`; the library knows nothing of them."""
