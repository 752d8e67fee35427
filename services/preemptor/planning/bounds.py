"""Computes lower bounds of an option's cost, so that few of thousands of nodes are tried. Pure.

A bound never exceeds the final cost: a node whose bound is not below the best option so far need not be tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import get_args

import msgspec

from services.preemptor.planning.candidate import Bound, Candidate, Last
from services.preemptor.planning.emptying_cost import NOTHING, EmptyingCost, min_total
from services.preemptor.planning.fitting import alike, has_host_room, has_room
from services.preemptor.planning.victims import Candidates
from shared.book.states import NodeState, PodState
from shared.contracts.preemption import Action

Cost = tuple[int, int, int, int, int, Last, str]
SEVERITY: dict[Action, int] = {action: severity for severity, action in enumerate(get_args(Action), start=1)}
NO_PRIORITY = -(1 << 31)
FIRST = Last(("~", "~"))
"""Sorts before the newest pod."""
FREE: Bound = (0, NO_PRIORITY, 0, 0, 0, FIRST)


def cost_of(victims: Collection[Candidate], place: str) -> Cost:
    """Returns the cost of a set of victims; less is better, compared element by element.

    The elements: severity of the most severe action, highest priority of a victim, lost work in GPU-ms, GPU milli
    that are disturbed, number of pods, the oldest victim (newer pods are preempted first), and the place.
    """
    oldest = max((victim.last for victim in victims), default=FIRST)
    milli = sum(dict(v.disturbed for v in victims).values())
    severity = max((SEVERITY[v.action] for v in victims), default=0)
    return (
        severity,
        max((v.priority for v in victims), default=NO_PRIORITY),
        sum(v.price_gpu_ms for v in victims),
        milli,
        len(victims),
        oldest,
        place,
    )


class Bounds:
    """The bounds of one area for one gang or pod. Members with equal requests share one list."""

    def __init__(
        self, candidates: Candidates, area: Sequence[NodeState], name: str = "", *, wait_for_release: bool
    ) -> None:
        self.name = name
        self._candidates, self.area, self._wait_for_release = candidates, area, wait_for_release
        self._known: dict[object, list[tuple[Bound, NodeState]]] = {}
        """By kind of pod."""

    def nodes(self, state: PodState, planned_nodes: Collection[str]) -> Iterator[tuple[Bound, NodeState]]:
        """Yields the nodes on which the pod may fit, the lowest bound first.

        `planned_nodes`: nodes on which the plan has freed capacity already; they come first.
        """
        yield from ((FREE, node) for node in self.area if node.name in planned_nodes)
        yield from ((bound, node) for bound, node in self._sorted(state) if node.name not in planned_nodes)

    def least(self, state: PodState) -> Bound | None:
        """Returns the lowest bound of a pod; None if it fits nowhere."""
        return next((bound for bound, _ in self._sorted(state)), None)

    def least_for_group(self, members: Sequence[PodState], *, tells_areas_apart: bool = True) -> Bound | None:
        """Returns a lower bound of the cost of placing all members; None if they cannot be placed.

        `tells_areas_apart`: the bounds of several areas will be compared. For a single area any bound does, and a close
        one takes as long as the rest of the plan.
        """
        found = FREE
        for kind in alike([state for state in members if state.request is not None]):
            bound = self._all_of(kind[0], len(kind), close=tells_areas_apart)
            if bound is None:
                return None
            found = max(found, bound)
        return found

    def _all_of(self, state: PodState, count: int, *, close: bool) -> Bound | None:
        """Returns the bound of `count` pods with equal requests.

        Pods that request whole GPUs share no GPU, and no victim that has only one GPU.
        """
        least, ask = self.least(state), None if state.request is None else state.request.hardest
        if least is None or count == 1 or ask is None or not ask.whole or ask.profile:
            return least
        parts: list[EmptyingCost] = []
        for node in [node for node in self.area if node.gpus]:
            if self._wait_for_release and self._candidates.leaving(node):
                parts += [NOTHING] * (len(node.gpus) // ask.count)
            elif any(c.suspends for c in self._candidates.on(node, state)):
                return least
            else:
                parts += self._candidates.emptying_costs(ask.count, node)
            if not close and len(parts) >= count:
                return least
        costs = min_total(parts, count)
        return None if costs is None else (SEVERITY["evict"] if costs.pods else 0, *costs.figures)

    def _sorted(self, state: PodState) -> list[tuple[Bound, NodeState]]:
        kind = self._kind(state)
        if kind not in self._known:
            made = [(bound, node) for node in self.area if (bound := self._bound(state, node, kind)) is not None]
            made.sort(key=lambda item: (item[0], item[1].name))
            self._known[kind] = made
        return self._known[kind]

    def _kind(self, state: PodState) -> object:
        """Pods of one kind have the same bounds."""
        if state.request is None:
            return state.demand.cpu_milli, state.demand.memory_bytes
        return msgspec.msgpack.encode(state.request), self._candidates.preemption_class(state)

    def _bound(self, state: PodState, node: NodeState, kind: object) -> Bound | None:
        if state.request is None:
            return FREE if has_host_room(state, node) else None  # no pod is preempted for it
        if not node.gpus:
            return None
        if self._wait_for_release and self._candidates.leaving(node):
            return FREE
        known = self._candidates.bounds_on(node)
        if known is None:
            return self._computed(state, node)
        if kind not in known:
            known[kind] = self._computed(state, node)
        return known[kind]

    def _computed(self, state: PodState, node: NodeState) -> Bound | None:
        if has_room(state, node):
            return FREE
        candidates = self._candidates.on(node, state)
        if not candidates:
            return None
        suspends = [SEVERITY[c.suspends[0]] for c in candidates if c.suspends]
        if suspends:
            return min(suspends), NO_PRIORITY, 0, 0, 0, FIRST
        ask = None if state.request is None else state.request.hardest
        if ask is not None and ask.whole and not ask.profile:
            costs = self._candidates.emptying_cost(ask.count, node)
            return None if costs is None else (SEVERITY["evict"], *costs.figures)
        first = candidates[0]
        return SEVERITY["evict"], first.priority, first.least_gpu_ms, first.gpu_milli, 1, first.last
