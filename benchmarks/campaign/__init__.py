"""Random faults against a cluster under load: what is done to it, who publishes and reads, and what is concluded."""
