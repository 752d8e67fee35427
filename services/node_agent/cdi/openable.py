"""Which GPUs a container can open."""

from __future__ import annotations

from collections.abc import Mapping

from shared.model.gpu import Gpu
from shared.model.grant import GpuShare, Grant


def openable(shares: tuple[GpuShare, ...], gpus: Mapping[str, Gpu], grant: Grant | None) -> tuple[GpuShare, ...]:
    """What the container can open: its own, and all GPUs of the node if its memory may come back to one of those."""
    if grant is None or not grant.any_gpu or not shares:
        return shares
    mine = {share.uuid for share in shares}
    return shares + tuple(
        GpuShare(node=shares[0].node, uuid=uuid, memory_mib=0, compute_milli=0) for uuid in gpus if uuid not in mine
    )
