"""Dynamic resource allocation: claims on devices (resource.k8s.io/v1, Kubernetes 1.34 and later), read as GPU requests.

A pod's claim becomes an entry of its request beside those of its containers, named "claim/<claim>/<request>": no
container's name has a slash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from shared.model import names
from shared.model.kube_object import KubeObject, Meta, Quantities
from shared.model.objects import Pod, PodClaim
from shared.model.request import GpuAsk, RequestError
from shared.model.request_amounts import ask_for
from shared.model.units import QuantityError, whole

CAPACITY_MEMORY = "memory"
CAPACITY_COMPUTE = "compute"
"""In percent of one GPU's SMs, like kerf.dev/gpu-compute."""
ENTRY = "claim/"
CLAIM_COMING = "claim-coming"
"""The code of a refusal that ends by itself soon: not worth an Event."""


class CapacityRequests(KubeObject, frozen=True):
    requests: Quantities = {}


class ExactRequest(KubeObject, frozen=True):
    device_class_name: str = ""
    allocation_mode: str = ""
    count: int = 1
    capacity: CapacityRequests = CapacityRequests()
    selectors: tuple[dict[str, Any], ...] = ()
    admin_access: bool | None = None


class DeviceRequest(KubeObject, frozen=True):
    name: str = ""
    exactly: ExactRequest | None = None
    """None: the first that is available of several requests."""


class DeviceClaim(KubeObject, frozen=True):
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[dict[str, Any], ...] = ()


