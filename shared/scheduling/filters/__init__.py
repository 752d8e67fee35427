"""The filters: what can exclude a node for a pod, in the order in which they run.

One file each. A new filter is one line here: in NODE_FILTERS if its scope is `node`, else in CLUSTER_FILTERS. The
preemptor runs only the filters of scope `node` and Resources; placement runs all and refuses a plan that breaks one.
"""

from __future__ import annotations

from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.device_claims import DeviceClaims
from shared.scheduling.filters.gpus import GpuKind, GpuRoomLeft
from shared.scheduling.filters.host_ports import HostPorts
from shared.scheduling.filters.inter_pod import InterPod
from shared.scheduling.filters.node_affinity import NodeAffinity
from shared.scheduling.filters.node_avoidance import AvoidedNodes
from shared.scheduling.filters.resources import Resources
from shared.scheduling.filters.taints import Taints
from shared.scheduling.filters.topology import GpuTopology
from shared.scheduling.filters.topology_spread import TopologySpread
from shared.scheduling.filters.volumes import Volumes

NODE_FILTERS: tuple[Filter, ...] = (Taints(), NodeAffinity(), DeviceClaims(), GpuKind(), GpuTopology())
ROOM_FILTERS: tuple[Filter, ...] = (Resources(), GpuRoomLeft())
"""`services.placement.free_capacity` checks the same for all nodes at once. In placement these run only to explain."""
CLUSTER_FILTERS: tuple[Filter, ...] = (HostPorts(), InterPod(), TopologySpread(), Volumes(), AvoidedNodes())

ALL_FILTERS = (*NODE_FILTERS, *ROOM_FILTERS, *CLUSTER_FILTERS)

__all__ = ["ALL_FILTERS", "CLUSTER_FILTERS", "NODE_FILTERS", "ROOM_FILTERS", "Check", "Filter"]
