"""A server that bills: it adds up what was published to each channel, and goes on where it was after a restart."""

import json
import sys
from pathlib import Path

from tricklecast.app.bus import Bus, OutOfCapacity
from tricklecast.app.server import serve
from tricklecast.app.settings import Settings

BOOK = Path(sys.argv[1], "bills.json")
book = json.loads(BOOK.read_text()) if BOOK.exists() else {"after": 0, "instance": None, "bytes": {}}


async def bill(bus: Bus) -> None:
    while True:
        facts = bus.subscribe("kind = 'closed' AND bytes > 0", after=book["after"], instance=book["instance"])
        try:
            async for fact in facts:
                book["bytes"][fact.channel] = book["bytes"].get(fact.channel, 0) + fact.bytes
                book.update(after=fact.index, instance=bus.instance)
                BOOK.with_suffix(".new").write_text(json.dumps(book))
                BOOK.with_suffix(".new").replace(BOOK)
        except OutOfCapacity as end:
            book.update(after=end.index, instance=bus.instance)


serve(Settings(port=0, data_dir=Path(sys.argv[1], "data")), print, bill)
