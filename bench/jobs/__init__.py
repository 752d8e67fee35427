"""Jobs over time: a trace's own arrivals and run times on few GPUs, whole as Kubernetes gives them, and through
Kerf."""
