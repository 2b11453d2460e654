"""The command `tricklecast relay`: pushes a channel to a server that speaks RTMP or SRT."""
