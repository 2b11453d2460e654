"""Durable channels: the journal and the registry in SQLite, segments in files, and their way back.

:mod:`database` writes and reads the data directory, in one thread. :mod:`archive` decides what is written, and keeps
the index of what is there. :mod:`replay` reads a segment again for one reader. :mod:`restore` checks the directory
after a restart, before the archive is made. docs/explanation/durability.md has the guarantees.
"""
