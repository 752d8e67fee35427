"""Writes of dynamic resource allocation: a claim's allocation, and what a node has (resource.k8s.io/v1)."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shared.contracts.commands import AllocateClaim, ClaimDevice, PublishSlice, SliceDevice
from shared.kube.outcomes import WRITE_TIMEOUT_S, Result, outcome_of
from shared.kube.resources import DEVICE_CLAIM, DEVICE_SLICE
from shared.kube.transport import APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Transport, TransportError
from shared.model import names
from shared.model.claims import CAPACITY_COMPUTE, CAPACITY_MEMORY, Consumer, ResourceClaim

FINALIZER = "resource.kubernetes.io/delete-protection"
"""The allocating scheduler sets this finalizer; the claim controller removes it after deallocation."""
FIELD_MANAGER = "kerf"
_CLAIM = msgspec.json.Decoder(ResourceClaim)
_ENCODER = msgspec.json.Encoder()


class Written(NamedTuple):
    result: Result
    claim: ResourceClaim | None = None
    """The object as the server has it now, if it was written."""


class DeviceWrites:
    """Writes of dynamic resource allocation. None raises on a failure of server or network: the outcome says it."""

    def __init__(self, transport: Transport, *, timeout_s: float = WRITE_TIMEOUT_S) -> None:
        self._transport = transport
        self._timeout_s = timeout_s

    async def allocate(self, order: AllocateClaim, known: ResourceClaim, *, node: str, pod: Consumer) -> Result:
        """Writes the claim's allocation and its consumers, only on the version that the command names. `known`: the
        claim as last seen. "done" also if the claim is so already; "refused" if something else has changed the
        claim."""
        if known.metadata.uid != order.uid:
            return Result("refused", f"ResourceClaim {order.name} is another one by now")
        if allocated(order, known) and pod.uid in {consumer.uid for consumer in known.status.reserved_for}:
            return Result("done")
        steps: list[tuple[str, str, dict[str, Any]]] = [
            ("", STRATEGIC_PATCH, {"metadata": {"finalizers": [FINALIZER]}})
        ]
        if known.status.allocation is not None:
            # An allocation cannot be changed, only taken back: this one is of a decision that came to nothing.
            steps.append(("status", MERGE_PATCH, {"status": {"allocation": None, "reservedFor": None}}))
        steps.append(("status", MERGE_PATCH, {"status": _status(order, node, pod)}))
        version = order.resource_version
        for sub, kind, body in steps:
            meta = {"uid": order.uid, "resourceVersion": version} | body.get("metadata", {})
            written = await self._patch(known, sub, kind, body | {"metadata": meta})
            if written.claim is None:
                changed = written.result.outcome in ("conflict", "gone")
                return (
                    Result("refused", f"ResourceClaim {order.name}: {written.result.message}")
                    if changed
                    else written.result
                )
            version = written.claim.metadata.resource_version
        return Result("done")

    async def publish(self, order: PublishSlice, node_uid: str) -> Result:
        name = f"{order.node}-{names.DRA_DRIVER}"
        owner = {"apiVersion": "v1", "kind": "Node", "name": order.node, "uid": node_uid}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": name,
                "ownerReferences": [owner],
                "annotations": {names.ANNOTATION_INVENTORY: order.mark},
            },
            "spec": {
                "driver": names.DRA_DRIVER,
                "nodeName": order.node,
                "devices": [_device(device) for device in order.devices],
                "pool": {"name": order.node, "generation": order.generation, "resourceSliceCount": 1},
            },
        }
        path = f"{DEVICE_SLICE.path(name)}?fieldManager={FIELD_MANAGER}&force=true"
        try:
            return outcome_of(
                await self._transport.request(
                    "PATCH", path, _ENCODER.encode(body), content_type=APPLY_PATCH, timeout_s=self._timeout_s
                )
            )
        except TransportError as error:
            return Result("unknown" if error.sent else "throttled", str(error))

    async def _patch(self, claim: ResourceClaim, sub: str, kind: str, body: dict[str, Any]) -> Written:
        path = DEVICE_CLAIM.path(claim.metadata.name, claim.metadata.namespace, sub=sub)
        try:
            response = await self._transport.request(
                "PATCH", path, _ENCODER.encode(body), content_type=kind, timeout_s=self._timeout_s
            )
        except TransportError as error:
            return Written(Result("unknown" if error.sent else "throttled", str(error)))
        result = outcome_of(response)
        return Written(result, _CLAIM.decode(response.body) if result.outcome == "done" else None)


def allocated(order: AllocateClaim, claim: ResourceClaim) -> bool:
    """Whether the claim has exactly these devices."""
    has = () if claim.status.allocation is None else claim.status.allocation.devices.results
    wanted = {
        (device.request, names.DRA_DRIVER, device.pool, device.device, device.share_id) for device in order.devices
    }
    return {(d.request, d.driver, d.pool, d.device, d.share_id) for d in has} == wanted


def _status(order: AllocateClaim, node: str, pod: Consumer) -> dict[str, Any]:
    here = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}
    return {
        "allocation": {"devices": {"results": [_result(device) for device in order.devices]}, "nodeSelector": here},
        "reservedFor": [{"resource": "pods", "name": pod.name, "uid": pod.uid}],
    }


def _result(device: ClaimDevice) -> dict[str, Any]:
    return {
        "request": device.request,
        "driver": names.DRA_DRIVER,
        "pool": device.pool,
        "device": device.device,
        "shareID": device.share_id,
        "consumedCapacity": {
            CAPACITY_MEMORY: f"{device.memory_mib}Mi",
            CAPACITY_COMPUTE: f"{device.compute_milli * 100}m",
        },
    }


def _device(device: SliceDevice) -> dict[str, Any]:
    whole = f"{device.memory_mib}Mi"
    return {
        "name": device.name,
        "allowMultipleAllocations": True,
        "attributes": {key: {"string": text} for key, text in device.texts.items()}
        | {key: {"version": text} for key, text in device.versions.items()},
        "capacity": {
            CAPACITY_MEMORY: {
                "value": whole,
                "requestPolicy": {"default": whole, "validRange": {"min": "1Mi", "max": whole, "step": "1Mi"}},
            },
            CAPACITY_COMPUTE: {
                "value": "100",
                "requestPolicy": {"default": "100", "validRange": {"min": "0", "max": "100"}},
            },
        },
        # kube-scheduler allocates what it sees; these are Kerf's to give.
        "taints": [{"key": names.TAINT_MANAGED, "effect": "NoSchedule"}],
    }
