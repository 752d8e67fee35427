"""The filters: what can exclude a node for a pod, in the order in which they run.

One file each; a new filter is one line here. Other packages add filters by the entry point `kerf.filters`. The
preemptor runs the filters of scope `node` and Resources; placement runs all and refuses a plan that breaks one.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, get_args

from shared import plugins
from shared.scheduling.filters.base import Check, Filter, Scope
from shared.scheduling.filters.claims_in_use import ClaimsInUse
from shared.scheduling.filters.device_claims import DeviceClaims
from shared.scheduling.filters.gpus import GpuKind, GpuRoomLeft
from shared.scheduling.filters.host_ports import HostPorts
from shared.scheduling.filters.inter_pod import InterPod
from shared.scheduling.filters.nics import FreeNics, NicKind
from shared.scheduling.filters.node_affinity import NodeAffinity
from shared.scheduling.filters.node_avoidance import AvoidedNodes
from shared.scheduling.filters.resources import Resources
from shared.scheduling.filters.slowdown import TooSlowBeside
from shared.scheduling.filters.taints import Taints
from shared.scheduling.filters.topology import GpuTopology
from shared.scheduling.filters.topology_spread import TopologySpread
from shared.scheduling.filters.volume_limits import VolumeLimits
from shared.scheduling.filters.volumes import Volumes

BUILT_IN: tuple[Filter, ...] = (
    Taints(),
    NodeAffinity(),
    DeviceClaims(),
    GpuKind(),
    GpuTopology(),
    NicKind(),
    Resources(),
    GpuRoomLeft(),
    FreeNics(),
    TooSlowBeside(),
    HostPorts(),
    InterPod(),
    TopologySpread(),
    Volumes(),
    VolumeLimits(),
    ClaimsInUse(),
    AvoidedNodes(),
)


class Filters(NamedTuple):
    """By scope, in the order in which they run."""

    node: tuple[Filter, ...]
    room: tuple[Filter, ...]
    cluster: tuple[Filter, ...]

    @property
    def every(self) -> tuple[Filter, ...]:
        return (*self.node, *self.room, *self.cluster)


@cache
def filters() -> Filters:
    """The built-in filters, then those of plug-ins. Raises plugins.PluginError."""
    found = plugins.load("kerf.filters", Filter, (one.name for one in BUILT_IN))
    for one in found:
        if getattr(one, "scope", None) not in ("node", "cluster"):
            raise plugins.refuse(
                "kerf.filters", one.name, f"its scope is {getattr(one, 'scope', None)!r}; it must be node or cluster"
            )
    every = (*BUILT_IN, *found)
    return Filters(*(tuple(one for one in every if one.scope == scope) for scope in get_args(Scope)))


__all__ = ["BUILT_IN", "Check", "Filter", "Filters", "filters"]
