"""``tricklecast ingest``: encoders connect here with RTMP or SRT, and each of their streams becomes a channel."""
