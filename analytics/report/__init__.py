"""What an SRE is told: incidents and figures as values, and the forms in which they are shown."""
