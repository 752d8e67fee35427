"""The description of a simulated GPU node."""

from __future__ import annotations

from typing import Annotated

import msgspec

from shared.model.gpu import MOST_GPUS, MOST_MIB
from shared.model.mig import MigInstance
from shared.model.network import RemoteAbility


class HollowNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A simulated node: `count` GPUs of one model with `memory_mib` each."""

    name: str
    model: str = "NVIDIA-H200"
    count: Annotated[int, msgspec.Meta(ge=0, le=MOST_GPUS)] = 8
    memory_mib: Annotated[int, msgspec.Meta(ge=1, le=MOST_MIB)] = 143_771
    nvlinks: int = 18
    """NVLinks between each pair of its GPUs. 0: PCIe only, with half of the GPUs on each socket."""
    dra: bool = False
    """Whether the node serves ResourceClaims."""
    firm: bool = False
    """Whether the node claims to enforce slices. There is nothing to enforce: its containers do no work."""
    mig: dict[int, tuple[MigInstance, ...]] = {}
    """The GPUs in MIG mode, by index, with the instances of a fixed layout. An empty tuple: instances are created on
    demand."""
    host_memory_mib: Annotated[int, msgspec.Meta(ge=0, le=MOST_MIB)] | None = None
    """Memory of its host for the GPU memory of suspended pods; None: as much as its GPUs have."""
    remote: RemoteAbility = RemoteAbility()
    """What the node claims to offer for GPUs over the network. Its servers and clients do no work."""
