"""Evicts gangs that have run with fewer pods than their minimum for longer than they may. Pure.

The pods of such a gang hold GPUs and wait for others that are gone. A replaced gang is scheduled again as a whole.
"""

from __future__ import annotations

from services.preemptor import messages as m
from services.preemptor.repeated_evictions import RepeatedEvictions, evictions_of
from shared.book.book import Book
from shared.book.gangs import Gangs, GangState
from shared.contracts.commands import Evict


class IncompleteGangs:
    def __init__(self, book: Book, gangs: Gangs, default_s: float) -> None:
        """`default_s`: how long a gang that does not say may be incomplete; 0: for ever."""
        self._book, self._gangs, self._default_s = book, gangs, default_s
        self._evictions = RepeatedEvictions("gang")

    def due(self, now: float) -> list[m.Command]:
        """Returns the evictions that are due now."""
        found = {gang.key: gang for gang in self._gangs.broken_down(now, self._default_s)}
        return self._evictions.due(found, lambda key: self._pods_of(found[key], now), now)

    def _pods_of(self, gang: GangState, now: float) -> tuple[Evict, ...]:
        since_s = round(now - (now if gang.incomplete_since is None else gang.incomplete_since))
        parts = "".join(f", {has} of {minimum} of {name}" for name, has, minimum in gang.short())
        reason = (
            f"gang {gang.name} has had {gang.has} of the {gang.minimum} pods it needs{parts} for {since_s} s, and its "
            "incomplete gangs are evicted (kerf.dev/gang-incomplete)"
        )
        return evictions_of((self._book.pods[uid] for uid in gang.placed), reason)
