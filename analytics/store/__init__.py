"""What must survive a restart, in one SQLite file: :class:`~tricklecast.analytics.store.store.Store`."""
