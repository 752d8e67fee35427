"""What a pod requests: the request of its containers, and the GPUs that it accepts."""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.model.policies import PolicyName
from shared.model.remote_use import RemoteUse
from shared.model.request_error import RequestError
from shared.model.strategy import Isolation
from shared.model.use import UseProfile

TopologyMode = Literal["", "ring"]
TOPOLOGY_MODES: tuple[str, ...] = ("ring",)

__all__ = [
    "OPPORTUNISTIC",
    "TOPOLOGY_MODES",
    "GpuAsk",
    "PodRequest",
    "RemoteUse",
    "RequestError",
    "TopologyMode",
]

OPPORTUNISTIC = "opportunistic"
"""The tier (`kerf.dev/tier`) of pods that use idle compute. They are preempted by priority, as any other pod."""


class GpuAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One container's request, per GPU: `count` GPUs, each with `memory_mib` and `compute_milli`.

    A whole GPU has `whole=True`, whatever its memory, and compute_milli 1000. Zero means: of this nothing is named.
    Memory alone reserves no compute; compute alone takes the same fraction of the memory of the GPU it lands on.
    """

    count: int
    memory_mib: int = 0
    compute_milli: int = 0
    whole: bool = False
    memory_milli: int = 0
    """Thousandths of the memory of whichever GPU it lands on, instead of `memory_mib`."""
    memory_limit_mib: int = 0
    """Of each GPU, up to which it may use memory that no slice is guaranteed; 0: no more than it requests."""
    memory_limit_milli: int = 0
    """The same as thousandths of the memory of whichever GPU it lands on."""
    compute_limit_milli: int = 0
    """Of each GPU, up to which it may use compute that no slice is guaranteed; 0: no more than it requests."""
    profile: str = ""
    """The number of MIG instances of this profile, on one GPU or on several of the node; memory and compute are then
    what its name says."""

    @property
    def is_fraction(self) -> bool:
        """Whether it takes the same fraction of a GPU's memory and of its compute."""
        return 0 < self.memory_milli == self.compute_milli

    @property
    def bursts(self) -> bool:
        """Whether it may use more than it requests, while no slice is guaranteed it."""
        return bool(self.memory_limit_mib or self.memory_limit_milli or self.compute_limit_milli)

    def covers(self, other: GpuAsk) -> bool:
        """Whether what it requests is enough for `other`, memory in the same unit."""
        if self.count < other.count or self.profile != other.profile or (other.whole and not self.whole):
            return False
        return self.whole or (
            self.memory_mib >= other.memory_mib
            and self.memory_milli >= other.memory_milli
            and self.compute_milli >= other.compute_milli
        )

    @property
    def hardness(self) -> tuple[bool, int, int, int, int]:
        """Larger is harder to place: of several asks the hardest goes first."""
        return self.whole, self.count, self.memory_mib, self.memory_milli, self.compute_milli


class PodRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    asks: dict[str, GpuAsk]
    """By container name, only containers that use GPUs; and by the entry of a ResourceClaim (shared.model.claims)."""
    isolation: Isolation = "soft"
    models: tuple[str, ...] = ()
    """Any of these, compared without case; a model matches when the node's name contains it. Empty: any."""
    models_not: tuple[str, ...] = ()
    """None of these, matched like `models`."""
    uuids: tuple[str, ...] = ()
    uuids_not: tuple[str, ...] = ()
    generations: tuple[str, ...] = ()
    """Any of `generations.GENERATIONS`; empty: any."""
    memory_min_mib: int = 0
    """What each GPU must have in total, whatever part of it is requested."""
    capability_min: int = 0
    """The least compute capability, in tenths: 8.9 is 89."""
    prefer: Literal["", "cost", "speed"] = ""
    topology: Literal["", "required", "preferred", "numa", "host"] = ""
    """Of several GPUs: all reach each other peer to peer (`required`), or are on one NUMA node (`numa`). `host`: those
    that exchange data with the host fastest."""
    topology_mode: TopologyMode = ""
    """`ring`: several GPUs of a node are chosen by their best ring, whatever the policy."""
    policy: PolicyName = ""
    gpu_policy: PolicyName = ""
    """Orders the GPUs of the chosen node instead of `policy`."""
    tier: str = ""
    nics: int = 0
    """How many network cards for RDMA the pod gets, the nearest to its GPUs."""
    use: UseProfile | None = None
    """What each of its containers does on a GPU, as it declares (`kerf.dev/gpu-use`)."""
    max_slowdown_milli: int = 0
    """How many thousandths as long as on a GPU of its own it may take; 0: any."""
    remote: RemoteUse | None = None
    """Of a pod that agrees to a GPU of another node (`kerf.dev/remote`)."""

    @property
    def hardest(self) -> GpuAsk:
        """The ask that is hardest to place."""
        return max(self.asks.values(), key=lambda ask: ask.hardness)
