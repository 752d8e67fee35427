"""The preemptor beside a case's placement, wired as on the bus.

What the API server and the agents do is done at once: a pod that the preemptor evicts is gone, released, and created
again by its controller. Queues take back at once (`reclaim_patience: 0`), as the peers do. Where a case looks at one
pass of one action alone (not `comes_again`), an evicted pod stays terminating instead.
"""

from __future__ import annotations

import msgspec

from bench.peercases.cluster import CaseCluster
from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions
from services.preemptor import messages as pm
from shared.contracts.commands import Evict
from shared.contracts.facts import Gone, Put
from shared.model import names
from shared.model.objects import PodStatus
from tests.support.harness.preemptor import Preemptor

_PATIENT_S = 1.0
"""Beyond the preemptor's patience."""
_ANY_GPU_SECONDS = 10**9
_PASSES = 3
"""Refused plans are thought over again."""


class Eviction:
    """`evicted`: names of the evicted pods, in order; `promised`: pods with a reservation, `kept`:
    by name of a migrating pod, the grant that is reserved for it."""

    def __init__(self, *, comes_again: bool, consolidates: bool, incomplete_gang_s: int = 0) -> None:
        self.comes_again = comes_again
        self._incomplete_gang_s = incomplete_gang_s
        self._budget = _ANY_GPU_SECONDS if consolidates else 0
        self.evicted: list[str] = []
        self.promised: set[str] = set()
        self.kept: dict[str, str] = {}

    def begin(self, cluster: CaseCluster) -> None:
        """Called once, before placement gets its first input."""
        self._cluster = cluster
        self._preemptor = Preemptor(
            numbers=cluster.numbers,
            reclaim_patience=0,
            defragmentation_gpu_seconds_per_hour=self._budget,
            incomplete_gang_s=self._incomplete_gang_s,
        )

    def settle(self) -> None:
        for _ in range(_PASSES):
            self._cluster.run_bound()
            self._cluster.pass_time(_PATIENT_S)
            self._cluster.send(m.Tick())
            self._ask(pm.Tick())
        self._cluster.run_bound()

    def hear(self, event: m.Input) -> None:
        """Passes on what placement hears, for the preemptor hears it too, from the same feed and the same store."""
        match event:
            case m.FactsSeen():
                self._ask(pm.FactsSeen(event.facts))
            case m.InventorySeen():
                self._ask(pm.InventorySeen(event.inventory))

    def answers(self, command: m.Command, answers: list[m.Input]) -> list[m.Input]:
        """Returns what the surroundings answer to a command of placement; without the preemptor it is `answers`."""
        match command:
            case m.TakeSnapshot():
                for snapshot in answers:
                    if isinstance(snapshot, m.SnapshotSeen):
                        self._ask(pm.SnapshotSeen(snapshot.facts))
            case m.SendRelease() if self.comes_again:
                return [*answers, m.ReleaseSeen(command.node, command.release.grant_id)]
            case m.AnswerPlan():
                found = self._preemptor.core.executions.get(command.answer.plan_id)
                if found is not None and command.answer.ok:
                    self.promised |= {b.name for b in found.plan.beneficiaries}
                    self.kept |= {v.name: f"reserved/{found.plan.plan_id}/{v.uid}" for v in found.plan.victims if v.to}
                self._ask(pm.Answered(command.answer))
            case m.Publish() if (heard := pm.to_input(command.event)) is not None:
                self._ask(heard)
        return answers

    def _ask(self, event: pm.Input) -> None:
        self._preemptor.now = self._cluster.placement.now
        for command in self._preemptor.send(event):
            match command:
                case pm.Propose():
                    self._cluster.send(m.ReserveAsked(command.plan))
                case pm.Execute():
                    for order in command.evictions:
                        self._evict(order)
                    self._ask(pm.Evicted(command.plan_id, tuple(order.uid for order in command.evictions), ()))
                case pm.CancelPlan():
                    self._cluster.send(m.AbandonAsked(command.plan_id, command.reason))
                case pm.AskAdvice():
                    placement = self._cluster.placement
                    advice = finish(questions.advise_(placement.core, command.query, placement.now)).advice
                    self._ask(pm.Advised(advice))

    def _evict(self, order: Evict) -> None:
        cluster = self._cluster
        pod = cluster.pods[order.name]
        self.evicted.append(order.name)
        if not self.comes_again:
            meta = msgspec.structs.replace(
                pod.metadata, resource_version=cluster.version(), deletion_timestamp="2026-01-01T01:00:00Z"
            )
            cluster.pods[order.name] = msgspec.structs.replace(pod, metadata=meta)
            cluster.send(m.FactsSeen((Put(object=cluster.pods[order.name]),)))
            return
        cluster.send(m.FactsSeen((Gone(object=pod),)))
        notes = {key: value for key, value in pod.metadata.annotations.items() if key != names.ANNOTATION_GRANT}
        meta = msgspec.structs.replace(
            pod.metadata, uid=f"{pod.metadata.uid}-again", resource_version=cluster.version(), annotations=notes
        )
        cluster.pods[order.name] = msgspec.structs.replace(
            pod, metadata=meta, spec=msgspec.structs.replace(pod.spec, node_name=""), status=PodStatus(phase="Pending")
        )
        cluster.bound.pop(order.name, None)
        cluster.send(m.FactsSeen((Put(object=cluster.pods[order.name]),)))
