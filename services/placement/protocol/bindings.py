"""From a logged decision to its Binding (R2, R4). It is sent, repeated, and voided by a touch once it cannot
succeed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.placement import messages as m
from services.placement.pod_events import binding_refused, gang_incomplete, warn
from services.placement.protocol.decision_events import DecisionEvents
from services.placement.protocol.holds import Hold, Holds
from services.placement.protocol.recovery import touch
from services.placement.protocol.write_batcher import PART_MOST
from services.placement.scheduling.queue import Queue
from services.placement.scheduling.unsupported_fields import refusal
from services.placement.stats import Stats
from shared.book.book import Book
from shared.book.gangs import GangState, gang_trace
from shared.book.states import PodState
from shared.contracts.commands import Answer
from shared.contracts.log import DecisionBatch


class Binding:
    def __init__(self, book: Book, queue: Queue, events: DecisionEvents, holds: Holds, stats: Stats) -> None:
        self._book, self._queue, self._events, self._holds, self._stats = book, queue, events, holds, stats

    def logged(self, record: DecisionBatch, sequence: int, now: float) -> list[m.Command]:
        """These decisions are durable: their events are published and their Bindings sent."""
        sent = self._holds.logged(record, sequence, now)
        out: list[m.Command] = []
        for hold in sent:
            event = self._events.take(hold.decision.uid, sequence)
            if event is not None:
                out.append(m.Publish(event, namespace=event.namespace, uid=event.uid))
        for placed in self._events.take_gangs((d.uid for d in record.decisions), sequence):
            out.append(m.Publish(placed, namespace=placed.namespace, uid=gang_trace(placed.namespace, placed.name)))
        return [*out, *self.send(sent)]

    def send(self, holds: Sequence[Hold]) -> list[m.Command]:
        """In parts: the holds of a large gang exceed a message, and the first answers should not wait for the last."""
        parts = (holds[start : start + PART_MOST] for start in range(0, len(holds), PART_MOST))
        return [m.SendBinds(max(h.sequence for h in part), tuple(h.bind() for h in part)) for part in parts]

    def late(self, now: float) -> list[m.Command]:
        late = self._holds.late(now)
        self._stats.resent += len(late)
        return self.send(late)

    def answered(self, answer: Answer, term: int, now: float) -> list[m.Command]:
        """Whatever the answer, the hold stays (R4). If it is certain that nothing was applied, the pod is touched: at
        its new version the old Binding can never succeed, and the pod is scheduled again."""
        hold = self._holds.of(answer)
        if hold is None:
            return []
        if answer.outcome in ("refused", "no-node"):
            self._queue.pause(answer.uid, now)
            return [
                binding_refused(self._book.pods[answer.uid], answer),
                *self.touch([(answer.uid, False)], term),
            ]
        if answer.outcome in ("unknown", "throttled"):
            self._holds.unknown(hold, now)
        return []

    def give_back(self, gang: GangState, term: int, now: float) -> list[m.Command]:
        """A gang that began has lacked members for as long as its time-out. Its unbound members are touched, which
        voids their holds (R4), and pause for as long again. Bound members stay: they get an Event, and may be
        evicted."""
        unbound = sorted(uid for uid in gang.placed if uid in self._holds and self._holds[uid].sequence)
        for uid in unbound:
            self._queue.pause_for(uid, now, gang.patience_s)
        out = self.touch(((uid, False) for uid in unbound), term)
        if not gang.told:
            gang.told = True
            out.append(gang_incomplete(gang, [self._book.pods[uid] for uid in sorted(gang.placed)]))
        return out

    def excluded(self, state: PodState) -> list[m.Command]:
        """A pod cannot be touched: it gets an Event, and nothing waits for it."""
        why = refusal(state)
        return [] if why is None else [warn(state, "NotUpdatable", "Scheduling", f"{why.sentence}; {why.helps}")]

    def touch(self, pods: Iterable[tuple[str, bool]], term: int) -> list[m.Command]:
        """`pods`: uid, and whether to touch the status alone."""
        patches = tuple(touch(self._book.pods[uid], term, by_status=by_status) for uid, by_status in pods)
        return [m.SendPatches(patches)] if patches else []
