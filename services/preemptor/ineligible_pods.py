"""Explains why running pods were not chosen as victims. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from services.preemptor.areas import Areas
from services.preemptor.fitting import admits, alike
from services.preemptor.protection import Protection
from shared.book.accepts import accepted
from shared.book.book import Book
from shared.book.disruption_cost import why_not
from shared.book.gangs import Gangs
from shared.book.states import NodeState, PodState
from shared.queues.preemption_policy import PreemptionPolicy

MAX_PODS = 20_000
"""Pods that are looked at for one answer: that takes a moment, and whoever plans has no longer one."""


class LeftAlone:
    def __init__(self, book: Book, gangs: Gangs, preemption_policy: PreemptionPolicy, protection: Protection) -> None:
        self._book, self._gangs, self._preemption_policy, self._protection = book, gangs, preemption_policy, protection

    def counted(self, members: Sequence[PodState], promised: Collection[str], now: float) -> tuple[str, ...]:
        """Pods on nodes whose GPUs would do for one of the members, counted by why they are left alone: "7 pods: minimum run time".
        `promised`: who goes by other plans."""
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
        """Of the areas that could hold all of the members those nodes that take one of them."""
        nodes = {node.name: node for area in Areas(self._book, self._gangs).of(members) for node in area.nodes}
        kinds = alike(members)
        return [node for node in nodes.values() if any(_takes(node, kind[0]) for kind in kinds)]

    def _why(self, beneficiary: PodState, state: PodState, promised: Collection[str], now: float) -> str:
        """Empty where nothing keeps it by itself."""
        if state.uid in promised:
            return "they make room for others already"
        denied = self._preemption_policy.denial_reason(beneficiary, state) if state.ours else ""
        if denied:
            return denied
        why = why_not(state, self._book, now, leaves=True)
        if why:
            return why
        if self._protection.immune(state, now):
            return "they came in the stead of pods that have just made room"
        if self._protection.left(state.pod.metadata.namespace, now) == 0:
            return "not evicted: their namespace's hourly budget of evictions is spent"
        return ""

    def _as_gang(self, uid: str, why: dict[str, str]) -> str:
        if any(why.get(mate, "") for mate in self._gangs.goes_with(uid)):
            return "they go with their gang, of which some are left alone"
        return "they may be asked, and that does not make enough room"


def _takes(node: NodeState, state: PodState) -> bool:
    """Whether it has a GPU that would do, whoever is on it."""
    if state.request is None or node.inventory is None or not admits(state, node):
        return False
    wanted = accepted(state.request, node.inventory)
    return any(room.usable and room.uuid in wanted for room in node.gpus)
