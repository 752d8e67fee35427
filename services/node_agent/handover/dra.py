"""The kubelet's interface of dynamic resource allocation (dra v1): devices of claims, prepared before a pod's sandbox.

Whose GPUs a claim gets says the grant that names the claim's uid. What stands in the claim itself was written by the
watcher for others to read, and is not believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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
        """The pod's UID and the entries of its grant that are of this claim, by the claim's uid. Asks placement where it is not
        known; None where nobody knows it."""


class ClaimPlugin(DRAPluginServicer):
    """It remembers nothing: a claim that is prepared again has the same devices, under the same names."""

    def __init__(
        self,
        *,
        agent: ClaimPort,
        specs: SpecWriter,
        gpus: Callable[[], Mapping[str, Gpu]],
        seconds: Histogram,
        refused: Counter,
        handed: Callable[[m.HandOver, float], None],
    ) -> None:
        """`gpus` gives this node's by UUID."""
        self._agent, self._specs, self._gpus, self._seconds, self._refused, self._handed = (
            agent,
            specs,
            gpus,
            seconds,
            refused,
            handed,
        )

    async def NodePrepareResources(  # noqa: N802
        self,
        request: pb.NodePrepareResourcesRequest,
        context: Any,  # noqa: ARG002
    ) -> pb.NodePrepareResourcesResponse:
        return pb.NodePrepareResourcesResponse(
            claims={claim.uid: await self._prepare(claim) for claim in request.claims}
        )

    async def NodeUnprepareResources(  # noqa: N802
        self,
        request: pb.NodeUnprepareResourcesRequest,
        context: Any,  # noqa: ARG002
    ) -> pb.NodeUnprepareResourcesResponse:
        """Nothing is given back by this: the node gives back when nothing of the pod runs, as for any pod."""
        return pb.NodeUnprepareResourcesResponse(
            claims={claim.uid: pb.NodeUnprepareResourceResponse() for claim in request.claims}
        )

    async def _prepare(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        begun = time.perf_counter()
        try:
            found = await self._agent.find_claim(claim.uid)
            if found is None:
                return self._refuse(
                    claim,
                    "no-grant",
                    f"no grant on this node is for ResourceClaim {claim.namespace}/{claim.name}; only pods that Kerf has bound get its devices",
                )
            uid, entries = found
            devices = []
            for entry in entries:
                order = await self._agent.start_container(uid, entry)
                if isinstance(order, m.RefuseStart):
                    return self._refuse(claim, order.code, order.sentence)
                name = f"claim-{claim.uid}-{request_of(entry)}"
                try:
                    await self._specs.write((name,), order)
                except (OSError, ValueError, Hung) as error:
                    return self._refuse(claim, "spec-not-written", f"the claim's CDI spec cannot be made: {error}")
                self._handed(order, time.perf_counter() - begun)
                devices += _devices(order, name, self._gpus())
            return pb.NodePrepareResourceResponse(devices=devices)
        finally:
            self._seconds.observe(time.perf_counter() - begun, "prepare")

    def _refuse(self, claim: pb.Claim, code: str, sentence: str) -> pb.NodePrepareResourceResponse:
        log.warning("claim_refused", claim=f"{claim.namespace}/{claim.name}", code=code, why=sentence)
        self._refused.add(1, code)
        return pb.NodePrepareResourceResponse(error=f"{sentence} ({code})")


def _devices(order: m.HandOver, name: str, gpus: Mapping[str, Gpu]) -> list[pb.Device]:
    """One for each GPU, as the allocation lists them. The first brings the CDI device of them all: a runtime takes a name once."""
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
