"""Placement's protocol: one leader session as a state machine. `handle(input, now) -> [Command]`.

docs/protocol.md has the rules (R1 to R7) and properties (P1 to P6); the code names each rule where it is kept. `now` is
a local clock in seconds. It only spaces repetitions and never decides whether something is true.
"""

from __future__ import annotations

from collections.abc import Callable

from services.placement import messages as m
from services.placement.autoscaling.signals import Signals
from services.placement.config import Config
from services.placement.engine.engine import Engine
from services.placement.engine.memory import Memory
from services.placement.engine.remote import RemotePlaces
from services.placement.explain.explainer import Explainer
from services.placement.explain.pending_reasons import PendingReasons
from services.placement.explain.pod_groups import PodGroupConditions
from services.placement.listing import CHANGES_AT_ONCE, Listing
from services.placement.preemption.plans import Preemption
from services.placement.protocol.audit import Audit
from services.placement.protocol.bindings import Binding
from services.placement.protocol.capacity_changes import CapacityChanges
from services.placement.protocol.commit import Committer
from services.placement.protocol.decision_events import DecisionEvents
from services.placement.protocol.departed import Departed
from services.placement.protocol.gpu_times import GpuTimes
from services.placement.protocol.hearing import Hearing
from services.placement.protocol.holds import Holds
from services.placement.protocol.leftovers import Leftovers
from services.placement.protocol.moves import Moves
from services.placement.protocol.nodes import Nodes
from services.placement.protocol.releases import Releases
from services.placement.protocol.remote import RemoteGrants
from services.placement.protocol.resizing import Resizer
from services.placement.protocol.resource_slices import Slices
from services.placement.protocol.resumption_order import ResumptionOrder
from services.placement.protocol.suspension import Suspender
from services.placement.protocol.unix_time import UnixTime
from services.placement.protocol.write_batcher import WriteBatcher
from services.placement.scheduler import Scheduler
from services.placement.scheduling.backfill.reservations import Backfill
from services.placement.scheduling.fair.fair import Fair
from services.placement.scheduling.fair.group_requests import GroupRequests
from services.placement.scheduling.grants import SessionGrants
from services.placement.scheduling.late_claims import LateClaims
from services.placement.scheduling.node_avoidance import NodeAvoidance
from services.placement.scheduling.profiles import Profiles
from services.placement.scheduling.queue import Queue
from services.placement.scheduling.unplaced import Unplaced
from services.placement.stats import Stats
from services.placement.takeover import Phase, Takeover
from shared.book.book import Book, Change
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.commands import Patch
from shared.contracts.events import PodBound
from shared.contracts.log import DecisionBatch, ReadyRecord
from shared.contracts.preemption import Reserved
from shared.model.causes import Inputs
from shared.model.objects import ConfigMap, Gang, Pod
from shared.queues.preemption_policy import PreemptionPolicy
from shared.queues.turns import TurnPolicy


