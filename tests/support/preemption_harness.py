"""Runs placement and the preemptor in one loop with a simulated clock.

A simulated API server keeps disruption budgets, and nodes take a while to release grants. Safety properties are
asserted where they could be violated.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions
from services.preemptor import messages as pm
from services.preemptor.config import Config
from services.preemptor.core import Core as Preemptor
from shared.contracts.commands import Answer, Evict, SuspendPod
from shared.contracts.events import PreemptionAbandoned, PreemptionExecuted, PreemptionReserved
from shared.contracts.facts import Gone, Put
from shared.contracts.preemption import Plan, Spared
from shared.model import names
from shared.model.affinity import LabelSelector
from shared.model.grant import Grant, decode_grant
from shared.model.kube_object import Meta, OwnerReference
from shared.model.objects import DisruptionBudgetSpec, DisruptionBudgetStatus, Pod, PodDisruptionBudget, PodStatus
from shared.model.suspension import decode_suspension
from tests.support import build
from tests.support.sliced_nodes import TEAM, SlicedNodes
from tests.support.terminations import Terminations, is_terminating

EPOCH_S = 1_800_000_000.0
STEP_S = 0.5
SAMPLED_S = 10.0
"""The interval of the nodes' usage samples."""
BUDGET = "budget"
RACK = "topology.kubernetes.io/rack"


