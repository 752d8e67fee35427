"""The preemption harness with faults.

Leaders and preemptors die, feeds have gaps, nodes refuse suspensions, answers are lost, pods are deleted, and nodes
disappear with all that runs on them.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from services.placement import messages as m
from services.placement.core import Core
from services.placement.settings import Settings
from services.preemptor import messages as pm
from services.preemptor.core import Core as Preemptor
from shared.contracts.commands import Answer, Evict, TouchPod
from shared.contracts.events import PlacementRejected
from shared.contracts.facts import Gone, Put
from shared.contracts.log import TermRecord
from shared.contracts.node_commands import LiveSlice, NodeSync, NodeSyncAnswer
from tests.support import build
from tests.support.leader import mark_of, with_term
from tests.support.preemption_harness import PreemptionHarness
from tests.support.terminations import is_terminating

FAULTS = ("deleted", "leader", "preemptor", "gap", "node", "refuses", "unknown", "late")
LATE_S = 12.0
"""The maximum delay with which a busy node, or one whose agent is starting, handles an order."""


class FaultHarness(PreemptionHarness):
    """`faults`: which of `FAULTS` happen; `rng` decides when."""

    def __init__(self, nodes: dict[str, int], rng: random.Random, faults: frozenset[str], **rest: Any) -> None:
        self._rng, self._faults, self._gpus = rng, faults, nodes
        self._gone: set[str] = set()
        self._rejected: set[str] = set()
        self._generation = 1
        self._late: list[tuple[float, m.Command]] = []
        self._queues: str | None = rest.get("queues")
        super().__init__(nodes, **rest)

    def inject_fault(self) -> None:
        """Injects a random fault, if it is one of the enabled ones."""
        match self._rng.choice(FAULTS):
            case "deleted" if "deleted" in self._faults and self.live:
                self.deleted(self.live[self._rng.choice(sorted(self.live))])
            case "leader" if "leader" in self._faults:
                self._new_leader()
            case "preemptor" if "preemptor" in self._faults:
                self._new_preemptor()
            case "gap" if "gap" in self._faults:
                facts = self._everything()
                self.send(m.SnapshotSeen(facts, 0))
                self.ask(pm.SnapshotSeen(facts))
            case "node" if "node" in self._faults and len(self._gpus) > 1:
                self._node_goes_or_comes(self._rng.choice(sorted(self._gpus)))

    def step(self, seconds: float = 0.5) -> None:
        self._nodes = tuple(name for name in self._gpus if name not in self._gone)
        due = [command for at, command in self._late if at <= self.now]
        self._late = [(at, command) for at, command in self._late if at > self.now]
        for answer in (answer for command in due for answer in self._at_once(command)):
            self.send(answer)
        super().step(seconds)

    def _everything(self) -> tuple[Put, ...]:
        policy = [] if self._queues is None else [build.queues(self._queues)]
        return build.put(
            *(build.node(name) for name in self._gpus if name not in self._gone), *self.live.values(), *policy
        )

    def _inventory(self, name: str) -> m.InventorySeen:
        self._generation += 1
        return m.InventorySeen(
            build.inventory(
                name,
                gpus=self._gpus[name],
                strategies=("exclusive", "advisory", "interposer"),
                generation=self._generation,
            )
        )

    def _new_leader(self) -> None:
        self.sequence += 1
        self.core, self.objects = Core("tester", Settings(max_holds=1_000)), self._everything()
        for name in self._nodes:
            if name not in self._gone:
                self.send(self._inventory(name))
        term, records = self.sequence, with_term(tuple(self.log))
        self.log.append((term, TermRecord(holder="tester")))
        self.send(m.TermTaken(term=term, records=records, mark=mark_of(records, records[-1][0])))

    def _new_preemptor(self) -> None:
        self.preemptor = Preemptor(self.preemptor.config, lambda: f"plan-{next(self._numbers)}")
        for name in self._nodes:
            if name not in self._gone:
                self.ask(pm.InventorySeen(self._inventory(name).inventory))
        for known in self.spared.values():
            self.ask(pm.ProtectionRestored(known))
        self.ask(pm.SnapshotSeen(self._everything()))
        for uid in sorted(self._rejected & self.live.keys()):  # as their conditions say
            self.ask(pm.Rejected(uid))

    def _node_goes_or_comes(self, name: str) -> None:
        if name in self._gone:
            self._gone.discard(name)
            self.facts(build.node(name))
            self.send(self._inventory(name))
            return
        self._gone.add(name)
        self.send(m.FactsSeen((Gone(object=build.node(name)),)))
        for pod in [pod for pod in self.live.values() if pod.spec.node_name == name]:
            self._vanishes(pod)
            if not is_terminating(pod):
                self._again(pod)
        for grant_id in [
            id_
            for id_, grant in self.grants.items()
            if any(s.node == name for part in grant.containers.values() for s in part.gpus)
        ]:
            del self.grants[grant_id]
            self.suspension.pop(grant_id, None)
        self._given_back = [(at, given) for at, given in self._given_back if given.node != name]

    # --- what nodes and the API server answer -------------------------------------------------------------------

    def _answers(self, command: m.Command) -> list[m.Input]:
        if "late" in self._faults and isinstance(command, m.SendSync | m.SendGrant):
            waits = [at for at, other in self._late if _node(other) == _node(command)]
            if waits or self._rng.random() < 0.1:  # one after the other, as they came
                self._late.append((waits[0] if waits else self.now + self._rng.random() * LATE_S, command))
                return []
        return self._at_once(command)

    def _at_once(self, command: m.Command) -> list[m.Input]:
        match command:
            case m.SendSync() if command.sync.term < self.core.term:
                return []  # the agent follows a newer leader
            case m.SendSync():
                return [] if command.sync.node in self._gone else [m.SyncAnswered(self._synced(command.sync))]
            case m.SendGrant() if command.node in self._gone or command.grant.grant.grant_id not in self.grants:
                return []
            case m.SendGrant() if (
                command.grant.suspension is not None
                and "refuses" in self._faults
                and command.grant.grant.grant_id not in self.suspension
                and self._rng.random() < 0.4
            ):
                return [
                    m.GrantAcknowledged(
                        command.node, command.grant.grant.grant_id, ok=False, reason="its slices cannot"
                    )
                ]
            case m.SendRelease() if command.node in self._gone:
                return []
            case m.SendPatches():
                for order in command.patches:
                    if isinstance(order, TouchPod) and order.uid in self.live:
                        self.appears(build.newer(self.live[order.uid]))
        return super()._answers(command)

    def _synced(self, sync: NodeSync) -> NodeSyncAnswer:
        said = {grant.grant.grant_id: grant.suspension for grant in sync.grants}
        for grant_id in said.keys() & self.grants.keys():
            suspension = said[grant_id]
            if suspension is None:
                self.suspension.pop(grant_id, None)
            else:
                self.suspension[grant_id] = suspension
        self.assert_no_double_booking()
        live = []
        for grant_id, grant in self.grants.items():
            for name, part in grant.containers.items():
                if grant_id not in said and any(share.node == sync.node for share in part.gpus):
                    gpus = {share.uuid: (share.memory_mib, share.compute_milli) for share in part.gpus}
                    live.append(
                        LiveSlice(
                            uid=f"of-{grant_id}",
                            namespace="team",
                            name=grant_id,
                            container=name,
                            grant_id=grant_id,
                            strategy=part.strategy,
                            gpus=gpus,
                        )
                    )
        suspended_now = {grant_id: suspension for grant_id, suspension in self.suspension.items() if grant_id in said}
        return NodeSyncAnswer(
            node=sync.node,
            boot_id="boot-1",
            term=sync.term,
            accepted=True,
            number=sync.number,
            live=tuple(live),
            suspension=suspended_now,
        )

    def _evict(self, order: Evict, plan_id: str) -> Answer | None:
        if "unknown" in self._faults and self._rng.random() < 0.3:
            if self._rng.random() < 0.5:
                super()._evict(order, plan_id)
            return Answer(uid=order.uid, outcome="unknown")
        return super()._evict(order, plan_id)

    def _heard(self, event: Any) -> None:
        if isinstance(event, PlacementRejected):
            self._rejected.add(event.uid)
        super()._heard(event)

    def evicted_at(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = defaultdict(list)
        for at, name, _ in self.evictions:
            found[name].append(at)
        return found


def _node(command: m.Command) -> str:
    match command:
        case m.SendSync():
            return command.sync.node
        case m.SendGrant():
            return command.node
    raise AssertionError(command)
