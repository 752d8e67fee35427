"""Measures how long high-priority work waits for full speed on a node full of low-priority slices, by suspension
action."""
