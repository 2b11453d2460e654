"""Tells of storms while they happen: the same lines, kinds of answer and thresholds as the report, as a stream.

The way of a line: ``follow`` or ``kafka`` (bytes, from where the last batch ended) → ``stream`` (a source for
Spark) → ``query`` (parse, normalise, roll up: native, stateful, update mode) → ``signals`` (the few rows that changed,
as values) → ``detector`` (islands, fleets, triggers: which storm began, got worse, is over) → ``ledger`` (what is known
and what is still to be told, in one file) → ``receivers`` and ``courier`` (terminal, JSON, webhook, Alertmanager).

Nothing here is found twice or lost by being killed: Spark's checkpoint says which lines a batch had, the ledger which
batch was the last to be judged, and an alert is in the ledger before anybody is told.
"""
