"""NRI gives a container the CPUs near its GPUs: a preference, never a condition of its start."""
