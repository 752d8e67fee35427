"""Which pod a process belongs to, and which processes a pod has: by cgroups."""
