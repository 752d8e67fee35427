"""Answers the runtime's NRI requests. Every answer lets the container start: an error would prevent it."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from google.protobuf.message import Message

from services.node_agent.devices.describe import cpu_list
from services.node_agent.handover.nri.affinity import (
    Allowed,
    Confined,
    Outcome,
    Promise,
    bind_memory,
    fits,
    numbers,
    place,
)
from services.node_agent.handover.nri.session import Unimplemented
from services.node_agent.nri_api import nri_pb2 as pb
from shared.model.gpu import Gpu

EVENTS = (pb.CREATE_CONTAINER, pb.UPDATE_CONTAINER, pb.STOP_CONTAINER)
NOTHING = b""
"""The empty message of any type: proceed as without this plugin."""

log = structlog.get_logger("nri")


class CpuPlugin:
    """Serves one connection: when it connects, the runtime reports which containers are confined."""

    def __init__(
        self,
        *,
        gpus_of: Callable[[str, str], tuple[Gpu, ...]],
        allowed: Callable[[str], Allowed | None],
        memory: bool,
        decided: Callable[[str, float | None], None],
    ) -> None:
        """`gpus_of` returns the GPUs granted to a container, by its pod's UID and its name; `allowed` what a pod may
        use, by its cgroup.

        `decided` is called with the outcome for each container with GPUs, and at its start with how many seconds that
        took.
        """
        self._gpus_of, self._allowed, self._memory, self._decided = gpus_of, allowed, memory, decided
        self._confined: dict[str, Confined] = {}
        self.ready = False
        """Whether the runtime has reported the running containers, and sends requests from now on."""

    def answer(self, method: str, payload: bytes) -> bytes:
        """Answers one request. Raises Unimplemented."""
        try:
            answer: bytes = self._answer(method, payload).SerializeToString()
        except Unimplemented:
            raise
        except Exception as error:  # whatever fails here, the container is to start unchanged
            log.exception("container_left_as_it_is", method=method, error=str(error))
            self._decided("failed", None)
            return NOTHING
        return answer

    def _answer(self, method: str, payload: bytes) -> Message:
        match method:
            case "Configure":
                return pb.ConfigureResponse(events=sum(1 << (event - 1) for event in EVENTS))
            case "Synchronize":
                return self._synchronize(pb.SynchronizeRequest.FromString(payload))
            case "CreateContainer":
                return self._create(pb.CreateContainerRequest.FromString(payload))
            case "UpdateContainer":
                return self._update(pb.UpdateContainerRequest.FromString(payload))
            case "StopContainer":
                self._confined.pop(pb.StopContainerRequest.FromString(payload).container.id, None)
                return pb.StopContainerResponse()
            case "Shutdown":
                return pb.Empty()
        raise Unimplemented(method)

    def _synchronize(self, request: pb.SynchronizeRequest) -> pb.SynchronizeResponse:
        for container in request.containers:
            cpu = container.linux.resources.cpu
            if cpu.cpus:
                promise = promised(container.linux.resources)
                self._confined[container.id] = Confined(promise=promise, cpus=numbers(cpu.cpus), mems=numbers(cpu.mems))
        self.ready = not request.more
        return pb.SynchronizeResponse(more=request.more)

    def _create(self, request: pb.CreateContainerRequest) -> pb.CreateContainerResponse:
        begun = time.perf_counter()
        container, answer = request.container, pb.CreateContainerResponse()
        gpus = self._gpus_of(request.pod.uid, container.name)
        if not gpus:
            return answer
        found = self._place(request.pod, container.linux.resources, gpus)
        if isinstance(found, Confined):
            self._confined[container.id] = found
            _set(answer.adjust.linux.resources.cpu, found)
        outcome = "near" if isinstance(found, Confined) else found
        took_s = time.perf_counter() - begun
        self._decided(outcome, took_s)
        log.debug(
            "cpus_decided",
            pod=f"{request.pod.namespace}/{request.pod.name}",
            container=container.name,
            outcome=outcome,
            took_s=took_s,
        )
        return answer

    def _place(self, pod: pb.PodSandbox, resources: pb.LinuxResources, gpus: tuple[Gpu, ...]) -> Confined | Outcome:
        if resources.cpu.cpus or resources.cpu.mems:
            return "own-cpuset"
        allowed = self._allowed(pod.linux.cgroup_parent)
        if allowed is None:
            return "not-known"
        others = tuple(self._confined.values())
        found = place(gpus, promised(resources), allowed, others)
        return bind_memory(found, gpus, allowed, others) if self._memory and isinstance(found, Confined) else found

    def _update(self, request: pb.UpdateContainerRequest) -> pb.UpdateContainerResponse:
        """Follows an update. If a confined container is promised more than its CPUs have, it may use all CPUs again."""
        answer = pb.UpdateContainerResponse()
        before = self._confined.pop(request.container.id, None)
        if before is None or request.linux_resources.cpu.cpus:
            return answer
        resources = request.container.linux.resources
        resources.MergeFrom(request.linux_resources)
        now = Confined(promise=promised(resources), cpus=before.cpus, mems=before.mems)
        allowed = self._allowed(request.pod.linux.cgroup_parent)
        if allowed is None or fits(now, allowed, self._confined.values()):
            self._confined[request.container.id] = now
            return answer
        update = answer.update.add(container_id=request.container.id)
        _set(
            update.linux.resources.cpu,
            Confined(promise=now.promise, cpus=allowed.cpus, mems=allowed.mems if now.mems else frozenset()),
        )
        self._decided("widened", None)
        return answer


def promised(resources: pb.LinuxResources) -> Promise:
    """What a container was promised, by its cgroup settings: 1024 shares per CPU, and a quota of microseconds per
    period."""
    cpu = resources.cpu
    request = -(-cpu.shares.value * 1000 // 1024)
    limit = cpu.quota.value * 1000 // cpu.period.value if cpu.quota.value > 0 and cpu.period.value else 0
    return Promise(cpu_milli=max(request, limit), memory_bytes=max(resources.memory.limit.value, 0))


def _set(cpu: pb.LinuxCPU, confined: Confined) -> None:
    cpu.cpus, cpu.mems = cpu_list(sorted(confined.cpus)), cpu_list(sorted(confined.mems))
