"""What is appended to the log, and when: one append under way (R1), while the next batch gathers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from services.placement import messages as m
from shared.contracts.base import encode
from shared.contracts.log import Amendment, Decision, DecisionBatch, ReadyRecord, ReservationRecord

GATHER_S = 0.04
"""The interval of appends under load. Each append costs a synced write, a mark, a command to the watcher and its
answer, whether it has one decision or sixty. A single decision is appended at once."""
RECORD_MOST_BYTES = 900_000  # a message on the bus has at most 1 MiB
AMENDMENTS_MOST = 64  # in one record: some 40 KB beside RECORD_MOST_BYTES
PART_MOST = 256  # holds in one record or one message, where they need not stay together
EXCLUDED_MOST = 5_000  # excluded pods in one `ready` record: about 250 KB

Record = DecisionBatch | ReadyRecord


class WriteBatcher:
    def __init__(self, max_batch: int) -> None:
        self.max_batch = max_batch
        self.in_flight: Record | None = None
        self.owed: list[Record] = []
        """What a term writes before anything else: open holds again, then its `ready`."""
        self.reservations: list[ReservationRecord] = []
        """Outcomes of plans, in order."""
        self.amendments: list[Amendment] = []
        """Growths of running slices that are booked."""
        self._gathering: list[Decision] = []
        self._appended_at = self._waiting_until = float("-inf")

    @property
    def full(self) -> bool:
        return len(self._gathering) >= self.max_batch

    @property
    def empty(self) -> bool:
        """Whether no batch is gathering."""
        return not self._gathering

    def gather(self, decision: Decision) -> None:
        self._gathering.append(decision)

    def owe(
        self,
        ready: ReadyRecord,
        open_holds: Sequence[Decision],
        reservations: Sequence[ReservationRecord] = (),
        amendments: Sequence[Amendment] = (),
    ) -> None:
        """Open holds, growths and reservations again under its term, then `ready`: from there on the log is complete.
        They are in the log before this term too, so several records of them are as good as one."""
        parts = (tuple(open_holds[i : i + PART_MOST]) for i in range(0, len(open_holds), PART_MOST))
        kept = (DecisionBatch(term=ready.term, decisions=(), reservations=(one,)) for one in reservations)
        parts_of = (tuple(amendments[i : i + PART_MOST]) for i in range(0, len(amendments), PART_MOST))
        grown = (DecisionBatch(term=ready.term, decisions=(), amendments=part) for part in parts_of)
        decided = (DecisionBatch(term=ready.term, decisions=part) for part in parts)
        self.owed = [*decided, *kept, *grown, *_in_parts(ready)]

    def _with(self, decisions: tuple[Decision, ...]) -> tuple[ReservationRecord, ...]:
        """As many reservations as a record has room for beside these holds; at least one, and none beside a large
        gang's."""
        room, taken = (
            RECORD_MOST_BYTES - (sum(len(encode(decision)) for decision in decisions) if self.reservations else 0),
            0,
        )
        for record in self.reservations:
            room -= len(encode(record))
            if room < 0 and (taken or decisions):
                break
            taken += 1
        found, self.reservations = tuple(self.reservations[:taken]), self.reservations[taken:]
        return found

    def append(self, record: Record) -> m.Append:
        if self.in_flight is not None:
            raise AssertionError("two appends in flight: a second one could stand after a newer term (R1)")
        self.in_flight = record
        return m.Append(record)

    def appended(self) -> Record | None:
        record, self.in_flight = self.in_flight, None
        return record

    def due(self, term: int, now: float) -> list[m.Command]:
        """The next append if it may go now, or when to try again."""
        if self.in_flight is not None:
            return []
        if self.owed:
            return [self.append(self.owed.pop(0))]
        if not self._gathering and not self.reservations and not self.amendments:
            return []
        wait = self._appended_at + GATHER_S - now
        if wait <= 0 or self.full:
            batch, self._gathering = tuple(self._gathering), []
            self._appended_at, self._waiting_until = now, 0.0
            grown, self.amendments = tuple(self.amendments[:AMENDMENTS_MOST]), self.amendments[AMENDMENTS_MOST:]
            kept = self._with(batch)
            record = DecisionBatch(term=term, decisions=batch, reservations=kept, amendments=grown)
            return [self.append(record)]
        if self._waiting_until <= now:
            self._waiting_until = now + wait
            return [m.Later(wait)]
        return []


def _in_parts(ready: ReadyRecord) -> list[ReadyRecord]:
    pods = list(ready.excluded.items())
    parts = [dict(pods[i : i + EXCLUDED_MOST]) for i in range(0, len(pods), EXCLUDED_MOST)] or [{}]
    return [replace(ready, excluded=part, more=part is not parts[-1]) for part in parts]
