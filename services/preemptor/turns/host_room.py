"""Says whether hosts have room for the GPU memory of jobs whose turns end (`shared.book.host_memory`). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from services.preemptor.turns.circles import TurnJob
from shared.book.book import Book
from shared.book.host_memory import free_mib, needed_mib
from shared.book.states import GrantState


class HostRoom:
    """For one round, in which the book does not change: hundreds of jobs are weighed, and hundreds are on a host."""

    def __init__(self, book: Book, parking: Callable[[], Iterable[GrantState]]) -> None:
        """`parking`: grants that plans in progress checkpoint, which the book may not show yet."""
        self._book, self._parking = book, parking
        self._needs: dict[str, dict[str, int]] = {}
        """By grant id, what has to be taken of each node's host."""
        self._free: dict[str, int] = {}

    def has(self, jobs: Iterable[TurnJob], kept: Mapping[str, int]) -> bool:
        """Returns whether the hosts have room for all of these jobs together. `kept`: by node, the MiB that have to be
        free besides."""
        need: Counter[str] = Counter()
        for job in jobs:
            for member in job.members:
                need.update(self._need(self._book.grants[member.grant_id]))
        hosts = set(need)  # another one that plans in progress overfill is theirs to see to
        for held in self._parking():
            need.update(self._need(held))
        return all(need[name] + kept.get(name, 0) <= self._free_mib(name) for name in hosts)

    def _need(self, held: GrantState) -> dict[str, int]:
        if held.grant_id not in self._needs:
            self._needs[held.grant_id] = {} if held.parked else needed_mib(held)
        return self._needs[held.grant_id]

    def _free_mib(self, name: str) -> int:
        if name not in self._free:
            node = self._book.nodes.get(name)
            self._free[name] = 0 if node is None else max(0, free_mib(node))
        return self._free[name]
