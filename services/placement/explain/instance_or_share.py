"""Why a part became a MIG instance, or why it did not, as a sentence about the node that it is on."""

from __future__ import annotations

from services.placement.engine.engine import Engine
from shared.book.shares import GpuRoom, share_on
from shared.book.states import NodeState, PodState
from shared.model.request import GpuAsk
from shared.model.units import format_mib
from shared.scheduling.choosing import able


def other_kind(state: PodState, node: NodeState, engine: Engine) -> str:
    """What comes next on the node: a share where the pod's part is an instance, an instance where it is a share. Empty
    where the node has only one of them for it. The pod itself takes nothing in the engine's book."""
    request, inventory = state.request, node.inventory
    if request is None or inventory is None or len(request.asks) != 1:
        return ""
    (ask,) = request.asks.values()
    fitting = able(ask, request, inventory, node.gpus)
    if ask.profile or not any(room.mig is None for room in fitting) or all(room.mig is None for room in fitting):
        return ""
    best, *rest = engine.gpu_policy_of(state).order(state, ask, fitting, node)
    other = next(room for room in rest if (room.mig is None) != (best.mig is None))
    return f"on {node.name} GPU {other.index} is next: {_against(ask, other)}"


def _against(ask: GpuAsk, room: GpuRoom) -> str:
    if room.mig is None:
        return f"a share would {'begin an idle GPU' if room.idle else 'take of a GPU'} that later pods need more"
    instance = room.copy().mig
    taken = None if instance is None else instance.take(ask, room.total_mib)
    if instance is None or taken is None:
        raise ValueError(f"GPU {room.uuid} has no MIG instance for {ask}")
    spare_mib = instance.size_of(taken, room.total_mib)[0] - share_on(ask, room.total_mib)[0]
    return f"of its MIG instance {taken.profile} {format_mib(spare_mib)} would be of no use"
