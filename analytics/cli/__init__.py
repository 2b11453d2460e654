"""Commands on access logs: options, checked before the work, and where results go."""
