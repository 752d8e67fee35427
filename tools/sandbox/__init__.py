"""A real kubelet with a real containerd, in namespaces of their own, that leaves nothing on the machine.

    guard  python -m tools.sandbox DIR    outside: makes the cgroups, starts the namespaces, cleans up after them
    init   tools.sandbox.inside           inside, process 1: private mounts, and the processes that it is told to start
    node   tools.sandbox.node             the tester's side: a Sandbox to start, to start things in and to stop

The guard ends when its standard input does, so its parent may be killed at any moment. The network is the
machine's own: API server, NATS, kubelet and agent meet on loopback. Pods get an address that leads nowhere.
"""

from tools.sandbox.machine import why_not
from tools.sandbox.node import Sandbox, SandboxError

__all__ = ["Sandbox", "SandboxError", "why_not"]
