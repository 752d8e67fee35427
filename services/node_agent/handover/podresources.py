"""Lists the containers that hold slots, from the kubelet's PodResources v1. One list answers all concurrent callers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from services.node_agent.handover.slots import PodResourcesEntry
from services.node_agent.kubelet_api.pod_resources_pb2 import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)
from services.node_agent.kubelet_api.pod_resources_pb2_grpc import PodResourcesListerStub

SOCKET = "pod-resources/kubelet.sock"
TIMEOUT_S = 10.0
"""Part of the 30 s that the kubelet waits for PreStartContainer."""
_AGAIN_S = 0.02
"""The kubelet refuses more than 100 lists a second, with a burst of 10 (DefaultPodResourcesMaxSize, 1.36)."""
_OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class PodResourcesError(Exception):
    """The kubelet did not answer which container holds which device."""


class PodResources:
    """Asks PodResources. `list` returns an answer to a call that began after `list` was called."""

    def __init__(self, kubelet_dir: Path, resource: str) -> None:
        self._resource = resource
        self._socket = kubelet_dir / SOCKET
        self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
        self._stub = PodResourcesListerStub(self._channel)  # type: ignore[no-untyped-call]
        self._current: asyncio.Task[tuple[PodResourcesEntry, ...]] | None = None
        self._next: asyncio.Task[tuple[PodResourcesEntry, ...]] | None = None

    async def list(self) -> tuple[PodResourcesEntry, ...]:
        """The containers that hold slots. Raises PodResourcesError."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._current))
        # Shielded: if one caller is cancelled, the others still get the answer.
        return await asyncio.shield(self._next)

    async def list_other_devices(self) -> tuple[tuple[str, str], ...]:
        """(resource, device id) of the devices of other plugins. Raises PodResourcesError."""
        try:
            answer: AllocatableResourcesResponse = await self._stub.GetAllocatableResources(
                AllocatableResourcesRequest(), timeout=TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise PodResourcesError(
                f"the kubelet did not list its allocatable devices on {self._socket}: {error.details()}"
            ) from error
        return tuple(
            (found.resource_name, id_)
            for found in answer.devices
            if found.resource_name != self._resource
            for id_ in found.device_ids
        )

    async def close(self) -> None:
        await self._channel.close()

    async def _after(
        self, current: asyncio.Task[tuple[PodResourcesEntry, ...]] | None
    ) -> tuple[PodResourcesEntry, ...]:
        if current is not None:
            await asyncio.wait((current,))
        # From here on the answer may be older than a new caller's question.
        self._current, self._next = self._next, None
        return await self._list()

    async def _list(self) -> tuple[PodResourcesEntry, ...]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return _list_slots(await self._call(), self._resource)
        except TimeoutError:
            raise PodResourcesError(f"the kubelet did not answer on {self._socket} within {TIMEOUT_S:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise PodResourcesError(f"the kubelet did not list pods on {self._socket}: {error.details()}") from error

    async def _call(self) -> ListPodResourcesResponse:
        while True:
            try:
                answer: ListPodResourcesResponse = await self._stub.List(ListPodResourcesRequest(), wait_for_ready=True)
                return answer
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
            await asyncio.sleep(_AGAIN_S)


def _list_slots(answer: ListPodResourcesResponse, resource: str) -> tuple[PodResourcesEntry, ...]:
    found = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            slots = frozenset(
                slot for device in container.devices if device.resource_name == resource for slot in device.device_ids
            )
            if slots:
                found.append(
                    PodResourcesEntry(namespace=pod.namespace, name=pod.name, container=container.name, slots=slots)
                )
    return tuple(found)
