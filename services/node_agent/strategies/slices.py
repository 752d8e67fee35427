"""What a strategy knows of a slice: who has it, of which GPUs, how much, and before whom it gives way. Plain values."""

from __future__ import annotations

import msgspec

from shared.model.gpu import Strategy
from shared.model.grant import ContainerGrant, Grant
from shared.model.request import OPPORTUNISTIC
from shared.model.units import WHOLE_GPU_MILLI

Key = tuple[str, str]
"""(pod UID, container): whose slice it is."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Of one GPU. `compute_milli` 0: no compute was asked for, and none is promised."""

    uuid: str
    memory_mib: int
    compute_milli: int


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    container: str
    strategy: Strategy
    parts: tuple[Part, ...]
    priority: int = 0
    """The pod's: of those who share by turns, the higher goes first."""
    opportunistic: bool = False
    """Behind all others, whatever its priority and its compute."""
    suspension: bool = False
    """It has given up its compute for a while: behind the opportunistic ones."""

    @property
    def key(self) -> Key:
        return self.uid, self.container

    @property
    def reserved(self) -> bool:
        """Whether its compute is a share that it gets and keeps to. Otherwise it takes what others leave, by turns."""
        return not self.opportunistic and not self.suspension and all(part.compute_milli > 0 for part in self.parts)

    @property
    def rank(self) -> tuple[int, int]:
        """Among those that share by turns, the higher goes first."""
        return (-1, 0) if self.suspension else ((0 if self.opportunistic else 1), self.priority)


def slice_of(uid: str, container: str, share: ContainerGrant, grant: Grant | None, node: str) -> Slice:
    """What of a grant is this container's on this node. Without a grant it is of no rank."""
    parts = tuple(
        Part(uuid=gpu.uuid, memory_mib=gpu.memory_mib, compute_milli=min(gpu.compute_milli, WHOLE_GPU_MILLI))
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
    )
