"""What would make a pod fit: another pod that moves, and would itself find a place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from services.placement.engine.engine import Engine
from services.placement.explain.diagnosis import Verdicts
from services.placement.explain.disruption_cost import as_move
from services.placement.explain.steps import Steps
from services.placement.policies.base import largest_ask
from services.placement.scheduling.trial import Trial
from shared.book.book import Book
from shared.book.disruption_cost import DisruptionCost, price_of, why_not_disruptable
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Counterfactual

_ROOM = frozenset(
    {"gpu-full", "cpu", "memory", "ephemeral-storage", "too-many-pods", "host-port", "extended-resource", "disk-in-use"}
)
"""Reasons that a pod on the node may be to blame for."""
_TRIES = 8
_NODES_A_STEP = 32


def move_of_another(state: PodState, verdicts: Verdicts, engine: Engine, now: float) -> Steps[Counterfactual | None]:
    """The cheapest pod of no higher priority after whose migration this one fits, beside its new place. Tried as a
    whole."""
    book = engine.book
    priority, largest = state.pod.spec.priority, largest_ask(state)
    candidates: list[tuple[DisruptionCost, PodState]] = []
    for count, (name, reasons) in enumerate(verdicts.items()):
        if count % _NODES_A_STEP == 0:
            yield
        if reasons and name in book.nodes and all(reason.code in _ROOM for reason in reasons):
            node = book.nodes[name]
            if largest is None or largest.profile or not largest.whole:
                others = [other for other in node.pods.values() if opens(state, node, (other,), book)]
            else:
                lacking = largest.count - sum(room.usable and room.free_mib >= room.total_mib for room in node.gpus)
                others = [
                    other
                    for other in node.pods.values()
                    if _empties(other, node, book) >= lacking and _leaves_room(state, node, (other,))
                ]
            candidates += [(price_of(other, book, now), other) for other in others]
    candidates.sort(key=lambda c: c[0].order)
    may_move = (one for one, other in candidates if not why_not_disruptable(other, book, now, priority=priority))
    for one in islice(may_move, _TRIES):
        yield
        target = _try(state, one, engine)
        if target:
            move = as_move(one, target, book)
            sentence = f"fits if {move.namespace}/{move.name} moves from {move.source} to {move.target}"
            return Counterfactual(code="move-pod", sentence=sentence, node=one.node, moves=(move,))
    return None


def _empties(other: PodState, node: NodeState, book: Book) -> int:
    """How many GPUs of the node only this pod uses. Called for thousands of pods, so it looks at the pod's own GPUs
    alone."""
    held = book.grants.get(other.grant_id)
    given: dict[str, int] = {}
    for container in () if held is None else held.grant.containers.values():
        for share in container.gpus:
            given[share.uuid] = given.get(share.uuid, 0) + share.memory_mib
    rooms = [(node.by_uuid[uuid], mib) for uuid, mib in given.items() if uuid in node.by_uuid]
    return sum(room.usable and room.free_mib < room.total_mib <= room.free_mib + mib for room, mib in rooms)


def opens(state: PodState, node: NodeState, others: Sequence[PodState], book: Book) -> bool:
    """A first look, by what is free on the node and what the others give back. It may say yes too often, never no."""
    if not _leaves_room(state, node, others):
        return False
    largest = largest_ask(state)
    if largest is None or largest.profile or not largest.whole:
        return True
    given: Counter[str] = Counter()
    for other in others:
        held = book.grants.get(other.grant_id)
        for container in () if held is None else held.grant.containers.values():
            given.update({share.uuid: share.memory_mib for share in container.gpus})
    return (
        sum(room.usable and room.free_mib + given[room.uuid] >= room.total_mib for room in node.gpus) >= largest.count
    )


def _leaves_room(state: PodState, node: NodeState, others: Sequence[PodState]) -> bool:
    demand = state.demand
    if demand.cpu_milli > node.cpu_total - node.cpu_used + sum(other.demand.cpu_milli for other in others):
        return False
    return demand.memory_bytes <= node.memory_total - node.memory_used + sum(
        other.demand.memory_bytes for other in others
    )


def _try(state: PodState, one: DisruptionCost, engine: Engine) -> str:
    """Where the other pod would go, the pod itself having its place; empty where one of them finds none."""
    known = engine.book.pods.get(one.uid)
    if known is None or known.charged != one.node:
        return ""
    trial = Trial(engine)
    waits = trial.book.add(state)
    moved = trial.book.lift(one.uid)
    if trial.place_on(waits, one.node) is None:
        return ""
    place = trial.place(moved)
    return "" if place is None or place.node == one.node else place.node
