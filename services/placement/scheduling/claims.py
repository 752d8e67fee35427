"""What a decision writes into the ResourceClaims of its pod (dynamic resource allocation).

Placement decides the allocation on the book, like everything else.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import msgspec

from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.commands import AllocateClaim, ClaimDevice
from shared.model.claims import ResourceClaim, claim_of, device_name, request_of
from shared.model.grant import ContainerGrant, Grant

_SHARES = uuid.UUID("5c1d1f0e-6f57-4b2b-9b52-6b6572662d31")
"""The UUID namespace of share ids: a decision has the same ids in whichever process carries it out."""


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


def _claims(book: Book) -> Mapping[str, ResourceClaim]:
    return book.others.get(ResourceClaim.__name__, {})
