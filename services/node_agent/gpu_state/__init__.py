"""What the agent knows of its GPUs, without devices: changes to report, cordons, and the pods that each GPU has."""
