"""Records the options that the search found and did not choose, to be shown with the plan. Pure."""

from __future__ import annotations

from collections.abc import Collection

from services.preemptor.planning.bounds import FREE, SEVERITY, cost_of
from services.preemptor.planning.candidate import Bound, Candidate
from shared.contracts.preemption import Action, Alternative

MAX_ALTERNATIVES = 2
_ACTION: dict[int, Action] = {severity: action for action, severity in SEVERITY.items()}
_Key = tuple[tuple[str, ...], frozenset[str]]


class Alternatives:
    """The alternatives to one plan. No node is examined only to find them."""

    def __init__(self) -> None:
        self._seen: dict[_Key, tuple[Bound, Alternative]] = {}

    def add_option(self, nodes: Collection[str], victims: Collection[Candidate]) -> None:
        """Adds an option whose victims are known. One without victims needs no preemption and is ignored."""
        if victims:
            cost = cost_of(victims, "")[:6]
            price = sum(victim.price_gpu_ms // 1000 for victim in victims)
            known = Alternative(
                nodes=tuple(sorted(nodes)), action=_ACTION[cost[0]], victims=len(victims), price_gpu_seconds=price
            )
            self._seen[(known.nodes, frozenset(victim.uid for victim in victims))] = cost, known

    def add_bound(self, node: str, bound: Bound) -> None:
        """Adds a node that was not tried because its minimum cost is not below the cost of the chosen option."""
        if bound != FREE:
            known = Alternative(
                nodes=(node,),
                action=_ACTION[bound[0]],
                victims=max(1, bound[4]),
                price_gpu_seconds=max(0, bound[2]) // 1000,
                at_least=True,
            )
            self._seen[((node,), frozenset())] = bound, known

    def other_than(self, nodes: Collection[str], victims: Collection[Candidate]) -> tuple[Alternative, ...]:
        """Returns the cheapest alternatives to the chosen option, at most `MAX_ALTERNATIVES`."""
        taken: _Key = tuple(sorted(nodes)), frozenset(victim.uid for victim in victims)
        others = [known for key, known in self._seen.items() if key != taken]
        return tuple(known for _, known in sorted(others, key=lambda item: (item[0], item[1].nodes))[:MAX_ALTERNATIVES])
