"""KERF_LOG as JetStream keeps it: sequences, the fence of a subject, and one wipe or more."""

from __future__ import annotations

from typing import Any

from shared.contracts.log import DecisionBatch, ReadyRecord
from tests.sim.clock import Clock


class Refused(Exception):
    pass


class Violation(AssertionError):
    """A property does not hold."""


class SimLog:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
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
            for d in record.decisions:
                made = (d.node, d.grant.grant_id if d.grant else "")
                known = self.decided.setdefault((d.uid, d.resource_version), made)
                if known != made:
                    raise Violation(f"two decisions for {d.name} at version {d.resource_version}: {known} and {made}")
        return sequence

    def before(self, term: int) -> tuple[tuple[int, Any], ...]:
        return tuple((seq, record) for seq, subject, record in self.entries if seq < term and subject != "term")

    def find(self, subject: str, record: Any, after: int) -> int | None:
        return next((seq for seq, s, r in self.entries if seq > after and s == subject and r == record), None)
