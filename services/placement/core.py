"""Placement's protocol: one reign of a leader, as a state machine. `handle(input, now) -> [Command]`.

The rules (R1 to R7) and properties (P1 to P6) are those of docs/protocol.md; where each is kept is said beside it.
`now` is a local clock in seconds; it only spaces repetitions and never decides whether something is true.
"""

from __future__ import annotations

from collections.abc import Callable

from services.placement import messages as m
from services.placement.engine import Place
from services.placement.holds import Hold, Holds
from services.placement.journal import Journal
from services.placement.nodes import Nodes
from services.placement.placer import Placer
from services.placement.settings import Settings, Stats
from services.placement.takeover import Takeover, touch
from shared.book.book import Book, Change
from shared.book.states import GrantState, PodState
from shared.contracts.commands import Answer
from shared.contracts.events import GrantEnded, PlacementDecided, PodBound, TermTaken
from shared.contracts.log import Decision, DecisionBatch, ReadyRecord
from shared.model.grant import Grant

ATTEMPTS_PER_TURN = 64


class Core:
    """One process' life as candidate and leader. Thrown away on StepDown."""

    def __init__(self, holder: str, settings: Settings | None = None, stopwatch: Callable[[], float] = lambda: 0.0,
                 trace_of: Callable[[str], str] = lambda _: "") -> None:  # fmt: skip
        self.holder = holder
        self.trace_of = trace_of
        """The traceparent of a pod's trace, from its uid alone; it travels in the grant."""
        self.settings = settings or Settings()
        self.stats = Stats()
        self.book = Book()
        self.nodes = Nodes(self.book)
        self.placer = Placer(self.book, self.settings.policy, self.stats, stopwatch)
        self.queue, self.reports = self.placer.queue, self.placer.reports
        self.term = 0
        self.phase = "idle"
        """idle, listing, touching, readying, leading"""
        self.holds = Holds()
        self.journal = Journal(self.settings.batch_most)
        self.takeover = Takeover()
        self._began = 0.0
        self._grants_made = 0
        self._freed = False
        self._out: list[m.Command] = []

    def handle(self, event: m.Input, now: float) -> list[m.Command]:  # noqa: PLR0912 one branch an input
        match event:
            case m.TermTaken():
                self._take_term(event, now)
            case m.TermRenewed():
                self._renew_term(event.term, now)
            case m.SnapshotSeen():
                self._snapshot(event, now)
            case m.FactsSeen():
                for fact in event.facts:
                    self._changes(self.book.apply(fact), now)
            case m.InventorySeen():
                self._out += self.nodes.inventory(event.inventory, now)
                self._freed = True
            case m.AgentLost():
                self.nodes.lost(event.node)
            case m.BeatSeen():
                self._freed |= self.nodes.beat(event.nodes, now)
            case m.SyncAnswered():
                self._synced(event, now)
            case m.GrantAcknowledged():
                self.nodes.acknowledged(event.grant_id)
            case m.ReleaseSeen():
                self._released(event, now)
            case m.Appended():
                self._appended(event.sequence, now)
            case m.BindsAnswered():
                for answer in event.answers:
                    self._bind_answered(answer, now)
            case m.Tick():
                self._tick(now)
        self._advance(now)
        out, self._out = self._out, []
        return out

    # --- taking over (R5) -------------------------------------------------------------------------------------

    def _take_term(self, event: m.TermTaken, now: float) -> None:
        self.term, self.phase, self._began = event.term, "listing", now
        self.nodes.term = event.term
        self.takeover.replay(event.records)
        self._out.append(m.TakeSnapshot())

    def _renew_term(self, term: int, now: float) -> None:
        self.term = self.nodes.term = term
        self.journal.ready_owed = True
        open_holds = tuple(h.decision for h in self.holds.values() if h.sequence)
        if open_holds:
            self._out.append(self.journal.append(DecisionBatch(term=term, decisions=open_holds)))
        self._out += self.nodes.sync_all(now)

    def _snapshot(self, event: m.SnapshotSeen, now: float) -> None:
        self._changes(self.book.apply_snapshot(event.facts), now)
        if self.phase != "listing":
            return
        pending = [s for s in self.book.pods.values() if s.ours and not s.pod.spec.node_name and not s.ended]
        if self.takeover.is_complete(self.term, event.log_sequence_seen):
            for state in pending:
                self._readopt(state, now)
            self._write_ready()
        else:
            self.phase = "touching"
            self.takeover.must_move(pending, now)
            self.stats.touched = len(pending)
            self._touch([state.uid for state in pending])
        self.takeover.forget_log()

    def _readopt(self, state: PodState, now: float) -> None:
        found = self.takeover.decided(state)
        if found is None or state.uid in self.holds:
            return
        sequence, decision = found
        self.queue.remove(state.uid)
        self.book.hold(state.uid, decision.node, decision.grant)
        self.holds[state.uid] = Hold(decision, now, sequence)
        self.stats.readopted += 1

    def _touch(self, uids: list[str]) -> None:
        if uids:
            self._out.append(m.SendPatches(tuple(touch(self.book.pods[uid], self.term) for uid in uids)))

    def _write_ready(self) -> None:
        """Open holds once more under this term, then `ready`: from here the log is complete."""
        self.phase = "readying"
        open_holds = tuple(h.decision for h in self.holds.values())
        record = DecisionBatch(term=self.term, decisions=open_holds) if open_holds else ReadyRecord(term=self.term)
        self._out.append(self.journal.append(record))

    def _lead(self, now: float) -> None:
        self.phase = "leading"
        self.nodes.open = True
        self._out += self.nodes.sync_all(now)
        self._send(self.holds.late(now, at_once=True))
        event = TermTaken(term=self.term, holder=self.holder, touched=self.stats.touched, readopted=self.stats.readopted, seconds=now - self._began)
        self._out.append(m.Publish(event, node=self.holder))

    @property
    def may_renew(self) -> bool:
        """Whether a new term may be taken now: leading, and no append under way."""
        return self.phase == "leading" and self.journal.in_flight is None

    # --- facts ------------------------------------------------------------------------------------------------

    def _changes(self, changes: list[Change], now: float) -> None:
        for change in changes:
            match change.kind:
                case "pending":
                    self._pending(self.book.pods[change.name], now)
                case "void":
                    self.holds.pop(change.name, None)
                    self._freed = True
                case "bound":
                    self._bound(self.book.pods[change.name], now)
                case "ended":
                    self._ended(change, now)
                case "node":
                    self._out += self.nodes.changed(change.name, now)
                    self._freed = True
                case "other":
                    self._freed = True

    def _pending(self, state: PodState, now: float) -> None:
        self.takeover.seen(state)
        if state.uid in self.holds:
            return
        self._out += self.placer.admit(state, now)

    def _bound(self, state: PodState, now: float) -> None:
        hold = self.holds.pop(state.uid, None)
        self.takeover.settled(state.uid)
        self.placer.forget(state.uid)
        if not state.ours:
            return
        meta, node = state.pod.metadata, state.pod.spec.node_name
        if hold is not None:
            self.stats.bound += 1
            event = PodBound(uid=state.uid, namespace=meta.namespace, name=meta.name, node=node, grant_id=state.grant_id,
                             created=meta.creation_timestamp, bound_ms=round((now - hold.decided_at) * 1000))  # fmt: skip
            self._out.append(m.Publish(event, namespace=meta.namespace, uid=state.uid))
        if state.grant_id and self.phase != "idle":
            self._out += self.nodes.granted(self.book.grants[state.grant_id], now)

    def _ended(self, change: Change, now: float) -> None:
        uid = change.name
        self.holds.pop(uid, None)
        self.takeover.settled(uid)
        self.placer.forget(uid)
        self._freed = True
        held = self.book.grants.get(change.grant_id)
        if held is None:
            return
        if held.node not in self.book.nodes or self.book.nodes[held.node].object is None:
            self._end_grant(held, "its node is gone")
        else:
            self._out += self.nodes.leaving(held, now)

    # --- nodes (R6) -------------------------------------------------------------------------------------------

    def _synced(self, event: m.SyncAnswered, now: float) -> None:
        if not event.answer.accepted:
            if event.answer.term > self.term:
                self._out.append(m.StepDown(f"node {event.answer.node} follows term {event.answer.term}, this is {self.term}"))
            return
        for grant_id in self.nodes.synced(event.answer, now):
            held = self.book.grants.get(grant_id)
            if held is not None:
                self._end_grant(held, "given back before this term")
        self._freed = True

    def _released(self, event: m.ReleaseSeen, now: float) -> None:  # noqa: ARG002
        held = self.book.grants.get(event.grant_id)
        if held is not None and held.phase == "holding":
            return  # we have not seen it bound yet; the agent says it again until we have
        if held is not None:
            self._end_grant(held, event.reason)
        self.nodes.acknowledged(event.grant_id)
        self._out.append(m.SendReleasesSeen(event.node, (event.grant_id,)))

    def _end_grant(self, held: GrantState, reason: str) -> None:
        self.book.release(held.grant_id)
        self.nodes.acknowledged(held.grant_id)
        self._freed = True
        ended = GrantEnded(uid=held.uid, namespace=held.namespace, name=held.name, node=held.node, grant_id=held.grant_id, reason=reason)
        self._out.append(m.Publish(ended, namespace=held.namespace, uid=held.uid))

    # --- deciding ---------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if self.phase == "touching" and self.takeover.touched:
            self._write_ready()
        if self.phase != "leading":
            return
        if self._freed:
            self._freed = False
            self.placer.wake()
        attempts = 0
        while not self.journal.full and len(self.holds) < self.settings.holds_most:
            uid = self.queue.next(now)
            if uid is None:
                break
            if attempts >= ATTEMPTS_PER_TURN:
                self._out.append(m.Again())
                break
            attempts += 1
            state = self.book.pods[uid]
            place, said = self.placer.attempt(state, now)
            self._out += said
            if place is not None:
                self._decide(state, place, now)
        self._out += self.journal.due(self.term, now)
        if attempts == 0:
            self._out += self.placer.explain_one(now)

    def _decide(self, state: PodState, place: Place, now: float) -> None:
        meta = state.pod.metadata
        grant = None
        if place.containers:
            self._grants_made += 1
            grant = Grant(grant_id=f"{self.term:x}-{self._grants_made:x}", term=self.term, traceparent=self.trace_of(state.uid), containers=place.containers)
        decision = Decision(uid=state.uid, namespace=meta.namespace, name=meta.name, resource_version=meta.resource_version, node=place.node, grant=grant)
        self.book.hold(state.uid, place.node, grant)
        self.holds[state.uid] = Hold(decision, now)
        self.journal.gather(decision)
        self.stats.decisions += 1
        self.reports.decided(state.uid, PlacementDecided(
            uid=state.uid, namespace=meta.namespace, name=meta.name, node=place.node, term=self.term, sequence=0, grant=grant,
            policy=place.policy, scores={"total": place.total}, feasible_nodes=place.feasible_nodes, waited_ms=self.placer.waited_ms(state.uid, now)))  # fmt: skip

    # --- the log and what follows it (R1, R2) -----------------------------------------------------------------

    def _appended(self, sequence: int, now: float) -> None:
        record = self.journal.appended()
        if isinstance(record, ReadyRecord):
            if self.phase == "readying":
                self._lead(now)
        elif self.phase == "readying":
            self._out.append(self.journal.append(ReadyRecord(term=self.term)))
        elif record is not None:
            sent = self.holds.logged(record, sequence, now)
            for hold in sent:
                event = self.reports.take_decided(hold.decision.uid, sequence)
                if event is not None:
                    self._out.append(m.Publish(event, namespace=event.namespace, uid=event.uid))
            self._send(sent)

    def _send(self, holds: list[Hold]) -> None:
        if holds:
            self._out.append(m.SendBinds(max(h.sequence for h in holds), tuple(h.bind() for h in holds)))

    def _bind_answered(self, answer: Answer, now: float) -> None:
        """Whatever the answer, the hold stays (R4). Where it is certain that nothing was applied, the pod is touched:
        at its new version the old Binding can never succeed, and it is decided anew."""
        hold = self.holds.of(answer)
        if hold is None:
            return
        if answer.outcome in ("refused", "no-node"):
            self.queue.pause(answer.uid, now)
            self._out += self.reports.bind_refused(self.book.pods[answer.uid], answer)
            self._touch([answer.uid])
        elif answer.outcome in ("unknown", "throttled"):
            self.holds.unknown(hold, now)

    def _tick(self, now: float) -> None:
        if self.phase == "touching":
            self._touch(self.takeover.again(now))
        if self.phase != "leading":
            return
        late = self.holds.late(now)
        self.stats.resent += len(late)
        self._send(late)
        self._out += self.nodes.tick(now)
        labels = self.nodes.label(now)
        if labels:
            self._out.append(m.SendPatches(tuple(labels)))
        self._out += self.reports.say_again(self.book, self.holds, now)
