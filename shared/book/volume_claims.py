"""The PersistentVolumeClaims that a pod mounts."""

from __future__ import annotations

from shared.book.book import Book
from shared.model.objects import Pod
from shared.model.storage import PersistentVolumeClaim
from shared.model.units import whole


def claim_names(pod: Pod) -> list[str]:
    """The names of the claims a pod mounts, those of generic ephemeral volumes too."""
    return [
        v.persistent_volume_claim.claim_name if v.persistent_volume_claim else f"{pod.metadata.name}-{v.name}"
        for v in pod.spec.volumes
        if v.persistent_volume_claim or v.ephemeral
    ]


def claims_of(pod: Pod, book: Book) -> dict[str, PersistentVolumeClaim]:
    """By namespace/name, those of them that exist."""
    known = book.others.get(PersistentVolumeClaim.__name__, {})
    paths = (f"{pod.metadata.namespace}/{name}" for name in claim_names(pod))
    return {path: known[path] for path in paths if path in known}


def asked_bytes(claim: PersistentVolumeClaim) -> int:
    return whole(claim.spec.resources.requests.get("storage", 0))
