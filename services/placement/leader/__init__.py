"""One process leads: its session on the bus, and how it writes the log."""
