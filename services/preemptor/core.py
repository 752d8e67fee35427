"""Plans preemption and executes plans. `handle(input, now) -> [Command]`; `now` is seconds since 1970.

The preemptor has no authority: its book is a copy and may be slightly stale. It proposes plans; placement reserves or
refuses them and assigns what is freed. So nothing here can double-book a GPU; at worst a plan is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

import msgspec

from services.preemptor import event_texts
from services.preemptor import messages as m
from services.preemptor.autoscaling import Autoscaler
from services.preemptor.cluster import Cluster
from services.preemptor.config import Config
from services.preemptor.consolidation import HOUR_S, Consolidation
from services.preemptor.driver_upgrades import DriverUpgrades
from services.preemptor.incomplete_gangs import IncompleteGangs
from services.preemptor.ineligible_pods import IneligiblePods
from services.preemptor.memory_use import MemoryUse
from services.preemptor.pending_pods import PendingPods
from services.preemptor.planning.actions.non_disruptive import allowed
from services.preemptor.planning.areas import Areas
from services.preemptor.planning.planner import Option, Planner
from services.preemptor.planning.victims import Candidates
from services.preemptor.plans.builder import build_plan
from services.preemptor.plans.dry_run import DryRun
from services.preemptor.plans.execution import PlanExecution
from services.preemptor.plans.in_progress import PlansInProgress
from services.preemptor.plans.opening import OpeningNodes
from services.preemptor.plans.window import Window
from services.preemptor.protection import Protection, not_ahead
from services.preemptor.turns.circles import Circles
from services.preemptor.turns.copies import Copies
from services.preemptor.turns.plan import turn_plan
from services.preemptor.turns.planner import TurnPlanner, UnderWay
from shared.book.disruption_cost import price_of
from shared.book.granted_use import granted_use
from shared.book.states import PodState
from shared.contracts.commands import Evict
from shared.contracts.events import PreemptionProposed
from shared.contracts.preemption import ENDS, MIGRATIONS, Plan, PreemptAnswer
from shared.model.causes import Inputs
from shared.queues.preemption_policy import PreemptionPolicy
from shared.queues.turns import TurnPolicy

PROPOSE_AGAIN_S = 1.0
"""How long after a proposal went unanswered it is made again."""
MAX_PROPOSED_S = 60.0
"""How long a plan is proposed again. An older one hardly fits the cluster any more."""
MAX_NODES_CHECKED = 30_000
"""The maximum of nodes that are examined in one tick, about a second of work; at least one group is planned.

