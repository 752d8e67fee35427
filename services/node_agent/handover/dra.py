"""Implements the kubelet's interface for dynamic resource allocation (dra v1): devices of claims, prepared before a
pod's sandbox.

The grant that names the claim's UID says which GPUs the claim gets. The allocation in the claim itself is not trusted:
the watcher writes it for others to read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Protocol

import structlog

from services.node_agent import messages as m
from services.node_agent.handover.base import AgentPort, SpecWriter
from services.node_agent.handover.device_plugin import CDI_KIND
from services.node_agent.kubelet_api import dra_pb2 as pb
from services.node_agent.kubelet_api.dra_pb2_grpc import DRAPluginServicer
from services.node_agent.worker import Hung
from shared.model.claims import device_name, request_of
from shared.model.gpu import Gpu
from shared.telemetry.metrics import Counter, Histogram

log = structlog.get_logger("dra")


class ClaimPort(AgentPort, Protocol):
    async def find_claim(self, claim: str) -> tuple[str, tuple[str, ...]] | None:
        """The pod's UID and the parts of its grant that are for this claim, by the claim's UID.

        Waits for the grant if it is not known. None if it does not come. Raises OSError if the checkpoint cannot be
        written.
        """


class ClaimPlugin(DRAPluginServicer):
    """Serves the kubelet's calls. It keeps no state: a claim that is prepared again gets the same devices and names."""

    def __init__(
        self,
        *,
        agent: ClaimPort,
        specs: SpecWriter,
        gpus: Callable[[], Mapping[str, Gpu]],
        seconds: Histogram,
        refused: Counter,
        handed: Callable[[m.HandOver, float], None],
        obstacle: Callable[[], str],
    ) -> None:
        """`gpus` returns this node's GPUs by UUID, `obstacle` why nothing can be handed over on this node, or ""."""
        self._agent, self._specs, self._gpus = agent, specs, gpus
        self._seconds, self._refused, self._handed = seconds, refused, handed
        self._obstacle = obstacle

    async def NodePrepareResources(
        self, request: pb.NodePrepareResourcesRequest, context: Any
    ) -> pb.NodePrepareResourcesResponse:
        prepared = await asyncio.gather(*(self._prepare(claim) for claim in request.claims))
        return pb.NodePrepareResourcesResponse(
            claims={claim.uid: answer for claim, answer in zip(request.claims, prepared, strict=True)}
        )

    async def NodeUnprepareResources(
        self, request: pb.NodeUnprepareResourcesRequest, context: Any
    ) -> pb.NodeUnprepareResourcesResponse:
        """Releases nothing: the node releases a grant when no process of the pod runs, as for any pod."""
        return pb.NodeUnprepareResourcesResponse(
            claims={claim.uid: pb.NodeUnprepareResourceResponse() for claim in request.claims}
        )

    async def _prepare(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        begun = time.perf_counter()
        try:
            if obstacle := self._obstacle():
                return self._refuse(claim, "runtime-not-ready", obstacle)
            try:
                found = await self._agent.find_claim(claim.uid)
            except OSError as error:
                return self._refuse(claim, "checkpoint-not-written", str(error))
            if found is None:
                return self._refuse(
                    claim,
                    "no-grant",
                    (
                        f"this node has no grant for ResourceClaim {claim.namespace}/{claim.name}; only pods that Kerf "
                        "has bound get its devices"
                    ),
                )
            uid, entries = found
            devices = []
            for entry in entries:
                order = await self._agent.start_container(uid, entry)
                if isinstance(order, m.RefuseStart):
                    return self._refuse(claim, order.code, order.sentence)
                name = _device_of(claim.uid, uid, entry)
                try:
                    await self._specs.write((name,), order)
                except m.SliceNotReady as error:
                    return self._refuse(claim, error.code, str(error))
                except (OSError, ValueError, Hung) as error:
                    return self._refuse(claim, "spec-not-written", f"the claim's CDI spec cannot be written: {error}")
                self._handed(order, time.perf_counter() - begun)
                devices += _devices(order, name, self._gpus())
            return pb.NodePrepareResourceResponse(devices=devices)
        finally:
            self._seconds.observe(time.perf_counter() - begun, "prepare")

    def _refuse(self, claim: pb.Claim, code: str, sentence: str) -> pb.NodePrepareResourceResponse:
        log.warning("claim_refused", claim=f"{claim.namespace}/{claim.name}", code=code, why=sentence)
        self._refused.add(1, code)
        return pb.NodePrepareResourceResponse(error=f"{sentence} ({code})")


def _device_of(claim: str, pod: str, entry: str) -> str:
    """The name of the CDI device of a pod's entry; `claim` and `pod` are UIDs. Another one for the claim's next pod:
    the spec of the one before may still be there, and runtimes refuse two devices of one name. As long for every
    entry: it is a part of a file's name."""
    return f"claim-{claim}-{blake2b(f'{pod}/{entry}'.encode(), digest_size=8).hexdigest()}"


def _devices(order: m.HandOver, name: str, gpus: Mapping[str, Gpu]) -> list[pb.Device]:
    """One device per GPU, as in the allocation.

    The first one carries the CDI device of them all, because a runtime accepts a name once.
    """
    request, ids = request_of(order.container), [[f"{CDI_KIND}={name}"], *([] for _ in order.share.gpus[1:])]
    return [
        pb.Device(
            request_names=[request],
            pool_name=share.node,
            device_name=device_name(gpus[share.uuid].index),
            cdi_device_ids=cdi,
        )
        for share, cdi in zip(order.share.gpus, ids, strict=True)
    ]