class ResourceClaimSpec(KubeObject, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(KubeObject, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str = msgspec.field(default="", name="shareID")


class AllocatedDevices(KubeObject, frozen=True):
    results: tuple[AllocatedDevice, ...] = ()


class Allocation(KubeObject, frozen=True):
    devices: AllocatedDevices = AllocatedDevices()


class Consumer(KubeObject, frozen=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(KubeObject, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ResourceClaim(KubeObject, tag="ResourceClaim", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class Pool(KubeObject, frozen=True):
    name: str = ""
    generation: int = 0


class ResourceSliceSpec(KubeObject, frozen=True):
    driver: str = ""
    node_name: str = ""
    pool: Pool = Pool()


class ResourceSlice(KubeObject, tag="ResourceSlice", tag_field="kind", frozen=True):
    """What a driver has on a node. Only our own are followed, to see whether they still say what is true."""

    metadata: Meta = Meta()
    spec: ResourceSliceSpec = ResourceSliceSpec()


def claim_path(pod: Pod, claim: PodClaim) -> str:
    """namespace/name of the object behind a pod's claim; empty while it has not been made, or where none is needed."""
    name = claim.resource_claim_name
    if claim.resource_claim_template_name:
        name = next(
            (made.resource_claim_name for made in pod.status.resource_claim_statuses if made.name == claim.name), ""
        )
    return f"{pod.metadata.namespace}/{name}" if name else ""


def claim_asks(pod: Pod, claims: Mapping[str, ResourceClaim]) -> dict[str, GpuAsk]:
    """What the pod's claims request, by entry. `claims` by namespace/name. Raises RequestError if one cannot be served,
    or cannot yet."""
    names_of: dict[str, str] = {}
    for claim in pod.spec.resource_claims:
        path = claim_path(pod, claim)
        if path and (first := names_of.setdefault(path, claim.name)) != claim.name:
            raise RequestError(
                "claim-twice",
                f"claims {first!r} and {claim.name!r} are the same ResourceClaim {path}, and a claim is allocated "
                "once; name it once, and use that name in each container",
            )
    return {entry: ask for claim in pod.spec.resource_claims for entry, ask in _asks(pod, claim, claims)}


def entry_of(claim: str, request: str) -> str:
    return f"{ENTRY}{claim}/{request}"


def device_name(index: int) -> str:
    """Of a GPU in ResourceSlices and allocations, by its index on the node."""
    return f"gpu-{index}"


def claim_of(entry: str) -> str:
    """The pod's own name of the claim that an entry is of; empty for a container's."""
    return entry.split("/")[1] if entry.startswith(ENTRY) else ""


def request_of(entry: str) -> str:
    return entry.rsplit("/", 1)[1]


def _asks(pod: Pod, claim: PodClaim, claims: Mapping[str, ResourceClaim]) -> Iterator[tuple[str, GpuAsk]]:
    path = claim_path(pod, claim)
    known = claims.get(path) if path else None
    if not path:
        raise RequestError(
            CLAIM_COMING,
            f"claim {claim.name!r}: Kubernetes has not made its ResourceClaim from template "
            f"{claim.resource_claim_template_name} yet",
        )
    if known is None and claim.resource_claim_template_name:
        # The pod's status may be seen before the claim that it names. One that was deleted is made again.
        raise RequestError(
            CLAIM_COMING,
            f"claim {claim.name!r}: ResourceClaim {path}, made from template "
            f"{claim.resource_claim_template_name}, is not to be seen yet",
        )
    if known is None:
        raise RequestError("claim-missing", f"claim {claim.name!r}: ResourceClaim {path} does not exist")
    others = [consumer for consumer in known.status.reserved_for if consumer.uid != pod.metadata.uid]
    if others:
        raise RequestError(
            "claim-in-use",
            f"claim {claim.name!r}: ResourceClaim {path} is reserved for {others[0].name}; GPUs of one claim go "
            "to one pod, so give each pod its own by a template, or wait until that one ends",
        )
    if known.metadata.deletion_timestamp and not pod.spec.node_name:
        raise RequestError(
            "claim-ending",
            f"claim {claim.name!r}: ResourceClaim {path} is being deleted, and none of its devices can be given any "
            "more; the pod waits for a claim of that name that is made anew",
        )
    if known.spec.devices.constraints:
        raise RequestError(
            "claim-constraints",
            f"claim {claim.name!r} has constraints, which Kerf does not read; ask for several GPUs in one "
            "request, and write kerf.dev/topology: required on the pod",
        )
    if not known.spec.devices.requests:
        raise RequestError("claim-empty", f"claim {claim.name!r}: ResourceClaim {path} requests no device; write one")
    for request in known.spec.devices.requests:
        yield entry_of(claim.name, request.name), _ask(f"claim {claim.name!r}, request {request.name!r}", request)


def _ask(where: str, request: DeviceRequest) -> GpuAsk:
    exact = request.exactly
    if exact is None:
        raise RequestError(
            "claim-alternatives",
            f"{where} has firstAvailable, which Kerf does not read; write one request with exactly",
        )
    if exact.device_class_name != names.DEVICE_CLASS:
        raise RequestError(
            "claim-other-class",
            f"{where} asks for class {exact.device_class_name!r}; Kerf gives devices of {names.DEVICE_CLASS}. "
            "Leave a pod that needs others to the default scheduler",
        )
    if exact.admin_access or exact.allocation_mode not in ("", "ExactCount"):
        raise RequestError(
            "claim-mode",
            f"{where} has {'adminAccess' if exact.admin_access else 'allocationMode ' + exact.allocation_mode}; "
            "Kerf gives so many GPUs as count says",
        )
    if exact.selectors:
        raise RequestError(
            "claim-selectors",
            f"{where} has selectors, which Kerf does not read; write kerf.dev/gpu-model, "
            "kerf.dev/gpu-memory-min or kerf.dev/gpu-generation on the pod",
        )
    asked = exact.capacity.requests
    unknown = sorted(set(asked) - {CAPACITY_MEMORY, CAPACITY_COMPUTE})
    if unknown:
        raise RequestError(
            "claim-capacity",
            f"{where} asks for capacity {unknown[0]!r}; a GPU has {CAPACITY_MEMORY} and {CAPACITY_COMPUTE} (percent)",
        )
    try:
        memory_bytes, percent = (whole(asked.get(name, 0)) for name in (CAPACITY_MEMORY, CAPACITY_COMPUTE))
    except QuantityError as error:
        raise RequestError("not-a-quantity", f"{where}: {error}") from None
    return ask_for(where, exact.count, memory_bytes * exact.count, percent * exact.count, count_named=True)
