"""What can keep a pod off a node, in the order of asking. One file each; a new one is a line here."""

from __future__ import annotations

from services.placement.filters.base import Check, Filter
from services.placement.filters.device_claims import DeviceClaims
from services.placement.filters.gpus import GpuKind, GpuRoomLeft
from services.placement.filters.host_ports import HostPorts
from services.placement.filters.inter_pod import InterPod
from services.placement.filters.node_affinity import NodeAffinity
from services.placement.filters.node_avoidance import AvoidedNodes
from services.placement.filters.resources import Resources
from services.placement.filters.taints import Taints
from services.placement.filters.topology import GpuTopology
from services.placement.filters.topology_spread import TopologySpread
from services.placement.filters.volumes import Volumes

NODE_FILTERS: tuple[Filter, ...] = (Taints(), NodeAffinity(), DeviceClaims(), GpuKind(), GpuTopology())
ROOM_FILTERS: tuple[Filter, ...] = (Resources(), GpuRoomLeft())
"""Asked of all nodes at once by `services.placement.free_capacity`; one by one only to explain."""
CLUSTER_FILTERS: tuple[Filter, ...] = (HostPorts(), InterPod(), TopologySpread(), Volumes(), AvoidedNodes())

__all__ = ["CLUSTER_FILTERS", "NODE_FILTERS", "ROOM_FILTERS", "Check", "Filter"]
