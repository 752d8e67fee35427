"""Reports why pods wait although nothing has just been tried: gangs that gather for long, and reasons that may have
changed."""

from __future__ import annotations

from collections.abc import Mapping

from services.placement.explain.pending_reasons import Reports
from shared.book.gangs import Gangs

_GATHERING_S = 2.0
"""Controllers create the pods of a gang one after another; the first ones need not be reported as waiting for the
last."""


class Reminders:
    def __init__(self, gangs: Gangs, reports: Reports, first_seen: Mapping[str, float]) -> None:
        """`first_seen`: when each waiting pod was, by uid."""
        self._gangs, self._reports, self._first_seen = gangs, reports, first_seen
        self._look_at = self._changed_at = 0.0
        self._changed = False

    def changed(self) -> None:
        """Something that reasons depend on."""
        self._changed = True

    def tick(self, now: float) -> None:
        """Members that wait for others are reported once that takes long. So is a pod whose reason may have changed
        although nothing that would admit it has."""
        if now < self._look_at:
            return
        self._look_at = now + _GATHERING_S
        if self._changed:
            self._changed, self._changed_at = False, now
        for uid in self._reports.outdated(self._changed_at, now):
            told = self._gangs.of(uid)
            if told is not None:
                told.verdict = None
            for member in (uid,) if told is None else told.waiting:
                self._reports.needs_report(member)
        for gang in self._gangs.by_key.values():
            first = next(iter(gang.waiting), None)
            if (
                first is not None
                and not gang.gathered
                and gang.verdict is None
                and now - self._first_seen.get(first, now) >= _GATHERING_S
            ):
                for uid in gang.waiting:
                    self._reports.needs_report(uid)
