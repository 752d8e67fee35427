"""Placement's protocol: one reign of a leader, as a state machine. `handle(input, now) -> [Command]`.

The rules (R1 to R7) and properties (P1 to P6) are those of docs/protocol.md; where each is kept is said beside it.
`now` is a local clock in seconds; it only spaces repetitions and never decides whether something is true.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from services.placement import messages as m
from services.placement.engine import Engine, Place
from services.placement.explain import Explainer
from services.placement.holds import Hold
from services.placement.honoured import refusal
from services.placement.nodes import Nodes
from services.placement.queue import Queue
from services.placement.reports import Reports
from shared.book.book import Book, Change
from shared.book.states import GrantState, PodState
from shared.contracts.commands import Answer, TouchPod
from shared.contracts.events import GrantEnded, PlacementDecided, PodBound, TermTaken
from shared.contracts.log import Decision, DecisionBatch, ReadyRecord
from shared.model.grant import Grant

BATCH_MOST = 64
HOLDS_MOST = 256
"""Unresolved holds at which placement waits for the API server (backpressure)."""
GATHER_S = 0.008
"""Under load appends go this often. Each costs a synced write, an order to the watcher and its answer, whether it carries
one decision or sixty; a decision that comes alone goes at once."""
ATTEMPTS_PER_TURN = 64
RESEND_S = 5.0
TOUCH_AGAIN_S = 2.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policy: str = "binpack"
    holds_most: int = HOLDS_MOST
    batch_most: int = BATCH_MOST


class Stats(msgspec.Struct):
    decisions: int = 0
    rejections: int = 0
    bound: int = 0
    touched: int = 0
    readopted: int = 0
    resent: int = 0


class Core:
    """One process' life as candidate and leader. Thrown away on StepDown."""

    def __init__(self, holder: str, settings: Settings | None = None, stopwatch: Callable[[], float] = lambda: 0.0,
                 trace_of: Callable[[str], str] = lambda _: "") -> None:  # fmt: skip
        self.holder = holder
        self.trace_of = trace_of
        """The traceparent of a pod's trace, from its uid alone; it travels in the grant."""
        self.settings = settings or Settings()
        self.stopwatch = stopwatch
        self.book = Book()
        self.engine = Engine(self.book, self.settings.policy)
        self.queue = Queue()
        self.nodes = Nodes(self.book)
        self.explainer = Explainer(self.book, self.engine)
        self.reports = Reports()
        self.term = 0
        self.phase = "idle"
        """idle, listing, touching, readying, leading"""
        self.holds: dict[str, Hold] = {}
        self.stats = Stats()
        self.decide_us: list[float] = []
        self.first_seen: dict[str, float] = {}
        self._replayed: dict[str, tuple[int, Decision]] = {}
        self._log_complete = False
        self._touching: dict[str, tuple[str, float]] = {}
        self._gathering: list[Decision] = []
        self._ready_owed = False
        self._in_flight: DecisionBatch | ReadyRecord | None = None
        self._began = 0.0
        self._appended_at = self._waiting_until = float("-inf")
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
        for sequence, record in event.records:
            if isinstance(record, ReadyRecord):
                self._log_complete = True
            else:
                for decision in record.decisions:
                    self._replayed[decision.uid] = (sequence, decision)
        self._out.append(m.TakeSnapshot())

    def _renew_term(self, term: int, now: float) -> None:
        self.term = self.nodes.term = term
        self._ready_owed = True
        open_holds = tuple(h.decision for h in self.holds.values() if h.sequence)
        if open_holds:
            self._append(DecisionBatch(term=term, decisions=open_holds))
        self._out += self.nodes.sync_all(now)

    def _snapshot(self, event: m.SnapshotSeen, now: float) -> None:
        self._changes(self.book.apply_snapshot(event.facts), now)
        if self.phase != "listing":
            return
        if event.log_sequence_seen > self.term:
            self._log_complete = False  # somebody has seen more of this log than it holds now: its tail was lost
        pending = [s for s in self.book.pods.values() if s.ours and not s.pod.spec.node_name and not s.ended]
        if self._log_complete:
            for state in pending:
                self._readopt(state, now)
            self._write_ready()
        else:
            self.phase = "touching"
            self._touching = {s.uid: (s.pod.metadata.resource_version, now) for s in pending}
            self.stats.touched = len(pending)
            self._touch(list(self._touching))
        self._replayed = {}

    def _readopt(self, state: PodState, now: float) -> None:
        """A decision of the past whose pod is still unbound at that version: its Binding may be on the way."""
        found = self._replayed.get(state.uid)
        if found is None or found[1].resource_version != state.pod.metadata.resource_version or state.uid in self.holds:
            return
        sequence, decision = found
        self.queue.remove(state.uid)
        self.book.hold(state.uid, decision.node, decision.grant)
        self.holds[state.uid] = Hold(decision, now, sequence)
        self.stats.readopted += 1

    def _touch(self, uids: list[str]) -> None:
        patches = []
        for uid in uids:
            meta = self.book.pods[uid].pod.metadata
            patches.append(TouchPod(uid=uid, namespace=meta.namespace, name=meta.name, token=f"{self.term}-{meta.resource_version}"))
        if patches:
            self._out.append(m.SendPatches(tuple(patches)))

    def _write_ready(self) -> None:
        """Open holds once more under this term, then `ready`: from here the log is complete."""
        self.phase = "readying"
        if self.holds:
            self._append(DecisionBatch(term=self.term, decisions=tuple(h.decision for h in self.holds.values())))
        else:
            self._append(ReadyRecord(term=self.term))

    def _lead(self, now: float) -> None:
        self.phase = "leading"
        self.nodes.open = True
        self._out += self.nodes.sync_all(now)
        self._resend_binds(now, at_once=True)
        event = TermTaken(term=self.term, holder=self.holder, touched=self.stats.touched, readopted=self.stats.readopted, seconds=now - self._began)
        self._out.append(m.Publish(event, node=self.holder))

    @property
    def may_renew(self) -> bool:
        """Whether a new term may be taken now: leading, and no append under way."""
        return self.phase == "leading" and self._in_flight is None

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
        touched = self._touching.get(state.uid)
        if touched is not None and touched[0] != state.pod.metadata.resource_version:
            del self._touching[state.uid]
        if state.uid in self.holds:
            return
        if not state.wants_place:
            self.queue.remove(state.uid)
            return
        self.first_seen.setdefault(state.uid, now)
        why = refusal(state)
        if why is not None:
            self.queue.remove(state.uid)
            self._out += self.reports.refused(state, why)
            return
        self.queue.add(state, self.engine.key_of(state), plain=self.engine.is_plain(state))
        if self.queue.waits(state.uid):
            self.reports.want_words((state.uid,))

    def _bound(self, state: PodState, now: float) -> None:
        hold = self.holds.pop(state.uid, None)
        self._touching.pop(state.uid, None)
        self.queue.remove(state.uid, forget=True)
        self.engine.forget(state.uid)
        self.reports.forget(state.uid)
        self.first_seen.pop(state.uid, None)
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
        self._touching.pop(uid, None)
        self.queue.remove(uid, forget=True)
        self.engine.forget(uid)
        self.reports.forget(uid)
        self.first_seen.pop(uid, None)
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
        if self.phase == "touching" and not self._touching and self._in_flight is None:
            self._write_ready()
        if self.phase != "leading":
            return
        if self._freed:
            self._freed = False
            self.queue.wake(self._helps)
        attempts = 0
        while len(self._gathering) < self.settings.batch_most and len(self.holds) < self.settings.holds_most:
            uid = self.queue.next(now)
            if uid is None:
                break
            if attempts >= ATTEMPTS_PER_TURN:
                self._out.append(m.Again())
                break
            attempts += 1
            self._try(self.book.pods[uid], now)
        if self._ready_owed and self._in_flight is None:
            self._ready_owed = False
            self._append(ReadyRecord(term=self.term))
        if self._gathering and self._in_flight is None:
            wait = self._appended_at + GATHER_S - now
            if wait <= 0 or len(self._gathering) >= self.settings.batch_most:
                batch, self._gathering = tuple(self._gathering), []
                self._appended_at, self._waiting_until = now, 0.0
                self._append(DecisionBatch(term=self.term, decisions=batch))
            elif self._waiting_until <= now:
                self._waiting_until = now + wait
                self._out.append(m.Later(wait))
        if attempts == 0:
            self._out += self.reports.explain_one(self.explainer, self.queue, self.book, self.first_seen, now)

    def _helps(self, uid: str) -> bool:
        return int(self.engine.row(self.book.pods[uid]).refresh().max(initial=-1)) >= 0

    def _try(self, state: PodState, now: float) -> None:
        began = self.stopwatch()
        place = self.engine.decide(state)
        self.decide_us.append((self.stopwatch() - began) * 1e6)
        if place is None:
            self.stats.rejections += 1
            if not self.engine.is_plain(state):
                self.queue.add(state, self.engine.key_of(state), plain=False)
            self.queue.park(state.uid, now)
            self.reports.wants_word(state.uid)
            self.reports.want_words(self.queue.parked_with(state.uid))
            return
        self.queue.remove(state.uid)
        claims = self.reports.claims_first(state, place.node, self.book)
        if claims:
            # Volumes that bind late need the node first; the pod is tried again when its claims are bound.
            self._out.append(m.SendPatches(claims))
            self.queue.add(state, self.engine.key_of(state), plain=False)
            self.queue.park(state.uid, now)
            return
        self._decide(state, place, now)

    def _decide(self, state: PodState, place: Place, now: float) -> None:
        meta = state.pod.metadata
        grant = None
        if place.containers:
            self._grants_made += 1
            grant = Grant(grant_id=f"{self.term:x}-{self._grants_made:x}", term=self.term, traceparent=self.trace_of(state.uid), containers=place.containers)
        decision = Decision(uid=state.uid, namespace=meta.namespace, name=meta.name, resource_version=meta.resource_version, node=place.node, grant=grant)
        self.book.hold(state.uid, place.node, grant)
        self.holds[state.uid] = Hold(decision, now)
        self._gathering.append(decision)
        self.stats.decisions += 1
        waited_ms = round((now - self.first_seen.get(state.uid, now)) * 1000)
        self.reports.decided(state.uid, PlacementDecided(
            uid=state.uid, namespace=meta.namespace, name=meta.name, node=place.node, term=self.term, sequence=0, grant=grant,
            policy=place.policy, scores={"total": place.total}, feasible_nodes=place.feasible_nodes, waited_ms=waited_ms))  # fmt: skip

    # --- the log and what follows it (R1, R2) -----------------------------------------------------------------

    def _append(self, record: DecisionBatch | ReadyRecord) -> None:
        if self._in_flight is not None:
            raise AssertionError("two appends in flight: a second one could stand after a newer term (R1)")
        self._in_flight = record
        self._out.append(m.Append(record))

    def _appended(self, sequence: int, now: float) -> None:
        record, self._in_flight = self._in_flight, None
        if isinstance(record, ReadyRecord):
            if self.phase == "readying":
                self._lead(now)
        elif self.phase == "readying":
            self._append(ReadyRecord(term=self.term))
        elif record is not None:
            self._send_binds(sequence, record, now)

    def _send_binds(self, sequence: int, record: DecisionBatch, now: float) -> None:
        binds = []
        for decision in record.decisions:
            hold = self.holds.get(decision.uid)
            if hold is None or hold.decision is not decision:
                continue  # voided meanwhile: the pod changed or is gone
            hold.sequence, hold.sent_at = sequence, now
            binds.append(hold.bind())
            event = self.reports.take_decided(decision.uid, sequence)
            if event is not None:
                self._out.append(m.Publish(event, namespace=decision.namespace, uid=decision.uid))
        if binds:
            self._out.append(m.SendBinds(sequence, tuple(binds)))

    def _bind_answered(self, answer: Answer, now: float) -> None:
        """Whatever the answer, the hold stays (R4). Where it is certain that nothing was applied, the pod is touched:
        at its new version the old Binding can never succeed, and it is decided anew."""
        hold = self.holds.get(answer.uid)
        if hold is None or answer.resource_version != hold.decision.resource_version:
            return
        if answer.outcome in ("refused", "no-node"):
            self.queue.pause(answer.uid, now)
            self._out += self.reports.bind_refused(self.book.pods[answer.uid], answer)
            self._touch([answer.uid])
        elif answer.outcome in ("unknown", "throttled"):
            hold.sent_at = min(hold.sent_at, now - RESEND_S + 1.0)  # again in a second: it may have happened, and doing it twice is harmless

    def _tick(self, now: float) -> None:
        if self.phase == "touching":
            again = [uid for uid, (_, at) in self._touching.items() if now - at >= TOUCH_AGAIN_S]
            self._touching |= {uid: (self._touching[uid][0], now) for uid in again}
            self._touch(again)
        if self.phase != "leading":
            return
        self._resend_binds(now, at_once=False)
        self._out += self.nodes.tick(now)
        self._out += self.reports.say_again(self.book, self.holds, now)

    def _resend_binds(self, now: float, *, at_once: bool) -> None:
        late = [h for h in self.holds.values() if h.sequence and (at_once or now - h.sent_at >= RESEND_S)]
        for hold in late:
            hold.sent_at = now
        if late:
            self.stats.resent += len(late)
            self._out.append(m.SendBinds(max(h.sequence for h in late), tuple(h.bind() for h in late)))
