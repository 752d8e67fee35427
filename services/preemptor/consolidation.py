"""Moves among equals: whom placement is asked for advice about, and which advice becomes a plan. Pure.

Where nobody gives way to those who wait, others may stand in their way who could as well be elsewhere. Placement knows where:
its advice was tried against every filter. It is carried out as far as the operator lets moves disturb running work
(`defragmentation_gpu_seconds_per_hour`), and as a plan like any other. One question at a time, and not one after the other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence

import msgspec

from services.preemptor import messages as m
from services.preemptor.config import Config
from services.preemptor.pending_pods import AGAIN_S
from services.preemptor.plan_builder import build_plan_for, victim_of
from services.preemptor.protection import Protection
from shared.book.book import Book
from shared.book.disruption_cost import disruptions_fit, price_of, why_not
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.explain import Advice, Move
from shared.contracts.preemption import Plan
from shared.queues.amounts import ask_of

ASK_EVERY_S = 2.0
FAILED_S = 60.0
"""Those for whom a plan came to nothing are not asked about again for so long: the same advice would come."""
_HOUR_S = 3600.0


class Option(msgspec.Struct, frozen=True):
    """What an advice comes to on the preemptor's own book."""

    members: tuple[PodState, ...]
    nodes: tuple[str, ...]
    """Of the members, in their order."""
    movers: tuple[PodState, ...]
    to: tuple[str, ...]


class Consolidation:
    def __init__(self, config: Config, book: Book, gangs: Gangs, protection: Protection) -> None:
        self._config, self._book, self._gangs, self._protection = config, book, gangs, protection
        self._wanted: dict[str, float] = {}
        """By uid of the first of those for whom there was no way: when placement was last asked about them."""
        self._not_before: dict[str, float] = {}
        """By uid of those for whom a plan failed."""
        self._asking = False
        self._asked_at = -ASK_EVERY_S
        self._spent: deque[tuple[float, str, int]] = deque()
        """In the last hour: when, by which plan, and how much, in GPU milliseconds."""

    def no_option(self, members: Sequence[PodState]) -> None:
        """Nobody gives way to these."""
        if self._config.defragmentation_gpu_seconds_per_hour:
            self._wanted.setdefault(members[0].uid, -AGAIN_S)

    def ask(self, planned: Collection[str], now: float) -> list[m.Command]:
        """The next question, if it is time for one: about whom none was asked for longest, the most important of them. `planned`: uids of those for whom a plan is under way."""
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
        return [m.AskAdvice(meta.namespace, meta.name, left_gpu_s, *self._left_alone(now))]

    def advised(
        self, advice: Advice | None, planned: Collection[str], promised: Collection[str], now: float
    ) -> Option | None:
        """What to do by an advice; None where there is nothing to do, or not now. `promised`: uids of who gives way by plans under
        way."""
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
        movers = [self._mover(move, lowest, promised, now) for move in advice.moves]
        going = [state for state in movers if state is not None]
        also = [self._book.pods[uid] for uid in promised if uid in self._book.pods]
        if (
            len(going) < len(movers)
            or not disruptions_fit([*also, *going], self._book)
            or not self._within_hourly(going, promised, now)
        ):
            return None
        option = Option(
            tuple(waiting),
            tuple(place.node for place in advice.places),
            tuple(going),
            tuple(move.target for move in advice.moves),
        )
        return option if self.price_gpu_ms(option, now) <= self.left_gpu_ms(now) else None

    def must_wait(self, option: Option, waited_s: float, now: float) -> bool:
        """Whether the members have not yet waited, in GPU-seconds, for as much as the moves would have disturbed when their wait
        began: as long as a queue waits for what is due to it."""
        largest_mib = int(self._book.arrays.gpu_total_mib.max(initial=0))
        asked_milli = sum(ask_of(state, largest_mib).gpu_milli for state in option.members)
        return waited_s * asked_milli < self._config.reclaim_patience * self.price_gpu_ms(option, now - waited_s)

    def plan(self, option: Option, plan_id: str, now: float) -> Plan:
        """The plan of this way. From now on what it disturbs counts."""
        victims = tuple(
            victim_of(state, "move", price_of(state, self._book, now).price_gpu_ms, to=to)
            for state, to in zip(option.movers, option.to, strict=True)
        )
        self._spent.append((now, plan_id, self.price_gpu_ms(option, now)))
        return build_plan_for(
            plan_id, option.members, option.nodes, victims, deadline_s=self._config.deadline_s, consolidates=True
        )

    def failed(self, plan: Plan, now: float, *, disturbed: bool) -> None:
        """It came to nothing. `disturbed`: some may have moved for it."""
        if plan.consolidates:
            self._not_before |= {beneficiary.uid: now + FAILED_S for beneficiary in plan.beneficiaries}
            if not disturbed:
                self._spent = deque(spent for spent in self._spent if spent[1] != plan.plan_id)

    def price_gpu_ms(self, option: Option, now: float) -> int:
        """What the moves disturb."""
        return sum(price_of(state, self._book, now).price_gpu_ms for state in option.movers)

    def left_gpu_ms(self, now: float) -> int:
        """What moves may disturb until an hour after the first of them."""
        while self._spent and self._spent[0][0] <= now - _HOUR_S:
            self._spent.popleft()
        return self._config.defragmentation_gpu_seconds_per_hour * 1000 - sum(gpu_ms for _, _, gpu_ms in self._spent)

    def _mover(self, move: Move, lowest: int, promised: Collection[str], now: float) -> PodState | None:
        """None where it is not as placement saw it, or must not be asked now. Of a gang placement has counted who may go together."""
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
            if why_not(state, self._book, now, priority=lowest, spare=spare) or self._protection.spared(state, now)
            else state
        )

    def _left_alone(self, now: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Pods, and namespaces of whose pods nobody is asked."""
        pods = tuple(
            uid for uid, state in self._book.pods.items() if state.grant_id and self._protection.immune(state, now)
        )
        namespaces = {state.pod.metadata.namespace for state in self._book.pods.values() if state.grant_id}
        return pods, tuple(sorted(namespace for namespace in namespaces if self._protection.left(namespace, now) == 0))

    def _within_hourly(self, movers: Sequence[PodState], promised: Collection[str], now: float) -> bool:
        """Whether their namespaces may give so many, beside those that are promised."""
        pods = [*movers, *(self._book.pods[uid] for uid in promised if uid in self._book.pods)]
        counts = Counter(state.pod.metadata.namespace for state in pods)
        left = {
            state.pod.metadata.namespace: self._protection.left(state.pod.metadata.namespace, now) for state in movers
        }
        return all(most is None or counts[namespace] <= most for namespace, most in left.items())

    def _by_name(self, namespace: str, name: str) -> PodState | None:
        return self._book.pods.get(self._book.uid_by_key.get(f"{namespace}/{name}", ""))
