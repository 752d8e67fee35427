"""On which GPUs of its node the memory of a checkpointed pod comes back, if others have its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shared.book.accepts import accepted, has_gpu_constraints
from shared.book.shares import GpuRoom
from shared.book.states import GrantState, NodeState, PodState
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, sum_shares
from shared.model.moves import can_move, is_move, on_gpus
from shared.model.suspension import goes_to_host
from shared.model.units import WHOLE_GPU_MILLI
from shared.scheduling.equal_gpus import mask_of
from shared.scheduling.slowdown.outlook import quiet_rooms
from shared.scheduling.topology import Choice, choose_gpus, fabric_of, near_of

Amount = tuple[int, int]
"""(memory_mib, compute_milli)"""
Taken = Mapping[tuple[str, str], Amount]
"""By node and uuid."""


def may_move(
    state: PodState, containers: Mapping[str, ContainerGrant], nics: Sequence[str], inventory: Inventory | None
) -> bool:
    """Whether a pod that is given these slices may come back to other GPUs: it takes turns, and its node can do it."""
    return state.takes_turns and inventory is not None and inventory.any_gpu and not nics and can_move(containers)


def is_movable(held: GrantState) -> bool:
    """Whether all that a pod had of its GPUs is on the host, and may come back to others."""
    return held.given.any_gpu and goes_to_host(held.suspension)


def why_not_there(state: PodState, held: GrantState, node: NodeState, gpus: Mapping[str, str]) -> str:
    """Returns why the memory of a pod does not come back to these GPUs, whatever is free; empty if it does."""
    rooms, had = node.by_uuid, {uuid for _, uuid in sum_shares((held.given,))}
    if not is_movable(held) or had != gpus.keys() or not is_move(held.given, on_gpus(held.given, gpus)):
        return f"{state.key} does not come back to other GPUs, or not to these"
    for uuid, other in gpus.items():
        own, room = rooms.get(uuid), rooms.get(other)
        if own is None or room is None or (own.model, own.total_mib) != (room.model, room.total_mib):
            return f"GPU {other} is none to which {state.key} can come back from {uuid}"
        if not _accepted(state, node, [room]):
            return f"{state.key} does not accept GPU {other}"
    return ""


def other_gpus(state: PodState, held: GrantState, node: NodeState, taken: Taken) -> dict[str, str] | None:
    """Returns the new GPU by the one it had; None if there are not enough.

    The fullest GPUs on which it fits come first, and several are chosen by the pod's topology. `taken`: what is to be
    taken besides what the book has.

    Only GPUs of the model and the size of its own ones will do: a driver restores to no other chip.
    """
    needs = {uuid: amount for (_, uuid), amount in sum_shares((held.given,)).items()}
    if node.inventory is None or state.request is None or any(uuid not in node.by_uuid for uuid in needs):
        return None
    fitting = {uuid: _fitting(state, node, uuid, amount, taken) for uuid, amount in needs.items()}
    if len(needs) > 1 and len(set(needs.values())) == 1:
        return _alike(state, node, list(needs), fitting[next(iter(needs))])
    found: dict[str, str] = {}
    for uuid in sorted(needs, key=lambda one: needs[one], reverse=True):
        best = next((room.uuid for room in fitting[uuid] if room.uuid not in found.values()), None)
        if best is None:
            return None
        found[uuid] = best
    return found if len(found) == 1 or not near_of(state.request) else None


def _alike(state: PodState, node: NodeState, had: Sequence[str], fitting: list[GpuRoom]) -> dict[str, str] | None:
    """Chooses as many GPUs as it had, of each of which it needs the same."""
    if node.inventory is None or state.request is None or len(fitting) < len(had):
        return None
    near = near_of(state.request)
    if not state.request.topology_mode and not near:
        return {uuid: room.uuid for uuid, room in zip(had, fitting, strict=False)}
    choice = Choice(
        size=len(had), fitting=mask_of(fitting), idle=mask_of(room for room in node.gpus if room.idle), near=near
    )
    places = choose_gpus(fabric_of(node.inventory), choice)
    return None if places is None else {uuid: node.gpus[at].uuid for uuid, at in zip(had, places, strict=True)}


def _fitting(state: PodState, node: NodeState, had: str, amount: Amount, taken: Taken) -> list[GpuRoom]:
    """The GPUs that can have what it had of one, the fullest first."""
    own = node.by_uuid[had]
    found = [room for room in node.gpus if takes(room, own, amount, taken.get((node.name, room.uuid), (0, 0)))]
    return sorted(_accepted(state, node, found), key=lambda room: (room.free_milli, room.free_mib, room.column))


def takes(room: GpuRoom, own: GpuRoom, amount: Amount, taken: Amount = (0, 0)) -> bool:
    """Whether a GPU can have what a pod had of its own one, by what is free."""
    (mib, milli), (more_mib, more_milli) = amount, taken
    return (
        mib <= room.free_mib - more_mib
        and milli <= room.free_milli - more_milli
        and room.usable
        and room.mig is None
        and (room.model, room.total_mib) == (own.model, own.total_mib)
        and (room.idle or mib != room.total_mib or milli != WHOLE_GPU_MILLI)
    )


def _accepted(state: PodState, node: NodeState, rooms: list[GpuRoom]) -> list[GpuRoom]:
    """Those of these GPUs that the pod accepts, and on which all are as fast as they have to be."""
    request = state.request
    if request is None or node.inventory is None:
        return []
    if has_gpu_constraints(request):
        wanted = accepted(request, node.inventory)
        rooms = [room for room in rooms if room.uuid in wanted]
    for name, ask in request.asks.items() if state.adaptive else ():
        rooms = quiet_rooms(state, name, ask, node, rooms)
    return rooms
