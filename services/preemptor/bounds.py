"""The least that a way on a node can cost, so that of thousands of nodes few have to be tried. Pure.

Never more than what the way costs in the end: a node whose bound is no less than the best way so far need not be tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import get_args

from services.preemptor.candidate import Candidate, Last
from services.preemptor.emptying_cost import NOTHING, EmptyingCost, min_total
from services.preemptor.fitting import alike, has_room
from services.preemptor.victims import Candidates
from shared.book.states import NodeState, PodState
from shared.contracts.preemption import Action
from shared.model.request import PodRequest

Bound = tuple[int, int, int, int, int, Last]
"""As `cost_of`, without the place."""
Cost = tuple[int, int, int, int, int, Last, str]
SEVERITY: dict[Action, int] = {action: hardness for hardness, action in enumerate(get_args(Action), start=1)}
NOBODY = -(1 << 31)
FIRST = Last(("~", "~"))
"""Sorts before whoever came last."""
FREE: Bound = (0, NOBODY, 0, 0, 0, FIRST)


def cost_of(victims: Collection[Candidate], place: str) -> Cost:
    """The gentlest action, the least important victims, the least lost, the fewest GPUs, the fewest pods; of equals those who
    came last."""
    oldest = max((victim.last for victim in victims), default=FIRST)
    milli = sum(v.gpu_milli for v in victims)
    hardest = max((SEVERITY[v.action] for v in victims), default=0)
    return (
        hardest,
        max((v.priority for v in victims), default=NOBODY),
        sum(v.price_gpu_ms for v in victims),
        milli,
        len(victims),
        oldest,
        place,
    )


class Bounds:
    """Of one area, for one group: members that ask for the same share one list."""

    def __init__(
        self, candidates: Candidates, area: Sequence[NodeState], name: str = "", *, wait_for_release: bool
    ) -> None:
        self.name = name
        self._candidates, self.area, self._wait_for_release = candidates, area, wait_for_release
        self._known: list[tuple[PodRequest | None, object, list[tuple[Bound, NodeState]]]] = []

    def nodes(self, state: PodState, cleared: Collection[str]) -> Iterator[tuple[Bound, NodeState]]:
        """Those on which it may find a place, the cheapest bound first. `cleared`: where the plan has made room already."""
        yield from ((FREE, node) for node in self.area if node.name in cleared)
        yield from ((bound, node) for bound, node in self._sorted(state) if node.name not in cleared)

    def least(self, state: PodState) -> Bound | None:
        """None where there is no place for it at all."""
        return next((bound for bound, _ in self._sorted(state)), None)

    def together(self, members: Sequence[PodState]) -> Bound | None:
        """What places for all of them can cost at the least; None where there are none."""
        found = FREE
        for kind in alike(members):
            bound = self._all_of(kind[0], len(kind))
            if bound is None:
                return None
            found = max(found, bound)
        return found

    def _all_of(self, state: PodState, count: int) -> Bound | None:
        """So many that ask for the same. Those of whole GPUs share none, nor a victim that has only one of them."""
        least, ask = self.least(state), None if state.request is None else state.request.hardest
        if least is None or count == 1 or ask is None or not ask.whole or ask.profile:
            return least
        parts: list[EmptyingCost] = []
        for node in self.area:
            if self._wait_for_release and self._candidates.leaving(node):
                parts += [NOTHING] * (len(node.gpus) // ask.count)
            elif any(c.suspends for c in self._candidates.on(node, state)):
                return least
            else:
                parts += self._candidates.emptied(ask.count, node)
        costs = min_total(parts, count)
        return None if costs is None else (SEVERITY["evict"] if costs.pods else 0, *costs.figures)

    def _sorted(self, state: PodState) -> list[tuple[Bound, NodeState]]:
        kind = self._candidates.preemption_class(state)
        for request, known, found in self._known:
            if request == state.request and known == kind:
                return found
        made = [(bound, node) for node in self.area if (bound := self._bound(state, node)) is not None]
        made.sort(key=lambda item: (item[0], item[1].name))
        self._known.append((state.request, kind, made))
        return made

    def _bound(self, state: PodState, node: NodeState) -> Bound | None:
        if has_room(state, node) or (self._wait_for_release and self._candidates.leaving(node)):
            return FREE
        candidates = self._candidates.on(node, state)
        if not candidates:
            return None
        suspends = [SEVERITY[c.suspends[0]] for c in candidates if c.suspends]
        if suspends:
            return min(suspends), NOBODY, 0, 0, 0, FIRST
        ask = None if state.request is None else state.request.hardest
        if ask is not None and ask.whole and not ask.profile:
            costs = self._candidates.emptied(ask.count, node)
            return (SEVERITY["evict"], *costs[0].figures) if costs else None
        first = candidates[0]
        return SEVERITY["evict"], first.priority, first.least_gpu_ms, first.gpu_milli, 1, first.last