class Core:
    """The state of one leader session, from candidate to leader. It is discarded when the session ends."""

    def __init__(
        self,
        holder: str,
        config: Config | None = None,
        stopwatch: Callable[[], float] = lambda: 0.0,
        trace_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`trace_of` returns the traceparent of a pod's trace from its uid alone. The grant carries it to the node."""
        self.holder = holder
        self.config = config or Config()
        self.stats = Stats()
        self.book = Book()
        self.nodes = Nodes(self.book)
        self.slices = Slices(self.book)
        self.node_avoidance = NodeAvoidance(self.book)
        self.engine = Engine(self.book, self.config.policy)
        self.gangs = Gangs(self.book)
        self.fair = Fair(self.book)
        requests = GroupRequests(self.book, self.gangs, self.fair)
        self.queue = Queue(self.fair, requests)
        self.unplaced = Unplaced(lambda uid: self.book.pods[uid].pod.spec.priority)
        self._capacity_changes = CapacityChanges()
        self.late_claims = LateClaims(self.book, self._capacity_changes.note)
        self.decision_events = DecisionEvents()
        self.remote_places = remote = RemotePlaces(self.engine, self.config.max_slowdown)
        self.backfill = Backfill(
            self.book,
            self.engine,
            gangs=self.gangs,
            fair=self.fair,
            queue=self.queue,
            requests=requests,
            config=self.config,
            changed=self._capacity_changes.note,
        )
        self.explainer = Explainer(
            self.book,
            self.engine,
            self.gangs,
            self.fair,
            self.queue,
            remote,
            backfill=self.backfill,
            late_claims=self.late_claims,
        )
        self.scheduler = Scheduler(
            self.book,
            self.engine,
            self.fair,
            self.gangs,
            queue=self.queue,
            requests=requests,
            unplaced=self.unplaced,
            late_claims=self.late_claims,
            remote=remote,
            backfill=self.backfill,
            stats=self.stats,
            stopwatch=stopwatch,
        )
        self.pending_reasons = PendingReasons(
            self.book,
            self.explainer,
            queue=self.queue,
            gangs=self.gangs,
            unplaced=self.unplaced,
            first_seen=self.scheduler.first_seen,
            stopwatch=stopwatch,
        )
        self.audit = Audit(self.book, stopwatch)
        self.pod_groups = PodGroupConditions(
            self.book, self.gangs, self.pending_reasons.gangs_said, self.pending_reasons.said
        )
        self.holds, self.batcher = Holds(), WriteBatcher(self.config.max_batch)
        changes, beyond = self._capacity_changes, self.config.resize_beyond_request
        self.profiles = Profiles(self.book, weigh_learned=self.config.weigh_learned, changed=changes.note)
        self.unix_time, self.turns = UnixTime(), TurnPolicy(self.fair, self.gangs)
        self.nodes.takes_turns = self.turns.allows
        policy = PreemptionPolicy(self.fair, self.gangs)
        self.suspension = Suspender(
            self.book,
            self.nodes,
            policy,
            self._capacity_changes,
            order=ResumptionOrder(self.gangs, policy, self.turns),
            gpu_times=GpuTimes(self.book, self.turns, self.unix_time),
            clock=self.unix_time,
            moves=Moves(self.book, self.nodes, self.batcher, self._capacity_changes),
        )
        self.resizer = Resizer(self.book, self.nodes, self.fair, self.batcher, changes, beyond_request=beyond)
        self.grants = SessionGrants(self.book, trace_of)
        self.committer = Committer(
            self.scheduler,
            self.book,
            engine=self.engine,
            gangs=self.gangs,
            queue=self.queue,
            events=self.decision_events,
            unplaced=self.unplaced,
            grants=self.grants,
            suspender=self.suspension,
            resizer=self.resizer,
            holds=self.holds,
            batcher=self.batcher,
            config=self.config,
            stats=self.stats,
        )
        self.preemption = Preemption(
            self.committer,
            self.scheduler,
            self.book,
            engine=self.engine,
            gangs=self.gangs,
            fair=self.fair,
            batcher=self.batcher,
            suspension=self.suspension,
            capacity_changes=self._capacity_changes,
            turns=self.turns,
            clock=self.unix_time,
        )
        self.signals = Signals(
            self.book,
            self.config,
            queue=self.queue,
            requests=requests,
            gangs=self.gangs,
            engine=self.engine,
            reservations=self.preemption.reservations,
            held=self.holds,
        )
        self._binding = Binding(self.book, self.queue, self.decision_events, self.holds, self.stats)
        self._releases = Releases(self.book, self.nodes, self._capacity_changes)
        self._departed = Departed(self.book, self.nodes)
        self._remote_grants = RemoteGrants(self.book, self.nodes, self._releases)
        self._leftovers = Leftovers(self.book)
        self._hearing = Hearing(self.book, self.nodes, self._leftovers, self.batcher)
        self.takeover = Takeover(
            holder,
            self.book,
            queue=self.queue,
            scheduler=self.scheduler,
            nodes=self.nodes,
            holds=self.holds,
            batcher=self.batcher,
            binding=self._binding,
            suspender=self.suspension,
            resizer=self.resizer,
            preemption=self.preemption,
            hearing=self._hearing,
            config=self.config,
            stats=self.stats,
        )
        self.recovery = self.takeover.recovery
        self._out: list[m.Command] = []
        self._listing, self._memory = Listing(self.book), Memory(self.engine)
        self._ready_logged, self.inputs = False, Inputs()

    def handle(self, event: m.Input, now: float) -> list[m.Command]:
        self.inputs.begin()
        if not self._listing.defers(event):
            self._take(event, now)
        self._advance(now)
        self._out += self.pending_reasons.refusals()
        out, self._out = self._out, []
        return self.inputs.mark(out)

    def _take(self, event: m.Input, now: float) -> None:  # noqa: PLR0912 one branch an input
        match event:
            case m.TermTaken():
                self.grants.term = event.term
                self._out += self.takeover.begin(event, now)
            case m.TermRenewed():
                self.grants.term = event.term
                self._out += self.takeover.renew(event.term, now)
            case m.SnapshotPart() | m.SnapshotSeen():
                self._snapshot(event, now)
            case m.FactsSeen():
                self._facts(event, now)
            case m.InventorySeen():
                self.resizer.inventory_coming(event.inventory)
                self._out += self.nodes.inventory(event.inventory, now)
                self.signals.inventory_changed(event.inventory.node)
                self._capacity_changes.note()
            case m.AgentLost():
                self.nodes.lost(event.node)
            case m.BeatSeen():
                if self.nodes.heartbeat(event.nodes, now):
                    self._capacity_changes.note()
            case m.SyncAnswered():
                self._synced(event, now)
            case m.GrantAcknowledged():
                self._grant_answered(event, now)
            case m.TouchesNotSent():
                self.recovery.not_sent(event.uids, now)
            case m.PatchesAnswered():
                for answer in event.answers:
                    self._out += self.takeover.patch_failed(answer, now)
            case m.Sampled():
                self.profiles.sampled(event.sample)
            case m.ReleaseSeen():
                self._out += self._releases.released(event, now)
            case m.Appended():
                self._appended(event.sequence, now)
            case m.BindsAnswered():
                for answer in event.answers:
                    self._out += self._binding.answered(answer, self.term, now)
            case m.ReserveAsked() if self.phase == "leading" and not self._hearing.delays_all(now):
                self._out += self.preemption.reserve(event.plan, self.term, now)
            case m.ReserveAsked():
                why = "placement is just taking over; ask again"
                self._out.append(m.AnswerPlan(Reserved(plan_id=event.plan.plan_id, ok=False, reason=why, again=True)))
            case m.HoldAnswered():
                self._out += self.preemption.hold_answered(event, self.term, now)
            case m.AbandonAsked():
                self._out += self.preemption.abandon(event.plan_id, event.reason, self.term, now)
            case m.Tick():
                self.unix_time.learn(event.unix_s, now)
                self._tick(now)

    def _facts(self, event: m.FactsSeen, now: float) -> None:
        for fact in event.facts:
            changes = self.book.apply(fact)
            self._changes(changes, now)
            if isinstance(fact.object, Gang) and changes:
                self.scheduler.gang_changed(fact.object, now)
            elif isinstance(fact.object, ConfigMap):
                self._out += self.scheduler.policy_changed(now)
            elif isinstance(fact.object, Pod) and fact.object.metadata.uid in self.book.pods:
                self._pod_seen(self.book.pods[fact.object.metadata.uid], now)

    def _pod_seen(self, state: PodState, now: float) -> None:
        self._out += self.suspension.annotation_seen(state, now)
        self._out += self.resizer.seen(state, now)

    def _snapshot(self, event: m.SnapshotPart | m.SnapshotSeen, now: float) -> None:
        if self.phase == "listing" and self._listing.take(event):
            self._out += self.scheduler.policy_changed(now)
        elif isinstance(event, m.SnapshotSeen):
            gangs = dict(self.book.others.get("Gang", {}))
            changes = self.book.apply_snapshot(event.facts)
            self._out += self.scheduler.policy_changed(now)
            self._changes(changes, now)
            for source in (gangs | self.book.others.get("Gang", {})).values():
                self.scheduler.gang_changed(source, now)
            for state in self.book.pods.values():
                self._pod_seen(state, now)

    def _take_in(self, now: float) -> None:
        """The next part of the first snapshot; after the last one what has waited for it, in parts too."""
        if self.phase == "listing":
            changes = self._listing.next()
            self._changes(changes, now)
            if len(changes) < CHANGES_AT_ONCE:
                for source in self.book.others.get("Gang", {}).values():
                    self.scheduler.gang_changed(source, now)
                self._out += self.takeover.listed(self._listing.log_sequence_seen, now)
        else:
            for event in self._listing.waited():
                self._take(event, now)
        self._listing.whole = self.phase == "listing" or bool(self._listing.later)
        if self._listing.whole:
            self._out.append(m.Again())

    @property
    def phase(self) -> Phase:
        return self.takeover.phase

    @property
    def term(self) -> int:
        return self.takeover.term

    @property
    def may_renew(self) -> bool:
        """Whether a new term may be taken now: the session leads, and no append is under way."""
        return self.phase == "leading" and self.batcher.in_flight is None

    # --- facts ------------------------------------------------------------------------------------------------

    def _changes(self, changes: list[Change], now: float) -> None:
        for change in changes:
            match change.kind:
                case "pending":
                    self._pending(self.book.pods[change.name], now)
                case "void":
                    hold = self.holds.pop(change.name, None)
                    if hold is not None:
                        self._out += self.nodes.voided(hold.decision, now)
                    self._capacity_changes.note()
                case "bound":
                    self._bound(self.book.pods[change.name], now)
                case "amended":
                    self.suspension.amended(self.book.pods[change.name])
                    self._out += self.resizer.amended(change.name, now)
                case "ended":
                    self._ended(change, now)
                case "node":
                    self._out += self.nodes.changed(change.name, now)
                    self._capacity_changes.note()
                case "beside":
                    self.scheduler.beside_changed()
                case "other":
                    self._capacity_changes.note()

    def _pending(self, state: PodState, now: float) -> None:
        self.recovery.seen(state)
        if state.uid in self.holds:
            return
        self._leftovers.attach(state)
        self.profiles.attach(state)
        self.scheduler.admit(state, now)
        if self.phase == "leading":
            self._out += self.preemption.migrations.place_successor(state, now)

    def _bound(self, state: PodState, now: float) -> None:
        hold = self.holds.bound(state.uid, now)
        self.recovery.settled(state.uid)
        self.scheduler.forget(state.uid, now)
        if hold is None:
            self.scheduler.beside_changed()  # by another scheduler, or of the first snapshot
        self.decision_events.forget(state.uid)
        if not state.ours:
            return
        if state.excluded and state.returned:
            self._out += self._releases.dead_on_arrival(
                state, state.returned, "it was bound by a decision that the log has lost"
            )
        meta, node = state.pod.metadata, state.pod.spec.node_name
        if hold is not None:
            self.stats.bound += 1
            event = PodBound(
                uid=state.uid,
                namespace=meta.namespace,
                name=meta.name,
                node=node,
                grant_id=state.grant_id,
                created=meta.creation_timestamp,
                bound_ms=round((now - hold.decided_at) * 1000),
            )
            self._out.append(m.Publish(event, namespace=meta.namespace, uid=state.uid))
            if hold.decision.grant is not None and hold.decision.grant.grant_id != state.grant_id:
                self._out += self.nodes.voided(hold.decision, now)
        # A running pod of the first snapshot is in the sync that its node gets when the session leads. A suspension is
        # an order of its own, which the node has to answer.
        listed = self.phase == "listing" and state.suspension is None
        if state.grant_id and self.phase != "idle" and not listed:
            self._out += self.nodes.granted(self.book.grants[state.grant_id], now)

    def _ended(self, change: Change, now: float) -> None:
        uid = change.name
        self.holds.pop(uid, None)
        self.recovery.settled(uid)
        self.scheduler.forget(uid, now)
        self.decision_events.forget(uid)
        self.resizer.ended(uid)
        if uid in self.book.pods:
            self.node_avoidance.ended(self.book.pods[uid], now)
        self._out += self._releases.pod_ended(change.grant_id, now)

    def _synced(self, event: m.SyncAnswered, now: float) -> None:
        """A node's claim of a higher term is checked against the log: a false one must not end the leader's session."""
        answer = event.answer
        if not answer.accepted:
            if answer.term > self.term:
                self._out += self.nodes.ahead(answer, now)
            return
        said = self._releases.synced(answer, now)
        if said is None:
            return
        self._out += self.suspension.synced(answer, now)
        self.resizer.synced(answer, now)
        for state in self._leftovers.synced(answer.node):
            self._pending(state, now)
        self._out += said

    def _grant_answered(self, event: m.GrantAcknowledged, now: float) -> None:
        held = self.book.grants.get(event.grant_id)
        if held is not None and event.node not in held.nodes:
            return  # a node answers for itself alone
        if event.dead:
            self._out += self._releases.dead(event, now)
            return
        if held is not None and event.node == held.client:
            self.nodes.acknowledged(event.grant_id, event.node)
            return
        told = self.suspension.is_current(event.grant_id, event.suspension) and self.resizer.is_current(event)
        if event.reason or told:
            self.nodes.acknowledged(event.grant_id, event.node)
        cannot = event.reason if event.ok else ""  # an order that is refused as such says nothing of the slices
        self._out += self.suspension.node_answered(
            event.grant_id, event.suspension, cannot, number=event.number, now=now
        )
        self._out += self.suspension.memory_answered(event, now)
        self._out += self.resizer.node_answered(event, now)
        if cannot and event.suspension is None and not self.suspension.is_confirmed(event.grant_id):
            self._out += self.preemption.suspension_refused(event.grant_id, cannot, self.term, now)

    # --- deciding ---------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if self._listing.whole:
            self._take_in(now)
        elif self.phase == "readying" and self._ready_logged:
            self._out += [m.Again()] if self._memory.restore() else self.takeover.readied(now)
        self._out += self.takeover.advance()
        if self.phase != "leading":
            return
        if self._hearing.delays_all(now):
            self._out += self.batcher.due(self.term, now)
            return
        self._hearing.note(self.term, now)
        self._out += self.preemption.advance(self.term, now)
        if self._capacity_changes.taken():
            for state in self._leftovers.over():
                self._pending(state, now)
            self.scheduler.wake()
        self.scheduler.wake_beside()
        self._out += self.committer.turn(self.term, now)
        if self.committer.idle:
            self._out += self.resizer.grow_before(None, now) + self.batcher.due(self.term, now)
            if not self._hearing.delays_reasons(now):
                self._out += self.pending_reasons.explain_one(now)

    # --- the log and what follows it (R1, R2) -----------------------------------------------------------------

    def _appended(self, sequence: int, now: float) -> None:
        record = self.batcher.appended()
        if isinstance(record, ReadyRecord) and not record.more:
            self._ready_logged = True
        elif self.phase == "readying":
            self._out += self.batcher.due(self.term, now)
        elif isinstance(record, DecisionBatch):
            for reserved in record.reservations:
                self._out += self.preemption.reservation_logged(reserved, now)
            self._out += self._binding.logged(record, sequence, now)
            self._out += self.resizer.logged(record, now) + self.suspension.moves.logged(record, now)

    def _tick(self, now: float) -> None:
        self._out += self.takeover.touch(now)
        if self.phase != "leading":
            return
        if self.node_avoidance.tick(now):
            self._capacity_changes.note()
        self.pending_reasons.remind(now)
        for gang in self.gangs.overdue(now):
            self._out += self._binding.give_back(gang, self.term, now)
        self._out += self._binding.late(now)
        self._out += self.nodes.tick(now)
        self._out += [m.ForgetNode(name) for name in self._departed.due(now)]
        self._out += self._remote_grants.tick(now)
        self._out += self.preemption.tick(self.term, now) + self.resizer.tick(self.term, now)
        self.backfill.tick(
            now, self.unix_time.at(now), self.scheduler.first_seen, self.preemption.reservations.beneficiaries
        )
        orders: tuple[Patch, ...] = (*self.nodes.labels.due(now), *self.slices.due(now))
        if orders:
            self._out.append(m.SendPatches(orders))
        # In a batch of their own: a watcher of the version before does not know them, and refuses the whole batch.
        if signals := self.signals.due(now):
            self._out.append(m.SendPatches(signals))
        if groups := self.pod_groups.due(now):
            # In a message of its own: a watcher of the version before cannot read it.
            self._out.append(m.SendPatches(groups))
        self._out += self.pending_reasons.repeat(self.holds, now)
        self._out += self.late_claims.repeat(now)
        self.scheduler.tick(now)
