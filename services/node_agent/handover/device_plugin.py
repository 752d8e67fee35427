"""Implements the kubelet's device plugin interface (v1beta1): a constant supply of opaque slots that are always
healthy.

A slot carries no GPU. Allocate answers with a fresh random CDI device name that has no spec yet. PreStartContainer,
which the kubelet calls before it creates a container, finds the container that holds the slot and has the spec written.
Without the spec the runtime cannot create the container.

A slot is never unhealthy: the kubelet would reject running pods that hold it when it admits them again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import structlog

from services.node_agent import messages as m
from services.node_agent.handover import kubelet_checkpoint, slots
from services.node_agent.handover.base import AgentPort, SpecWriter
from services.node_agent.handover.kubelet_checkpoint import KubeletCheckpointError
from services.node_agent.handover.podresources import PodResourcesError
from services.node_agent.handover.slots import PodResourcesEntry, SlotOwner, Unresolved
from services.node_agent.kubelet_api import device_plugin_pb2 as pb
from services.node_agent.kubelet_api.device_plugin_pb2_grpc import DevicePluginServicer
from services.node_agent.worker import Hung
from shared.model import names
from shared.telemetry.metrics import Counter, Histogram

CDI_KIND = "kerf.dev/slice"
CDI_ANNOTATION = "cdi.k8s.io/kerf.dev_slice"
"""The same device as CDI's own annotation: kubelets before 1.29 silently drop `cdi_devices`, and the container would
start without its GPU. A runtime that gets both uses one."""
OPTIONS = pb.DevicePluginOptions(pre_start_required=True)
BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
    30.0,
)

log = structlog.get_logger("device_plugin")


class Refused(Exception):
    """The container must not start; the kubelet shows the text."""

    def __init__(self, status: Any, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.code = status, code


class SlotPlugin(DevicePluginServicer):
    """Serves the kubelet's calls.

    It keeps no state: the kubelet's checkpoint records which container holds which slot and name.
    """

    def __init__(
        self,
        *,
        agent: AgentPort,
        specs: SpecWriter,
        list_slots: Callable[[], Awaitable[tuple[PodResourcesEntry, ...]]],
        plugin_dir: Path,
        count: int,
        seconds: Histogram,
        refused: Counter,
        handed: Callable[[m.HandOver, float], None],
        on_watch: Callable[[bool], None],
    ) -> None:
        """`handed` is called with each hand-over and its duration in seconds, `on_watch` when the kubelet starts and
        stops watching the slots."""
        self._agent, self._specs, self._list_slots = agent, specs, list_slots
        self._plugin_dir = plugin_dir
        self._slots = [pb.Device(ID=f"slot-{number}", health="Healthy") for number in range(count)]
        self._seconds, self._refused, self._handed = seconds, refused, handed
        self._on_watch = on_watch
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Ends the streams, which would otherwise block the shutdown."""
        self._closing.set()

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        return OPTIONS

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        self._on_watch(True)
        try:
            yield pb.ListAndWatchResponse(devices=self._slots)
            await self._closing.wait()
        finally:
            self._on_watch(False)

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        """Answers with a name that was never used: a used one could let a container start with an old spec."""
        begun = time.perf_counter()
        answer = pb.AllocateResponse(
            container_responses=[_device(f"{CDI_KIND}=k{secrets.token_hex(16)}") for _ in request.container_requests]
        )
        took_s = time.perf_counter() - begun
        self._seconds.observe(took_s, "allocate")
        for asked in request.container_requests:
            log.debug("allocated", slots=list(asked.devices_ids), took_s=took_s)
        return answer

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        begun = time.perf_counter()
        try:
            order = await self._hand_over(frozenset(request.devices_ids))
            self._handed(order, time.perf_counter() - begun)
        except Refused as refused:
            log.warning("hand_over_refused", slots=list(request.devices_ids), code=refused.code, why=str(refused))
            self._refused.add(1, refused.code)
            await context.abort(refused.status, f"{refused} ({refused.code})")
        finally:
            took_s = time.perf_counter() - begun
            self._seconds.observe(took_s, "prestart")
            log.debug("prestart", slots=list(request.devices_ids), took_s=took_s)
        return pb.PreStartContainerResponse()

    async def _hand_over(self, asked: frozenset[str]) -> m.HandOver:
        owner = await self._find_owner(asked)
        pod, slot = (owner.namespace, owner.name), ",".join(sorted(asked))
        order = await self._write_specs(
            owner.cdi_names, await self._agent.start_container(owner.uid, owner.container, slot, pod)
        )
        if owner.init_cdi_names:
            init_share = self._agent.init_share(owner.uid)
            await self._write_specs(
                owner.init_cdi_names, await self._agent.start_container(owner.uid, init_share, "", pod)
            )
        return order

    async def _find_owner(self, asked: frozenset[str]) -> SlotOwner:
        try:
            pod_resources = await self._list_slots()
            found = slots.resolve(
                asked, kubelet_checkpoint.load(self._plugin_dir, names.RESOURCE_SLOT, CDI_KIND), pod_resources
            )
        except PodResourcesError as error:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "kubelet-silent", str(error)) from error
        except KubeletCheckpointError as error:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "kubelet-checkpoint", str(error)) from error
        if isinstance(found, Unresolved):
            raise Refused(grpc.StatusCode.NOT_FOUND, found.code, found.sentence)
        return found

    async def _write_specs(self, cdi_names: tuple[str, ...], order: m.HandOver | m.RefuseStart) -> m.HandOver:
        if isinstance(order, m.RefuseStart):
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, order.code, order.sentence)
        try:
            await self._specs.write(cdi_names, order)
        except m.SliceNotReady as error:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, error.code, str(error)) from error
        except (OSError, ValueError, Hung) as error:
            raise Refused(
                grpc.StatusCode.INTERNAL, "spec-not-written", f"the container's CDI spec cannot be written: {error}"
            ) from error
        return order


def _device(name: str) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=name)], annotations={CDI_ANNOTATION: name})
