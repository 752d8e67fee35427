"""Whom a pod may displace, and what that costs: one look at the book for a round of planning."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shared.book.book import Book
from shared.book.demand import Demand
from shared.book.movable import price_of, why_not
from shared.book.states import NodeState, PodState

Immune = Callable[[PodState], bool]
"""Whether a pod is left alone for a while, for it has just made room for somebody."""


class Candidate(msgspec.Struct, frozen=True):
    """A pod that could give way."""

    priority: int
    price_gpu_ms: int
    uid: str
    demand: Demand
    shares: tuple[tuple[str, int, int], ...]
    """(GPU, memory_mib, compute_milli) on its node."""

    @property
    def cost(self) -> tuple[int, int, str]:
        """The least important first, then the cheapest."""
        return self.priority, self.price_gpu_ms, self.uid


class Candidates:
    """By node, the least first. What has no GPU is left alone: nobody is displaced for CPU."""

    def __init__(self, book: Book, immune: Immune, now: float) -> None:
        self._book, self._immune, self._now = book, immune, now
        self._of: dict[str, tuple[Candidate, ...]] = {}

    def on(self, node: NodeState, below: int) -> tuple[Candidate, ...]:
        """Those of a lower priority than `below`."""
        found = self._of.get(node.name)
        if found is None:
            made = (self._candidate(state, node.name) for state in node.pods.values() if state.grant_id and not self._spared(state))
            found = self._of[node.name] = tuple(sorted(made, key=lambda c: c.cost))
        return tuple(c for c in found if c.priority < below)

    def _spared(self, state: PodState) -> bool:
        return bool(why_not(state, self._book, self._now, leaves=True)) or self._immune(state)

    def _candidate(self, state: PodState, node: str) -> Candidate:
        grant = self._book.grants[state.grant_id].grant
        shares = tuple(
            (share.uuid, share.memory_mib, share.compute_milli) for part in grant.containers.values() for share in part.gpus if share.node == node
        )
        return Candidate(state.pod.spec.priority, price_of(state, self._book, self._now).price_gpu_ms, state.uid, state.demand, shares)
