"""Answers `kerf preempt --dry-run`: what would be proposed for a pod now. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from services.preemptor.pending_pods import PendingPods
from services.preemptor.planning.planner import Option, Planner
from services.preemptor.plans.execution import PlanExecution
from shared.book.book import Book
from shared.book.gangs import Gangs, GangState
from shared.book.manifests import NoManifest, read_pod
from shared.book.states import PodState
from shared.contracts.plan_texts import describe_price
from shared.contracts.preemption import Plan, PreemptAnswer

PlannerAt = Callable[[float], Planner | None]
"""Returns a planner for the current state; None if not all nodes have been examined yet."""
PlanOf = Callable[[list[PodState], list[Option], Planner], Plan]


class DryRun:
    def __init__(
        self,
        book: Book,
        gangs: Gangs,
        pending: PendingPods,
        under_way: Mapping[str, PlanExecution],
        *,
        planner: PlannerAt,
        plan: PlanOf,
        ineligible: Callable[[list[PodState]], tuple[str, ...]],
    ) -> None:
        """`under_way`: plans in progress by id.

        `ineligible`: returns why no pod is preempted for these, with counts.
        """
        self._book, self._gangs, self._pending, self._under_way = book, gangs, pending, under_way
        self._planner, self._plan, self._ineligible = planner, plan, ineligible

    def dry_run(self, namespace: str, name: str, now: float) -> PreemptAnswer:
        """Returns the plan for this pod or its gang, or a sentence that says why there is none."""
        state = self._book.pods.get(self._book.uid_by_key.get(f"{namespace}/{name}", ""))
        if state is None or not state.ours:
            return PreemptAnswer(
                error=f"Kerf schedules no pod {namespace}/{name}; check the name and the namespace (-n)"
            )
        return self._as_ungated(state, now)

    def dry_run_of(self, given: Any, now: float) -> PreemptAnswer:
        """The same for a manifest of a pod that need not exist."""
        try:
            state = read_pod(given)
        except NoManifest as error:
            return PreemptAnswer(error=str(error))
        spec = state.pod.spec
        if not state.ours:
            return PreemptAnswer(error=f"Kerf does not schedule such a pod: its schedulerName is {spec.scheduler_name}")
        if spec.priority_class_name and not spec.priority:
            return PreemptAnswer(
                error=f"what priority the class {spec.priority_class_name} stands for is known to the API server: give "
                "what `kubectl create --dry-run=server -o yaml` prints"
            )
        return self._as_ungated(state, now)

    def _as_ungated(self, state: PodState, now: float) -> PreemptAnswer:
        gates = ", ".join(gate.name for gate in state.pod.spec.scheduling_gates)
        if gates and _ungated(state).wants_place:
            answer = self._of(_ungated(state), now)
            return msgspec.structs.replace(
                answer, sentence=f"without its scheduling gates ({gates}): {answer.sentence}"
            )
        return self._of(state, now)

    def _of(self, state: PodState, now: float) -> PreemptAnswer:
        if not state.wants_place:
            return PreemptAnswer(sentence="it is not pending")
        under_way = next(
            (one.plan for one in self._under_way.values() if any(b.uid == state.uid for b in one.plan.beneficiaries)),
            None,
        )
        if under_way is not None:
            return PreemptAnswer(plan=under_way, sentence=f"{describe_price(under_way)}: this plan is in progress")
        if state.refusal or not self._gangs.needs_gpus(state):
            return PreemptAnswer(sentence=state.refusal or "no pod is preempted for a pod without GPUs")
        if state.never_preempts:
            return PreemptAnswer(sentence="its preemptionPolicy is Never")
        gang = self._gangs.of(state.uid)
        members = (
            [state]
            if gang is None
            else self._pending.oldest_needed(self._members(gang, gated=state is not self._book.pods[state.uid]))
        )
        if gang is not None and not members:
            return PreemptAnswer(sentence=f"its gang {gang.name} has {gang.members} of {gang.minimum} pods")
        planner = self._planner(now)
        if planner is None:
            return PreemptAnswer(sentence="not all nodes have been examined yet; ask again in a few seconds")
        if state.uid not in self._book.pods:
            planner.add(state)
        return self._planned(members, planner)

    def _members(self, gang: GangState, *, gated: bool) -> list[PodState]:
        """Returns the pending members of a gang.

        With `gated` also those that only their scheduling gates hold back.
        """
        states = [self._book.pods[uid] for uid in (gang.known if gated else gang.waiting)]
        return (
            [_ungated(state) for state in states if not state.charged and _ungated(state).wants_place]
            if gated
            else states
        )

    def _planned(self, members: list[PodState], planner: Planner) -> PreemptAnswer:
        options, excluded = planner.plan(members), planner.exhausted
        while options is None and planner.exhausted:
            options = planner.plan(members, excluded)
            excluded |= planner.exhausted
        if options is None:
            return PreemptAnswer(
                kept=self._ineligible(members),
                sentence="preempting all eligible pods would not free enough capacity; kerf why says what would help, "
                "kerf advise which pods could be migrated",
            )
        if not any(option.victims for option in options):
            return PreemptAnswer(sentence="it fits without preemption; placement is about to place it")
        plan = self._plan(members, options, planner)
        return PreemptAnswer(plan=plan, sentence=describe_price(plan), alternatives=planner.alternatives)


def _ungated(state: PodState) -> PodState:
    """Returns the pod without its scheduling gates; the same object if it has none."""
    if not state.pod.spec.scheduling_gates:
        return state
    spec = msgspec.structs.replace(state.pod.spec, scheduling_gates=())
    return msgspec.structs.replace(state, pod=msgspec.structs.replace(state.pod, spec=spec))
