"""Migrates pods of equal priority so that a pending pod fits.

Asks placement for advice and turns it into a plan. Pure.

When no pod can be preempted for a pending pod, running pods may occupy its capacity that could run elsewhere.
Placement knows where: it has tried its advice against every filter. The preemptor executes it as a normal plan, as
far as the operator lets migrations disturb running work (`defragmentation_gpu_seconds_per_hour`). It asks one
question at a time, and at most one every `ASK_EVERY_S`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from services.preemptor import messages as m
from services.preemptor.config import Config
from services.preemptor.pending_pods import AGAIN_S
from services.preemptor.plans.builder import build_plan_for, victim_of
from services.preemptor.protection import Protection
from shared.book.book import Book
from shared.book.disruption_cost import disruptions_fit, price_of, why_not_disruptable
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.explain import Advice, Move
from shared.contracts.preemption import MIGRATIONS, Plan, Spared
from shared.queues.amounts import ask_of

ASK_EVERY_S = 2.0
FAILED_S = 60.0
"""How long after a cancelled plan its beneficiaries are not asked about again: the advice would be the same."""
HOUR_S = 3600.0


class MigrationOption(msgspec.Struct, frozen=True):
    """An advice of placement, resolved on the preemptor's own book."""

    members: tuple[PodState, ...]
    nodes: tuple[str, ...]
    """The node of each member, in the order of `members`."""
    movers: tuple[PodState, ...]
    to: tuple[str, ...]


