"""HLS over the segments of a channel: its timeline, its playlist, and the media that the playlist names."""
