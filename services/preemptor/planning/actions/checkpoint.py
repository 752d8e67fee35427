"""Checkpoint: the pod pauses, and its GPU memory moves to host memory."""

from __future__ import annotations

from collections.abc import Iterable

from services.preemptor.planning.actions.base import suspended_candidate
from services.preemptor.planning.candidate import Candidate
from shared.book import host_memory
from shared.book.book import Book
from shared.model.suspension import SuspendAction


def fitting_on_host(candidates: Iterable[Candidate], book: Book) -> list[Candidate]:
    """Returns those of the candidates, in their order, that fit on their node's host together."""
    taken: dict[str, int] = {}
    found = []
    for candidate in candidates:
        held, node = book.grants[candidate.grant_id], candidate.node
        need_mib = 0 if held.parked else host_memory.needed_mib(held).get(node, 0)
        if taken.get(node, 0) + need_mib <= max(0, host_memory.free_mib(book.nodes[node])):
            taken[node] = taken.get(node, 0) + need_mib
            found.append(candidate)
    return found


class Checkpoint:
    name: SuspendAction = "checkpoint"

    def apply(self, candidate: Candidate) -> Candidate | None:
        return suspended_candidate(candidate, self.name, candidate.shares)
