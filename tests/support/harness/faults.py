"""Faults of a simulated cluster.

Leaders and preemptors die, feeds have gaps, nodes refuse suspensions, answers are lost, pods are deleted, and nodes
disappear with all that runs on them.
"""

from __future__ import annotations

import random
from typing import Any

from services.placement import messages as m
from services.preemptor import messages as pm
from shared.contracts.commands import Answer, Evict, TouchPod
from shared.contracts.events import PlacementRejected
from shared.contracts.facts import Gone
from tests.support import build
from tests.support.harness.conditions import Conditions, Execute
from tests.support.harness.nodes import STRATEGIES
from tests.support.harness.placement import Respond
from tests.support.harness.terminations import is_terminating

FAULTS = ("deleted", "leader", "preemptor", "gap", "node", "refuses", "unknown", "late")
LATE_S = 12.0
"""The maximum delay with which a busy node, or one whose agent is starting, handles an order."""


class Faults(Conditions):
    """`kinds`: which of `FAULTS` happen; `rng` decides when."""

    def __init__(self, rng: random.Random, kinds: frozenset[str]) -> None:
        self._rng, self._kinds = rng, kinds
        self._gone: set[str] = set()
        """Nodes that have disappeared."""
        self._rejected: set[str] = set()
        self._generation = 1
        self._late: list[tuple[float, m.Command, Respond]] = []

    def inject(self) -> None:
        """Injects a random fault, if it is one of the enabled ones."""
        cluster = self.cluster
        match self._rng.choice(FAULTS):
            case "deleted" if "deleted" in self._kinds and cluster.api.live:
                cluster.api.delete(cluster.api.live[self._rng.choice(sorted(cluster.api.live))])
            case "leader" if "leader" in self._kinds:
                self._replace_leader()
            case "preemptor" if "preemptor" in self._kinds:
                self._restart_preemptor()
            case "gap" if "gap" in self._kinds:
                facts = build.put(*self._objects())
                cluster.send(m.SnapshotSeen(facts, 0))
                cluster.ask(pm.SnapshotSeen(facts))
            case "node" if "node" in self._kinds and len(cluster.nodes.gpus) > 1:
                name = self._rng.choice(sorted(cluster.nodes.gpus))
                if name in self._gone:
                    self._return_node(name)
                else:
                    self._lose_node(name)

    def begin_step(self) -> None:
        cluster = self.cluster
        cluster.nodes.alive = self._present()
        due = [(command, respond) for at, command, respond in self._late if at <= cluster.clock.now]
        self._late = [late for late in self._late if late[0] > cluster.clock.now]
        for answer in (answer for command, respond in due for answer in self._respond_now(command, respond)):
            cluster.send(answer)

    def _present(self) -> tuple[str, ...]:
        return tuple(name for name in self.cluster.nodes.gpus if name not in self._gone)

    def _objects(self) -> tuple[Any, ...]:
        """All objects that the API server has."""
        cluster = self.cluster
        policy = [] if cluster.queues is None else [build.queues(cluster.queues)]
        return (*(build.node(name) for name in self._present()), *cluster.api.live.values(), *policy)

    def _inventory(self, name: str) -> m.InventorySeen:
        self._generation += 1
        gpus = self.cluster.nodes.gpus[name]
        return m.InventorySeen(
            build.inventory(
                name,
                gpus=gpus,
                strategies=STRATEGIES,
                generation=self._generation,
                park_mib=self.cluster.nodes.park_mib,
            )
        )

    def _replace_leader(self) -> None:
        cluster = self.cluster
        cluster.placement.succeed(*self._objects())
        for name in cluster.nodes.alive:
            if name not in self._gone:
                cluster.send(self._inventory(name))
        cluster.send(cluster.placement.next_term())

    def _restart_preemptor(self) -> None:
        cluster = self.cluster
        cluster.preemptor.restart()
        for name in cluster.nodes.alive:
            if name not in self._gone:
                cluster.ask(pm.InventorySeen(self._inventory(name).inventory))
        for known in cluster.protection.values():
            cluster.ask(pm.ProtectionRestored(known))
        cluster.ask(pm.SnapshotSeen(build.put(*self._objects())))
        for uid in sorted(self._rejected & cluster.api.live.keys()):  # as their conditions say
            cluster.ask(pm.Rejected(uid))

    def _return_node(self, name: str) -> None:
        self._gone.discard(name)
        self.cluster.facts(build.node(name))
        self.cluster.send(self._inventory(name))

    def _lose_node(self, name: str) -> None:
        api = self.cluster.api
        self._gone.add(name)
        self.cluster.send(m.FactsSeen((Gone(object=build.node(name)),)))
        for pod in [pod for pod in api.live.values() if pod.spec.node_name == name]:
            api.remove(pod)
            if not is_terminating(pod):
                api.replace(pod)
        self.cluster.nodes.lose(name)

    # --- what nodes and the API server answer -------------------------------------------------------------------

    def respond(self, command: m.Command, respond: Respond) -> list[m.Input]:
        if "late" in self._kinds and isinstance(command, m.SendSync | m.SendGrant):
            waits = [at for at, other, _ in self._late if _node(other) == _node(command)]
            if waits or self._rng.random() < 0.1:  # one after the other, as they came
                at = waits[0] if waits else self.cluster.clock.now + self._rng.random() * LATE_S
                self._late.append((at, command, respond))
                return []
        return self._respond_now(command, respond)

    def _respond_now(self, command: m.Command, respond: Respond) -> list[m.Input]:
        nodes, api = self.cluster.nodes, self.cluster.api
        match command:
            case m.SendSync() if command.sync.term < self.cluster.placement.core.term:
                return []  # the agent follows a newer leader
            case m.SendSync():
                return [] if command.sync.node in self._gone else [m.SyncAnswered(nodes.sync(command.sync))]
            case m.SendGrant() if command.node in self._gone or command.grant.grant.grant_id not in nodes.grants:
                return []
            case m.SendGrant() if (
                command.grant.suspension is not None
                and "refuses" in self._kinds
                and command.grant.grant.grant_id not in nodes.suspension
                and self._rng.random() < 0.4
            ):
                grant_id = command.grant.grant.grant_id
                return [m.GrantAcknowledged(command.node, grant_id, reason="its slices cannot")]
            case m.SendRelease() if command.node in self._gone:
                return []
            case m.SendPatches():
                for order in command.patches:
                    if isinstance(order, TouchPod) and order.uid in api.live:
                        api.show(build.newer(api.live[order.uid]))
        return respond(command)

    def evict(self, order: Evict, plan_id: str, execute: Execute) -> Answer | None:
        if "unknown" in self._kinds and self._rng.random() < 0.3:
            if self._rng.random() < 0.5:
                execute(order, plan_id)
            return Answer(uid=order.uid, outcome="unknown")
        return execute(order, plan_id)

    def hear(self, event: Any) -> None:
        if isinstance(event, PlacementRejected):
            self._rejected.add(event.uid)


def _node(command: m.Command) -> str:
    match command:
        case m.SendSync():
            return command.sync.node
        case m.SendGrant():
            return command.node
    raise AssertionError(command)
