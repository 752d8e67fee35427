"""Explains why running pods were not chosen as victims. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from services.preemptor.planning.areas import Areas
from services.preemptor.planning.fitting import admits, alike
from services.preemptor.protection import Protection
from shared.book.accepts import accepted
from shared.book.book import Book
from shared.book.disruption_cost import why_not_disruptable
from shared.book.gangs import Gangs
from shared.book.states import NodeState, PodState
from shared.queues.preemption_policy import PreemptionPolicy

MAX_PODS = 20_000
"""The maximum of pods that are examined for one answer: it blocks planning meanwhile."""


class IneligiblePods:
    def __init__(self, book: Book, gangs: Gangs, preemption_policy: PreemptionPolicy, protection: Protection) -> None:
        self._book, self._gangs, self._preemption_policy, self._protection = book, gangs, preemption_policy, protection

    def count_by_reason(self, members: Sequence[PodState], promised: Collection[str], now: float) -> tuple[str, ...]:
        """Counts pods by why they are not preempted, for example "7 pods: minimum run time".

        Counts the pods on nodes with a suitable GPU for one of the members. `promised`: uids of victims of other plans.
        """
        why: dict[str, str] = {}
        cut = False
        for node in self._nodes(members):
            here = [state for state in node.pods.values() if state.grant_id and state.uid not in why]
            cut = cut or len(why) + len(here) > MAX_PODS
            why |= {state.uid: self._why(members[0], state, promised, now) for state in here[: MAX_PODS - len(why)]}
        counts = Counter(reason or self._as_gang(uid, why) for uid, reason in why.items())
        found = tuple(f"{count} pod{'' if count == 1 else 's'}: {reason}" for reason, count in counts.most_common())
        return (*found, f"others: not counted, after {MAX_PODS} pods") if cut else found

    def _nodes(self, members: Sequence[PodState]) -> list[NodeState]:
        """Returns the nodes that admit one of the members, in areas that could hold all of them."""
        nodes = {node.name: node for area in Areas(self._book, self._gangs).of(members) for node in area.nodes}
        suits = [_suits_gpus(kind[0], self._book) for kind in alike(members)]
        return [node for node in nodes.values() if any(suit(node) for suit in suits)]

    def _why(self, beneficiary: PodState, state: PodState, promised: Collection[str], now: float) -> str:
        """Returns why the pod itself is not preempted; empty if nothing but its gang prevents it."""
        if state.uid in promised:
            return "they are victims of another plan"
        denied = self._preemption_policy.denial_reason(beneficiary, state) if state.ours else ""
        if denied:
            return denied
        why = why_not_disruptable(state, self._book, now, leaves=True)
        if why:
            return why
        if self._protection.is_protected(state, now):
            return "protected: they replace pods that were preempted recently"
        if self._protection.evictions_left(state.pod.metadata.namespace, now) == 0:
            return "not evicted: their namespace's hourly eviction budget is spent"
        return ""

    def _as_gang(self, uid: str, why: dict[str, str]) -> str:
        if any(why.get(mate, "") for mate in self._gangs.must_end_with(uid)):
            return "other members of their gang may not be preempted"
        return "eligible, but preempting them does not free enough"


def _suits_gpus(state: PodState, book: Book) -> Callable[[NodeState], bool]:
    """Returns a check whether a node has a usable GPU that suits the pod, regardless of the pods on it."""
    is_admitted, request = admits(state, book), state.request

    def check(node: NodeState) -> bool:
        if request is None or node.inventory is None or not is_admitted(node):
            return False
        wanted = accepted(request, node.inventory)
        return any(room.usable and room.uuid in wanted for room in node.gpus)

    return check
