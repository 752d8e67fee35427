"""The node agent's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from services.node_agent.hollow import HollowNode
from shared.service.settings import Seconds


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either one real node (`node`), or any number of simulated ones (`hollow`, `hollow_file`)."""

    node: str = ""
    """This host's name in Kubernetes. Empty where nodes are simulated."""
    checkpoint_file: str = "/var/lib/kerf/agent.json"
    boot_id_file: str = "/proc/sys/kernel/random/boot_id"
    poll_s: Seconds = 10.0
    """How often NVML is asked what there is."""
    nvml_timeout_s: Seconds = 15.0
    """A call into NVML that takes longer counts as hung: the node's GPUs are suspect until it returns."""
    beat_s: Seconds = 2.0
    kubelet_dir: str = "/var/lib/kubelet"
    """Where the kubelet's sockets and its device checkpoint are. Without that directory nothing is handed over."""
    cdi_dir: str = "/var/run/cdi"
    """Where the container runtime looks for CDI specs, and the agent writes them."""
    slots: Annotated[int, msgspec.Meta(ge=1, le=16384)] = 1024
    """How many containers with GPUs the kubelet admits on this node at once."""
    hollow: tuple[HollowNode, ...] = ()
    hollow_file: str = ""
    """A JSON file with a list of the same."""

    def has_kubelet(self) -> bool:
        return Path(self.kubelet_dir).is_dir()

    def hollow_nodes(self) -> tuple[HollowNode, ...]:
        """Raises OSError or msgspec.DecodeError where hollow_file cannot be read, ValueError on a name given twice."""
        more = () if not self.hollow_file else msgspec.json.decode(Path(self.hollow_file).read_bytes(), type=tuple[HollowNode, ...])
        nodes = (*self.hollow, *more)
        if len({node.name for node in nodes}) != len(nodes):
            raise ValueError("two simulated nodes have the same name")
        return nodes
