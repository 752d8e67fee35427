"""When a container is gone for good: its pod's cgroup, the kubelet's word, and the processes on the GPUs."""
