from __future__ import annotations

from typing import Any

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.book.volume_claims import asked_bytes, claim_names, claims_of
from shared.contracts.explain import Reason
from shared.model.objects import Pod
from shared.model.selectors import labels_match, node_selector_matches
from shared.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shared.model.units import whole
from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.storage_space import StorageSpace

_ZONES = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
_SINGLE_NODE_DISKS = ("gce_persistent_disk", "aws_elastic_block_store", "rbd", "iscsi")


class Volumes(Filter):
    """Claims, volumes and where they can be reached (VolumeBinding, VolumeRestrictions, VolumeZone, one-pod access).

    A bound claim pins the pod to its volume's nodes. An unbound claim of a class with WaitForFirstConsumer fits where
    an available volume matches, or where the class may provision and has space; which of these happens is written on
    the claim when the pod has its node (`selected_node`). An unbound claim of an immediate class waits for its binder.
    """

    name = "volumes"
    scope = "cluster"

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        names = claim_names(pod.pod)
        disks = _disks(pod.pod)
        if not names and not disks:
            return None
        everywhere = _everywhere(names, pod, book)
        if everywhere is not None:
            return lambda node: everywhere  # noqa: ARG005
        claims = claims_of(pod.pod, book).values()
        late = [claim for claim in claims if not claim.spec.volume_name]
        space = StorageSpace(book)

        def check(node: NodeState) -> Reason | None:
            if node.object is None:
                return None
            chosen = choose_volumes(late, node, book) if late else {}
            made = [claim for claim in late if not chosen[claim.metadata.name]]
            for claim in claims:
                reason = None if chosen.get(claim.metadata.name) else _reaches(claim, made, node, book, space)
                if reason is not None:
                    return reason
            return _disk_clash(disks, node)

        return check


def waits_for_consumer(claim: PersistentVolumeClaim, book: Book) -> bool:
    """Whether the claim is unbound and its class binds only when a pod has its node."""
    storage = book.others.get("StorageClass", {}).get(claim.spec.storage_class_name or "")
    return (
        not claim.spec.volume_name
        and isinstance(storage, StorageClass)
        and storage.volume_binding_mode == "WaitForFirstConsumer"
    )


def choose_volumes(claims: list[PersistentVolumeClaim], node: NodeState, book: Book) -> dict[str, str]:
    """By the name of each unbound claim the volume that it gets on this node: the one reserved for it, else the
    smallest free one, each volume once; empty text where there is none. Small claims choose first (as kube-scheduler's
    binder)."""
    volumes = sorted(
        book.others.get("PersistentVolume", {}).values(),
        key=lambda v: (whole(v.spec.capacity.get("storage", 0)), v.metadata.name),
    )
    chosen: dict[str, str] = {}
    for claim in sorted(claims, key=lambda c: (asked_bytes(c), c.metadata.name)):
        reserved = [v for v in volumes if _reserved_for(claim, v)]
        fitting = (
            v.metadata.name
            for v in reserved or volumes
            if _matches(claim, v) and _on_node(v, node) and v.metadata.name not in chosen.values()
        )
        chosen[claim.metadata.name] = next(fitting, "")
    return chosen


def _everywhere(names: list[str], pod: PodState, book: Book) -> Reason | None:
    """Why a claim excludes every node; None if none does."""
    known = book.others.get("PersistentVolumeClaim", {})
    for name in names:
        claim = known.get(f"{pod.pod.metadata.namespace}/{name}")
        if claim is None:
            return Reason(
                code="claim-missing",
                sentence=f"PersistentVolumeClaim {name} does not exist",
                helps=f"create the claim {name}",
            )
        if claim.metadata.deletion_timestamp is not None:
            return Reason(
                code="claim-deleted",
                sentence=f"PersistentVolumeClaim {name} is being deleted",
                helps=f"create the claim {name} again",
            )
        if claim.status.get("phase") == "Lost":
            return Reason(
                code="claim-lost",
                sentence=f"PersistentVolumeClaim {name} has lost its volume",
                helps="restore the volume, or use another claim",
            )
        if not claim.spec.volume_name and not waits_for_consumer(claim, book):
            return Reason(
                code="claim-unbound",
                sentence=f"PersistentVolumeClaim {name} is not bound to a volume yet",
                helps="provide a volume that matches the claim",
            )
        if "ReadWriteOncePod" in claim.spec.access_modes:
            for other in book.pods.values():
                if (
                    other.charged
                    and other.uid != pod.uid
                    and other.pod.metadata.namespace == pod.pod.metadata.namespace
                    and name in claim_names(other.pod)
                ):
                    return Reason(
                        code="claim-in-use",
                        sentence=f"PersistentVolumeClaim {name} is ReadWriteOncePod and in use by {other.key}",
                        helps=f"wait until {other.key} has ended",
                    )
    return None


