"""Runs placement and the preemptor in one loop with a simulated clock.

A simulated API server keeps disruption budgets, and nodes take a while to release grants. Safety properties are
asserted where they could be violated.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions
from services.preemptor import messages as pm
from shared.contracts.commands import Bind, SuspendPod
from shared.contracts.events import PreemptionAbandoned, PreemptionExecuted, PreemptionReserved
from shared.contracts.preemption import Plan, Spared
from shared.model import names
from shared.model.grant import decode_grant
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.api_server import RACK, TEAM, ApiServer, Clock
from tests.support.harness.conditions import Conditions
from tests.support.harness.nodes import STRATEGIES, Nodes
from tests.support.harness.placement import Placement, Respond
from tests.support.harness.preemptor import Preemptor

STEP_S = 0.5
SAMPLED_S = 10.0
PARK_MIB = 8 * 81_920
"""What a node's host takes of checkpointed GPU memory, unless a test says otherwise."""
"""The interval of the nodes' usage samples."""


class Cluster:
    """A simulated cluster with both cores.

    `gpus`: by node. `least`: by budget label, the minimum of available pods. `gives_back_s`: how long after a pod's end
    its node releases the grant. `racks`: by node, the value of its label RACK. `conditions`: what goes wrong.
    """

    def __init__(
        self,
        gpus: Mapping[str, int],
        *,
        gives_back_s: float = 3.0,
        least: Mapping[str, int] | None = None,
        protection_s: float = 60.0,
        queues: str | None = None,
        racks: Mapping[str, str] | None = None,
        conditions: Conditions | None = None,
        park_mib: int = PARK_MIB,
        any_gpu: bool = False,
        **preemptor: Any,
    ) -> None:
        self.plans: dict[str, Plan] = {}
        self.outcome: dict[str, str] = {}
        """By id of the plans that placement has reserved."""
        self.protection: dict[str, Spared] = {}
        """The protection records by owner, as the bus keeps them."""
        self.queues = queues
        self._inputs: deque[m.Input | pm.Input] = deque()
        self._delivering = False
        numbers = itertools.count(1)
        self.conditions = Conditions() if conditions is None else conditions
        self.preemptor = Preemptor(numbers=numbers, protection_s=protection_s, **preemptor)
        self.placement = Placement(respond=self._respond, begins=False, max_holds=1_000)
        self.clock = Clock(self.placement)
        self.api = ApiServer(self.clock, numbers, self.send, self._assert_justified, least=least or {})
        self.nodes = Nodes(dict(gpus), self.placement, self.api, gives_back_s=gives_back_s, park_mib=park_mib)
        self.conditions.begin(self)
        self.send(self.placement.beginning)
        for name, count in gpus.items():
            self.facts(build.node(name))
            if count:  # else no agent runs there
                seen = build.inventory(name, gpus=count, strategies=STRATEGIES, park_mib=park_mib)
                self.send(m.InventorySeen(msgspec.structs.replace(seen, any_gpu=any_gpu)))
            if racks is not None:
                self.facts(build.node(name, labels={RACK: racks[name]}))
        if queues is not None:
            self.facts(build.queues(queues))

    def arrive(self, name: str, *, uses_percent: int = 0, **pod: Any) -> None:
        """Creates a pending pod; see `ApiServer.create`. A slice allocates `uses_percent` of its memory."""
        if uses_percent:
            self.nodes.uses_percent[name] = uses_percent
        self.api.create(name, **pod)

    def step(self, seconds: float = STEP_S) -> None:
        self.conditions.begin_step()
        self.placement.now += seconds
        while (release := self.nodes.next_release(self.clock.now)) is not None:
            self.send(release)
        self.api.remove_ended()
        if round(self.clock.now / seconds) % round(SAMPLED_S / seconds) == 0:
            for sample in self.nodes.samples():
                self.ask(sample)
        self.nodes.assert_memory_breakdown()
        self.api.show_budgets()
        self.send(m.BeatSeen(self.nodes.alive))
        self.send(m.Tick(self.clock.wall))
        self.ask(pm.Tick())

    def helped(self) -> list[str]:
        """Returns the pending pods for which a preemption is possible now, or which fit without one."""
        answers = {
            pod.metadata.name: self.preemptor.core.dry_run(TEAM, pod.metadata.name, self.clock.wall)
            for pod in self.api.pending()
        }
        return [
            name for name, answer in answers.items() if answer.plan is not None or "it fits without" in answer.sentence
        ]

    # --- the cores ----------------------------------------------------------------------------------------------

    def facts(self, *objects: Any) -> None:
        self.send(m.FactsSeen(build.put(*objects)))

    def send(self, event: m.Input) -> None:
        """Queues an input: a core finishes one input before it or the other core gets the next."""
        match event:
            case m.FactsSeen():
                self.ask(pm.FactsSeen(event.facts))
            case m.InventorySeen():
                self.ask(pm.InventorySeen(event.inventory))
        self._inputs.append(event)
        self._deliver()

    def ask(self, event: pm.Input) -> None:
        """Queues an input of the preemptor alone."""
        self._inputs.append(event)
        self._deliver()

    def _deliver(self) -> None:
        if self._delivering:
            return
        self._delivering = True
        while self._inputs:
            event = self._inputs.popleft()
            if isinstance(event, pm.Input):
                self.preemptor.now = self.clock.wall
                for command in self.preemptor.send(event):
                    self._carry_out(command)
            else:
                self.placement.send(event)
        self._delivering = False

    def _respond(self, command: m.Command, default: Respond) -> list[m.Input]:
        return self.conditions.respond(command, lambda given: self._answers(given, default))

    def _answers(self, command: m.Command, default: Respond) -> list[m.Input]:
        match command:
            case m.SendBinds():
                for order in command.binds:
                    self._bind(order)
            case m.SendRelease():
                self.nodes.begin_release(command.node, command.release.grant_id, self.clock.now)
            case m.SendPatches():
                for patch in command.patches:
                    if isinstance(patch, SuspendPod):
                        self.api.annotate(patch)
            case m.SendGrant():
                return [self.nodes.execute(command.grant)]
            case m.AnswerPlan():
                self.ask(pm.Answered(command.answer))
            case m.Publish():
                self._hear(command.event)
        return default(command)

    def _hear(self, event: Any) -> None:
        self.conditions.hear(event)
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
                    answer
                    for order in command.evictions
                    if (answer := self.conditions.evict(order, command.plan_id, self.api.evict)) is not None
                )
                self.ask(pm.Evicted(command.plan_id, tuple(order.uid for order in command.evictions), answers))
            case pm.CancelPlan():
                self.send(m.AbandonAsked(command.plan_id, command.reason))
            case pm.SaveProtection():
                self.protection[command.record.owner] = command.record
            case pm.AskAdvice():
                advice = finish(questions.advise_(self.placement.core, command.query, self.clock.wall)).advice
                self.ask(pm.Advised(advice))

    # --- Bindings and evictions ---------------------------------------------------------------------------------

    def _bind(self, order: Bind) -> None:
        pod = self.api.live.get(order.uid)
        if pod is None or pod.spec.node_name:
            return
        assert order.grant or self.placement.core.book.pods[order.uid].request is None
        grant = decode_grant(order.grant) if order.grant else None
        if grant is not None:
            self.nodes.grants[grant.grant_id] = grant
        self.api.bound_at[pod.metadata.name].append(self.clock.now)
        self.nodes.assert_no_double_booking()
        self.api.bind(pod, order.node, grant)
        self._assert_gang_not_split(pod.metadata.annotations)

    def _assert_gang_not_split(self, notes: Mapping[str, str]) -> None:
        if names.ANNOTATION_GANG_TOPOLOGY in notes:
            on = {pod.spec.node_name for pod in self.api.gangs()[notes[names.ANNOTATION_GANG]]} - {""}
            racks = {
                node.object.metadata.labels[RACK]
                for name, node in self.placement.core.book.nodes.items()
                if name in on and node.object is not None
            }
            assert len(racks) == 1

    def _assert_justified(self, pod: Pod, plan_id: str) -> None:
        """Asserts that pods are evicted only for pods of higher priority, or are migrated."""
        plan = self.plans[plan_id]  # KeyError: no pod may be evicted before placement has reserved
        gain = [self.api.live[b.uid] for b in plan.beneficiaries if b.uid in self.api.live]
        if plan.consolidates:
            self._assert_keeps_a_place(pod, plan, gain)
        else:
            assert all(pod.spec.priority < other.spec.priority for other in gain if _queue(other) == _queue(pod))

    def _assert_keeps_a_place(self, pod: Pod, plan: Plan, gain: list[Pod]) -> None:
        """Asserts that only pods of no higher priority move, each to a place that is booked for it."""
        assert all(pod.spec.priority <= other.spec.priority for other in gain)
        (victim,) = [victim for victim in plan.victims if victim.uid == pod.metadata.uid]
        kept = self.placement.core.book.grants[f"reserved/{plan.plan_id}/{victim.uid}"]
        assert (victim.action, victim.to, kept.phase) == ("move", kept.node, "reserved")


def _queue(pod: Pod) -> str:
    return pod.metadata.labels.get(names.LABEL_QUEUE, "")
