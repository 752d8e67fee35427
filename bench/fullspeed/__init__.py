"""How long high-priority work waits for its full speed on a node full of low-priority slices, by what those give up."""