class Consolidation:
    def __init__(self, config: Config, book: Book, gangs: Gangs, protection: Protection) -> None:
        self._config, self._book, self._gangs, self._protection = config, book, gangs, protection
        self._wanted: dict[str, float] = {}
        """By uid of the first of those for which there was no option: when placement was last asked about them."""
        self._not_before: dict[str, float] = {}
        """By uid of the beneficiaries of a failed plan: when they may be asked about again."""
        self._asking = False
        self._asked_at = -ASK_EVERY_S
        self._spent: dict[str, tuple[float, int]] = {}
        """What was disturbed in the last hour, by plan: when, and how much, in GPU milliseconds."""
        self._given_back: dict[str, float] = {}
        """Plans that have disturbed nothing after all, and since when that is known: for an hour."""
        self._is_changed = False

    def note_no_option(self, members: Sequence[PodState]) -> None:
        """Records that no pod can be preempted for these members."""
        if self._config.defragmentation_gpu_seconds_per_hour:
            self._wanted.setdefault(members[0].uid, -AGAIN_S)

    def ask(self, planned: Collection[str], now: float) -> list[m.Command]:
        """Returns the next question to placement, if one is due.

        It is about the pods that were not asked about for longest; of equals those of the highest priority. `planned`:
        uids of beneficiaries of plans in progress.
        """
        left_gpu_s = self.left_gpu_ms(now) // 1000
        if self._asking or now - self._asked_at < ASK_EVERY_S or left_gpu_s <= 0 or not self._wanted:
            return []
        self._not_before = {uid: until for uid, until in self._not_before.items() if until > now}
        self._wanted = {
            uid: asked
            for uid, asked in self._wanted.items()
            if uid in self._book.pods and self._book.pods[uid].wants_place
        }
        due = [
            uid
            for uid, asked in self._wanted.items()
            if now - asked >= AGAIN_S and uid not in planned and uid not in self._not_before
        ]
        if not due:
            return []
        state = min(
            (self._book.pods[uid] for uid in due),
            key=lambda s: (self._wanted[s.uid], -s.pod.spec.priority, s.pod.metadata.creation_timestamp, s.uid),
        )
        self._wanted[state.uid] = self._asked_at = now
        self._asking = True
        meta = state.pod.metadata
        return [m.AskAdvice(meta.namespace, meta.name, left_gpu_s, *self._exempt(now))]

    def option_from(
        self, advice: Advice | None, planned: Collection[str], promised: Collection[str], now: float
    ) -> MigrationOption | None:
        """Returns what an advice comes to; None if it proposes nothing or does not hold any more.

        `planned`: uids of beneficiaries of plans in progress. `promised`: uids of their victims.
        """
        self._asking = False
        if advice is None or not advice.moves:
            return None
        members = [self._by_name(place.namespace, place.name) for place in advice.places]
        waiting = [
            state
            for state in members
            if state is not None and state.wants_place and not state.charged and state.uid not in planned
        ]
        if not waiting or len(waiting) < len(members):
            return None
        lowest = min(state.pod.spec.priority for state in waiting)
        movers = [self._migrating_pod(move, lowest, promised, now) for move in advice.moves]
        going = [state for state in movers if state is not None]
        also = [self._book.pods[uid] for uid in promised if uid in self._book.pods]
        if (
            len(going) < len(movers)
            or not disruptions_fit([*also, *going], self._book)
            or not self._within_hourly(going, promised, now)
        ):
            return None
        option = MigrationOption(
            tuple(waiting),
            tuple(place.node for place in advice.places),
            tuple(going),
            tuple(move.target for move in advice.moves),
        )
        return option if self.price_gpu_ms(option, now) <= self.left_gpu_ms(now) else None

    def must_wait(self, option: MigrationOption, waited_s: float, now: float) -> bool:
        """Whether the members have not yet waited long enough for the migrations.

        They wait, in GPU-seconds, for `reclaim_patience` times what the migrations would have disturbed when the wait
        began: as long as a queue waits for its fair share.
        """
        largest_mib = int(self._book.arrays.gpu_total_mib.max(initial=0))
        asked_milli = sum(ask_of(state, largest_mib).gpu_milli for state in option.members)
        return waited_s * asked_milli < self._config.reclaim_patience * self.price_gpu_ms(option, now - waited_s)

    def plan(self, option: MigrationOption, plan_id: str, now: float) -> Plan:
        """Returns the plan of an option. What it disturbs counts against the hourly limit from now on."""
        victims = tuple(
            victim_of(state, "move", price_of(state, self._book, now).price_gpu_ms, to=to)
            for state, to in zip(option.movers, option.to, strict=True)
        )
        self._spent[plan_id] = (now, self.price_gpu_ms(option, now))
        self._is_changed = True
        return build_plan_for(
            plan_id, option.members, option.nodes, victims, deadline_s=self._config.deadline_s, consolidates=True
        )

    def failed(self, plan: Plan, now: float, *, disturbed: bool) -> None:
        """Records that a plan was cancelled. `disturbed`: some pods may have been evicted for it."""
        if plan.consolidates:
            self._not_before |= {beneficiary.uid: now + FAILED_S for beneficiary in plan.beneficiaries}
            if not disturbed and self._spent.pop(plan.plan_id, None) is not None:
                self._given_back[plan.plan_id] = now
                self._is_changed = True

    def price_gpu_ms(self, option: MigrationOption, now: float) -> int:
        """Returns what the migrations disturb, in GPU milliseconds."""
        return sum(price_of(state, self._book, now).price_gpu_ms for state in option.movers)

    def left_gpu_ms(self, now: float) -> int:
        """Returns what is left of the hourly limit for migrations, in GPU milliseconds."""
        self._spent = {plan: spent for plan, spent in self._spent.items() if spent[0] > now - HOUR_S}
        self._given_back = {plan: at for plan, at in self._given_back.items() if at > now - HOUR_S}
        return self._config.defragmentation_gpu_seconds_per_hour * 1000 - sum(
            gpu_ms for _, gpu_ms in self._spent.values()
        )

    def restore(self, record: Spared, *, leads: bool) -> None:
        """Takes over what another instance, or this one before, has written. An instance that leads knows better what
        became of its own plans, whatever older record comes back to it."""
        if leads:
            others = {plan: spent for plan, spent in record.disturbed.items() if plan not in self._given_back}
            self._spent = others | self._spent
        else:
            self._spent = dict(record.disturbed)

    def take_changed(self, now: float) -> Spared | None:
        """Returns what is to be persisted for `HOUR_S`, if that has changed since the last call."""
        if not self._is_changed:
            return None
        self._is_changed = False
        self.left_gpu_ms(now)
        return Spared(owner=MIGRATIONS, namespace="", disturbed=dict(self._spent))

    def _migrating_pod(self, move: Move, lowest: int, promised: Collection[str], now: float) -> PodState | None:
        """Returns the pod to migrate.

        None if it has changed since placement saw it, or may not be evicted now.

        For gangs, placement has counted how many members may leave together.
        """
        state = self._by_name(move.namespace, move.name)
        if (
            state is None
            or state.charged != move.source
            or not state.grant_id
            or not state.controller_uid
            or state.uid in promised
        ):
            return None
        spare = self._gangs.can_spare(state.uid, promised)
        return (
            None
            if why_not_disruptable(state, self._book, now, priority=lowest, spare=spare)
            or self._protection.is_exempt(state, now)
            else state
        )

    def _exempt(self, now: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the uids of protected pods, and the namespaces whose hourly budget is spent."""
        pods = tuple(
            uid
            for uid, state in self._book.pods.items()
            if state.grant_id and self._protection.is_protected(state, now)
        )
        namespaces = {state.pod.metadata.namespace for state in self._book.pods.values() if state.grant_id}
        return pods, tuple(
            sorted(namespace for namespace in namespaces if self._protection.evictions_left(namespace, now) == 0)
        )

    def _within_hourly(self, movers: Sequence[PodState], promised: Collection[str], now: float) -> bool:
        """Whether the namespaces' hourly budgets allow these evictions in addition to those that are promised."""
        pods = [*movers, *(self._book.pods[uid] for uid in promised if uid in self._book.pods)]
        counts = Counter(state.pod.metadata.namespace for state in pods)
        left = {
            state.pod.metadata.namespace: self._protection.evictions_left(state.pod.metadata.namespace, now)
            for state in movers
        }
        return all(most is None or counts[namespace] <= most for namespace, most in left.items())

    def _by_name(self, namespace: str, name: str) -> PodState | None:
        return self._book.pods.get(self._book.uid_by_key.get(f"{namespace}/{name}", ""))
