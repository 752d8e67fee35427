"""Checks plans that end turns, and what resuming beneficiaries get back.

A beneficiary of such a plan is pending, or it is suspended on its node and gets back all that it gave up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from msgspec.structs import replace

from services.placement.protocol.suspension import Suspender
from services.placement.protocol.unix_time import UnixTime
from shared.book.book import Book
from shared.book.demand import Demand
from shared.book.states import GrantState, PodState
from shared.contracts.preemption import Beneficiary, HeldPlace, Plan
from shared.model.grant import ContainerGrant, GpuShare, Grant, sum_shares
from shared.model.moves import on_gpus
from shared.queues.turns import TurnPolicy, is_waiting
from shared.scheduling.transaction import Transaction


class Turns:
    def __init__(self, book: Book, policy: TurnPolicy, suspender: Suspender, clock: UnixTime) -> None:
        self._book, self._policy, self._suspender, self._clock = book, policy, suspender, clock
        self.begin()

    def begin(self) -> None:
        """Before the questions about a plan, during which the book does not change."""
        self._loads = cache(self._policy.watchdog_loads)

    def refuses(self, plan: Plan, waiting: Sequence[PodState], going: Sequence[PodState], now: float) -> str:
        """Returns why these turns do not end for the beneficiaries; empty if they do."""
        actions = {victim.uid: victim.action for victim in plan.victims}
        return self._policy.refuses(
            waiting, going, actions, self._clock.at(now), self._loads
        ) or self._policy.quota_exceeded(waiting, going, actions)

    def why_not_resumed(self, plan: Plan, states: Sequence[PodState | None]) -> str:
        """Returns why the suspended beneficiaries of a plan cannot resume by it; empty if they can, or if none is."""
        if not any(b.resumes for b in plan.beneficiaries):
            return ""
        if not plan.turn or not all(b.resumes for b in plan.beneficiaries):
            return "suspended pods resume by a plan in their turn, and not together with pending pods"
        for beneficiary, state in zip(plan.beneficiaries, states, strict=True):
            if state is None or not self._suspender.can_resume(state) or not is_waiting(state):
                return f"{beneficiary.namespace}/{beneficiary.name} is not suspended"
            if state.charged != beneficiary.node:
                return f"{state.key} is suspended on {state.charged}, and not on {beneficiary.node}"
            if beneficiary.gpus and (why := self._suspender.moves.why_not(state, beneficiary.gpus)):
                return why
            if state.suspension is not None and state.suspension.plan_id in self._suspender.open_plans:
                return f"{state.key} is suspended for plan {state.suspension.plan_id}, which is still in progress"
        first = next(state for state in states if state is not None)
        resume = {b.uid for b in plan.beneficiaries}
        for member in self._policy.members(first):
            if is_waiting(member) and member.uid not in resume:
                return f"the gang of {first.key} resumes as a whole, and {member.key} is no beneficiary"
        return "" if all(any(m.uid == uid for m in self._policy.members(first)) for uid in resume) else _SEVERAL

    @staticmethod
    def resume_on(trial: Transaction, beneficiary: Beneficiary) -> HeldPlace | None:
        """Gives a suspended pod of the trial's book all that it was granted; returns what that is beyond what it kept,
        None if it does not fit."""
        held = trial.book.grants.get(trial.book.pods[beneficiary.uid].grant_id)
        if held is None:
            return None
        given_up = on_gpus(held.given, beneficiary.gpus) if beneficiary.gpus else _given_up(held)
        for (name, uuid), (mib, milli) in sum_shares((given_up,)).items():  # two containers may have one GPU
            node = trial.book.nodes.get(name)
            room = None if node is None else node.by_uuid.get(uuid)
            if room is None or 0 < mib > room.free_mib or 0 < milli > room.free_milli:
                return None
        if beneficiary.gpus:
            trial.move(held.grant_id, given_up)
        else:
            trial.suspend(held.grant_id, None)
        return HeldPlace(node=beneficiary.node, grant=given_up)

    @staticmethod
    def placeholder(state: PodState, uid: str) -> PodState:
        """Its placeholder for what it gets back: it has its CPU and memory."""
        made = state.placeholder(uid)
        made.demand = Demand()
        return made

    def still_suspended(self, plan: Plan) -> list[PodState]:
        """Returns the resuming beneficiaries whose annotation is not gone yet."""
        states = [self._book.pods.get(b.uid) for b in plan.beneficiaries if b.resumes]
        return [state for state in states if state is not None and state.suspension is not None]

    def can_resume(self, plan: Plan) -> bool:
        """Whether the node of each of them has told this leader what it gave up, or it resumes already."""
        return all(self._suspender.can_resume(s) or self._suspender.returns(s) for s in self.still_suspended(plan))


_SEVERAL = "several beneficiaries must be members of one gang"


def _given_up(held: GrantState) -> Grant:
    """What a suspended pod was granted, less what it has."""
    return replace(
        held.given,
        containers={name: _less(part, held.grant.containers[name]) for name, part in held.given.containers.items()},
    )


def _less(given: ContainerGrant, has: ContainerGrant) -> ContainerGrant:
    return replace(
        given, gpus=tuple(_less_share(share, kept) for share, kept in zip(given.gpus, has.gpus, strict=True))
    )


def _less_share(given: GpuShare, kept: GpuShare) -> GpuShare:
    return replace(
        given,
        memory_mib=given.memory_mib - kept.memory_mib,
        compute_milli=given.compute_milli - kept.compute_milli,
        memory_limit_mib=0,
        compute_limit_milli=0,
    )
