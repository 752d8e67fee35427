"""The GPUs of a node: inventory, links, health and use, read from NVML and sysfs."""
