"""The world of a case in which something may have to give way: placement and the preemptor, wired as on the bus.

What the API server and the agents do is done at once: a pod that the preemptor evicts is gone, released, and created
again by its controller. Queues take back at once (`reclaim_patience: 0`), as the peers do. Where a case looks at one
pass of one action alone (not `comes_again`), an evicted pod stays terminating instead.
"""

from __future__ import annotations

import msgspec

from bench.peercases.world import World
from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions
from services.preemptor import messages as pm
from services.preemptor.config import Config
from services.preemptor.core import Core as Preemptor
from shared.contracts.commands import Evict
from shared.contracts.facts import Gone, Put
from shared.model import names
from shared.model.objects import PodStatus

_PATIENT_S = 1.0
"""Beyond the preemptor's patience."""
_ANY_GPU_SECONDS = 10**9
_PASSES = 3
"""Refused plans are thought over again."""


class PreemptingWorld(World):
    """`evicted`: names of the evicted pods, in order; `promised`: pods with a reservation, `kept`:
    by name of a migrating pod, the grant that is reserved for it."""

    def __init__(self, policy: str, *, comes_again: bool, consolidates: bool) -> None:
        super().__init__(policy)
        config = Config(
            reclaim_patience=0, defragmentation_gpu_seconds_per_hour=_ANY_GPU_SECONDS if consolidates else 0
        )
        self.preemptor = Preemptor(config, lambda: f"plan-{self.version()}")
        self.evicted: list[str] = []
        self.promised: set[str] = set()
        self.kept: dict[str, str] = {}
        self.comes_again = comes_again

    def settle(self) -> None:
        super().settle()
        for _ in range(_PASSES):
            self._run_bound()
            self._pass_time(_PATIENT_S)
            self._send(m.Tick())
            self._ask(pm.Tick())
        self._run_bound()

    def _ask(self, event: pm.Input) -> None:
        for command in self.preemptor.handle(event, self._now):
            match command:
                case pm.Propose():
                    self._send(m.ReserveAsked(command.plan))
                case pm.Execute():
                    for order in command.evictions:
                        self._evict(order)
                    self._ask(pm.Evicted(command.plan_id, tuple(order.uid for order in command.evictions), ()))
                case pm.CancelPlan():
                    self._send(m.AbandonAsked(command.plan_id, command.reason))
                case pm.AskAdvice():
                    self._ask(pm.Advised(finish(questions.advise_(self.core, command.query, self._now)).advice))

    def _evict(self, order: Evict) -> None:
        pod = self.pods[order.name]
        self.evicted.append(order.name)
        if not self.comes_again:
            meta = msgspec.structs.replace(
                pod.metadata, resource_version=self.version(), deletion_timestamp="2026-01-01T01:00:00Z"
            )
            self.pods[order.name] = msgspec.structs.replace(pod, metadata=meta)
            self._send(m.FactsSeen((Put(object=self.pods[order.name]),)))
            return
        self._send(m.FactsSeen((Gone(object=pod),)))
        notes = {key: value for key, value in pod.metadata.annotations.items() if key != names.ANNOTATION_GRANT}
        meta = msgspec.structs.replace(
            pod.metadata, uid=f"{pod.metadata.uid}-again", resource_version=self.version(), annotations=notes
        )
        self.pods[order.name] = msgspec.structs.replace(
            pod, metadata=meta, spec=msgspec.structs.replace(pod.spec, node_name=""), status=PodStatus(phase="Pending")
        )
        self.bound.pop(order.name, None)
        self._send(m.FactsSeen((Put(object=self.pods[order.name]),)))

    def _send(self, event: m.Input) -> None:
        match event:  # what placement hears the preemptor hears too, from the same feed and the same store
            case m.FactsSeen():
                self._ask(pm.FactsSeen(event.facts))
            case m.InventorySeen():
                self._ask(pm.InventorySeen(event.inventory))
        super()._send(event)

    def _answers(self, command: m.Command) -> list[m.Input]:
        match command:
            case m.TakeSnapshot():
                (snapshot,) = super()._answers(command)
                if isinstance(snapshot, m.SnapshotSeen):
                    self._ask(pm.SnapshotSeen(snapshot.facts))
                return [snapshot]
            case m.SendRelease():
                return [] if not self.comes_again else [m.ReleaseSeen(command.node, command.release.grant_id)]
            case m.AnswerPlan():
                found = self.preemptor.executions.get(command.answer.plan_id)
                if found is not None and command.answer.ok:
                    self.promised |= {b.name for b in found.plan.beneficiaries}
                    self.kept |= {v.name: f"reserved/{found.plan.plan_id}/{v.uid}" for v in found.plan.victims if v.to}
                self._ask(pm.Answered(command.answer))
            case m.Publish() if (heard := pm.to_input(command.event)) is not None:
                self._ask(heard)
        return super()._answers(command)
