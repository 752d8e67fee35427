"""Jobs that take turns, through Kerf's cores: every pod allows it, and nothing else is set up.

A pod that is a whole GPU, or several, asks for all compute and memory of them as shares, because a pod with the device
to itself cannot be suspended. The agent's part is done here: it obeys the newest order about a pod, suspends and
resumes it at the costs of bench/jobs/costs.py, on the GPUs of its grant as amended, and answers when the copy is over.
The annotations that placement writes are on the pods at once.
"""

from __future__ import annotations

import msgspec

from bench.jobs.costs import Costs
from bench.jobs.kerf import BEGAN_S, NODE, Kerf, Use
from bench.jobs.replay import Copied, Order, Resume, Suspend
from bench.jobs.trace import Job
from bench.openb.trace import GPU_MIB
from services.placement import messages as m
from services.preemptor.config import Config
from shared.contracts.commands import Patch, SuspendPod
from shared.contracts.facts import Put
from shared.contracts.node_commands import NodeGrant
from shared.model import names
from shared.model.gpu import Gpu, HostMemory, Inventory
from shared.model.objects import Container, Pod, Resources
from shared.model.suspension import Suspension, suspension_patch
from shared.model.units import WHOLE_GPU_MILLI

_FREE_FOR_S = 6.0
"""Longer than capacity has to be free before placement gives it back to a suspended pod."""


class KerfTurns(Kerf):
    def __init__(self, jobs: tuple[Job, ...], gpus: int, costs: Costs, *, queues: bool = False) -> None:
        self._costs = costs
        self._has: dict[int, Suspension | None] = {}
        """By job that has a grant, what its slices have given up."""
        self._orders: dict[int, NodeGrant] = {}
        """By job, the newest order, while its node has not met it."""
        self._copies: set[int] = set()
        config = Config(copied_mib_per_s=costs.copied_mib_per_s, copy_fixed_s=costs.fixed_s)
        super().__init__(jobs, gpus, Use(queues=queues, evicts=False), config)

    def _node_has(self, gpus: tuple[Gpu, ...]) -> Inventory:
        return Inventory(
            node=NODE,
            boot_id="boot",
            gpus=gpus,
            strategies=("exclusive", "advisory", "interposer"),
            host_memory=HostMemory(park_mib=self._costs.host_mib),
            simulated=True,
            any_gpu=True,
        )

    def _shape(self, job: Job) -> Pod:
        pod = super()._shape(job)
        notes = pod.metadata.annotations | {names.ANNOTATION_TURNS: "allowed", names.ANNOTATION_ISOLATION: "firm"}
        pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=notes))
        if job.milli < WHOLE_GPU_MILLI:
            return pod
        limits: dict[str, str | int] = {
            names.RESOURCE_GPU: job.gpus,
            names.RESOURCE_GPU_COMPUTE: 100 * job.gpus,
            names.RESOURCE_GPU_MEMORY: f"{GPU_MIB * job.gpus}Mi",
        }
        container = Container(name="main", resources=Resources(limits=limits))
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=(container,)))

    # --- time -------------------------------------------------------------------------------------------------

    def step(self, now_s: float, ended: list[int], arrived: list[int]) -> list[Order]:
        for job in ended:
            self._has.pop(job, None)
            self._orders.pop(job, None)
        return super().step(now_s, ended, arrived)

    def _settle(self) -> None:
        """Gives the cores time: for what follows at once, and once more for what they do after a while."""
        while self._make_room():
            pass
        if any(self._has.values()):
            self._pass_time(_FREE_FOR_S)
            while self._make_room():
                pass

    def _pass_time(self, seconds: float) -> None:
        super()._pass_time(seconds)
        self._send(m.Tick(self._now))

    def copied(self, copied: list[Copied]) -> None:
        for one in copied:
            self._copies.discard(one.job)
            order = self._orders.get(one.job)
            match one.outcome:
                case "parked":
                    self._has[one.job] = Suspension(action="checkpoint", plan_id="")
                case "back":
                    self._has[one.job] = None
                case "failed" if order is not None and order.suspension is not None:
                    del self._orders[one.job]
                    self._late.append(
                        m.GrantAcknowledged(
                            NODE, order.grant.grant_id, reason="the driver could not checkpoint it", number=order.number
                        )
                    )
                    continue
            if order is not None:
                self._late += self._obey(one.job)

    def wakes_s(self, now_s: float) -> float:
        """When a turn may end, or a job is overdue."""
        at = self.preemptor.turns.changes_at - BEGAN_S
        return at if at == float("inf") else max(at, now_s + 1.0)

    # --- the agent's part -------------------------------------------------------------------------------------

    def _ordered(self, grant: NodeGrant) -> list[m.Input]:
        job = self._of[grant.uid]
        self._orders[job] = grant
        return [] if job in self._copies else self._obey(job)

    def _obey(self, job: int) -> list[m.Input]:
        """Begins what the newest order wants; returns the answer if that is met."""
        order, has = self._orders[job], self._has.setdefault(job, None)
        wants = order.suspension
        if (wants and wants.action) != (has and has.action):
            if wants is None or (has is not None and has.action != wants.action):
                self._moves.append(Resume(job, self._shares(order.grant)))
                if has is not None and has.action == "checkpoint":
                    self._copies.add(job)
                    return []
                self._has[job] = has = None
            if wants is not None:
                self._moves.append(Suspend(job, "host" if wants.action == "checkpoint" else "gpu"))
                if wants.action == "checkpoint":
                    self._copies.add(job)
                    return []
        self._has[job] = wants
        del self._orders[job]
        return [
            m.GrantAcknowledged(
                NODE,
                order.grant.grant_id,
                suspension=wants,
                number=order.number,
                whole=wants is None,
                amendment=order.grant.amendment,
            )
        ]

    # --- the API server's part --------------------------------------------------------------------------------

    def _patched(self, patches: tuple[Patch, ...]) -> list[m.Input]:
        facts = []
        for patch in patches:
            if not isinstance(patch, SuspendPod) or self._of.get(patch.uid) not in self._pods:
                continue
            job = self._of[patch.uid]
            pod = self._pods[job]
            notes: dict[str, str | None] = {**pod.metadata.annotations, **suspension_patch(patch.suspension)}
            notes |= {names.ANNOTATION_GPU_TIME: patch.gpu_time} if patch.gpu_time else {}
            notes |= {names.ANNOTATION_GRANT: patch.grant} if patch.grant else {}
            meta = msgspec.structs.replace(
                pod.metadata,
                resource_version=self._next_version(),
                annotations={name: text for name, text in notes.items() if text is not None},
            )
            self._pods[job] = msgspec.structs.replace(pod, metadata=meta)
            facts.append(Put(object=self._pods[job]))
        return [m.FactsSeen(tuple(facts))] if facts else []
