"""Read several channels at once, each in a thread, until Ctrl-C: ``python examples/threads.py URL URL ...``."""

import sys
import threading

from tricklecast import ClosedHere
from tricklecast.sync import Subscriber


def read(subscriber: Subscriber) -> None:
    try:
        for segment in subscriber:
            print(subscriber.url.channel, segment.seq, len(segment.read()), flush=True)
    except ClosedHere:
        pass  # by main()


def main(urls: list[str]) -> None:
    subscribers = [Subscriber(url, wait_for_channel_s=None).open() for url in urls]
    threads = [threading.Thread(target=read, args=[subscriber]) for subscriber in subscribers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(1)  # not for ever: Python may miss a Ctrl-C that comes just before
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        for subscriber in subscribers:
            subscriber.close()


if __name__ == "__main__":
    main(sys.argv[1:])
