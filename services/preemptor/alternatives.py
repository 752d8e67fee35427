"""Other ways that the search came by and did not take: with a plan people read what else there was. Pure."""

from __future__ import annotations

from collections.abc import Collection

from services.preemptor.bounds import FREE, SEVERITY, Bound, cost_of
from services.preemptor.candidate import Candidate
from shared.contracts.preemption import Action, Alternative

MAX_ALTERNATIVES = 2
_ACTION: dict[int, Action] = {hardness: action for action, hardness in SEVERITY.items()}
_Key = tuple[tuple[str, ...], frozenset[str]]


class Alternatives:
    """Of one plan. Nothing is looked at for their sake."""

    def __init__(self) -> None:
        self._seen: dict[_Key, tuple[Bound, Alternative]] = {}

    def option(self, nodes: Collection[str], victims: Collection[Candidate]) -> None:
        """One that was worked out. Without victims it is none: nobody need give way then."""
        if victims:
            cost = cost_of(victims, "")[:6]
            price = sum(victim.price_gpu_ms // 1000 for victim in victims)
            known = Alternative(
                nodes=tuple(sorted(nodes)), action=_ACTION[cost[0]], victims=len(victims), price_gpu_seconds=price
            )
            self._seen[(known.nodes, frozenset(victim.uid for victim in victims))] = cost, known

    def bound(self, node: str, bound: Bound) -> None:
        """One that was not tried, for it can cost no less than the way taken."""
        if bound != FREE:
            known = Alternative(
                nodes=(node,),
                action=_ACTION[bound[0]],
                victims=max(1, bound[4]),
                price_gpu_seconds=max(0, bound[2]) // 1000,
                at_least=True,
            )
            self._seen[((node,), frozenset())] = bound, known

    def beside(self, nodes: Collection[str], victims: Collection[Candidate]) -> tuple[Alternative, ...]:
        """The cheapest others than this one."""
        taken: _Key = tuple(sorted(nodes)), frozenset(victim.uid for victim in victims)
        others = [known for key, known in self._seen.items() if key != taken]
        return tuple(known for _, known in sorted(others, key=lambda item: (item[0], item[1].nodes))[:MAX_ALTERNATIVES])
