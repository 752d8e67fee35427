"""Claims of dynamic resource allocation: what a decision writes into them, and what a node's ResourceSlice says.

Placement decides the allocation on the book, like everything else. The ResourceSlices tell other systems what a node
has; nothing is allocated from them.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping

import msgspec

from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.commands import AllocateClaim, ClaimDevice, PublishSlice, SliceDevice
from shared.model import names
from shared.model.claims import ResourceClaim, ResourceSlice, claim_of, device_name, request_of
from shared.model.generations import generation_of
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant, Grant

_SHARES = uuid.UUID("5c1d1f0e-6f57-4b2b-9b52-6b6572662d31")
"""The UUID namespace of share ids: a decision has the same ids in whichever process carries it out."""
PUBLISH_AGAIN_S = 5.0
PUBLISH_AT_ONCE = 50
_ENCODER = msgspec.json.Encoder(order="deterministic")


def with_claims(containers: dict[str, ContainerGrant], state: PodState, book: Book) -> dict[str, ContainerGrant]:
    """The owner of each allocated share: the kubelet asks the node for it by the claim's uid."""
    if not state.claims:
        return containers
    known = _claims(book)
    return {
        entry: msgspec.structs.replace(part, claim=known[state.claims[claim]].metadata.uid)
        if (claim := claim_of(entry))
        else part
        for entry, part in containers.items()
    }


def allocations(state: PodState, grant: Grant, book: Book) -> tuple[AllocateClaim, ...]:
    """What the pod's claims get by this grant."""
    known, found = _claims(book), []
    for name, path in sorted(state.claims.items()):
        devices = [
            ClaimDevice(
                request=request_of(entry),
                pool=share.node,
                device=device_name(book.nodes[share.node].by_uuid[share.uuid].index),
                share_id=str(uuid.uuid5(_SHARES, f"{grant.grant_id}/{entry}/{number}")),
                memory_mib=share.memory_mib,
                compute_milli=share.compute_milli,
            )
            for entry, part in sorted(grant.containers.items())
            if claim_of(entry) == name
            for number, share in enumerate(part.gpus)
        ]
        if devices:
            meta = known[path].metadata
            found.append(
                AllocateClaim(
                    name=meta.name, uid=meta.uid, resource_version=meta.resource_version, devices=tuple(devices)
                )
            )
    return tuple(found)


class Slices:
    """What nodes' ResourceSlices should say, and whether they do. The kubelet deletes those of its node when it
    starts."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self._marks: dict[str, tuple[Inventory, str]] = {}
        """By node: the digest of what its slice should say, and the inventory that it was made from."""
        self._ordered: dict[str, float] = {}

    def due(self, now: float) -> list[PublishSlice]:
        """Commands for nodes that serve claims and whose slice differs from their inventory; repeated until it does
        not."""
        out: list[PublishSlice] = []
        seen: Mapping[str, ResourceSlice] = self.book.others.get(ResourceSlice.__name__, {})
        for name, node in self.book.nodes.items():
            inventory, there = node.inventory, seen.get(f"{name}-{names.DRA_DRIVER}")
            if inventory is None or not inventory.dra or node.object is None:
                continue
            known, mark = self._marks.get(name, (None, ""))
            has = "" if there is None else there.metadata.annotations.get(names.ANNOTATION_INVENTORY, "")
            if known is inventory and (has == mark or now - self._ordered[name] < PUBLISH_AGAIN_S):
                continue
            devices = tuple(_described(gpu, inventory) for gpu in inventory.gpus if not gpu.mig_enabled)
            mark = hashlib.blake2b(_ENCODER.encode(devices), digest_size=16).hexdigest()
            self._marks[name], self._ordered[name] = (inventory, mark), now
            if has != mark:
                out.append(
                    PublishSlice(
                        node=name,
                        generation=1 if there is None else there.spec.pool.generation + 1,
                        mark=mark,
                        devices=devices,
                    )
                )
            if len(out) == PUBLISH_AT_ONCE:
                break
        return out


def _described(gpu: Gpu, inventory: Inventory) -> SliceDevice:
    texts = {"type": "gpu", "uuid": gpu.uuid, "productName": gpu.model.replace("-", " "), "brand": "Nvidia"}
    generation = generation_of(gpu.compute_capability)
    if generation:
        texts["architecture"] = generation
    if gpu.pci_bus_id:
        texts["resource.kubernetes.io/pciBusID"] = gpu.pci_bus_id.lower()
    versions = {
        "cudaComputeCapability": gpu.compute_capability,
        "driverVersion": inventory.driver_version,
        "cudaDriverVersion": inventory.cuda_version,
    }
    return SliceDevice(
        name=device_name(gpu.index),
        memory_mib=gpu.memory_mib,
        texts=texts,
        versions={key: semantic for key, text in versions.items() if (semantic := _semantic(text))},
    )


def _semantic(version: str) -> str:
    """9.0 as 9.0.0 and 580.65.06 as 580.65.6, as semantic versions are written; empty if it is not a version."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){0,2}", version):
        return ""
    return ".".join([*(str(int(part)) for part in version.split(".")), "0", "0"][:3])


def _claims(book: Book) -> Mapping[str, ResourceClaim]:
    return book.others.get(ResourceClaim.__name__, {})
