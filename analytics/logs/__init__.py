"""``tricklecast logs``: what is done with access logs besides looking for storms in them."""
