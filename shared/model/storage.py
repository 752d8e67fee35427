"""Volumes: claims, what satisfies them, and the classes that make more."""

from __future__ import annotations

from typing import Any

from shared.model.affinity import LabelSelector, NodeSelector
from shared.model.kube_object import KubeObject, Meta, Quantities
from shared.model.objects import Resources


class ClaimSpec(KubeObject, frozen=True):
    access_modes: tuple[str, ...] = ()
    resources: Resources = Resources()
    volume_name: str = ""
    storage_class_name: str | None = None
    selector: LabelSelector | None = None
    volume_mode: str = "Filesystem"


class PersistentVolumeClaim(KubeObject, tag="PersistentVolumeClaim", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    spec: ClaimSpec = ClaimSpec()
    status: dict[str, Any] = {}


class VolumeNodeAffinity(KubeObject, frozen=True):
    required: NodeSelector | None = None


class ClaimReference(KubeObject, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeSpec(KubeObject, frozen=True):
    capacity: Quantities = {}
    access_modes: tuple[str, ...] = ()
    claim_ref: ClaimReference | None = None
    storage_class_name: str = ""
    node_affinity: VolumeNodeAffinity | None = None
    volume_mode: str = "Filesystem"


class PersistentVolume(KubeObject, tag="PersistentVolume", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    spec: VolumeSpec = VolumeSpec()
    status: dict[str, Any] = {}


class TopologySelectorLabel(KubeObject, frozen=True):
    key: str = ""
    values: tuple[str, ...] = ()


class TopologySelectorTerm(KubeObject, frozen=True):
    match_label_expressions: tuple[TopologySelectorLabel, ...] = ()


class StorageClass(KubeObject, tag="StorageClass", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()
