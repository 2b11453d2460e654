"""Find retry storms in access logs."""
