"""The kubelet's side of a device plugin, over real gRPC on unix sockets: registration, admission, starts, PodResources.

It keeps the rules of pkg/kubelet/cm/devicemanager (1.36): sockets in the plugin directory are wiped at its start, slots
are allocated container by container in the pod's order, an init container's slots go to app containers after it, the
checkpoint is written after each allocation, PreStartContainer precedes each start. The same behaviour of a real kubelet
is shown in tests/node.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from services.node_agent.kubelet_api import device_plugin_pb2 as dp
from services.node_agent.kubelet_api import pod_resources_pb2 as pr
from services.node_agent.kubelet_api.device_plugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from services.node_agent.kubelet_api.pod_resources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from tests.support.waiting import eventually

RESOURCE = "kerf.dev/slot"


@dataclass
class FakePod:
    uid: str
    namespace: str
    name: str
    containers: tuple[str, ...] = ("main",)
    init_containers: tuple[str, ...] = ()
    slots: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    """By container, the answer of Allocate."""


class FakeKubelet:
    def __init__(self, directory: Path) -> None:
        """`directory` is used as /var/lib/kubelet; its path must be short, because of the sockets."""
        self.dir = directory
        self.plugins = directory / "device-plugins"
        self.pods: dict[str, FakePod] = {}
        self.registrations: list[Any] = []
        self.healthy: list[str] = []
        self.lists = 0
        self.list_other_devices: list[tuple[str, str]] = []
        """Resource and id of devices of other plugins."""
        self.hold_lists = asyncio.Event()
        self.hold_lists.set()
        self._servers: list[grpc.aio.Server] = []
        self._watch: asyncio.Task[None] | None = None
        self._channel: grpc.aio.Channel | None = None

    async def start(self) -> None:
        self.plugins.mkdir(parents=True, exist_ok=True)
        (self.dir / "pod-resources").mkdir(exist_ok=True)
        for path in self.plugins.iterdir():
            if path.is_socket():
                path.unlink()
        (self.dir / "pod-resources" / "kubelet.sock").unlink(missing_ok=True)
        registration, resources = grpc.aio.server(), grpc.aio.server()
        add_RegistrationServicer_to_server(_Registration(self), registration)
        add_PodResourcesListerServicer_to_server(_PodResources(self), resources)
        registration.add_insecure_port(f"unix:{self.plugins / 'kubelet.sock'}")
        resources.add_insecure_port(f"unix:{self.dir / 'pod-resources' / 'kubelet.sock'}")
        self._servers = [registration, resources]
        for server in self._servers:
            await server.start()

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await self._watch
        if self._channel is not None:
            await self._channel.close()
        for server in self._servers:
            await server.stop(0)
        self._watch = self._channel = None
        self.healthy = []

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def registered(self, request: Any) -> None:
        self.registrations.append(request)
        self._watch = asyncio.create_task(self._follow(request.endpoint))

    async def _follow(self, endpoint: str) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{self.plugins / endpoint}")
        async for update in self.plugin.ListAndWatch(dp.Empty()):
            self.healthy = [device.ID for device in update.devices if device.health == "Healthy"]

    @property
    def plugin(self) -> DevicePluginStub:
        assert self._channel is not None, "no plugin has registered"
        return DevicePluginStub(self._channel)

    async def sees_slots(self) -> None:
        await eventually(lambda: self.healthy, what="the kubelet has the plugin's slots")

    async def admit(self, pod: FakePod) -> None:
        """Allocates as the device manager does, and writes the checkpoint."""
        reusable: list[str] = []
        taken = {slot for other in self.pods.values() for slots in other.slots.values() for slot in slots}
        self.pods[pod.uid] = pod
        for container in (*pod.init_containers, *pod.containers):
            slot = reusable[0] if reusable else next(s for s in self.healthy if s not in taken)
            taken.add(slot)
            reusable = [slot] if container in pod.init_containers else []
            answer = await self.plugin.Allocate(
                dp.AllocateRequest(container_requests=[dp.ContainerAllocateRequest(devices_ids=[slot])])
            )
            pod.slots[container], pod.answers[container] = [slot], answer.container_responses[0]
            self.write_checkpoint()

    async def start_container(self, pod: FakePod, container: str = "main") -> str:
        """Calls PreStartContainer; returns the CDI name that the runtime would get. Raises AioRpcError if it is
        refused."""
        await self.plugin.PreStartContainer(dp.PreStartContainerRequest(devices_ids=pod.slots[container]), timeout=30)
        return str(pod.answers[container].cdi_devices[0].name)

    async def starts(self, pod: FakePod, container: str = "main") -> str:
        """Starts a container again as long as the node's agent does not know its pod, as the kubelet does."""

        async def started() -> str:
            try:
                return await self.start_container(pod, container)
            except grpc.aio.AioRpcError as error:
                if "(no-grant)" not in str(error.details()):
                    raise
                return ""

        return str(await eventually(started, what=f"the node's agent has the grant of {pod.name}"))

    def forget(self, pod: FakePod) -> None:
        """PodResources names it no more; the checkpoint does until the next allocation."""
        del self.pods[pod.uid]

    def write_checkpoint(self) -> None:
        entries = [
            {
                "PodUID": pod.uid, "ContainerName": container, "ResourceName": RESOURCE, "DeviceIDs": {"-1": slots},
                "AllocResp": base64.b64encode(pod.answers[container].SerializeToString()).decode(),
            }
            for pod in self.pods.values() for container, slots in pod.slots.items()
        ]  # fmt: skip
        body = {
            "Data": {"PodDeviceEntries": entries or None, "RegisteredDevices": {RESOURCE: self.healthy}},
            "Checksum": 1,
        }
        beside = self.plugins / ".checkpoint.tmp"
        beside.write_text(json.dumps(body))
        beside.replace(self.plugins / "kubelet_internal_checkpoint")


class _Registration(RegistrationServicer):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    async def Register(self, request: Any, context: Any) -> Any:
        self._kubelet.registered(request)
        return dp.Empty()


class _PodResources(PodResourcesListerServicer):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    async def List(self, request: Any, context: Any) -> Any:
        self._kubelet.lists += 1
        answer = pr.ListPodResourcesResponse()
        for pod in self._kubelet.pods.values():
            listed = answer.pod_resources.add(name=pod.name, namespace=pod.namespace)
            for container in pod.containers:
                held = listed.containers.add(name=container)
                if container in pod.slots:
                    held.devices.add(resource_name=RESOURCE, device_ids=pod.slots[container])
        await self._kubelet.hold_lists.wait()
        return answer

    async def GetAllocatableResources(self, request: Any, context: Any) -> Any:
        found = [(RESOURCE, slot) for slot in self._kubelet.healthy] + self._kubelet.list_other_devices
        return pr.AllocatableResourcesResponse(
            devices=[pr.ContainerDevices(resource_name=name, device_ids=[id_]) for name, id_ in found]
        )
