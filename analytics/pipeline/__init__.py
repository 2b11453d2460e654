"""From logs to a report: :mod:`.run` begins, one module per engine judges, :mod:`.again` reads lines a second time."""
