"""Shadow mode on recordings in the form of each peer: what was read, what was wrong, and both sides."""
