"""What a service asks of the world outside Kerf, where that may be simulated. Protocols only."""