Other groups are planned in the next tick: planning for longer than the leader lease would lose the lead.
"""
NODES_PER_MEMBER = 300
"""Choosing victims for one member on one node takes about as long as examining so many nodes."""
CANNOT_SUSPEND_S = 600.0
"""How long at least a pod is left alone that could not be suspended for a turn, or cannot be at all."""
LOST_S = 60.0
"""How long after its deadline a plan of which nothing is heard counts as over."""


class Core:
    def __init__(self, config: Config, new_id: Callable[[], str]) -> None:
        """`new_id` returns a unique plan id."""
        self.config, self._new_id = config, new_id
        self.protection = Protection(config.protection_s, config.evictions_per_hour)
        self._cluster = Cluster(self.protection)
        self.book, self.gangs = self._cluster.book, self._cluster.gangs
        self.inputs = Inputs()
        self._now = 0.0
        self._leads = True
        """Whether this instance led at the last tick. One that does not requests no eviction: nothing about it would be
        persisted, and the next leader goes on with its plans."""
        self.ready = False
        """All nodes have been examined once. No pod is preempted before that."""
        self._listed = False
        """A snapshot has listed all pods."""
        self._memory_use = MemoryUse()
        self._autoscales, self._autoscaler = config.autoscale, Autoscaler(self.book)
        self._preemption_policy = PreemptionPolicy(self._cluster.queues, self.gangs)
        self._candidates = Candidates(
            self.book,
            self.gangs,
            self._preemption_policy,
            lambda state: self.protection.is_exempt(state, self._now),
            self._cluster.changed_nodes,
            left=lambda namespace: self.protection.evictions_left(namespace, self._now),
            non_disruptive=allowed(shrinks=config.shrinks, checkpoints=config.checkpoints),
            uses_mib=lambda uid: self._memory_use.max_used_mib(uid, self._now),
            leaving_s=config.leaving_s,
        )
        self.pending = PendingPods(self.book, self.gangs, config.patience_s)
        self._cut: dict[str, None] = {}
        """By the uid of their first member, the groups that the last rounds had no time for, the longest wait
        first."""
        self.consolidation = Consolidation(config, self.book, self.gangs, self.protection)
        self._driver_upgrades = DriverUpgrades(self.book, evicts=config.driver_upgrades == "evict")
        self._incomplete_gangs = IncompleteGangs(self.book, self.gangs, config.incomplete_gang_s)
        self.executions = PlansInProgress(self.book, self.pending)
        self._opening = OpeningNodes(self.book, self._candidates)
        self._window = Window(config.max_plans)
        self._copies = Copies(self.book, config.copied_mib_per_s, config.copy_fixed_s, config.max_copy_part)
        policy = TurnPolicy(self._cluster.queues, self.gangs)
        self.turns = TurnPlanner(
            self.book,
            policy,
            Circles(self.book, policy, self.pending),
            self._copies,
            tree=lambda: self._cluster.queues.tree,
            areas=lambda: Areas(self.book, self.gangs),
            stays=self._candidates.has_failed,
        )
        ineligible = IneligiblePods(self.book, self.gangs, self._preemption_policy, self.protection)
        self._dry_run = DryRun(
            self.book,
            self.gangs,
            self.pending,
            self.executions,
            planner=self._ready_planner,
            plan=self._plan,
            ineligible=lambda members: ineligible.count_by_reason(members, self.executions.promised(), self._now),
        )

    def handle(self, event: m.Input, now: float) -> list[m.Command]:
        self.inputs.begin()
        out = self._handle(event, now)
        # Protection is persisted before the evictions: a crash in between protects a pod too long instead of evicting
        # it twice.
        saved: list[m.Command] = [
            m.SaveProtection(known, self.protection.expires_at(known) - now) for known in self.protection.take_changed()
        ]
        spent = self.consolidation.take_changed(now)
        if spent is not None:
            saved.append(m.SaveProtection(spent, HOUR_S))
        return self.inputs.mark([*saved, *out])

    def _handle(self, event: m.Input, now: float) -> list[m.Command]:
        match event:
            case m.ProtectionRestored() if event.record.owner == MIGRATIONS:
                self.consolidation.restore(not_ahead(event.record, now), leads=self._leads)
            case m.ProtectionRestored():
                self.protection.restore(not_ahead(event.record, now))
                if self._listed:
                    self.protection.end_missing(self.book.pods, now)
            case m.SnapshotSeen():
                self._cluster.apply(event, now)
                self.pending.rejected_before(now, first=not self._listed)
                self._listed = True
            case m.Rejected():
                self.pending.rejected(event.uid, now)
            case m.Answered():
                return self._answered(event, now)
            case m.Advised():
                return self._advised(event, now)
            case m.Evicted():
                return self._evicted(event, now)
            case m.Ended():
                self._ended(event, now)
            case m.Sampled():
                sample = granted_use(event.sample, self.book)
                self._memory_use.sampled(sample, now)
                return self._autoscaler.sampled(sample, now) if self._autoscales and self._leads else []
            case m.Tick():
                return self._tick(now, proposes=event.proposes)
            case _:
                self._cluster.apply(event, now)
        return []

    # --- proposing --------------------------------------------------------------------------------------------

    def _tick(self, now: float, *, proposes: bool) -> list[m.Command]:
        self._leads = proposes
        self.protection.tick(now)
        self._memory_use.tick(now)
        for late in [one for one in self.executions.values() if one.since + one.plan.deadline_s + LOST_S <= now]:
            self._ended(m.Ended(late.plan.plan_id, executed=False), now)  # placement's event about its end was lost
        self._cluster.mark_victims(self.executions.ending(), now)
        self.pending.tick(now)
        out = list[m.Command]()
        if proposes:  # otherwise what is under way is the next leader's: placement names it to whatever that proposes
            out += [self._execute(one, now) for one in self.executions.values() if one.may_ask(now)]
            out += self._propose_again(now)
        planned, self._now = self.executions.planned(now), now
        self.ready = self._candidates.tick(now)
        groups = self.pending.due(planned, now) if self.ready and proposes and self._plans_left() > 0 else []
        if groups:
            out += self._propose_all(groups, now)
        if self.ready and proposes and self.config.turns and self.turns.is_due(now):
            out += self._propose_turns(now)
        if proposes and self._listed:
            out += [*self._incomplete_gangs.due(now), *self._driver_upgrades.due(now)]
        return [*out, *self.consolidation.ask(planned, now)] if proposes else out

    def _propose_all(self, groups: list[list[PodState]], now: float) -> list[m.Command]:
        planner, out = self._planner(now), list[m.Command]()
        checked = 0
        ranked = sorted(groups, key=self._preemption_policy.queue_rank)  # of equal standing they stay in their order
        before, self._cut = self._cut, {}
        in_turns = self._in_turns(ranked, before)
        for members in in_turns:
            if self._plans_left() <= 0:
                break
            if checked >= MAX_NODES_CHECKED:
                left = {members[0].uid, *(others[0].uid for others in in_turns)}
                self._cut = dict.fromkeys([*(uid for uid in before if uid in left), *sorted(left)])
                break
            checked += len(self.book.nodes) + NODES_PER_MEMBER * len(members)
            out += self._propose(members, planner, now)
        return out

    @staticmethod
    def _in_turns(ranked: list[list[PodState]], cut: Iterable[str]) -> Iterator[list[PodState]]:
        """The first in rank, and the one that no time was left for since the longest, in turns: groups that are planned
        again and again in vain keep no other from being planned for."""
        by_uid = {members[0].uid: members for members in ranked}
        left = [by_uid[uid] for uid in cut if uid in by_uid]
        seen: set[str] = set()
        for members in (one for pair in zip_longest(ranked, left) for one in pair if one is not None):
            if members[0].uid not in seen:
                seen.add(members[0].uid)
                yield members

    def _plans_left(self) -> int:
        """Returns how many plans may be proposed now. What was begun is finished first where answers are late."""
        negotiated = sum(1 for one in self.executions.values() if one.negotiated)
        return min(self.config.max_plans - len(self.executions), self._window.limit - negotiated)

    def _propose_again(self, now: float) -> list[m.Command]:
        """Asks placement again about the plans that it has not answered.

        A plan made anew would cost the planning once more, and placement may have reserved the first one.
        """
        due = [
            one
            for one in self.executions.values()
            if one.propose_again_at is not None and one.propose_again_at <= now and not one.executing
        ]
        out: list[m.Command] = []
        for one in due:
            if now - one.since > MAX_PROPOSED_S:
                del self.executions[one.plan.plan_id]
                self.turns.plan_ended(one.plan, now, refused=True)
                self._retry(one, now, excluded=False)
                continue
            one.proposed_at, one.propose_again_at = now, None
            out.append(m.ProposeAgain(one.plan))
        return out

    def _propose_turns(self, now: float) -> list[m.Command]:
        """Proposes turns among pods of equal priority. Ordinary preemption comes first."""
        under_way = UnderWay(
            busy=self.executions.busy(now) | self.pending.nodes_with_expected_capacity(now),
            planned=self.executions.planned(now),
            promised=self.executions.promised(),
            parking=[v.uid for one in self.executions.values() for v in one.plan.victims if v.action == "checkpoint"],
        )
        out: list[m.Command] = []
        for proposal in self.turns.proposals(under_way, self._plans_left(), now):
            plan = self._in_time(turn_plan(self._new_id(), proposal, deadline_s=self.config.deadline_s))
            self.executions.begin(plan, now)
            out.append(m.Propose(plan, PreemptionProposed(plan=plan)))
        return out

    def _planner(self, now: float) -> Planner:
        """Returns a planner that takes the plans in progress into account.

        What they reserve is left to them, or nothing else is planned on their nodes (`PlanExecution.beside`); and
        budgets count those of their victims whose eviction the API server has not counted yet.
        """
        self._now = now
        self._cluster.mark_victims(self.executions.ending(), now)
        self._cluster.queues.look_around()
        self._preemption_policy.begin()
        self._preemption_policy.note_leaving(self.executions.promised())
        beside = {id_: kept for id_, one in self.executions.items() if (kept := one.beside(self.book)) is not None}
        self._opening.begin((one for id_, one in self.executions.items() if id_ not in beside), now)
        ending = {v.uid for id_ in beside for v in self.executions[id_].plan.victims}
        return Planner(
            self.book,
            self._candidates.begin(now, self.executions.promised(), ending),
            Areas(self.book, self.gangs),
            self.executions.busy(now, but=beside) | self.pending.nodes_with_expected_capacity(now),
            list(beside.values()),
        )

    def _propose(self, members: list[PodState], planner: Planner, now: float) -> list[m.Command]:
        options = planner.plan(
            members,
            self.pending.excluded_for(members),
            should_wait=lambda ending: self.pending.should_wait_for(ending, members, self.config.leaving_s, now),
        )
        if options is None and (
            planner.exhausted or self._candidates.partial
        ):  # there may be an option on a node that was not examined
            self.pending.retry([state.uid for state in members], planner.exhausted, now)
            return []
        if options is None:
            self.pending.note_no_option(members, now, soon=self._opening.may_be_open_soon(members, now))
            self.consolidation.note_no_option(members)
            return []
        if planner.pending_releases or not any(option.victims for option in options):
            nodes = {option.node for option in options}
            unused = self.pending.unused_nodes(
                members, {node for node in nodes if not self._candidates.leaving(self.book.nodes[node])}, now
            )
            if unused:
                self.pending.retry([state.uid for state in members], unused, now)
            else:
                self.pending.expect_capacity(members, nodes, now)
            return []
        if self._must_wait(members, options, now):
            self.pending.note_no_option(members, now)
            return []
        plan = self._plan(members, options, planner)
        self.executions.begin(plan, now)
        self._cluster.mark_victims(self.executions.ending(), now)
        self._preemption_policy.note_leaving(self.executions.promised())
        self._opening.add(plan)
        return [m.Propose(plan, PreemptionProposed(plan=plan, alternatives=planner.alternatives))]

    def _advised(self, event: m.Advised, now: float) -> list[m.Command]:
        """Proposes the migrations that placement advises, if they are allowed now.

        Otherwise placement is asked again.
        """
        option = self.consolidation.option_from(
            event.advice, self.executions.planned(now), self.executions.promised(), now
        )
        if (
            option is None
            or not self._leads
            or not all(state.uid in self.pending for state in option.members)
            or self.executions.busy(now) & set(option.nodes)
        ):
            return []
        if self._plans_left() <= 0 or self.consolidation.must_wait(
            option, self.pending.waited_s(option.members, now), now
        ):
            return []
        plan = self.consolidation.plan(option, self._new_id(), now)
        self.executions.begin(plan, now)
        return [m.Propose(plan, PreemptionProposed(plan=plan))]

    def _must_wait(self, members: list[PodState], options: list[Option], now: float) -> bool:
        """Whether the beneficiaries have to wait before they reclaim what other queues borrow by weight.

        They wait, in GPU-seconds, for `reclaim_patience` times what preemption would have destroyed at the beginning of
        their wait. Guarantees are reclaimed at once.
        """
        victims = [
            self.book.pods[victim.uid] for option in options for victim in option.victims if victim.action == "evict"
        ]
        if not self._preemption_policy.is_only_by_fair_share(members, victims):
            return False
        waited_s = self.pending.waited_s(members, now)
        began_gpu_ms = sum(price_of(victim, self.book, now - waited_s).price_gpu_ms for victim in victims)
        return waited_s * self._preemption_policy.asked_milli(members) < self.config.reclaim_patience * began_gpu_ms

    def _plan(self, members: list[PodState], options: list[Option], planner: Planner) -> Plan:
        elsewhere, deadline_s = planner.migration_targets(options), self.config.deadline_s
        return self._in_time(build_plan(self._new_id(), members, options, elsewhere, self.book, deadline_s=deadline_s))

    def _in_time(self, plan: Plan) -> Plan:
        """Placement gives a plan up at its deadline, and resumes what is in the middle of its copy."""
        return msgspec.structs.replace(plan, deadline_s=self._copies.within_s(plan))

    def dry_run(self, namespace: str, name: str, now: float) -> PreemptAnswer:
        return self._dry_run.dry_run(namespace, name, now)

    def dry_run_of(self, given: Any, now: float) -> PreemptAnswer:
        """The same for a manifest."""
        return self._dry_run.dry_run_of(given, now)

    def _ready_planner(self, now: float) -> Planner | None:
        self._now = now
        return self._planner(now) if self._candidates.tick(now) else None

    # --- executing --------------------------------------------------------------------------------------------

    def _answered(self, event: m.Answered, now: float) -> list[m.Command]:
        found = self.executions.get(event.answer.plan_id)
        if found is None or found.executing:
            return []
        if event.answer.again:
            self._window.unanswered()
            found.propose_again_at = now + PROPOSE_AGAIN_S
            return []
        self._window.answered(now - found.proposed_at)
        under_way = event.answer.under_way
        if under_way is not None:
            # Reserved for an earlier instance, or for this one in an answer that was lost. This instance executes it.
            del self.executions[found.plan.plan_id]
            found = self.executions.begin(under_way, now)
        elif not event.answer.ok:
            del self.executions[found.plan.plan_id]
            until = now + max(self.config.protection_s, CANNOT_SUSPEND_S)
            cannot = [v for v in found.plan.victims if v.uid in event.answer.cannot_suspend]
            self._candidates.note_suspension_failed(cannot, until)
            self.turns.plan_ended(found.plan, now, refused=True)
            self.turns.cannot_move(event.answer.cannot_move)
            self._retry(found, now, excluded=bool(event.answer.reason))
            return []
        found.plan, found.places = event.answer.plan or found.plan, event.answer.places
        found.begin(self.book)
        return [self._execute(found, now)] if found.victims_left and self._leads else []

    def _execute(self, found: PlanExecution, now: float) -> m.Execute:
        """Requests the evictions that are due.

        Repeating one is harmless, because its precondition names the pod's uid.
        """
        found.requested_at, found.asking, turn = now, True, found.next_victims()
        for victim in turn:
            state = self.book.pods.get(victim.uid)
            # One that ends already was counted when it was seen to: by an earlier request, or an earlier instance's.
            if state is not None and state.pod.metadata.deletion_timestamp is None:
                self.protection.eviction_requested(state, now)
        return m.Execute(
            found.plan.plan_id,
            tuple(
                Evict(
                    uid=victim.uid,
                    namespace=victim.namespace,
                    name=victim.name,
                    reason=event_texts.eviction_reason(victim, found.plan, self.book, self._preemption_policy),
                )
                for victim in turn
            ),
        )

    def _evicted(self, event: m.Evicted, now: float) -> list[m.Command]:
        """Handles the outcome of evictions.

        The API server accepted all but those that `answers` names otherwise.
        """
        found = self.executions.get(event.plan_id)
        if found is None:
            return []
        if any(answer.outcome == "unknown" for answer in event.answers):
            self._window.unanswered()
        elif found.asking:
            self._window.answered(now - found.requested_at)
        found.asking = False
        # Of a pod that is gone any answer is about the next one of its name, such as a StatefulSet's.
        failed = {
            answer.uid: answer
            for answer in event.answers
            if answer.outcome not in ("done", "gone") and answer.uid in self.book.pods
        }
        done = found.victims_left & set(event.asked) - failed.keys()
        for uid in sorted(done):
            self.protection.pod_ended(uid, now)
        others = found.note_accepted(done)
        stuck = next((a for a in failed.values() if a.outcome in ("throttled", "refused", "conflict")), None)
        if not self._leads:
            return []
        if stuck is None:
            return [self._execute(found, now)] if others else []
        # A budget denies the eviction, or the pod may not be evicted: the plan is cancelled and another one is made.
        del self.executions[event.plan_id]
        self._retry(found, now, excluded=True)
        return [m.CancelPlan(event.plan_id, f"a victim cannot be evicted: {stuck.message or stuck.outcome}")]

    def _ended(self, event: m.Ended, now: float) -> None:
        found = self.executions.pop(event.plan_id, None)
        if found is not None:
            self.turns.plan_ended(found.plan, now, refused=not event.executed)
        if found is not None and event.executed:
            self.executions.settle(found.plan, now)
        elif found is not None:
            again_s = max(self.config.protection_s, CANNOT_SUSPEND_S if found.plan.turn else 0)
            failed = [v for v in found.plan.victims if v.uid in event.failed]
            self._candidates.note_suspension_failed(failed, now + again_s)
            self._retry(found, now, excluded=False)

    def _retry(self, failed: PlanExecution, now: float, *, excluded: bool) -> None:
        plan = failed.plan
        self.consolidation.failed(plan, now, disturbed=failed.executing)
        uids = [b.uid for b in plan.beneficiaries]
        self.pending.note_cancelled_victims(uids, [victim.uid for victim in plan.victims if victim.action in ENDS])
        self.pending.retry(uids, {b.node for b in plan.beneficiaries} if excluded else (), now)
