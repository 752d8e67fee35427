"""The memory of a node's containers: where it really is, whatever the agent, placement or a pod's annotation say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from services.node_agent import messages as a
from shared.model.grant import ContainerGrant, Grant
from shared.model.suspension import Suspension
from shared.model.units import WHOLE_GPU_MILLI
from tests.sim.nats import Violation

if TYPE_CHECKING:
    from services.node_agent.core import Agent
    from tests.sim.leaders import Leader
    from tests.sim.nodes import SimNode

GPU_MIB = 81_920
FIXED_S, MIB_PER_S = 0.4, 81_920
Key = tuple[str, str]


def milli_of(grant: Grant) -> int:
    """Per GPU the larger of the parts of memory and compute, in thousandths of a GPU."""
    return sum(
        max(gpu.compute_milli, gpu.memory_mib * WHOLE_GPU_MILLI // GPU_MIB)
        for part in grant.containers.values()
        for gpu in part.gpus
    )


class Held(msgspec.Struct):
    """One container. While its memory is copied, it is on both sides."""

    limits: Suspension | None
    """What its slice may not use."""
    on_gpu: bool
    on_host: bool = False


class _Job(msgspec.Struct):
    agent: Agent
    order: a.SuspendSlices
    leader: Leader | None
    results: list[a.SuspendResult] = []


class Slices:
    """Carries out what the agent orders, one task after the other. A copy takes its time, and may fail; if the agent
    dies meanwhile, the memory stays where it is at that moment."""

    def __init__(self, node: SimNode, park_mib: int) -> None:
        self._node, self.park_mib = node, park_mib
        self._held: dict[Key, Held] = {}
        self._jobs: list[_Job] = []
        self._busy = False

    # --- containers -------------------------------------------------------------------------------------------

    def started(self, key: Key, suspension: Suspension | None) -> None:
        self._held[key] = Held(suspension, on_gpu=suspension is None or suspension.action != "checkpoint")

    def ended(self, key: Key) -> None:
        self._held.pop(key, None)

    def rebooted(self) -> None:
        self._held.clear()
        self._jobs.clear()

    def runs(self, uid: str) -> bool:
        """Whether the pod's programs make progress."""
        mine = [held for key, held in self._held.items() if key[0] == uid]
        return all(held.limits is None and held.on_gpu and not held.on_host for held in mine)

    def held(self, key: Key) -> Held | None:
        return self._held.get(key)

    # --- what is taken ------------------------------------------------------------------------------------------

    def taken(self, key: Key, share: ContainerGrant) -> ContainerGrant:
        """What a container of this share really takes of the GPUs."""
        held = self._held.get(key)
        if held is None:
            return share
        keeps = 1_000_000
        if held.limits is not None:
            keeps = held.limits.compute_milli if held.limits.action == "throttle" else 0
        gpus = tuple(
            msgspec.structs.replace(
                gpu,
                memory_mib=gpu.memory_mib if held.on_gpu else 0,
                compute_milli=min(keeps, gpu.compute_milli) if held.on_gpu else 0,
            )
            for gpu in share.gpus
        )
        return msgspec.structs.replace(share, gpus=gpus)

    def check_host(self) -> None:
        """T1: no more is on the host than it takes."""
        running, name = self._node.running, self._node.name
        mib = sum(
            gpu.memory_mib
            for key, held in self._held.items()
            if held.on_host and key in running
            for gpu in running[key][1].gpus
            if gpu.node == name
        )
        if mib > self.park_mib:
            raise Violation(f"T1: {mib} MiB are on the host of {name}, which takes {self.park_mib}")

    def is_as_ordered(self, uid: str, suspension: Suspension | None) -> bool:
        """Whether all containers of a pod are as this suspension says, and no copy is under way."""
        wants_host = suspension is not None and suspension.action == "checkpoint"
        return all(
            held.limits == suspension and held.on_gpu != wants_host and not (held.on_host and not wants_host)
            for key, held in self._held.items()
            if key[0] == uid
        )

    # --- orders -------------------------------------------------------------------------------------------------

    def order(self, order: a.SuspendSlices, leader: Leader | None) -> None:
        self._jobs.append(_Job(self._node.agent, order, leader))
        self._next()

    def _next(self) -> None:
        self._jobs = [job for job in self._jobs if job.agent is self._node.agent and self._node.alive]
        if self._busy or not self._jobs:
            return
        job = self._jobs[0]
        if len(job.results) == len(job.order.tasks):
            self._jobs.pop(0)
            self._node.handle(a.SuspensionDone(job.order.request, tuple(job.results)), job.leader)
            self._next()
            return
        self._begin(job, job.order.tasks[len(job.results)])

    def _begin(self, job: _Job, task: a.SuspendTask) -> None:
        node, simulation = self._node, self._node.simulation
        draw = simulation.turns.rng
        mine = {
            (task.uid, name): self._held[task.uid, name] for name in task.containers if (task.uid, name) in self._held
        }
        before = {key: (held.limits, held.on_gpu, held.on_host) for key, held in mine.items()}
        out = task.suspension is not None and task.suspension.action == "checkpoint"
        copies = any(held.on_gpu if out else held.on_host for held in mine.values())
        for held in mine.values():
            held.limits = task.suspension
            if out:
                held.on_host |= held.on_gpu
            else:
                held.on_gpu = True
        node.changed()
        mib = max((gpu.memory_mib for key in mine for gpu in node.running[key][1].gpus), default=0)
        seconds = FIXED_S + mib / MIB_PER_S if copies else 0.01
        how = draw.choice(simulation.turns.copies_end) if simulation.turns.copies_fail else ""
        if out and task.uid in simulation.turns.cannot_checkpoint:
            how = "fails"
        if how == "slow":
            seconds += draw.uniform(1.0, 6.0)
        if copies:
            does = f"{task.uid[-4:]} {'to' if out else 'from'} the host"
            simulation.clock.tell(f"{node.name} copies {does}" + (f", which is or {how}" if how else ""))
        self._busy = True
        simulation.clock.after(seconds, lambda: self._end(job, task, before, how if copies else ""))

    def _end(
        self, job: _Job, task: a.SuspendTask, before: dict[Key, tuple[Suspension | None, bool, bool]], how: str
    ) -> None:
        self._busy = False
        if job not in self._jobs or job.agent is not self._node.agent or not self._node.alive:
            self._next()
            return  # the agent died meanwhile
        out = task.suspension is not None and task.suspension.action == "checkpoint"
        for key, was in before.items():
            held = self._held.get(key)
            if held is None or how == "fails in part":
                continue
            if how == "fails":
                held.limits, held.on_gpu, held.on_host = was
            elif out:
                held.on_gpu = False
            else:
                held.on_host = False
        self._node.changed()
        fails = how.startswith("fails")
        job.results.append(a.SuspendResult(task, how if fails else "", is_partial=how == "fails in part"))
        self._node.simulation.turns.happened[
            ("failed" if fails else "done", task.suspension and task.suspension.action)
        ] += 1
        self._next()
