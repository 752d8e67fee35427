"""Which pods are suspended, and what the hosts hold for them: the part of `kerf top` about turns."""

from __future__ import annotations

from services.placement.core import Core
from shared.book import host_memory
from shared.book.states import PodState
from shared.contracts.queries import SuspendedPod
from shared.model.timestamps import seconds_text
from shared.queues.turns import is_waiting
from shared.turns.rules import level

MOST = 100


def pods(core: Core, most: int, wall: float) -> tuple[int, tuple[SuspendedPod, ...]]:
    """Returns how many pods are suspended, and the `most` of them that have been for longest."""
    found = [state for state in core.book.pods.values() if state.suspension is not None and not state.ended]
    if most > 0:
        found.sort(key=lambda state: (wall if state.gpu_time is None else state.gpu_time.since, state.uid))
    return len(found), tuple(_shown(core, state, wall) for state in found[: max(0, min(most, MOST))])


def on_hosts(core: Core) -> tuple[int, int]:
    """Returns how much GPU memory the hosts hold, or are to hold, and how much they take in all, in MiB."""
    nodes = core.book.nodes.values()
    return sum(map(host_memory.used_mib, nodes)), sum(map(host_memory.total_mib, nodes))


def _shown(core: Core, state: PodState, wall: float) -> SuspendedPod:
    record, turns = state.gpu_time, core.turns
    stands = is_waiting(state)
    return SuspendedPod(
        namespace=state.pod.metadata.namespace,
        name=state.pod.metadata.name,
        node=state.charged,
        action="" if state.suspension is None else state.suspension.action,
        since="" if record is None or not stands else seconds_text(record.since),
        for_s=0 if record is None or not stands else max(0, round(wall - record.since)),
        turn_of="" if record is None else record.turn_of,
        gpu_seconds=turns.attained_gpu_ms(state, wall) // 1000,
        level=level(turns.job(state, wall), turns.rules) if turns.takes_turns(state) else None,
        idle=turns.is_idle(state, wall),
    )
