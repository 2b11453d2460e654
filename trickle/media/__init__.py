"""Media contracts that publishers and subscribers share."""
