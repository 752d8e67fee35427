"""The log as placement uses it: take a term, replay what was before, append under it (R1), settle what is unknown."""

from __future__ import annotations

import asyncio

import structlog

from shared.bus.port import Bus, Refused, Unknown
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.log import DecisionBatch, ReadyRecord, TermRecord

log = structlog.get_logger("placement.log")

Record = DecisionBatch | ReadyRecord
_SUBJECT: dict[type[Record], str] = {DecisionBatch: subjects.LOG_DECISIONS, ReadyRecord: subjects.LOG_READY}
_KIND = {subject: kind for kind, subject in _SUBJECT.items()}
_PAUSE_S = 0.5


class Logbook:
    def __init__(self, bus: Bus, holder: str) -> None:
        self._bus = bus
        self._holder = holder
        self.term = 0
        self._last = 0

    async def take_term(self, reason: str) -> int:
        """Begins a reign; the term's number is its record's sequence. Raises Refused where another was quicker."""
        newest = await self._bus.newest(subjects.LOG_TERM)
        payload = encode(TermRecord(holder=self._holder, reason=reason))
        fence = newest.sequence if newest else 0
        try:
            self.term = await self._bus.append(subjects.LOG_TERM, payload, fence_subject=subjects.LOG_TERM, fence_sequence=fence)
        except Unknown:
            # It may have been written. Whatever it was, a look tells, and a term that nobody uses harms no one.
            newest = await self._bus.newest(subjects.LOG_TERM)
            if newest is None or newest.payload != payload or newest.sequence == fence:
                raise Refused("the term's append was not answered and is not in the log") from None
            self.term = newest.sequence
        self._last = self.term
        return self.term

    async def replay(self) -> tuple[tuple[int, Record], ...]:
        """Everything before this term, in order. A record that cannot be read is an error: nothing may be missing."""
        records: list[tuple[int, Record]] = []
        async for entry in self._bus.read_log():
            if entry.sequence >= self.term:
                break
            if entry.subject in _KIND:
                records.append((entry.sequence, decode(entry.payload, _KIND[entry.subject])))
        return tuple(records)

    async def append(self, record: Record) -> int:
        """Durable when it returns. Raises Refused where the term is no longer the newest."""
        subject, payload = _SUBJECT[type(record)], encode(record)
        while True:
            try:
                sequence = await self._bus.append(subject, payload, fence_subject=subjects.LOG_TERM, fence_sequence=self.term)
            except Unknown as error:
                log.warning("append_unknown", error=str(error))
                found = await self._find(subject, payload)
                if found is None:
                    continue  # the same record again: fenced all the same, and a double of it says nothing new
                sequence = found
            self._last = sequence
            return sequence

    async def _find(self, subject: str, payload: bytes) -> int | None:
        """The sequence under which an unanswered append stands in the log, if it does."""
        while True:
            try:
                async for entry in self._bus.read_log(start=self._last + 1):
                    if entry.subject == subject and entry.payload == payload:
                        return entry.sequence
                return None
            except (Unknown, ContractError) as error:
                log.warning("log_unreadable", error=str(error))
                await asyncio.sleep(_PAUSE_S)
