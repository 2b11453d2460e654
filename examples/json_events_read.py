"""Reads events until their channel ends, from the oldest that the server still keeps, and says how many it missed."""

import sys

import anyio

from tricklecast.subscriber import json_messages


async def main(url: str) -> None:
    async for message in json_messages(url, start="earliest", wait_for_channel_s=10):
        if message.gap:
            print(f"{message.gap} events were missed", file=sys.stderr)
        print(message.seq, message.value["text"])


anyio.run(main, sys.argv[1])
