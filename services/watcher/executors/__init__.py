"""Orders from the bus, carried out in the cluster. No decisions: the preconditions in each order decide, at the
server."""
