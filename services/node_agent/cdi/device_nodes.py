"""The device nodes of a slice: those of its GPUs, and those that all GPUs share."""

from __future__ import annotations

from services.node_agent.cdi.host import Host
from services.node_agent.cdi.spec import DeviceNode

NEEDED, WHERE_PRESENT = ("/dev/nvidiactl", "/dev/nvidia-uvm"), ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_PERMISSIONS = "rw"


def control(host: Host) -> tuple[DeviceNode, ...]:
    """The device nodes that belong to no GPU. Raises ValueError if one is missing that CUDA needs to start."""
    needed = tuple(_required(host, path) for path in NEEDED)
    return needed + tuple(node(host, path) for path in WHERE_PRESENT if host.seen(_on_host(host, path)).exists())


def gpu(host: Host, minor: int) -> DeviceNode:
    """The device node of one GPU. Raises ValueError if it does not exist."""
    return _required(host, f"/dev/nvidia{minor}")


def mig(host: Host, minor: int, gpu_instance: int, compute_instance: int) -> tuple[DeviceNode, ...]:
    """The nvidia-cap nodes of one MIG instance, in addition to the GPU's own node.

    Raises ValueError if they do not exist.
    """
    numbers = host.mig_capabilities(minor, gpu_instance, compute_instance)
    if numbers is None:
        raise ValueError(
            f"the driver has no capability for MIG instance {gpu_instance}/{compute_instance} of /dev/nvidia{minor}"
        )
    return tuple(_capability(host, number) for number in numbers)


def _capability(host: Host, number: int) -> DeviceNode:
    """The node of one capability.

    The driver registers the capabilities of a new instance and makes no nodes for them. Where nobody has made one on
    the host, the container runtime makes it in the container, by its numbers.
    """
    path = f"/dev/nvidia-caps/nvidia-cap{number}"
    if host.seen(_on_host(host, path)).exists():
        return node(host, path)
    major = host.character_major("nvidia-caps")
    if major is None:
        raise ValueError(f"the host has no device node {path}, and its driver has no nvidia-caps in /proc/devices")
    return DeviceNode(path=path, type="c", major=major, minor=number, file_mode=0o444, permissions=_PERMISSIONS)


def node(host: Host, path: str) -> DeviceNode:
    on_host = _on_host(host, path)
    return DeviceNode(path=path, host_path="" if on_host == path else on_host, permissions=_PERMISSIONS)


def _required(host: Host, path: str) -> DeviceNode:
    if not host.seen(_on_host(host, path)).exists():
        # The first CUDA program loads its module, and a host that runs only containers may never have run one.
        made_by = (
            "nvidia-modprobe -u -c=0"
            if path == "/dev/nvidia-uvm"
            else "nvidia-smi, nvidia-modprobe or the driver's daemon"
        )
        raise ValueError(f"the host has no device node {path}; create it with {made_by}")
    return node(host, path)


def _on_host(host: Host, path: str) -> str:
    """The node's path on the host. A driver container may have its own device nodes if the host has none."""
    return path if host.seen("/dev/nvidiactl").exists() else host.of_driver(path)
