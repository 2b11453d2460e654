"""Two queries at a time: over a roll-up, each is too small for more than one core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


@contextmanager
def meanwhile(spark: SparkSession, work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Does some work in a thread of its own while the block runs; the block does not end before it.

    Yields:
        waits for the work, and returns what it returned or raises what it raised.
    """
    from pyspark import InheritableThread

    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # whatever it is, it belongs to whoever asks for the result
            result.set_exception(error)

    thread = InheritableThread(run, session=spark)
    thread.start()
    try:
        yield result.result
    finally:
        # Where the block failed, its own error is the one to be seen.
        thread.join()
