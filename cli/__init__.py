"""`kerf` on the command line. Speaks to the bus only; imports no service."""