class PreemptionHarness(SlicedNodes):
    """A simulated cluster with both cores.

    `least`: by budget label, the minimum of available pods. `gives_back_s`: how long after a pod's end its node
    releases the grant. `racks`: by node, the value of its label RACK. The budgets' statuses reach Kerf with the next
    step, because the API server's are late too.
    """

    def __init__(
        self,
        nodes: Mapping[str, int],
        *,
        gives_back_s: float = 3.0,
        least: Mapping[str, int] | None = None,
        protection_s: float = 60.0,
        queues: str | None = None,
        racks: Mapping[str, str] | None = None,
        **preemptor: Any,
    ) -> None:
        self.ends_at: dict[str, float] = {}
        self.suspensions: list[tuple[float, str, str]] = []
        """(when, name, action); the action is empty when the pod resumes"""
        self.plans: dict[str, Plan] = {}
        self.outcome: dict[str, str] = {}
        """By id of the plans that placement has reserved."""
        self.spared: dict[str, Spared] = {}
        """The protection records by owner, as the bus keeps them."""
        self.evictions: list[tuple[float, str, str]] = []
        """(when, name, plan)"""
        self.terminations = Terminations()
        self.labels: dict[str, str] = {}
        """The budget label by pod name."""
        self.bound_at: dict[str, list[float]] = defaultdict(list)
        """By pod name, when each pod of that name was bound."""
        self.refused_by_budget = 0
        self._least, self.gives_back_s = dict(least or {}), gives_back_s
        self._post: deque[m.Input | pm.Input] = deque()
        self._delivering = False
        self._given_back: list[tuple[float, m.ReleaseSeen]] = []
        self._numbers = itertools.count(1)
        self.preemptor = Preemptor(
            Config(protection_s=protection_s, **preemptor), lambda: f"plan-{next(self._numbers)}"
        )
        super().__init__(max_holds=1_000)
        for name, gpus in nodes.items():
            self.nodes(name, gpus=gpus, strategies=("exclusive", "advisory", "interposer"))
            if racks is not None:
                self.facts(build.node(name, labels={RACK: racks[name]}))
        self._nodes = tuple(nodes)
        if queues is not None:
            self.facts(build.queues(queues))

    # --- the cluster --------------------------------------------------------------------------------------------

    def arrive(
        self,
        name: str,
        *,
        priority: int,
        gpus: int = 1,
        gang: str = "",
        size: int = 1,
        least: int = 0,
        runs_s: float = 1e9,
        label: str = "",
        queue: str = "",
        slice_: tuple[int, int] | None = None,
        uses_percent: int = 0,
        one_rack: bool = False,
        grace_s: int = 0,
        ends_after_s: float | None = None,
    ) -> None:
        """Creates a pending pod. When it is evicted, its controller replaces it under the same name.

        `runs_s`: run time after its Binding. `one_rack`: its gang must be in one rack. `slice_`: GiB and percent of one
        GPU, enforced, instead of whole GPUs; it allocates `uses_percent` of the memory. `ends_after_s`: time from its
        deletion to its end; by default its grace period.
        """
        if uses_percent:
            self.uses_percent[name] = uses_percent
        notes = {"kerf.dev/gang": gang, "kerf.dev/gang-size": str(size)} if gang else {}
        notes |= {names.ANNOTATION_GANG_MIN: str(least)} if gang and least else {}
        notes |= {names.ANNOTATION_GANG_TOPOLOGY: f"required={RACK}"} if gang and one_rack else {}
        asks: dict[str, Any] = {"gpus": gpus}
        if slice_ is not None:
            asks = {"memory": f"{slice_[0]}Gi", "compute": slice_[1]}
            notes |= {names.ANNOTATION_ISOLATION: "firm"}
        pod = build.gpu_pod(
            name,
            **asks,
            priority=priority,
            annotations=notes,
            labels=({BUDGET: label} if label else {}) | ({names.LABEL_QUEUE: queue} if queue else {}),
            uid=f"{name}/{next(self._numbers)}",
            created=self._stamp(),
            termination_grace_period_seconds=grace_s,
        )
        owner = OwnerReference(uid=f"owner-{name}", kind="ReplicaSet", name=name, controller=True)
        pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(owner,)))
        self.ends_at[name], self.labels[name] = runs_s, label
        self.terminations.after_s[name] = grace_s if ends_after_s is None else ends_after_s
        self.appears(pod)

    def step(self, seconds: float = STEP_S) -> None:
        self.now += seconds
        for at, given in list(self._given_back):
            if at <= self.now:
                self._given_back.remove((at, given))
                self.grants.pop(given.grant_id, None)
                self.suspension.pop(given.grant_id, None)
                self.send(given)
        for uid in self.terminations.over(self.now):
            if uid in self.live:
                self._vanishes(self.live[uid])
        for pod in [
            p for p in self.live.values() if p.spec.node_name and self._ran_s(p) >= self.ends_at[p.metadata.name]
        ]:
            self._vanishes(pod)
        if round(self.now / seconds) % round(SAMPLED_S / seconds) == 0:
            for said in self.uses():
                self.ask(said)
        self.assert_memory_breakdown()
        self._say_budgets()
        self.send(m.BeatSeen(self._nodes))
        self.send(m.Tick())
        self.ask(pm.Tick())

    @property
    def wall(self) -> float:
        return EPOCH_S + self.now

    def _stamp(self) -> str:
        """Returns the current time in whole seconds, as the API server writes it."""
        return datetime.fromtimestamp(self.wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def waits(self) -> list[Pod]:
        return [pod for pod in self.live.values() if not pod.spec.node_name]

    def gangs(self) -> dict[str, list[Pod]]:
        found: dict[str, list[Pod]] = defaultdict(list)
        for pod in self.live.values():
            if gang := pod.metadata.annotations.get(names.ANNOTATION_GANG):
                found[gang].append(pod)
        return found

    def helped(self) -> list[str]:
        """Returns the pending pods for which a preemption is possible now, or which fit without one."""
        answers = {
            pod.metadata.name: self.preemptor.dry_run(TEAM, pod.metadata.name, self.wall) for pod in self.waits()
        }
        return [
            name for name, answer in answers.items() if answer.plan is not None or "it fits without" in answer.sentence
        ]

    def _ran_s(self, pod: Pod) -> float:
        return self.wall - datetime.fromisoformat(pod.status.start_time).timestamp()

    def appears(self, pod: Pod) -> None:
        self.live[pod.metadata.uid] = pod
        self.facts(pod)

    def deleted(self, pod: Pod) -> None:
        if self.terminations.at_once(pod):
            self._vanishes(pod)
        else:
            self.appears(self.terminations.begin(pod, self.now, self.wall))

    def _vanishes(self, pod: Pod) -> None:
        del self.live[pod.metadata.uid]
        self.send(m.FactsSeen((Gone(object=pod),)))

    def _allowed(self) -> dict[str, int]:
        healthy = Counter(
            pod.metadata.labels.get(BUDGET, "")
            for pod in self.live.values()
            if pod.spec.node_name and not is_terminating(pod)
        )
        return {label: max(0, healthy[label] - least) for label, least in self._least.items()}

    def _say_budgets(self) -> None:
        for label, allowed in self._allowed().items():
            meta = Meta(name=label, namespace=TEAM, uid=f"budget-{label}", resource_version=build.next_version())
            spec = DisruptionBudgetSpec(selector=LabelSelector(match_labels={BUDGET: label}))
            self.send(
                m.FactsSeen(
                    (
                        Put(
                            object=PodDisruptionBudget(
                                metadata=meta, spec=spec, status=DisruptionBudgetStatus(disruptions_allowed=allowed)
                            )
                        ),
                    )
                )
            )

    # --- both cores ---------------------------------------------------------------------------------------------

    def send(self, event: m.Input) -> list[m.Command]:
        """Queues an input: a core finishes one input before it or the other core gets the next."""
        match event:
            case m.FactsSeen():
                self.ask(pm.FactsSeen(event.facts))
            case m.InventorySeen():
                self.ask(pm.InventorySeen(event.inventory))
        self._post.append(event)
        return self._deliver()

    def ask(self, event: pm.Input) -> None:
        self._post.append(event)
        self._deliver()

    def _deliver(self) -> list[m.Command]:
        if self._delivering:
            return []
        self._delivering, said = True, []
        while self._post:
            event = self._post.popleft()
            if isinstance(event, pm.Input):
                for command in self.preemptor.handle(event, self.wall):
                    self._carry_out(command)
            else:
                said += super().send(event)
        self._delivering = False
        return said

    def _answers(self, command: m.Command) -> list[m.Input]:
        match command:
            case m.SendBinds():
                for order in command.binds:
                    self._bind(order.uid, order.node, decode_grant(order.grant) if order.grant else None)
            case m.SendRelease():
                known = {given.grant_id for _, given in self._given_back}
                if command.release.grant_id in self.grants and command.release.grant_id not in known:
                    self._given_back.append(
                        (self.now + self.gives_back_s, m.ReleaseSeen(command.node, command.release.grant_id))
                    )
            case m.SendPatches():
                for patch in command.patches:
                    if isinstance(patch, SuspendPod):
                        self._annotate(patch)
            case m.SendGrant():
                return [self.told(command.grant)]
            case m.AnswerPlan():
                self.ask(pm.Answered(command.answer))
            case m.Publish():
                self._heard(command.event)
        return super()._answers(command)

    def _heard(self, event: Any) -> None:
        match event:
            case PreemptionReserved():
                self.plans[event.plan.plan_id], self.outcome[event.plan.plan_id] = event.plan, "reserved"
            case PreemptionExecuted():
                self.outcome[event.plan.plan_id] = "executed"
            case PreemptionAbandoned():
                self.outcome[event.plan.plan_id] = f"abandoned: {event.reason}"
        heard = pm.to_input(event)
        if heard is not None:
            self.ask(heard)

    def _carry_out(self, command: pm.Command) -> None:
        match command:
            case pm.Propose():
                self.send(m.ReserveAsked(command.plan))
            case pm.Execute():
                answers = tuple(
                    answer for order in command.evictions if (answer := self._evict(order, command.plan_id)) is not None
                )
                self.ask(pm.Evicted(command.plan_id, tuple(order.uid for order in command.evictions), answers))
            case pm.CancelPlan():
                self.send(m.AbandonAsked(command.plan_id, command.reason))
            case pm.SaveProtection():
                self.spared[command.record.owner] = command.record
            case pm.AskAdvice():
                self.ask(pm.Advised(finish(questions.advise_(self.core, command.query, self.wall)).advice))

    # --- the API server -----------------------------------------------------------------------------------------

    def _bind(self, uid: str, node: str, grant: Grant | None) -> None:
        pod = self.live.get(uid)
        if pod is None or pod.spec.node_name:
            return
        assert grant is not None
        self.grants[grant.grant_id] = grant
        self.bound_at[pod.metadata.name].append(self.now)
        self.assert_no_double_booking()
        seen = build.bound(pod, node, grant)
        start = datetime.fromtimestamp(self.wall, UTC).isoformat()
        self.appears(msgspec.structs.replace(seen, status=PodStatus(phase="Running", start_time=start)))
        self._no_gang_is_split(pod.metadata.annotations)

    def _no_gang_is_split(self, notes: Mapping[str, str]) -> None:
        if names.ANNOTATION_GANG_TOPOLOGY in notes:
            on = {pod.spec.node_name for pod in self.gangs()[notes[names.ANNOTATION_GANG]]} - {""}
            assert (
                len(
                    {
                        node.object.metadata.labels[RACK]
                        for name, node in self.core.book.nodes.items()
                        if name in on and node.object is not None
                    }
                )
                == 1
            )

    def _annotate(self, order: SuspendPod) -> None:
        pod = self.live.get(order.uid)
        if pod is None or pod.metadata.resource_version != order.resource_version:
            return
        notes = {key: value for key, value in pod.metadata.annotations.items() if key != names.ANNOTATION_SUSPENDED}
        notes |= {names.ANNOTATION_SUSPENDED: order.suspension} if order.suspension else {}
        meta = msgspec.structs.replace(pod.metadata, resource_version=build.next_version(), annotations=notes)
        self.suspensions.append(
            (self.now, order.name, decode_suspension(order.suspension).action if order.suspension else "")
        )
        self.appears(msgspec.structs.replace(pod, metadata=meta))

    def _evict(self, order: Evict, plan_id: str) -> Answer | None:
        """Simulates the Eviction API with its preconditions and budgets; returns None on success."""
        pod = self.live.get(order.uid)
        if pod is None:
            return Answer(uid=order.uid, outcome="gone")
        if is_terminating(pod):
            return None
        label = pod.metadata.labels.get(BUDGET, "")
        if self._allowed().get(label, 1) <= 0:
            self.refused_by_budget += 1
            return Answer(uid=order.uid, outcome="throttled", message="it would violate the pod's disruption budget")
        plan = self.plans[plan_id]  # KeyError: no pod may be evicted before placement has reserved
        gain = [self.live[b.uid] for b in plan.beneficiaries if b.uid in self.live]
        if plan.consolidates:
            self._keeps_a_place(pod, plan, gain)
        else:
            assert all(pod.spec.priority < other.spec.priority for other in gain if _queue(other) == _queue(pod))
        self.evictions.append((self.now, order.name, plan_id))
        self.deleted(pod)
        self._again(pod)
        return None

    def _keeps_a_place(self, pod: Pod, plan: Plan, gain: list[Pod]) -> None:
        """Asserts that only pods of no higher priority move, each to a place that is booked for it."""
        assert all(pod.spec.priority <= other.spec.priority for other in gain)
        (victim,) = [victim for victim in plan.victims if victim.uid == pod.metadata.uid]
        kept = self.core.book.grants[f"reserved/{plan.plan_id}/{victim.uid}"]
        assert (victim.action, victim.to, kept.phase) == ("move", kept.node, "reserved")

    def _again(self, pod: Pod) -> None:
        notes = {
            key: value
            for key, value in pod.metadata.annotations.items()
            if key not in (names.ANNOTATION_GRANT, names.ANNOTATION_SUSPENDED)
        }
        meta = msgspec.structs.replace(
            pod.metadata,
            uid=f"{pod.metadata.name}/{next(self._numbers)}",
            resource_version=build.next_version(),
            annotations=notes,
            creation_timestamp=self._stamp(),
        )
        self.appears(
            msgspec.structs.replace(
                pod,
                metadata=meta,
                spec=msgspec.structs.replace(pod.spec, node_name=""),
                status=PodStatus(phase="Pending"),
            )
        )


def _queue(pod: Pod) -> str:
    return pod.metadata.labels.get(names.LABEL_QUEUE, "")
