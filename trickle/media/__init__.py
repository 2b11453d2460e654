"""Media formats that the server, publishers and subscribers share: bytes in, values out, no libav.

- ``containers``: MP4 boxes and MPEG-TS packets, and which of the two a segment is
- ``clock``: wall-clock times inside media
- ``timeline``: one 90 kHz time line over streams, segments and sources
- ``ladder``: the sizes of one stream in several channels
- ``demux``: safeguards around PyAV's demuxer
"""
