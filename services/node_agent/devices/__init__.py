"""What GPUs a node has, how they are linked, how they are, and who uses them: through NVML and sysfs."""
