"""The report: incidents and figures as values, and the forms in which an SRE sees them."""
