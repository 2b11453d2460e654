"""Media of segments: decoded frames, and files of joined segments."""