def _reaches(
    claim: PersistentVolumeClaim, made: list[PersistentVolumeClaim], node: NodeState, book: Book, space: StorageSpace
) -> Reason | None:
    """`made`: those of the pod's claims for which a volume would be made."""
    if node.object is None:
        return None
    name = claim.metadata.name
    if claim.spec.volume_name:
        volume = book.others.get("PersistentVolume", {}).get(claim.spec.volume_name)
        if volume is None:
            return Reason(
                code="volume-missing",
                sentence=f"volume {claim.spec.volume_name} of claim {name} does not exist",
                helps="restore the volume",
            )
        if not _on_node(volume, node):
            return Reason(
                code="volume-elsewhere",
                sentence=f"volume {claim.spec.volume_name} of claim {name} cannot be reached from the node",
                helps="use a volume that the node can reach",
            )
        return None
    elsewhere = next((v for v in book.others.get("PersistentVolume", {}).values() if _reserved_for(claim, v)), None)
    if elsewhere is not None:
        return Reason(
            code="volume-elsewhere",
            sentence=f"volume {elsewhere.metadata.name}, which is reserved for claim {name}, cannot be reached from "
            "the node",
            helps="use a volume that the node can reach",
        )
    storage = book.others["StorageClass"][claim.spec.storage_class_name or ""]
    if storage.provisioner == "kubernetes.io/no-provisioner":
        return Reason(
            code="no-volume",
            sentence=f"no free volume for claim {name} can be reached from the node",
            helps="add a matching volume on the node",
        )
    if storage.allowed_topologies and not any(
        all(node.object.metadata.labels.get(e.key) in e.values for e in term.match_label_expressions)
        for term in storage.allowed_topologies
    ):
        return Reason(
            code="class-elsewhere",
            sentence=f"StorageClass {storage.metadata.name} does not provision in the node's topology",
            helps="use a class that provisions there",
        )
    return space.lacking(claim, made, node)


def _on_node(volume: PersistentVolume, node: NodeState) -> bool:
    if node.object is None:
        return False
    affinity = volume.spec.node_affinity
    if (
        affinity is not None
        and affinity.required is not None
        and not node_selector_matches(affinity.required, node.object)
    ):
        return False
    labels = node.object.metadata.labels
    # A label may name several zones, joined by "__"; nodes without the label are not constrained by it.
    return all(
        labels[k] in volume.metadata.labels[k].split("__")
        for k in _ZONES
        if k in volume.metadata.labels and k in labels
    ) or not any(k in volume.metadata.labels for k in _ZONES)


def _matches(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    spec = volume.spec
    if spec.claim_ref is not None and not _reserved_for(claim, volume):
        return False
    return (
        volume.metadata.deletion_timestamp is None
        # A volume without a phase, or just made, is no less free; one that its claim is about to get may say so
        # already.
        and volume.status.get("phase", "")
        in ("", "Pending", "Available", *(("Bound",) if spec.claim_ref is not None else ()))
        and spec.storage_class_name == (claim.spec.storage_class_name or "")
        and spec.volume_mode == claim.spec.volume_mode
        and set(claim.spec.access_modes) <= set(spec.access_modes)
        and whole(spec.capacity.get("storage", 0)) >= asked_bytes(claim)
        and (claim.spec.selector is None or labels_match(claim.spec.selector, volume.metadata.labels))
    )


def _reserved_for(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    """By Kerf just now, or by the creator of the volume; a reservation without a uid is for the name."""
    reference = volume.spec.claim_ref
    return (
        reference is not None
        and (reference.namespace, reference.name) == (claim.metadata.namespace, claim.metadata.name)
        and reference.uid in ("", claim.metadata.uid)
    )


def _disks(pod: Pod) -> list[tuple[str, Any]]:
    return [
        (kind, source)
        for v in pod.spec.volumes
        for kind in _SINGLE_NODE_DISKS
        if (source := getattr(v, kind)) is not None
    ]


def _disk_clash(disks: list[tuple[str, Any]], node: NodeState) -> Reason | None:
    """In-tree disks that two pods of one node may not both write. The kubelet checks read-only sharing."""
    for other in node.pods.values():
        for disk in _disks(other.pod):
            if disk in disks and not disk[1].get("readOnly"):
                return Reason(
                    code="disk-in-use",
                    sentence=f"a disk of the pod is in use by {other.key} on the node",
                    helps=f"wait until {other.key} has ended",
                )
    return None
