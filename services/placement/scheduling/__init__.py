"""Which pods may be placed, and which one is next: queue, fair share, quota, gangs, node avoidance."""
