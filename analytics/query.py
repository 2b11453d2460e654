"""SQL over frames. Nothing from a log is ever part of a text.

Built as chains of column expressions, each sent to Spark by itself, the queries of this package would take longer to
build than to run; and all of them in one text would take the analyser many rounds. So there is one text per transform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def query(text: str, **frames: DataFrame) -> DataFrame:
    """The frame that a query gives, not computed yet.

    Args:
        text: SQL, with ``{name}`` for each frame.
    """
    session = next(iter(frames.values())).sparkSession
    # Each frame is a view until the query is parsed, and dropping a view of a persisted frame unpersists the frame: so
    # the view is of another plan, on top of it.
    views = {name: frame.where("true") for name, frame in frames.items()}
    return session.sql(text, None, **views)


def planned(frame: DataFrame) -> DataFrame:
    """The same frame, not computed yet either, but with its plan made: for whoever builds one transform on another.

    Spark looks through the whole of a plan again for each query on top of it: a third of what a small report costs.
    """
    return frame.localCheckpoint(eager=False)
