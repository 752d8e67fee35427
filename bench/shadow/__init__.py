"""Shadow mode on recordings of clusters that other schedulers run: what was read, what was wrong, and both sides."""
