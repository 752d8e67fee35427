"""The filters: what can exclude a node for a pod, in the order in which they run. One file each; a new filter is one
line here."""

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
"""`services.placement.free_capacity` checks all nodes at once; this filter runs for a single node only to explain."""
CLUSTER_FILTERS: tuple[Filter, ...] = (HostPorts(), InterPod(), TopologySpread(), Volumes(), AvoidedNodes())

__all__ = ["CLUSTER_FILTERS", "NODE_FILTERS", "ROOM_FILTERS", "Check", "Filter"]
