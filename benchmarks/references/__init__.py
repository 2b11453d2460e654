"""What tricklecast is measured against: the least that can be done, and what one would write without it."""
