"""Volumes: claims, what satisfies them, the classes that make more, and what drivers can do on which nodes."""

from __future__ import annotations

from typing import Any

from shared.model.affinity import LabelSelector, NodeSelector
from shared.model.kube_object import KubeObject, Meta, Quantities
from shared.model.objects import Resources
from shared.model.units import whole

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""The annotation of a claim by which whatever makes its volume knows where."""


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


class CsiSource(KubeObject, frozen=True):
    """The driver of the container storage interface that has a volume."""

    driver: str = ""


_MIGRATED = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}
"""The drivers that do for Kubernetes what was once built in, by the names that its classes still have
(k8s.io/csi-translation-lib)."""


class VolumeSpec(KubeObject, frozen=True):
    capacity: Quantities = {}
    access_modes: tuple[str, ...] = ()
    claim_ref: ClaimReference | None = None
    storage_class_name: str = ""
    node_affinity: VolumeNodeAffinity | None = None
    volume_mode: str = "Filesystem"
    csi: CsiSource | None = None
    aws_elastic_block_store: dict[str, Any] | None = None
    gce_persistent_disk: dict[str, Any] | None = None
    azure_disk: dict[str, Any] | None = None
    cinder: dict[str, Any] | None = None
    vsphere_volume: dict[str, Any] | None = None
    portworx_volume: dict[str, Any] | None = None


class PersistentVolume(KubeObject, tag="PersistentVolume", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    spec: VolumeSpec = VolumeSpec()
    status: dict[str, Any] = {}

    @property
    def driver(self) -> str:
        """The CSI driver that attaches it; empty if none does."""
        spec = self.spec
        if spec.csi is not None:
            return spec.csi.driver
        built_in = (
            spec.aws_elastic_block_store, spec.gce_persistent_disk, spec.azure_disk, spec.cinder, spec.vsphere_volume,
            spec.portworx_volume,
        )  # fmt: skip
        return next((driver for driver, source in zip(_MIGRATED.values(), built_in, strict=True) if source), "")


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


def driver_of(storage: StorageClass) -> str:
    """What makes the volumes of a class, and attaches them."""
    return _MIGRATED.get(storage.provisioner, storage.provisioner)


class Attachable(KubeObject, frozen=True):
    count: int | None = None
    """How many volumes of the driver a node can have. None: as many as it likes."""


class NodeDriver(KubeObject, frozen=True):
    name: str = ""
    allocatable: Attachable | None = None


class NodeDrivers(KubeObject, frozen=True):
    drivers: tuple[NodeDriver, ...] = ()


class CSINode(KubeObject, tag="CSINode", tag_field="kind", frozen=True):
    """The storage drivers of the node with the same name."""

    metadata: Meta = Meta()
    spec: NodeDrivers = NodeDrivers()


class DriverSpec(KubeObject, frozen=True):
    storage_capacity: bool = False
    """Whether it says where it has how much space, and makes volumes only there."""


class CSIDriver(KubeObject, tag="CSIDriver", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    spec: DriverSpec = DriverSpec()


class CSIStorageCapacity(KubeObject, tag="CSIStorageCapacity", tag_field="kind", frozen=True):
    """How much space there is for new volumes of a class, on some nodes."""

    metadata: Meta = Meta()
    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str | int | None = None
    maximum_volume_size: str | int | None = None
    """None where the driver does not say it."""

    @property
    def largest_bytes(self) -> int:
        """Of one volume."""
        size = self.capacity if self.maximum_volume_size is None else self.maximum_volume_size
        return 0 if size is None else whole(size)

    def holds(self, one_bytes: int, all_bytes: int) -> bool:
        """Whether there is space for a volume of that size among new ones of that sum."""
        return one_bytes <= self.largest_bytes and (self.capacity is None or all_bytes <= whole(self.capacity))

    def offers_more(self, than: CSIStorageCapacity) -> bool:
        """Whether there can be a volume for which the other one had no space."""
        return (
            (self.storage_class_name, self.node_topology) != (than.storage_class_name, than.node_topology)
            or self.largest_bytes > than.largest_bytes
            or whole(self.capacity or 0) > whole(than.capacity or 0)
            or (self.capacity is None) != (than.capacity is None)
        )
