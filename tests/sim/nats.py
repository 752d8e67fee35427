"""The parts of NATS that leaders use: KERF_LOG with its fence and chain, the mark in the servers' memory, and ways to
lose parts of both."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from services.placement.leader import log_protocol as p
from shared.bus.port import LogEntry, NoStream, Refused
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.log import DecisionBatch, LogMark, ReadyRecord, TermRecord
from shared.model.grant import Grant
from tests.sim.clock import Clock

_KINDS: dict[str, type[Any]] = {subject: kind for kind, subject in p.SUBJECT_OF.items()}


class Violation(AssertionError):
    """A property does not hold."""


class SimNats:
    def __init__(self, clock: Clock, gangs: Mapping[str, Mapping[str, int]]) -> None:
        self.clock = clock
        self.gangs = gangs
        """By name, how many members must be decided together."""
        self.gang_of: dict[str, tuple[str, str]] = {}
        """By pod, its gang and its subgroup."""
        """By uid of a member."""
        self.entries: list[LogEntry] = []
        self.decided: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """P3: every decision ever logged, by uid and resourceVersion: node and grant. Outlives every loss."""
        self.amended: dict[tuple[str, str], list[Grant]] = {}
        """P3: every growth ever logged, by uid and resourceVersion."""
        self._acted_on: dict[tuple[str, str], tuple[str, str]] = {}
        """Those of them that were marked: their Bindings may be on the way."""
        self._appended: dict[tuple[int, int], list[Any]] = {}
        """By sequence and term, every record ever appended."""
        self._led: dict[int, str] = {}
        """By term, the session that has written records under it."""
        self._begun: set[str] = set()
        self._next = 1
        self._has_log = self._has_mark = False
        self._mark: tuple[bytes | None, int] = (None, 0)
        self._mark_next = 1
        self._backups: list[tuple[list[LogEntry], int]] = []
        self.provision()

    # --- requests of leaders ----------------------------------------------------------------------------------

    def provision(self, *, slow: bool = False) -> None:
        """Creates what is missing. New streams begin at the time in milliseconds (R5). `slow`: the provisioning process
        stalls between a new log and its mark."""
        now_ms = int(self.clock.now * 1000)
        if not self._has_mark:
            self._mark, self._mark_next, self._has_mark = (None, now_ms - 1), now_ms, True
        if self._has_log:
            return
        value, revision = self._mark
        self._make_log(now_ms)
        if value is None:
            mark = encode(LogMark(term=0, sequence=self._next - 1, session="provision"))
            self.clock.after(
                self.clock.rng.uniform(0.0, 20.0) if slow else 0.0, lambda: self._mark_new_log(mark, revision)
            )

    def _make_log(self, first_sequence: int) -> None:
        self.entries, self._next, self._has_log = [], first_sequence, True

    def _mark_new_log(self, mark: bytes, revision: int) -> None:
        with contextlib.suppress(Refused, NoStream):
            self._write_mark(mark, revision)

    def answer(self, request: p.Request) -> Any:
        """Raises Refused or NoStream, as the server does."""
        match request:
            case p.AppendRecord():
                return self._append(request)
            case p.ReadNewestTerm():
                self._need(self._has_log)
                return next((e for e in reversed(self.entries) if e.subject == subjects.LOG_TERM), None)
            case p.ReadNewestReady():
                self._need(self._has_log)
                return next((e for e in reversed(self.entries) if e.subject == subjects.LOG_READY), None)
            case p.ReadLog(start):
                self._need(self._has_log)
                return [e for e in self.entries if e.sequence >= start]
            case p.ReadMark():
                self._need(self._has_mark)
                return self._mark
            case p.WriteMark(value, revision):
                return self._write_mark(value, revision)
            case p.DeleteLog(first_sequence):
                self.clock.tell(f"the log is deleted, the next one begins at {first_sequence} or later")
                self._make_log(max(int(self.clock.now * 1000), first_sequence))
                return None
        raise AssertionError(request)

    @staticmethod
    def _need(exists: bool) -> None:
        if not exists:
            raise NoStream("the stream does not exist")

    def _append(self, request: p.AppendRecord) -> int:
        self._need(self._has_log)
        last = self.entries[-1].sequence if self.entries else self._next - 1
        if request.fence != self.newest_term or (request.after is not None and request.after != last):
            raise Refused(f"wrong last sequence: term {self.newest_term}, last {last}")
        sequence, self._next = self._next, self._next + 1
        record = decode(request.payload, _KINDS[request.subject])
        if isinstance(record, TermRecord) and record.reason == "renewed":
            leads = self._led.get(self.newest_term, record.session)
            if leads != record.session:
                raise Violation(f"P2: {record.session} renews over {leads}")
        self.entries.append(LogEntry(sequence, request.subject, request.payload))
        # The newest first: after a loss two sessions may have given one number to a record each, under one term.
        self._appended.setdefault((sequence, getattr(record, "term", sequence)), []).insert(0, record)
        if not isinstance(record, TermRecord) and record.term != self.newest_term:
            raise Violation(f"P2: a record of term {record.term} was appended in term {self.newest_term}")
        if isinstance(record, DecisionBatch):
            self._check_gangs(record)
            for decision in record.decisions:
                self.decided.setdefault(_key(decision), set()).add(_made(decision))
            for growth in record.amendments:
                self.amended.setdefault((growth.uid, growth.resource_version), []).append(growth.grant)
        return sequence

    def _write_mark(self, value: bytes, revision: int) -> int:
        self._need(self._has_mark)
        if revision != self._mark[1]:
            raise Refused(f"wrong last sequence: {self._mark[1]}")
        self._mark, self._mark_next = (value, self._mark_next), self._mark_next + 1
        mark = decode(value, LogMark)
        # Also if the log has lost it since: its leader acts on it now.
        record = next(iter(self._appended.get((mark.sequence, mark.term), ())), None)
        if isinstance(record, DecisionBatch):
            for decision in record.decisions:
                made = _made(decision)
                acted_on = self._acted_on.setdefault(_key(decision), made)
                if acted_on != made:
                    raise Violation(
                        f"two decisions for {decision.name} at version {decision.resource_version}: {acted_on} "
                        f"and {made}"
                    )
        if (
            isinstance(record, DecisionBatch | ReadyRecord)
            and self._led.setdefault(record.term, mark.session) != mark.session
        ):
            raise Violation(f"P2: term {record.term} is led by {self._led[record.term]} and by {mark.session}")
        return self._mark[1]

    def _check_gangs(self, record: DecisionBatch) -> None:
        """A gang is whole or absent: the first record that has any of its members has as many as each part needs."""
        together = Counter(self.gang_of[d.uid] for d in record.decisions if d.uid in self.gang_of)
        for name in dict.fromkeys(name for name, _ in together):
            for part, least in self.gangs[name].items():
                count = together[name, part]
                if name not in self._begun and count < least:
                    of = f"gang {name}" + (f"'s {part}" if part else "")
                    raise Violation(f"{of} was decided with {count} of the {least} members that it needs")
            self._begun.add(name)

    # --- losses -----------------------------------------------------------------------------------------------

    def wipe(self) -> None:
        self.clock.tell("NATS loses everything")
        self._has_log = self._has_mark = False
        self.entries = []

    def restart(self) -> None:
        self.clock.tell("the NATS servers restart")
        self._has_mark = False

    def lose_tail(self, count: int) -> None:
        """The servers come back without the last records, whose sequences come a second time."""
        self.restart()
        self._cut(count)

    def restore(self, count: int) -> None:
        """A backup of the log alone is restored while the servers keep running."""
        self._cut(count)

    def _cut(self, count: int) -> None:
        lost, self.entries = self.entries[-count:], self.entries[:-count]
        self.clock.tell(f"the log loses its last records: {[(e.sequence, e.subject.rsplit('.', 1)[1]) for e in lost]}")
        if lost:
            self._next = lost[0].sequence

    def back_up(self) -> None:
        """All files, as a backup of the whole store has them."""
        if self._has_log:
            self._backups.append((list(self.entries), self._next))

    def restore_backup(self, rng: random.Random) -> None:
        """One of the last backups takes the store's place. The mark was in memory."""
        if not self._backups:
            return
        self.restart()
        entries, self._next = rng.choice(self._backups[-4:])
        self.entries, self._has_log = list(entries), True
        self.clock.tell(f"the files of NATS are as they were, up to record {self._next - 1}")

    # --- checks -----------------------------------------------------------------------------------------------

    @property
    def newest_term(self) -> int:
        return next((e.sequence for e in reversed(self.entries) if e.subject == subjects.LOG_TERM), 0)

    @property
    def end(self) -> int:
        return self._next - 1

    def records(self) -> tuple[tuple[int, Any], ...]:
        return tuple((e.sequence, decode(e.payload, _KINDS[e.subject])) for e in self.entries)


def _key(decision: Any) -> tuple[str, str]:
    return decision.uid, decision.resource_version


def _made(decision: Any) -> tuple[str, str]:
    return decision.node, decision.grant.grant_id if decision.grant else ""
