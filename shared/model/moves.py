"""A grant on other GPUs of its node: the memory of a checkpointed pod comes back there (`Grant.any_gpu`)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.resize import next_amendment

MOVES = "interposer"
"""The strategy whose slices can come back to another GPU."""


def can_move(containers: Mapping[str, ContainerGrant]) -> bool:
    """Whether these slices are such that their memory may come back to other GPUs of the node."""
    return all(
        part.strategy == MOVES and not part.claim and all(share.mig is None for share in part.gpus)
        for part in containers.values()
    )


def on_gpus(grant: Grant, gpus: Mapping[str, str]) -> Grant:
    """Returns the next amendment of a grant: the same amounts on other GPUs. `gpus`: the new one by the one it had."""
    return next_amendment(grant, {name: _part(part, gpus) for name, part in grant.containers.items()})


def _part(part: ContainerGrant, gpus: Mapping[str, str]) -> ContainerGrant:
    shares = tuple(msgspec.structs.replace(share, uuid=gpus[share.uuid]) for share in part.gpus)
    return msgspec.structs.replace(part, gpus=shares)


def moved_gpus(before: Grant, after: Grant) -> dict[str, str]:
    """Returns the new GPU by the one it had, if the slices are the same but for GPUs and amounts.

    Empty if they are not, or are on the same GPUs. Each GPU has to become one other, and no two the same.
    """
    found: dict[str, str] = {}
    if before.containers.keys() != after.containers.keys():
        return {}
    for name, part in before.containers.items():
        other = after.containers[name]
        if (part.strategy, part.claim, part.serving) != (other.strategy, other.claim, other.serving):
            return {}
        if len(part.gpus) != len(other.gpus):
            return {}
        for had, has in zip(part.gpus, other.gpus, strict=True):
            if had.node != has.node or has.mig is not None or found.setdefault(had.uuid, has.uuid) != has.uuid:
                return {}
    if len(set(found.values())) < len(found) or all(had == has for had, has in found.items()):
        return {}
    return found


def is_move(before: Grant, after: Grant) -> bool:
    """Whether a grant is the next amendment of another one: all amounts as they were, on other GPUs."""
    return (
        before.any_gpu
        and after.amendment == before.amendment + 1
        and bool(moved_gpus(before, after))
        and [_amounts(s) for s in _shares(before)] == [_amounts(s) for s in _shares(after)]
    )


def _shares(grant: Grant) -> list[GpuShare]:
    return [share for _, part in sorted(grant.containers.items()) for share in part.gpus]


def _amounts(share: GpuShare) -> tuple[int, int, int, int]:
    return share.memory_mib, share.compute_milli, share.memory_limit_mib, share.compute_limit_milli
