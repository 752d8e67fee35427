"""Pods whose memory comes back from the host to other GPUs of their node (`Grant.any_gpu`). Pure.

The order is an amended grant with other GPUs. It is on disk, with what the slices have until then (`in_force`), before
anything is restored. The slices get the other GPUs when all memory is there; what could not be restored stays on the
host, and is tried again with each tick. So after a crash the agent goes on with the same move.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from services.node_agent.grant_store import GrantStore
from services.node_agent.messages import SuspendTask
from services.node_agent.moves import Move, place_of, why_not_a_move
from services.node_agent.state import KnownGrant
from shared.contracts.node_commands import NodeGrant
from shared.model.gpu import Gpu
from shared.model.resize import same_slices


def is_move(known: KnownGrant, received: NodeGrant) -> bool:
    """Whether an amendment names other GPUs."""
    return not same_slices(received.grant, known.grant.grant)


def refusal(known: KnownGrant, received: NodeGrant, node: str, gpus: Mapping[str, Gpu]) -> str:
    """Why the pod cannot come back to these GPUs; empty if it can, as far as the grants say."""
    why = why_not_a_move(known.grant.grant, received.grant)
    if why:
        return f"the amended grant has other GPUs, and {why}"
    if known.cannot_move:
        return f"its programs come back to their own GPUs alone: {known.cannot_move}"
    if not known.on_host or received.suspension is not None:
        return "the amended grant has other GPUs, and the pod's memory is not to come back from the host"
    missing = next((uuid for uuid in place_of(received.grant, node).split(",") if uuid not in gpus), None)
    return "" if missing is None else f"GPU {missing} is not on this node"


def is_under_way(known: KnownGrant) -> bool:
    """Whether the pod's slices are still those of other GPUs than its grant's."""
    return known.in_force is not None and not same_slices(known.in_force, known.grant.grant)


def start_refusal(known: KnownGrant) -> tuple[str, str] | None:
    """Why no container of the pod may start now, as code and sentence."""
    if not is_under_way(known):
        return None
    return "moving", "the pod's GPU memory is on its way to other GPUs; the kubelet tries again"


def with_move(store: GrantStore, task: SuspendTask, node: str, gpus: Mapping[str, Gpu]) -> SuspendTask:
    """The task of a pod that resumes from the host, with where its memory comes to."""
    known = store.get(task.grant_id)
    if known is None or not known.effective.any_gpu or task.suspension is not None or not known.on_host:
        return task
    grant = known.effective
    return msgspec.structs.replace(
        task,
        after=grant,
        move=Move(before=place_of(known.in_force or grant, node), after=place_of(grant, node), models=_models(gpus)),
    )


def rehearsal(known: KnownGrant, node: str, gpus: Mapping[str, Gpu]) -> Move | None:
    """How it is tried whether the pod's programs could come back to other GPUs; None: they are not asked to."""
    if not known.effective.any_gpu:
        return None
    place = place_of(known.effective, node)
    return Move(before=place, after=place, models=_models(gpus), tries=True)


def after(known: KnownGrant, task: SuspendTask) -> KnownGrant:
    """What is known when the task has been carried out. A newer order may have come meanwhile."""
    if task.move is None or task.after is None:
        return known
    done = known.effective.containers == task.after.containers
    return msgspec.structs.replace(known, in_force=None if done else task.after)


def _models(gpus: Mapping[str, Gpu]) -> dict[str, str]:
    return {uuid: gpu.model for uuid, gpu in gpus.items()}
