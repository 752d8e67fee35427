"""Slices that run on a node by the grant of an unknown pod."""

from __future__ import annotations

from collections.abc import Sequence

from shared.book.states import GrantState
from shared.contracts.node_commands import LiveSlice
from shared.model.grant import ContainerGrant, GpuShare, Grant


def stranger(slices: Sequence[LiveSlice], node: str) -> GrantState:
    """The slices of one grant that run, of an unknown pod: what they have is booked until their node
    releases it."""
    containers = {one.container: ContainerGrant(strategy=one.strategy, gpus=_shares(one, node)) for one in slices}
    first = slices[0]
    grant = Grant(grant_id=first.grant_id, term=0, containers=containers, nics=first.nics)
    return GrantState(grant, first.uid, first.namespace, first.name, node, "leaving")


def _shares(slice_: LiveSlice, node: str) -> tuple[GpuShare, ...]:
    return slice_.mig or tuple(
        GpuShare(node=node, uuid=uuid, memory_mib=mib, compute_milli=milli)
        for uuid, (mib, milli) in slice_.gpus.items()
    )
