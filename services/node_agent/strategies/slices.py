"""What a strategy knows of a slice: its container, its GPUs, its amounts and its rank. Plain values."""

from __future__ import annotations

import msgspec

from shared.contracts.node_commands import LiveSlice
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.request import OPPORTUNISTIC
from shared.model.strategies import StrategyName, registered
from shared.model.units import WHOLE_GPU_MILLI

Key = tuple[str, str]
"""(pod UID, container name): the container to which the slice belongs."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A slice's share of one GPU. `compute_milli` 0: the pod requests no compute, and none is guaranteed."""

    uuid: str
    memory_mib: int
    compute_milli: int
    memory_limit_mib: int = 0
    """Up to which the slice may use memory that no slice is guaranteed; 0: `memory_mib`."""
    compute_limit_milli: int = 0
    """The same of GPU time; 0: `compute_milli`."""

    @property
    def bursts(self) -> bool:
        """Whether it may use more memory than it is guaranteed."""
        return self.memory_limit_mib > self.memory_mib


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    container: str
    strategy: StrategyName
    parts: tuple[Part, ...]
    priority: int = 0
    """The pod's priority. Among time-sliced slices, the higher priority has precedence."""
    opportunistic: bool = False
    """Ranks below all others, whatever its priority and its compute."""
    suspension: bool = False
    """Its compute is suspended: it ranks below opportunistic slices."""
    any_gpu: bool = False
    """Its container has the device nodes of all GPUs, and the interposer hides those that are not its own."""

    @property
    def key(self) -> Key:
        return self.uid, self.container

    @property
    def concurrent(self) -> bool:
        """Whether the GPU runs its work beside that of others, so that it waits for no turn."""
        return registered()[self.strategy].concurrent

    @property
    def reserved(self) -> bool:
        """Whether the slice has a guaranteed share of compute to which it is limited. Otherwise it is time-sliced."""
        return not self.opportunistic and not self.suspension and all(part.compute_milli > 0 for part in self.parts)

    @property
    def rank(self) -> tuple[int, int]:
        """The precedence among time-sliced slices: the higher value runs first."""
        return (-1, 0) if self.suspension else ((0 if self.opportunistic else 1), self.priority)


def slice_of(uid: str, container: str, share: ContainerGrant, grant: Grant | None, node: str) -> Slice:
    """Returns the container's slice on this node. Without a grant the slice has the default rank."""
    parts = tuple(
        Part(
            uuid=gpu.uuid,
            memory_mib=gpu.memory_mib,
            compute_milli=min(gpu.compute_milli, WHOLE_GPU_MILLI),
            memory_limit_mib=gpu.memory_limit_mib,
            compute_limit_milli=min(gpu.compute_limit_milli, WHOLE_GPU_MILLI),
        )
        for gpu in share.gpus
        if gpu.node == node
    )
    if grant is None:
        return Slice(uid=uid, container=container, strategy=share.strategy, parts=parts)
    opportunistic = grant.tier == OPPORTUNISTIC
    return Slice(
        uid=uid,
        container=container,
        strategy=share.strategy,
        parts=parts,
        priority=grant.priority,
        opportunistic=opportunistic,
        any_gpu=grant.any_gpu,
    )


def running_slice(live: LiveSlice, grant: Grant | None, node: str) -> Slice:
    """Returns the slice of a container that an earlier agent has started."""
    granted = None if grant is None else grant.containers.get(live.container)
    limits = {} if granted is None else {gpu.uuid: gpu for gpu in granted.gpus if gpu.node == node}
    gpus = tuple(
        GpuShare(
            node=node,
            uuid=uuid,
            memory_mib=mib,
            compute_milli=milli,
            memory_limit_mib=limits[uuid].memory_limit_mib if uuid in limits else 0,
            compute_limit_milli=limits[uuid].compute_limit_milli if uuid in limits else 0,
        )
        for uuid, (mib, milli) in live.gpus.items()
    )
    return slice_of(live.uid, live.container, ContainerGrant(strategy=live.strategy, gpus=gpus), grant, node)
