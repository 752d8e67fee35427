"""Detects that a container has ended for good, by its pod's cgroup, the kubelet, and the processes on the GPUs."""
