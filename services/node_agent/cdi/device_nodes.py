"""The device nodes of a slice: those of its own GPUs, and those that belong to no GPU."""

from __future__ import annotations

from services.node_agent.cdi.host import Host
from services.node_agent.cdi.spec import DeviceNode

NEEDED, WHERE_PRESENT = ("/dev/nvidiactl", "/dev/nvidia-uvm"), ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_PERMISSIONS = "rw"


def control(host: Host) -> tuple[DeviceNode, ...]:
    """Raises ValueError where one is missing without which CUDA does not start: better no container than one whose GPU fails."""
    needed = tuple(_required(host, path) for path in NEEDED)
    return needed + tuple(node(host, path) for path in WHERE_PRESENT if host.seen(_on_host(host, path)).exists())


def gpu(host: Host, minor: int) -> DeviceNode:
    """Raises ValueError where there is no such node."""
    return _required(host, f"/dev/nvidia{minor}")


def mig(host: Host, minor: int, gpu_instance: int, compute_instance: int) -> tuple[DeviceNode, ...]:
    """What opens one MIG instance, beside the GPU's own node. Raises ValueError where it does not exist."""
    numbers = host.mig_capabilities(minor, gpu_instance, compute_instance)
    if numbers is None:
        raise ValueError(
            f"the driver shows no capability for MIG instance {gpu_instance}/{compute_instance} of /dev/nvidia{minor}"
        )
    return tuple(_required(host, f"/dev/nvidia-caps/nvidia-cap{number}") for number in numbers)


def node(host: Host, path: str) -> DeviceNode:
    on_host = _on_host(host, path)
    return DeviceNode(path=path, host_path="" if on_host == path else on_host, permissions=_PERMISSIONS)


def _required(host: Host, path: str) -> DeviceNode:
    if not host.seen(_on_host(host, path)).exists():
        # Its module is loaded by the first CUDA program, and on a host that runs only containers that may be nobody.
        made_by = (
            "nvidia-modprobe -u -c=0"
            if path == "/dev/nvidia-uvm"
            else "nvidia-smi, nvidia-modprobe or the driver's daemon"
        )
        raise ValueError(f"the host has no device node {path}; {made_by} makes it")
    return node(host, path)


def _on_host(host: Host, path: str) -> str:
    """A driver container may have device nodes of its own, where the host has none."""
    return path if host.seen("/dev/nvidiactl").exists() else host.of_driver(path)
