"""Whom a pod may displace, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from shared.book.book import Book
from shared.book.demand import Demand
from shared.book.movable import budgets_of, price_of, why_not
from shared.book.states import NodeState, PodState
from shared.model.grant import GpuShare
from shared.model.objects import Pod

KNOWN_S = 10.0
"""So old the prices of a node's pods may be."""
Immune = Callable[[PodState], bool]
"""Whether a pod is left alone for a while, for it has just made room for somebody."""


class Candidate(msgspec.Struct, frozen=True):
    """A pod that could give way."""

    priority: int
    price_gpu_ms: int
    uid: str
    demand: Demand
    shares: tuple[GpuShare, ...]
    """On its node."""
    budgets: tuple[str, ...] = ()
    """The PodDisruptionBudgets that it is under."""

    @property
    def cost(self) -> tuple[int, int, str]:
        """The least important first, then the cheapest."""
        return self.priority, self.price_gpu_ms, self.uid


class _Known(msgspec.Struct, frozen=True):
    pods: list[Pod]
    """What the node's candidates were made from."""
    candidates: tuple[Candidate, ...]
    since: float


class Candidates:
    """By node, the least first. What has no GPU is left alone: nobody is displaced for CPU.

    A node's are made anew when its pods have changed, or after a while: prices grow with the time.
    """

    def __init__(self, book: Book, immune: Immune) -> None:
        self._book, self._immune, self._now = book, immune, 0.0
        self._of: dict[str, _Known] = {}
        self._promised: Counter[str] = Counter()
        """By PodDisruptionBudget."""

    def begin(self, now: float, promised: Iterable[str] = ()) -> Candidates:
        """A round of planning, on a book that stands still. `promised`: pods that go by other plans, and that the budgets'
        statuses do not count yet."""
        self._now, pods = now, self._book.pods
        self._of = {name: known for name, known in self._of.items() if name in self._book.nodes and now - known.since < KNOWN_S}
        self._promised = Counter(name for uid in promised if uid in pods for name in budgets_of(pods[uid], self._book))
        return self

    def on(self, node: NodeState, below: int) -> tuple[Candidate, ...]:
        """Those of a lower priority than `below`."""
        pods, known = [state.pod for state in node.pods.values()], self._of.get(node.name)
        if known is None or known.pods != pods:
            made = (self._candidate(state, node.name) for state in node.pods.values() if state.grant_id and not self._spared(state))
            known = self._of[node.name] = _Known(pods, tuple(sorted(made, key=lambda c: c.cost)), self._now)
        found = known.candidates
        return found if not found or found[-1].priority < below else tuple(c for c in found if c.priority < below)

    def lets_go(self, victims: Sequence[Candidate]) -> bool:
        """Whether all of these may go together as things are now, after all that were promised before."""
        pods = self._book.pods
        if any(self._immune(pods[victim.uid]) for victim in victims):
            return False
        allowed: dict[str, int] = {}
        for victim in victims:
            if victim.budgets:
                allowed |= budgets_of(pods[victim.uid], self._book)
        wanted = Counter(name for victim in victims for name in victim.budgets)
        return all(self._promised[name] + count <= allowed.get(name, 0) for name, count in wanted.items())

    def promise(self, victims: Iterable[Candidate]) -> None:
        """These go by a plan of this round."""
        self._promised.update(name for victim in victims for name in victim.budgets)

    def _spared(self, state: PodState) -> bool:
        return bool(why_not(state, self._book, self._now, leaves=True)) or self._immune(state)

    def _candidate(self, state: PodState, node: str) -> Candidate:
        grant = self._book.grants[state.grant_id].grant
        shares = tuple(share for part in grant.containers.values() for share in part.gpus if share.node == node)
        price = price_of(state, self._book, self._now).price_gpu_ms
        return Candidate(state.pod.spec.priority, price, state.uid, state.demand, shares, tuple(budgets_of(state, self._book)))
