"""KERF_LOG as JetStream keeps it: sequences, the fence of a subject, and one wipe or more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from shared.contracts.log import DecisionBatch, ReadyRecord
from tests.sim.clock import Clock


class Refused(Exception):
    pass


class Violation(AssertionError):
    """A property does not hold."""


class SimLog:
    def __init__(self, clock: Clock, gangs: Mapping[str, int]) -> None:
        self.clock = clock
        self.gangs = gangs
        """By name, how many members must be decided together."""
        self.gang_of: dict[str, str] = {}
        """By uid of a member."""
        self._begun: set[str] = set()
        self.entries: list[tuple[int, str, Any]] = []
        """(sequence, term | ready | decisions, record)"""
        self._next = 1
        self.decided: dict[tuple[str, str], tuple[str, str]] = {}
        """P3: every decision ever logged, by uid and resourceVersion: node and grant. Survives wipes."""
        self.wipe()

    def wipe(self) -> None:
        """Everything is gone; the stream made anew begins at the time in milliseconds (R5)."""
        self.entries = []
        self._next = max(self._next, int(self.clock.now * 1000))

    @property
    def newest_term(self) -> int:
        return next((seq for seq, subject, _ in reversed(self.entries) if subject == "term"), 0)

    def append(self, subject: str, record: Any, fence: int) -> int:
        if self.newest_term != fence:
            raise Refused
        sequence, self._next = self._next, self._next + 1
        if isinstance(record, DecisionBatch | ReadyRecord) and record.term != self.newest_term:
            raise Violation(f"P2: a record of term {record.term} was appended in the reign of {self.newest_term}")
        self.entries.append((sequence, subject, record))
        if isinstance(record, DecisionBatch):
            self._check_gangs(record)
            for d in record.decisions:
                made = (d.node, d.grant.grant_id if d.grant else "")
                known = self.decided.setdefault((d.uid, d.resource_version), made)
                if known != made:
                    raise Violation(f"two decisions for {d.name} at version {d.resource_version}: {known} and {made}")
        return sequence

    def _check_gangs(self, record: DecisionBatch) -> None:
        """A gang is whole or absent: the first record that has any of its members has as many as it needs."""
        together = Counter(self.gang_of[d.uid] for d in record.decisions if d.uid in self.gang_of)
        for name, count in together.items():
            if name not in self._begun and count < self.gangs[name]:
                raise Violation(f"gang {name} was decided with {count} of the {self.gangs[name]} members that it needs")
            self._begun.add(name)

    def before(self, term: int) -> tuple[tuple[int, Any], ...]:
        return tuple((seq, record) for seq, subject, record in self.entries if seq < term and subject != "term")

    def find(self, subject: str, record: Any, after: int) -> int | None:
        return next((seq for seq, s, r in self.entries if seq > after and s == subject and r == record), None)
