"""From a term to leadership (R5): the log is replayed, pods are listed, and open decisions are taken over or voided.

docs/protocol.md has the rules. `now` is a local clock in seconds. It only spaces repetitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from services.placement import messages as m
from services.placement.config import Config
from services.placement.preemption.plans import Preemption
from services.placement.protocol.bindings import Binding
from services.placement.protocol.hearing import Hearing, ToHear
from services.placement.protocol.holds import Hold, Holds
from services.placement.protocol.nodes import Nodes
from services.placement.protocol.recovery import Recovery
from services.placement.protocol.resizing import Resizer
from services.placement.protocol.suspension import Suspender
from services.placement.protocol.write_batcher import WriteBatcher
from services.placement.scheduler import Scheduler
from services.placement.scheduling.queue import Queue
from services.placement.stats import Stats
from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.commands import Answer
from shared.contracts.events import TermTaken
from shared.model.state_machine import Transitions

Phase = Literal["idle", "listing", "touching", "readying", "leading", "over"]
PHASES = Transitions[Phase](
    {
        "idle": ("listing",),  # it has taken a term
        "listing": ("touching", "readying", "over"),  # the snapshot has come, and the log is incomplete, complete, lost
        "touching": ("readying",),  # every pending pod has moved, or is excluded
        "readying": ("leading",),  # the ready record is in the log
        "leading": (),
        "over": (),
    }
)


class Takeover:
    """The phases of one leader session, and what it does before it leads."""

    def __init__(
        self,
        holder: str,
        book: Book,
        *,
        queue: Queue,
        scheduler: Scheduler,
        nodes: Nodes,
        holds: Holds,
        batcher: WriteBatcher,
        binding: Binding,
        suspender: Suspender,
        resizer: Resizer,
        preemption: Preemption,
        hearing: Hearing,
        config: Config,
        stats: Stats,
    ) -> None:
        self._holder, self._book, self._queue, self._scheduler, self._nodes = holder, book, queue, scheduler, nodes
        self._holds, self._batcher, self._binding, self._suspender = holds, batcher, binding, suspender
        self._preemption, self._config, self._stats = preemption, config, stats
        self._resizer, self._hearing = resizer, hearing
        self.recovery = Recovery()
        self.term = 0
        self.phase: Phase = "idle"
        self._began = 0.0

    def begin(self, event: m.TermTaken, now: float) -> list[m.Command]:
        """The process has taken a term."""
        self.term, self._began = event.term, now
        self._enter("listing")
        self._nodes.term = event.term
        self.recovery.replay(event.records, event.mark)
        return [m.TakeSnapshot()]

    def renew(self, term: int, now: float) -> list[m.Command]:
        """The leader has taken another term."""
        self.term = self._nodes.term = term
        self._owe([hold for hold in self._holds.values() if hold.sequence], self._hearing.left(now))
        return self._nodes.sync_all(now)

    def listed(self, log_sequence_seen: int, now: float) -> list[m.Command]:
        """The book has all pods: open decisions are taken over, or every pending pod is touched first.
        `log_sequence_seen`: the highest that any watcher or pod has seen."""
        lost = self.recovery.lost(self.term, log_sequence_seen)
        if lost:
            self._enter("over")
            return [m.BeginLogAnew(self.recovery.above(self.term, log_sequence_seen), lost)]
        out = self._suspender.adopt(self.recovery, self.term, now)
        self._resizer.adopt(self.recovery, complete=self.recovery.ready, now=now)
        pending = [s for s in self._book.pods.values() if s.ours and not s.pod.spec.node_name and not s.ended]
        if self.recovery.ready:
            for state in pending:
                if self.recovery.is_excluded(state, now):
                    out += self._exclude(state, "the leader before this one could not", now)
                else:
                    self._readopt(state, now)
            out += self._preemption.readopt(self.recovery, self.term, now)
            out += self._write_ready()
        else:
            self._enter("touching")
            self.recovery.must_move(pending, now)
            self._stats.touched = len(pending)
            # Otherwise the next leader, which trusts the log, would go on with them.
            out += self._preemption.readopt(self.recovery, self.term, now, goes_on=False)
            out += self.touch(now)
        self.recovery.forget_log()
        return out

    def touch(self, now: float) -> list[m.Command]:
        """Touches the pods that must move, again where that is due, and excludes those that never moved."""
        out: list[m.Command] = []
        for uid in self.recovery.overdue(now, self._config.exclude_after_s):
            why = (
                f"{self._config.exclude_after_s:.0f} s of updates have not moved it: look for a webhook that "
                "answers late, or undoes them"
            )
            out += self._exclude(self._book.pods[uid], why, now)
        return out + self._binding.touch(self.recovery.due(now), self.term)

    def patch_failed(self, answer: Answer, now: float) -> list[m.Command]:
        """Excludes, by name, pods that cannot be touched. Waiting for them would delay the recovery for ever."""
        if answer.outcome != "refused" or not self.recovery.refused(answer.uid):
            return []
        return self._exclude(self._book.pods[answer.uid], answer.message, now)

    def advance(self) -> list[m.Command]:
        return self._write_ready() if self.phase == "touching" and self.recovery.touched else []

    def readied(self, now: float) -> list[m.Command]:
        """The ready record is in the log: from now on the session leads."""
        self._enter("leading")
        self._nodes.open = True
        self._hearing.begin(self.recovery.to_hear, now)
        event = TermTaken(
            term=self.term,
            holder=self._holder,
            touched=self._stats.touched,
            excluded=len(self.recovery.excluded),
            readopted=self._stats.readopted,
            seconds=now - self._began,
        )
        return [
            *self._nodes.sync_all(now),
            *self._binding.send(self._holds.late(now, at_once=True)),
            m.Publish(event, node=self._holder),
        ]

    def _enter(self, phase: Phase) -> None:
        self.phase = PHASES.move(self.phase, phase)

    def _readopt(self, state: PodState, now: float) -> None:
        found = self.recovery.decided(state)
        if found is None or state.uid in self._holds:
            return
        sequence, decision = found
        self._queue.remove(state.uid)
        self._book.hold(state.uid, decision.node, decision.grant)
        self._holds[state.uid] = Hold(decision, now, sequence)
        self._scheduler.note(state, now)
        self._stats.readopted += 1

    def _write_ready(self) -> list[m.Command]:
        self._enter("readying")
        self._owe(self._holds.values(), self.recovery.to_hear)
        return self._batcher.due(self.term, self._began)

    def _owe(self, holds: Iterable[Hold], to_hear: ToHear) -> None:
        """All that a leader after this one must know is written into the log again."""
        excluded = self.recovery.excluded | self._suspender.moves.feared
        self._batcher.owe(
            self._hearing.ready(self.term, excluded, to_hear),
            [hold.decision for hold in holds],
            self._preemption.records(self.term),
            [*self._resizer.records(), *self._suspender.moves.records()],
        )

    def _exclude(self, state: PodState, why: str, now: float) -> list[m.Command]:
        state.excluded = why
        out = self._binding.excluded(state)
        self._scheduler.admit(state, now)
        return out
