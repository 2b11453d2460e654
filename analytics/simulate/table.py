"""A score as text: a table by class, and what went wrong, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from tricklecast.analytics.simulate.score import LIMITS, Episode, Score, Verdict

_HEAD = f"{'class':24}{'planted':>9}{'found':>8}{'class':>8}{'trigger':>9}{'exact':>8}{'rhythm':>8}"


def table(score: Score, kind: str) -> str:
    """How many of each class were found, and rightly named, in per cent; and whether that is enough."""
    rows = [_HEAD]
    classes = sorted({verdict.storm.storm for verdict in score.verdicts})
    for name in classes:
        verdicts = tuple(verdict for verdict in score.verdicts if verdict.storm.storm == name)
        rows.append(_row(name, Score(verdicts, ())))
    rows.append(_row("all", score))
    limits, alarms = LIMITS[kind], len(score.false_alarms)
    rows += [
        f"false alarms {alarms:,}, precision {score.precision:.2%} (at least {limits.precision:.0%})",
        f"recall {score.recall:.2%} (at least {limits.recall:.0%})",
        "good enough" if score.meets(limits) else "NOT good enough",
    ]
    return "\n".join(rows) + "\n"


def _row(name: str, score: Score) -> str:
    shares = (score.recall, score.class_accuracy, score.trigger_accuracy, score.exactness, score.backoff_accuracy)
    found, storm, trigger, exact, rhythm = (f"{share:.1%}" for share in shares)
    return f"{name:24}{len(score.verdicts):>9,}{found:>8}{storm:>8}{trigger:>9}{exact:>8}{rhythm:>8}"


def details(score: Score) -> Iterator[str]:
    """What went wrong: missed storms, false alarms, wrong names."""
    for verdict in score.missed:
        yield f"missed {_planted(verdict)}"
    for episode, trap in score.false_alarms:
        yield f"false alarm {_told(episode)}{f', which is the trap {trap}' if trap else ''}"
    for verdict in score.found:
        if not verdict.class_right:
            yield f"wrong class {_planted(verdict)}"
        if not verdict.trigger_right:
            yield f"wrong trigger {_planted(verdict)}"


def _planted(verdict: Verdict) -> str:
    storm = verdict.storm
    seconds = (storm.end_us - storm.start_us) / 1e6
    told = "; ".join(_told(episode) for episode in verdict.episodes[:3]) or "nothing"
    # Names of a simulation are our own, but those of a report come from a log: nothing is shown as it is.
    return (
        f"{storm.name} ({storm.n:,} requests of {len(storm.clients)} clients in {seconds:.1f} s from"
        f" {_time(storm.start_us)} on {storm.node}, trigger {storm.trigger}): told {told}"
    )


def _told(episode: Episode) -> str:
    seconds = (episode["end_us"] - episode["start_us"]) / 1e6
    return (
        f"{episode['class']} of {episode['n']:,} in {seconds:.1f} s from {_time(episode['start_us'])} by"
        f" {episode['n_clients']} on {episode['n_channels']} of {episode['node']!a}, trigger {episode['trigger']}"
    )


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]
